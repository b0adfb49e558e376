"""A sub-agent as `meerkat` shows it: its name, its state in the four words of the document, its output or error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ports import CallContext
from retinue.core.run import Outcome
from retinue.engine import RunView

State = Literal["running", "completed", "failed", "cancelled"]

SUB_AGENT, FORK, HOST = "sub-agent", "fork", "host"
"""What a child's agent is called. A host, which stays and serves messages, is named like any sub-agent."""

KEPT = 256
"""How many sub-agents that are over can still be asked about."""

ROOT_NAME = "parent"
"""What the root is called among its children."""


def name_of(run_id: RunId, agent: str) -> str:
    """A child's name.

    >>> name_of("019467d9-7e3a-7000-8000-000000000000", SUB_AGENT)
    'sub-agent-019467d97e3a'
    """
    return f"{FORK if agent == FORK else SUB_AGENT}-{run_id.replace('-', '')[:12]}"


def own_name(context: CallContext) -> str:
    """What the caller is called among its peers."""
    return ROOT_NAME if context.depth == 0 else name_of(context.run_id, context.agent)


def state_of(outcome: Outcome | None, agent: str) -> State:
    """A child's state; a host whose budget is spent has done what it was there for."""
    if outcome is None:
        return "running"
    match outcome.result:
        case "completed" | "cancelled":
            return outcome.result
        case "exhausted" if agent == HOST:
            return "completed"
        case _:
            return "failed"


def output_of(outcome: Outcome, last_words: str = "") -> str:
    """What a child that completed has to say; a host that was stopped in silence, what it had said last."""
    return outcome.text or last_words


def error_of(outcome: Outcome) -> str:
    """Why a child failed; a spent budget has words of its own."""
    if (limit := outcome.limit) is not None and outcome.result == "exhausted":
        match limit.reason:
            case "max_turns":
                return f"Max turns reached: {limit.limit}"
            case "max_calls":
                return f"Tool call budget exceeded: {limit.used} calls > {limit.limit} limit"
            case "max_tokens":
                return f"Token budget exceeded: used {limit.used}, limit {limit.limit}"
            case _:
                pass  # limits that no sub-agent is given, but its tree may have
    return outcome.error or outcome.reason


def status(view: RunView, now: float, *, last_words: str = "") -> dict[str, object]:
    """What `agent_status` answers; a field that says nothing is left out."""
    outcome = view.outcome
    state = state_of(outcome, view.agent)
    answer: dict[str, object] = {"agent_id": view.run_id, "state": state}
    if outcome is not None and state == "completed":
        answer["output"] = output_of(outcome, last_words)
    if outcome is not None and state == "failed":
        answer["error"] = error_of(outcome)
    answer["is_final"] = state != "running"
    answer["duration_ms"] = _milliseconds(view, now)
    if state == "completed":
        answer["tokens_used"] = view.usage.total
    elif state == "failed":
        answer["tokens_used"] = 0
    if view.agent == FORK and state == "completed":
        answer["cached_tokens"] = view.usage.cached
    return answer


class Row(Struct, frozen=True, gc=False, omit_defaults=True):
    """A sub-agent in a list; only running ones say for how long."""

    id: RunId
    name: str
    state: State
    depth: int
    running_ms: int | None = None


def running_row(accepted: RunAccepted, now: float) -> Row:
    """One that runs."""
    run_id = accepted.run_id
    since = max(0, round((now - accepted.at) * 1000))
    return Row(run_id, name_of(run_id, accepted.agent), "running", accepted.depth, since)


def ended_row(view: RunView) -> Row:
    """One that is over."""
    return Row(view.run_id, name_of(view.run_id, view.agent), state_of(view.outcome, view.agent), view.depth)


def listing(rows: Iterable[Row]) -> dict[str, object]:
    """What `agent_list` answers, in the order in which the children were started."""
    agents = sorted(rows, key=lambda row: row.id)
    counts = Counter(row.state for row in agents)
    return {
        "agents": agents,
        "running_count": counts["running"],
        "completed_count": counts["completed"],
        "failed_count": counts["failed"] + counts["cancelled"],
        "total_count": len(agents),
    }


def _milliseconds(view: RunView, now: float) -> int:
    until = now if view.ended_at is None else view.ended_at
    return max(0, round((until - view.started_at) * 1000))
