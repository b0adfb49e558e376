"""Answers to the orchestrator: a task's state, its result cut to size or its failure, and its latest progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, assert_never

from msgspec import Struct

from retinue.core.messages import AssistantMessage, ToolMessage
from retinue.core.run import Outcome
from retinue.core.state import Run
from retinue.core.text import cut
from retinue.dialects.arguments import Coded
from retinue.dialects.spec.requests import tokens
from retinue.engine import RunView

HANDLE_SPACE = "spec"
HANDLE_FORMAT = "t_{:02d}"

MAX_RESULT_TOKENS = 1000
RESULT_CHARACTERS = 4000
TRUNCATED = "\n[truncated — full response exceeded 1000 token limit]"

TURN_LIMIT = "Max turns exceeded without producing a final response"

CANCELLED = "cancelled by the orchestrator"
"""The cancellation note of a task that its orchestrator cancelled; others have another note."""

HINT = "Status was asked for more than {limit} times within {seconds:g} s. Do other work before you ask again{or_wait}."

INTERRUPTED = "Nobody works on this task: its process is gone. It goes on when its run is resumed, or can be cancelled."

TaskStatus = Literal["pending", "running", "completed", "failed"]


class Task(Struct, frozen=True, kw_only=True):
    """A spawned run under its task id; `turns_used` counts the replies so far, `outcome` is None until it has ended.

    It is `pending` while it waits for other tasks, and `is_interrupted` if the process that drove it is gone.
    """

    task_id: str
    agent: str
    turns_used: int = 0
    outcome: Outcome | None = None
    pending: bool = False
    is_interrupted: bool = False

    @property
    def status(self) -> TaskStatus:
        """The document's word; a task that ended and is not completed has failed."""
        if self.outcome is None:
            return "pending" if self.pending else "running"
        return "completed" if self.outcome.result == "completed" else "failed"


def spawned(task: Task) -> dict[str, object]:
    """The answer to `spawn`."""
    return {"task_id": task.task_id, "agent": task.agent, "status": task.status}


def status(task: Task) -> dict[str, object]:
    """The answer to `status`, with the error of a failed task."""
    answer = spawned(task) | {"turns_used": task.turns_used}
    if task.outcome is not None and task.status == "failed":
        answer["error"] = failure(task.outcome)
    return answer


def collected(task: Task) -> dict[str, object]:
    """The answer to `collect`; raises `Coded` while the task runs."""
    if task.outcome is None:
        raise not_ready(task)
    return status(task) | {"result": result(task.outcome.text) if task.status == "completed" else None}


def cancelled(task: Task) -> dict[str, object]:
    """The answer to `cancel`; for a task that had ended before, the answer to `collect`."""
    if task.outcome is None or task.outcome.error != CANCELLED:
        return collected(task)
    partial = result(task.outcome.text) or None
    return spawned(task) | {"status": "cancelled", "result": partial, "turns_used": task.turns_used}


def waited(tasks: Sequence[Task], needed: int) -> dict[str, object]:
    """The answer to `wait`: the tasks that have ended and the others, in the order of the request."""
    done = [task.task_id for task in tasks if task.outcome is not None]
    pending = [task.task_id for task in tasks if task.outcome is None]
    return {"done": done, "pending": pending, "timed_out": len(done) < needed}


def hint(limit: int, seconds: float, *, can_wait: bool) -> str:
    """The hint to an orchestrator that polls too often.

    >>> hint(10, 10.0, can_wait=False)
    'Status was asked for more than 10 times within 10 s. Do other work before you ask again.'
    """
    or_wait = ", or use the wait action" if can_wait else ""
    return HINT.format(limit=limit, seconds=seconds, or_wait=or_wait)


def not_ready(task: Task) -> Coded:
    if task.pending:
        return Coded("TASK_NOT_READY", f"Task {task.task_id!r} is still pending: it waits for other tasks.")
    return Coded("TASK_NOT_READY", f"Task {task.task_id!r} is still running (turns_used={task.turns_used}).")


def not_found(task_id: str) -> Coded:
    return Coded("TASK_NOT_FOUND", f"Unknown or already-collected task: {task_id!r}")


def only_for_the_orchestrator() -> Coded:
    return Coded("INVALID_REQUEST", "Subagents cannot delegate; only the orchestrator can.")


def too_many_running(limit: int) -> Coded:
    return Coded("MAX_TASKS_EXCEEDED", f"Maximum concurrent tasks ({limit}) reached.")


def cancelled_notice(tree: Iterable[RunView]) -> str | None:
    """A line about the tasks that were still running when their orchestrator ended; None if there were none."""
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
    """A subagent's final response, cut to the limit of the document.

    >>> result("x" * 4003) == "x" * 4003
    True
    >>> result("x" * 4004) == "x" * 4000 + "\\n[truncated — full response exceeded 1000 token limit]"
    True
    """
    return text if tokens(text) <= MAX_RESULT_TOKENS else cut(text, RESULT_CHARACTERS, TRUNCATED).text


def failure(outcome: Outcome) -> str:
    """Why a task failed, in the texts of the document."""
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


MAX_ENTRIES = 20
ENTRY_CHARACTERS = 400
LEFT_OUT = " [...]"


class ProgressEntry(Struct, frozen=True):
    """One item of a turn: a text of the model, a tool call, or a tool result."""

    turn: int
    kind: Literal["text", "call", "result"]
    text: str


def progress(task: Task, run: Run | None, partial: str = "") -> dict[str, object]:
    """The answer to `progress`: the newest entries, oldest first; `partial` is the text that is being streamed."""
    entries = [] if run is None else list(_entries(run))
    if run is not None and partial:
        entries.append(ProgressEntry(run.turns + 1, "text", _short(partial)))
    return {
        "task_id": task.task_id,
        "status": task.status,
        "turns_used": task.turns_used,
        "entries": entries[-MAX_ENTRIES:],
        "more": len(entries) > MAX_ENTRIES or (run is not None and _first_turn(run) > 1),
    }


def _entries(run: Run) -> Iterator[ProgressEntry]:
    turn = _first_turn(run) - 1
    for message in run.history:
        match message:
            case AssistantMessage(text=text, calls=calls):
                turn += 1
                if text:
                    yield ProgressEntry(turn, "text", _short(text))
                for call in calls:
                    yield ProgressEntry(turn, "call", _short(f"{call.name} {call.arguments}"))
            case ToolMessage(name=name, text=text):
                yield ProgressEntry(turn, "result", _short(f"{name}: {text}"))
            case _:
                pass
    for open_call in run.open:  # results enter the history together, after the last of them
        if open_call.result is not None:
            yield ProgressEntry(turn, "result", _short(f"{open_call.call.name}: {open_call.result.text}"))


def _first_turn(run: Run) -> int:
    # Counted from the end, because compaction shortens a history at its beginning.
    return run.turns - sum(isinstance(message, AssistantMessage) for message in run.history) + 1


def _short(text: str) -> str:
    return cut(text, ENTRY_CHARACTERS, LEFT_OUT).text
