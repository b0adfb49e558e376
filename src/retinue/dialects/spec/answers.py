"""What a model reads of `spec`: system texts, and answers about tasks: their states, results, failures and progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, assert_never

from msgspec import Struct

from retinue.core.agent import RESULTS_PLACEHOLDER, Agent
from retinue.core.attachments import with_labels
from retinue.core.messages import AssistantMessage, ToolMessage
from retinue.core.run import Outcome
from retinue.core.state import Run
from retinue.core.text import cut
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.shared_context import NAME as SHARED_CONTEXT
from retinue.dialects.shared_context import participant_text
from retinue.dialects.spec.requests import SUBAGENT, tokens
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

INTERRUPTED = (
    "No process works on this task: its process is gone. It goes on when its run is resumed, or can be cancelled."
)

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
    """The answer to `collect`; raises `CodedRefusal` while the task runs."""
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


def not_ready(task: Task) -> CodedRefusal:
    if task.pending:
        return CodedRefusal("TASK_NOT_READY", f"Task {task.task_id!r} is still pending: it waits for other tasks.")
    return CodedRefusal("TASK_NOT_READY", f"Task {task.task_id!r} is still running (turns_used={task.turns_used}).")


def not_found(task_id: str) -> CodedRefusal:
    return CodedRefusal("TASK_NOT_FOUND", f"Unknown or already-collected task: {task_id!r}")


def only_for_the_orchestrator() -> CodedRefusal:
    return CodedRefusal("INVALID_REQUEST", "Subagents cannot delegate; only the orchestrator can.")


def too_many_running(limit: int) -> CodedRefusal:
    return CodedRefusal("MAX_TASKS_EXCEEDED", f"Maximum concurrent tasks ({limit}) reached.")


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
            case ToolMessage(name=name, text=text, attachments=attachments):
                yield ProgressEntry(turn, "result", _short(f"{name}: {with_labels(text, attachments)}"))
            case _:
                pass
    for open_call in run.open:  # results enter the history together, after the last of them
        if open_call.result is not None:
            result = with_labels(open_call.result.text, open_call.result.attachments)
            yield ProgressEntry(turn, "result", _short(f"{open_call.call.name}: {result}"))


def _first_turn(run: Run) -> int:
    # Counted from the end, because compaction shortens a history at its beginning.
    return run.turns - sum(isinstance(message, AssistantMessage) for message in run.history) + 1


def _short(text: str) -> str:
    return cut(text, ENTRY_CHARACTERS, LEFT_OUT).text


SUFFIX = (
    "You are a subagent. Keep your final response concise (under 1000 tokens). Write detailed findings to shared "
    "context rather than including them in your response. Your response will be returned to the orchestrator as a "
    "summary of your work."
)
"""The end of every subagent's system text."""

DISCIPLINE = """\
When you delegate:

DO:
  - Write the context that a subagent needs to shared_context BEFORE you spawn it
  - Give each task one clear, narrow objective
  - Name shared context keys in the task instead of pasting what they hold
  - Collect results soon, and bring the findings of several agents together
  - Define a new agent when the task needs a specialist that is not registered

Do NOT:
  - Delegate what a single tool call of your own would settle
  - Give the same task to several agents
  - Put raw data into the task; shared context is the place for it
  - Expect a subagent to know this conversation: it sees its task and shared context, nothing else
  - Define agents with broad prompts; one focused capability each is better
  - Ask for status in a tight loop; do other work in between"""

COMPOSITION = """\
Subagents and shared context go together:

  1. BEFORE spawning, write the problem, its scope and its constraints to shared context.
  2. In the TASK, be short and name the keys, as in "Analyze the issue in problem_summary".
  3. DURING its work, the subagent reads from shared context and writes to it.
  4. AFTER collecting, read the keys that the subagent wrote: the collected result is a summary, shared context has the
     details."""

ABOUT_EXTENSIONS = {
    "wait": "Have nothing else to do? wait returns when tasks are over, instead of asking for status again and again.",
    "depends_on": "A task that needs the results of others: spawn it at once with depends_on. It begins when they have "
    "completed, and is given their results.",
    "cancel": "No longer need a task? cancel stops it and gives you what it has.",
    "progress": "Wonder whether a long task is on the right track? progress shows what it did last.",
    "extends": "A variant of an agent: define it with extends and system_prompt_append.",
    "redefine": "An agent that you defined does not work well: redefine it. Running tasks keep the old definition.",
    "budgets": "A task that could get expensive: spawn it with max_input_tokens and max_output_tokens.",
}
"""How to use each extension of the tool, the most useful first."""

DEPENDENCIES = f"The tasks that yours depends on have completed. Their results:\n\n{RESULTS_PLACEHOLDER}"
"""The part for a subagent with dependencies; the results replace the placeholder when it starts."""


def orchestrator_text(
    agents: Sequence[Agent], offered: Sequence[str], extensions: AbstractSet[str] = frozenset()
) -> str:
    """The root's text about the tools it is offered: its specialists, how to delegate, and how to share."""
    shares = SHARED_CONTEXT in offered
    parts = [specialists(agents), DISCIPLINE] if SUBAGENT in offered else []
    if parts and (about_extensions := further(extensions)):
        parts.append(about_extensions)
    if parts and shares:
        parts.append(COMPOSITION)
    if shares:
        parts.append(participant_text(extensions))
    return "\n\n".join(parts)


def further(extensions: AbstractSet[str]) -> str:
    """How to use the extensions that are switched on; empty if none is.

    >>> print(further({"cancel"}))
    The subagent tool can do more:
    <BLANKLINE>
      - No longer need a task? cancel stops it and gives you what it has.
    """
    rows = [f"  - {usage}" for name, usage in ABOUT_EXTENSIONS.items() if name in extensions]
    return "\n\n".join(("The subagent tool can do more:", "\n".join(rows))) if rows else ""


def specialists(agents: Sequence[Agent]) -> str:
    """The registered agents, each with its purpose and its tools.

    >>> print(specialists([Agent(name="writer", description="Drafts reports.", tools=("shared_context",))]))
    Specialist agents that you can delegate to with the subagent tool:
    <BLANKLINE>
      writer - Drafts reports. Tools: shared_context.
    <BLANKLINE>
    If none of them fits the task at hand, define a new agent with the define action; list_agents shows those too.
    """
    if not agents:
        return (
            "You can delegate to specialist agents with the subagent tool. None is registered yet: define the agents "
            "that the task needs with the define action; list_agents shows them."
        )
    rows = "\n".join(f"  {agent.name} - {_purpose(agent)}" for agent in agents)
    return (
        f"Specialist agents that you can delegate to with the subagent tool:\n\n{rows}\n\n"
        "If none of them fits the task at hand, define a new agent with the define action; list_agents shows those too."
    )


def subagent_text(
    system_prompt: str, offered: Sequence[str], extensions: AbstractSet[str] = frozenset(), *, depends: bool = False
) -> str:
    """A subagent's system text: its instructions, results of dependencies, the text for participants, the suffix."""
    results = DEPENDENCIES if depends else ""
    shared = participant_text(extensions) if SHARED_CONTEXT in offered else ""
    return "\n\n".join(part for part in (system_prompt, results, shared, SUFFIX) if part)


def _purpose(agent: Agent) -> str:
    purpose = agent.description.rstrip()
    stop = "" if not purpose or purpose.endswith((".", "!", "?")) else "."
    tools = ", ".join(tool for tool in agent.tools if tool != SUBAGENT)
    return f"{purpose}{stop} Tools: {tools or 'none'}.".lstrip()
