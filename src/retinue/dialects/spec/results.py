"""A task as its orchestrator sees it: pending, running, completed or failed, with a result cut to size or a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

from msgspec import Struct

from retinue.core.run import Outcome
from retinue.dialects.arguments import Coded
from retinue.dialects.spec.requests import tokens
from retinue.dialects.text import cut
from retinue.engine import RunView

HANDLE_SPACE = "spec"
HANDLE_FORMAT = "t_{:02d}"

MAX_RESULT_TOKENS = 1000
RESULT_CHARACTERS = 4000
TRUNCATED = "\n[truncated — full response exceeded 1000 token limit]"

TURN_LIMIT = "Max turns exceeded without producing a final response"

CANCELLED = "cancelled by the orchestrator"
"""The note on a task that its orchestrator has cancelled, by which it is told apart from one that others stopped."""

HINT = "Status was asked for more than {limit} times within {seconds:g} s. Do other work before you ask again{or_wait}."

INTERRUPTED = "Nobody works on this task: its process is gone. It goes on when its run is resumed, or can be cancelled."

TaskStatus = Literal["pending", "running", "completed", "failed"]


class Task(Struct, frozen=True, kw_only=True):
    """One spawned run under its task id; `turns_used` counts the replies so far, `outcome` is None until it is over.

    It is `pending` while it waits for other tasks and has not begun. One that `is_interrupted` is neither over nor
    worked on: the process that did is gone.
    """

    task_id: str
    agent: str
    turns_used: int = 0
    outcome: Outcome | None = None
    pending: bool = False
    is_interrupted: bool = False

    @property
    def status(self) -> TaskStatus:
        """One of the words of the dialect; what is over and not completed has failed."""
        if self.outcome is None:
            return "pending" if self.pending else "running"
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


def cancelled(task: Task) -> dict[str, object]:
    """What `cancel` answers; a task that was over before answers as it does to `collect`."""
    if task.outcome is None or task.outcome.error != CANCELLED:
        return collected(task)
    partial = result(task.outcome.text) or None
    return spawned(task) | {"status": "cancelled", "result": partial, "turns_used": task.turns_used}


def waited(tasks: Sequence[Task], needed: int) -> dict[str, object]:
    """What `wait` answers: who is over and who is not, in the order of asking."""
    done = [task.task_id for task in tasks if task.outcome is not None]
    pending = [task.task_id for task in tasks if task.outcome is None]
    return {"done": done, "pending": pending, "timed_out": len(done) < needed}


def hint(limit: int, seconds: float, *, can_wait: bool) -> str:
    """What an orchestrator reads that asks for status too often.

    >>> hint(10, 10.0, can_wait=False)
    'Status was asked for more than 10 times within 10 s. Do other work before you ask again.'
    """
    or_wait = ", or use the wait action" if can_wait else ""
    return HINT.format(limit=limit, seconds=seconds, or_wait=or_wait)


def not_ready(task: Task) -> Coded:
    """The task is still at work, or has not begun: check back later."""
    if task.pending:
        return Coded("TASK_NOT_READY", f"Task {task.task_id!r} is still pending: it waits for other tasks.")
    return Coded("TASK_NOT_READY", f"Task {task.task_id!r} is still running (turns_used={task.turns_used}).")


def not_found(task_id: str) -> Coded:
    """There is no such task, or it was collected already."""
    return Coded("TASK_NOT_FOUND", f"Unknown or already-collected task: {task_id!r}")


def only_for_the_orchestrator() -> Coded:
    """A subagent neither starts tasks nor touches those of others."""
    return Coded("INVALID_REQUEST", "Subagents cannot delegate; only the orchestrator can.")


def too_many_running(limit: int) -> Coded:
    """As many tasks are at work as there may be."""
    return Coded("MAX_TASKS_EXCEEDED", f"Maximum concurrent tasks ({limit}) reached.")


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
        case "failed" if outcome.reason == "dependency":
            return outcome.error
        case "exhausted" if outcome.reason == "max_tokens" and outcome.limit is not None:
            return f"Token budget exceeded: used {outcome.limit.used}, limit {outcome.limit.limit}"
        case "cancelled" if outcome.error == CANCELLED:
            return f"Task {CANCELLED}"
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
