"""A sub-agent as answers of `meerkat` show it: its name, its state, its output or error."""

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

SUB_AGENT, FORK_AGENT, HOST_AGENT = "sub-agent", "fork", "host"
"""The agents of children. A host, which stays alive and serves messages, is named like any sub-agent."""

MAX_ENDED = 256
"""How many ended sub-agents of a tree are remembered."""

ROOT_NAME = "parent"
"""The name of the root among its children."""


def name_of(run_id: RunId, agent: str) -> str:
    """A child's name.

    >>> name_of("019467d9-7e3a-7000-8000-000000000000", SUB_AGENT)
    'sub-agent-019467d97e3a'
    """
    return f"{FORK_AGENT if agent == FORK_AGENT else SUB_AGENT}-{run_id.replace('-', '')[:12]}"


def own_name(context: CallContext) -> str:
    """The caller's name among its peers."""
    return ROOT_NAME if context.depth == 0 else name_of(context.run_id, context.agent)


def state_of(outcome: Outcome | None, agent: str) -> State:
    """A child's state; a host that has used up its budget is completed."""
    if outcome is None:
        return "running"
    match outcome.result:
        case "completed" | "cancelled":
            return outcome.result
        case "exhausted" if agent == HOST_AGENT:
            return "completed"
        case _:
            return "failed"


def output_of(outcome: Outcome, last_words: str = "") -> str:
    """The output of a completed child; `last_words` if it ended without a text, as a stopped host does."""
    return outcome.text or last_words


def error_of(outcome: Outcome) -> str:
    """Why a child failed, in the texts of the document for used-up budgets."""
    if (limit := outcome.limit) is not None and outcome.result == "exhausted":
        match limit.reason:
            case "max_turns":
                return f"Max turns reached: {limit.limit}"
            case "max_calls":
                return f"Tool call budget exceeded: {limit.used} calls > {limit.limit} limit"
            case "max_tokens":
                return f"Token budget exceeded: used {limit.used}, limit {limit.limit}"
            case _:
                pass  # limits of the tree, which no sub-agent has of its own
    return outcome.error or outcome.reason


def status(view: RunView, now: float, *, last_words: str = "") -> dict[str, object]:
    """The answer to `agent_status`, without fields that do not apply."""
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
    if view.agent == FORK_AGENT and state == "completed":
        answer["cached_tokens"] = view.usage.cached
    return answer


class ListRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """A sub-agent in a list; `running_ms` is for running ones."""

    id: RunId
    name: str
    state: State
    depth: int
    running_ms: int | None = None


def running_row(accepted: RunAccepted, now: float) -> ListRow:
    run_id = accepted.run_id
    since = max(0, round((now - accepted.at) * 1000))
    return ListRow(run_id, name_of(run_id, accepted.agent), "running", accepted.depth, since)


def ended_row(view: RunView) -> ListRow:
    return ListRow(view.run_id, name_of(view.run_id, view.agent), state_of(view.outcome, view.agent), view.depth)


def listing(rows: Iterable[ListRow]) -> dict[str, object]:
    """The answer to `agent_list`, in the order in which the children were started."""
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
