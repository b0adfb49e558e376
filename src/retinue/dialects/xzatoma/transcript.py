"""Transcripts of subagents, read from the stored events of their runs, and the text that `retinue replay` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import Event, HistoryCompacted
from retinue.core.ids import RunId
from retinue.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from retinue.core.state import Run, fold
from retinue.core.text import rfc3339
from retinue.dialects.xzatoma import NAME, TOOL_NAMES
from retinue.dialects.xzatoma.retention import DROP, SPACE
from retinue.engine import Supervisor


class Transcript(Struct, frozen=True, kw_only=True):
    """One subagent's conversation; `parent_id` is None for a child of the root, which is no subagent itself."""

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


# ---- reading --------------------------------------------------------------------------------------------------------


class KeptTranscripts:
    """The transcripts of a store; `clean` makes a text safe for a terminal."""

    def __init__(self, supervisor: Supervisor, clean: Callable[[str], str] = str) -> None:
        self._stored = supervisor.stored
        self._key_value = supervisor.key_value
        self._text = _Text(clean)

    async def rows(self) -> list[RunRow]:
        """The runs that have a transcript, newest first."""
        trees = await self._key_value.look(SPACE)
        return kept(await self._stored.runs(RunQuery()), trees)

    async def read(self, rows: Sequence[RunRow]) -> list[Transcript]:
        return [await self._transcript(row) for row in rows]

    async def find(self, run_id: RunId) -> Transcript | None:
        row = next((row for row in await self.rows() if row.run_id == run_id), None)
        return None if row is None else await self._transcript(row)

    async def _transcript(self, row: RunRow) -> Transcript:
        events = await self._stored.events(row.run_id)
        return transcript(row, events, await self._stored.run_spec(row.run_spec))

    async def listing(self, *, limit: int, offset: int) -> str:
        page = (await self.rows())[offset : offset + limit]
        return "\n".join(self._text.listing(await self.read(page), limit, offset))

    async def conversation(self, run_id: RunId) -> str | None:
        transcript = await self.find(run_id)
        return None if transcript is None else "\n".join(self._text.conversation(transcript))

    async def tree(self, run_id: RunId | None, *, limit: int, offset: int) -> str | None:
        rows = await self.rows()
        if run_id is None:
            tops = [row for row in rows if row.depth == 1][offset : offset + limit]
        else:
            tops = [row for row in rows if row.run_id == run_id]
            if not tops:
                return None
        return "\n".join(self._text.tree(tops, rows))


def kept(rows: Iterable[RunRow], trees: Mapping[RunId, bytes]) -> list[RunRow]:
    """The subagents among these runs whose messages are kept; `trees` have their retention still to be applied."""
    return [
        row
        for row in rows
        if row.dialect == NAME and row.parent_id is not None and row.seq > 0 and trees.get(row.root_id) != DROP
    ]


def transcript(row: RunRow, events: Iterable[tuple[int, Event]], run_spec: RunSpec) -> Transcript:
    """The transcript of a run, with the messages that compaction removed from the model's history."""
    run = fold([(seq, event) for seq, event in events if not isinstance(event, HistoryCompacted)], run_spec)
    limited = _ran_out_of_turns(run)
    return Transcript(
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
        allowed_tools=tuple(name for name in run_spec.offered if name not in TOOL_NAMES),
    )


def _ran_out_of_turns(run: Run) -> bool:
    first = run.exchanges[0] if run.exchanges else run.outcome
    return first is not None and first.reason == "max_turns"


def _status(run: Run, limited: bool) -> str:
    """The status in the document's words, and `running` for a subagent that has not ended."""
    if run.outcome is None:
        return "running"
    answers = run.exchanges[1:] if limited else run.exchanges
    if run.outcome.result != "completed" or any(exchange.result != "completed" for exchange in answers):
        return "failed"
    return "incomplete" if limited else "complete"


# ---- rendering ------------------------------------------------------------------------------------------------------


class _Text:
    """The lines that `retinue replay` prints."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean

    def listing(self, page: Sequence[Transcript], limit: int, offset: int) -> Iterator[str]:
        yield f"Conversations (showing {limit} starting at {offset}):"
        for transcript in page:
            yield ""
            yield f"ID:     {transcript.id}"
            yield f"Label:  {self._one_line(transcript.label)}"
            yield f"Depth:  {transcript.depth}"
            yield f"Status: {transcript.status}"
            yield f"Turns:  {transcript.turns_used}"
            yield f"Start:  {rfc3339(transcript.started_at)}"
            if transcript.parent_id is not None:
                yield f"Parent: {transcript.parent_id}"

    def conversation(self, transcript: Transcript) -> Iterator[str]:
        yield f"=== Conversation {transcript.id} ==="
        yield f"Label: {self._one_line(transcript.label)}"
        yield f"Depth: {transcript.depth}"
        yield f"Started: {rfc3339(transcript.started_at)}"
        if transcript.completed_at is not None:
            yield f"Completed: {rfc3339(transcript.completed_at)}"
        yield from ("", f"Task: {self._clean(transcript.task)}", "", "=== Messages ===", "")
        for number, message in enumerate(transcript.messages, 1):
            yield f"--- Message {number} ({_role(message)}) ---"
            yield from self._message(message)
            yield ""
        yield "=== Metadata ==="
        yield f"Turns Used: {transcript.turns_used}"
        yield f"Tokens Consumed: {transcript.tokens_consumed}"
        yield f"Status: {transcript.status}"
        yield f"Max Turns Reached: {str(transcript.max_turns_reached).lower()}"
        yield f"Allowed Tools: {json.dumps(transcript.allowed_tools, ensure_ascii=False)}"

    def _message(self, message: Message) -> Iterator[str]:
        yield self._clean(message.text) or "(no content)"
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                yield f"Tool call: {self._one_line(call.name)} {self._clean(call.arguments)}"

    def tree(self, tops: Sequence[RunRow], rows: Sequence[RunRow]) -> Iterator[str]:
        below: dict[str | None, list[RunRow]] = {}
        for row in reversed(rows):  # oldest first
            below.setdefault(row.parent_id, []).append(row)
        yield "Conversation tree:"
        waiting = [(row, 0) for row in reversed(tops)]
        while waiting:
            row, level = waiting.pop()
            turns = row.progress.turns
            yield f"{'  ' * level}├─ {row.run_id} [{self._one_line(row.label)}] (depth={row.depth}, turns={turns})"
            waiting += [(child, level + 1) for child in reversed(below.get(row.run_id, []))]

    def _one_line(self, text: str) -> str:
        return " ".join(self._clean(text).split())


def _role(message: Message) -> str:
    match message:
        case UserMessage():
            return "user"
        case AssistantMessage():
            return "assistant"
        case ToolMessage():
            return "tool"
