"""A subagent's conversation as `xzatoma` shows it afterwards: who said what, and how it ended.

It is a view of what the store knows of a run, and is kept nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.commands import RunRow
from retinue.core.events import Event, HistoryCompacted
from retinue.core.ids import RunId
from retinue.core.messages import Message
from retinue.core.state import Run, fold
from retinue.dialects.xzatoma.quotas import DIALECT
from retinue.dialects.xzatoma.requests import DELEGATION
from retinue.dialects.xzatoma.retention import DROP


class Conversation(Struct, frozen=True, kw_only=True):
    """One subagent: `parent_id` is None for a child of the root, which is no subagent itself."""

    id: RunId
    parent_id: RunId | None
    label: str
    depth: int
    task: str
    messages: tuple[Message, ...]
    started_at: float
    completed_at: float | None
    status: str
    turns_used: int
    tokens_consumed: int
    max_turns_reached: bool
    allowed_tools: tuple[str, ...]


def kept(rows: Iterable[RunRow], trees: Mapping[RunId, bytes]) -> list[RunRow]:
    """The subagents among these runs whose messages are there to stay; `trees` are those still to be dealt with."""
    return [
        row
        for row in rows
        if row.dialect == DIALECT and row.parent_id is not None and row.seq > 0 and trees.get(row.root_id) != DROP
    ]


def conversation(row: RunRow, events: Iterable[tuple[int, Event]], run_spec: RunSpec) -> Conversation:
    """What a subagent's row and log tell; what was left out of a long history for the model's sake is not left out."""
    run = fold([(seq, event) for seq, event in events if not isinstance(event, HistoryCompacted)], run_spec)
    limited = _ran_out_of_turns(run)
    return Conversation(
        id=row.run_id,
        parent_id=row.parent_id if row.depth > 1 else None,
        label=row.label,
        depth=row.depth,
        task=run.accepted.task,
        messages=tuple(run.history),
        started_at=row.accepted_at,
        completed_at=row.progress.ended_at,
        status=_status(run, limited),
        turns_used=run.turns,
        tokens_consumed=run.usage.total,
        max_turns_reached=limited,
        allowed_tools=tuple(name for name in run_spec.offered if name not in DELEGATION),
    )


def _ran_out_of_turns(run: Run) -> bool:
    first = run.exchanges[0] if run.exchanges else run.outcome
    return first is not None and first.reason == "max_turns"


def _status(run: Run, limited: bool) -> str:
    """The document's words, and `running` for a subagent that has not ended."""
    if run.outcome is None:
        return "running"
    answers = run.exchanges[1:] if limited else run.exchanges
    if run.outcome.result != "completed" or any(each.result != "completed" for each in answers):
        return "failed"
    return "incomplete" if limited else "complete"
