"""A task as its orchestrator sees it: running, completed or failed, with a result cut to size or a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never

from msgspec import Struct

from retinue.core.run import Outcome
from retinue.dialects.coded import Coded
from retinue.dialects.render import cut
from retinue.dialects.spec_requests import tokens
from retinue.engine.view import RunView

HANDLE_SPACE = "spec"
HANDLE_FORMAT = "t_{:02d}"
MAX_RUNNING = 5

MAX_RESULT_TOKENS = 1000
RESULT_CHARACTERS = 4000
TRUNCATED = "\n[truncated — full response exceeded 1000 token limit]"

TURN_LIMIT = "Max turns exceeded without producing a final response"

TaskStatus = Literal["running", "completed", "failed"]


class Task(Struct, frozen=True, kw_only=True):
    """One spawned run under its task id; `turns_used` counts the replies so far, `outcome` is None while it runs."""

    task_id: str
    agent: str
    turns_used: int = 0
    outcome: Outcome | None = None

    @property
    def status(self) -> TaskStatus:
        """One of the three words of the dialect; whatever is neither running nor completed has failed."""
        if self.outcome is None:
            return "running"
        return "completed" if self.outcome.result == "completed" else "failed"


def spawned(task: Task) -> dict[str, object]:
    """What `spawn` answers."""
    return {"task_id": task.task_id, "agent": task.agent, "status": task.status}


def status(task: Task) -> dict[str, object]:
    """What `status` answers; a failed task says why."""
    answer = spawned(task) | {"turns_used": task.turns_used}
    if task.outcome is not None and task.status == "failed":
        answer["error"] = failure(task.outcome)
    return answer


def collected(task: Task) -> dict[str, object]:
    """What `collect` answers for a task that is over; refused while it runs."""
    if task.outcome is None:
        raise not_ready(task)
    return status(task) | {"result": result(task.outcome.text) if task.status == "completed" else None}


def not_ready(task: Task) -> Coded:
    """The task is still at work: check back later."""
    return Coded("TASK_NOT_READY", f"Task {task.task_id!r} is still running (turns_used={task.turns_used}).")


def not_found(task_id: str) -> Coded:
    """There is no such task, or it was collected already."""
    return Coded("TASK_NOT_FOUND", f"Unknown or already-collected task: {task_id!r}")


def too_many_running() -> Coded:
    """Five tasks are at work."""
    return Coded("MAX_TASKS_EXCEEDED", f"Maximum concurrent tasks ({MAX_RUNNING}) reached.")


def cancelled_notice(tree: Iterable[RunView]) -> str | None:
    """A line about the tasks that were still running when their orchestrator ended; None when there were none."""
    names = [
        view.handle.name
        for view in tree
        if view.handle is not None
        and view.handle.space == HANDLE_SPACE
        and view.outcome is not None
        and view.outcome.reason == "parent_ended"
    ]
    ids = sorted(names, key=lambda name: (len(name), name))
    return f"cancelled {len(ids)} running task(s): {', '.join(ids)}" if ids else None


def result(text: str) -> str:
    """A subagent's final response as the orchestrator gets it.

    >>> result("x" * 4003) == "x" * 4003
    True
    >>> result("x" * 4004) == "x" * 4000 + "\\n[truncated — full response exceeded 1000 token limit]"
    True
    """
    return text if tokens(text) <= MAX_RESULT_TOKENS else cut(text, RESULT_CHARACTERS, TRUNCATED).text


def failure(outcome: Outcome) -> str:
    """Why a task failed, in the dialect's words."""
    match outcome.result:
        case "failed" if outcome.reason == "model_error":
            return f"Model API error: {outcome.error}"
        case "failed" if outcome.reason == "tool_error":
            return f"Tool execution error in turn {outcome.turns}: {outcome.error}"
        case "exhausted" if outcome.reason == "max_turns":
            return TURN_LIMIT
        case "cancelled":
            return f"Task cancelled: {outcome.error}" if outcome.error not in ("", "cancelled") else "Task cancelled"
        case "failed" | "timed_out" | "exhausted" | "completed":
            return f"Task {outcome.result.replace('_', ' ')}: {outcome.error or outcome.reason}"
        case _:
            assert_never(outcome.result)
