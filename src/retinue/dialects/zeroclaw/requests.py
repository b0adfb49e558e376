"""The tools of `zeroclaw` as a model sees them, the parsing of their arguments, and the texts of the document.

Whatever a model writes raises nothing but `CallRefused`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast
from uuid import UUID

from msgspec import Struct

from retinue.core.agent import RunSpec, ToolSpec
from retinue.core.ids import RunId
from retinue.core.log_context import line
from retinue.core.run import Limits, Outcome
from retinue.core.text import clean_line, name_list, quote_headers
from retinue.dialects.arguments import compact, decode, list_of, name_schema, typed
from retinue.dialects.error_codes import CallRefused

if TYPE_CHECKING:
    from retinue.dialects.context import ProviderFamilies


SPAWN = "spawn_subagent"
DELEGATE = "delegate"

ACTIONS = ("delegate", "check_result", "list_results", "cancel_task", "await")
MAX_TASKS = 128
DEFAULT_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 120_000


class Handover(Struct, frozen=True):
    """One task for one agent; the call waits for it unless it runs in the `background`."""

    agent: str
    task: str
    background: bool = False


class Parallel(Struct, frozen=True):
    """The same task for several agents at once."""

    agents: tuple[str, ...]
    task: str


class CheckResult(Struct, frozen=True):
    """Read the result of a background task; `shown` is its id as the model wrote it."""

    task_id: str
    shown: str


class ListResults(Struct, frozen=True):
    """List all background tasks."""


class CancelTask(Struct, frozen=True):
    """Stop a background task."""

    task_id: str
    shown: str


class Await(Struct, frozen=True):
    """Wait for background tasks, at most `seconds`."""

    task_ids: tuple[str, ...]
    seconds: float


Request: TypeAlias = Handover | Parallel | CheckResult | ListResults | CancelTask | Await


# ---- the tools as a model sees them ---------------------------------------------------------------------------------


def spawn_spec() -> ToolSpec:
    """`spawn_subagent`."""
    return ToolSpec(
        SPAWN,
        "Run yourself again, under your own identity, for a focused subtask: same permissions, model, memory and "
        "tools, but a conversation of its own. The call returns when the subagent is done, with its final response "
        "alone. A subagent cannot spawn subagents. Use delegate to hand a task to a different agent.",
        compact(
            {
                "type": "object",
                "properties": {
                    "prompt": typed(
                        "string",
                        "The subtask. The subagent sees nothing of this conversation, so be self-contained and "
                        "explicit.",
                        minLength=1,
                    )
                },
                "required": ["prompt"],
                "additionalProperties": False,
            }
        ),
    )


def delegate_spec(agents: Sequence[str]) -> ToolSpec:
    """`delegate`, with the names of the configured agents."""
    return ToolSpec(
        DELEGATE,
        "Hand a task to a different configured agent, which works under its own identity, permissions and model. "
        "By default the call waits for its response. With background it returns a task_id at once: look at the result "
        "with check_result, list_results or await, stop the task with cancel_task. With parallel several agents get "
        "the same task and work at the same time.",
        compact(
            {
                "type": "object",
                "properties": {
                    "action": typed(
                        "string", "What to do; delegate unless said otherwise.", enum=list(ACTIONS), default="delegate"
                    ),
                    "agent": {
                        **name_schema(agents),
                        "minLength": 1,
                        "description": f"The agent that gets the task. Available: {available(agents)}",
                    },
                    "prompt": typed("string", "The task, self-contained and explicit.", minLength=1),
                    "context": typed("string", "What the agent should know besides, put in front of the task."),
                    "background": typed(
                        "boolean",
                        "Whether to return a task_id at once, instead of waiting for the response.",
                        default=False,
                    ),
                    "parallel": list_of(
                        "string",
                        "Names of agents that get the same task at the same time; agent and background are then left "
                        "out of account.",
                    ),
                    "task_id": typed("string", "A background task, for check_result and cancel_task."),
                    "task_ids": list_of(
                        "string", "Background tasks, for await.", minItems=1, maxItems=MAX_TASKS, uniqueItems=True
                    ),
                    "timeout_ms": typed(
                        "integer",
                        f"How long await waits; {DEFAULT_TIMEOUT_MS} by default.",
                        minimum=0,
                        maximum=MAX_TIMEOUT_MS,
                        default=DEFAULT_TIMEOUT_MS,
                    ),
                },
                "additionalProperties": False,
            }
        ),
    )


def no_agent(alias: str) -> str:
    """The refusal for an alias that no agent has."""
    return f"no agent configured under alias {json.dumps(alias)}"


def spawn_failed(reason: str) -> str:
    """The refusal for a run that could not be started."""
    return f"subagent spawn failed: {reason}"


def available(agents: Sequence[str]) -> str:
    """The names of the agents, in the order of the settings; of very many the first ones.

    >>> available(["reviewer", "writer"]), available([])
    ('reviewer, writer', '(none configured)')
    """
    return name_list(agents) if agents else "(none configured)"


# ---- reading a call -------------------------------------------------------------------------------------------------


def prompt_of(arguments: str) -> str:
    """The prompt of `spawn_subagent`, unchanged."""
    prompt = _members(arguments).get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise CallRefused("Missing or empty 'prompt' parameter")
    return prompt


def parse(arguments: str) -> Request:
    """The request of a call of `delegate`, checked in the document's order.

    >>> parse('{"agent": "reviewer", "prompt": "Look.", "context": "It is late."}').task
    '[Context]\\nIt is late.\\n\\n[Task]\\nLook.'
    """
    fields = _members(arguments)
    match fields.get("action", "delegate"):
        case "delegate":
            return _delegation(fields)
        case "check_result":
            return CheckResult(*_task_id(fields, "check_result"))
        case "list_results":
            return ListResults()
        case "cancel_task":
            return CancelTask(*_task_id(fields, "cancel_task"))
        case "await":
            return Await(_task_ids(fields), _seconds(fields))
        case other:
            raise CallRefused(f"Unknown action '{_shown(other)}'. Use delegate/check_result/list_results/cancel_task.")


def _delegation(fields: Mapping[str, object]) -> Handover | Parallel:
    parallel = fields.get("parallel")
    if parallel is not None:
        agents = _parallel(parallel)
        return Parallel(agents, _task(fields, " for parallel execution"))
    agent = fields.get("agent")
    if not isinstance(agent, str):
        raise CallRefused("Missing 'agent' parameter")
    if not agent.strip():
        raise CallRefused("'agent' parameter must not be empty")
    task = _task(fields, "")
    background = fields.get("background", False)
    if not isinstance(background, bool):
        raise CallRefused("'background' parameter must be a boolean")
    return Handover(agent.strip(), task, background)


def _parallel(given: object) -> tuple[str, ...]:
    entries = cast("list[object]", given) if isinstance(given, list) else []
    if not any(isinstance(entry, str) and entry.strip() for entry in entries):
        raise CallRefused("'parallel' array must contain at least one agent name")
    # An entry that is no string is refused as an unknown agent; leaving it out would hide the error.
    return tuple(entry.strip() if isinstance(entry, str) else _shown(entry) for entry in entries)


def _task(fields: Mapping[str, object], where: str) -> str:
    prompt, context = fields.get("prompt"), fields.get("context", "")
    if not isinstance(prompt, str):
        raise CallRefused(f"Missing 'prompt' parameter{where}")
    if not prompt.strip():
        raise CallRefused("'prompt' parameter must not be empty")
    if not isinstance(context, str):
        raise CallRefused("'context' parameter must be a string")
    return f"[Context]\n{context}\n\n[Task]\n{prompt}" if context.strip() else prompt


def _task_id(fields: Mapping[str, object], action: str) -> tuple[str, str]:
    task_id = fields.get("task_id")
    if not isinstance(task_id, str):
        raise CallRefused(f"Missing 'task_id' parameter for {action}")
    return _uuid(task_id), task_id


def _task_ids(fields: Mapping[str, object]) -> tuple[str, ...]:
    given = fields.get("task_ids")
    if not isinstance(given, list):
        raise CallRefused("Missing 'task_ids' parameter for await")
    entries = cast("list[object]", given)
    if not 1 <= len(entries) <= MAX_TASKS:
        raise CallRefused(f"'task_ids' array must contain between 1 and {MAX_TASKS} task ids")
    task_ids = tuple(_uuid(entry if isinstance(entry, str) else _shown(entry)) for entry in entries)
    if len(set(task_ids)) < len(task_ids):
        raise CallRefused("'task_ids' array must not contain duplicates")
    return task_ids


def _seconds(fields: Mapping[str, object]) -> float:
    timeout = fields.get("timeout_ms", DEFAULT_TIMEOUT_MS)
    is_whole = (isinstance(timeout, int) and not isinstance(timeout, bool)) or (
        isinstance(timeout, float) and timeout.is_integer()
    )
    if not is_whole or not 0 <= cast("float", timeout) <= MAX_TIMEOUT_MS:
        raise CallRefused(f"'timeout_ms' parameter must be an integer between 0 and {MAX_TIMEOUT_MS}")
    return cast("float", timeout) / 1000


def _uuid(task_id: str) -> str:
    """The canonical task id, which is also the name of its file: nothing else becomes part of a path."""
    try:
        return str(UUID(task_id)) if len(task_id) <= 64 else str(UUID(""))
    except ValueError:
        raise CallRefused(f"Invalid task_id '{task_id}': must be a valid UUID") from None


def _members(arguments: str) -> Mapping[str, object]:
    """The members of the call; null means absent, and arguments that are no object have none."""
    try:
        given = decode(arguments, dict[str, object], refuse=CallRefused)
    except CallRefused:
        return {}
    return {name: value for name, value in given.items() if value is not None}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else compact(value)


# ---- texts of results and of scheduled jobs -------------------------------------------------------------------------

NO_OUTPUT = "subagent completed without output"
EMPTY = "[Empty response]"
BY_USER = "Cancelled by user request"
BY_PARENT = "Cancelled by parent session"
PARALLEL_FAILED = "One or more parallel agents failed"


class Answer(Struct, frozen=True):
    """The result of a delegated task: its output, or an error."""

    output: str = ""
    error: str | None = None


class Target(Struct, frozen=True):
    """The agent of a delegated task, its wire and model, and its time limit."""

    agent: str
    wire: str
    model: str
    seconds: float | None = None

    @classmethod
    def of(cls, run_spec: RunSpec, limits: Limits, families: ProviderFamilies) -> Target:
        return cls(run_spec.agent, families.wire(run_spec.provider), run_spec.model, limits.seconds)

    def answer(self, outcome: Outcome) -> Answer:
        """The answer about its end.

        >>> target = Target("t", "anthropic", "haiku", 1.0)
        >>> target.answer(Outcome(result="completed", reason="answered", text="Done.")).output
        "[Agent 't' (anthropic/haiku)]\\nDone."
        >>> target.answer(Outcome(result="timed_out", reason="deadline")).error
        "Agent 't' timed out after 1s"
        """
        if outcome.result == "completed":
            body = outcome.text if outcome.text.strip() else EMPTY
            return Answer(f"[Agent '{self.agent}' ({self.wire}/{self.model})]\n{body}")
        if outcome.result == "timed_out" and self.seconds is not None:
            return Answer(error=f"Agent '{self.agent}' timed out after {self.seconds:g}s")
        return Answer(error=f"Agent '{self.agent}' failed: {why(outcome)}")


def why(outcome: Outcome) -> str:
    if outcome.result == "exhausted" and outcome.reason == "max_turns" and outcome.limit is not None:
        return f"Agent exceeded maximum tool iterations ({outcome.limit.limit})"
    return outcome.error or outcome.reason


def started(agent: str, task_id: str) -> str:
    """The answer about a task that was started in the background."""
    return (
        f"Background task started for agent '{agent}'.\n"
        f"task_id: {task_id}\n"
        f"Use action='check_result' with task_id='{task_id}' to retrieve the result."
    )


_AGENT_HEADER = re.compile(r"\[Agent '[^'\n]*' \([^\n]*\)\]")


def fanned_out(answers: Sequence[tuple[str, Answer]]) -> str:
    """The results of several agents, in the order of the request.

    >>> print(fanned_out([("a", Answer("Yes.")), ("b", Answer(error="Agent 'b' failed: no"))]))
    [Parallel delegation: 2 agents]
    <BLANKLINE>
    --- a (success=true) ---
    Yes.
    <BLANKLINE>
    --- b (success=false) ---
    Error: Agent 'b' failed: no
    """
    blocks = (
        f"--- {agent} (success=true) ---\n{_in_block(answer.output)}"
        if answer.error is None
        else f"--- {agent} (success=false) ---\nError: {quote_headers(answer.error)}"
        for agent, answer in answers
    )
    return "\n\n".join((f"[Parallel delegation: {len(answers)} agents]", *blocks))


def _in_block(output: str) -> str:
    """The output of one of several agents: its own header stays, and no other line looks like one."""
    header, newline, text = output.partition("\n")
    if not _AGENT_HEADER.fullmatch(header):
        return quote_headers(output)
    return f"{header}{newline}{quote_headers(text)}"


def interrupted(task_id: str) -> str:
    """The error of a task whose process stopped."""
    return (
        "Interrupted: the process that worked on this task stopped before it was done. "
        f"Go on with it: retinue runs resume {task_id}"
    )


BLOCKED = "blocked by security policy"
_OTHER_PREFIX = "Security policy: "
"""The beginning of a tool's refusal because of a policy."""


class ZeroclawCronTexts:
    """The texts of scheduled jobs, for `retinue.dispatch.cron`.

    >>> texts = ZeroclawCronTexts()
    >>> texts.prompt("report", "Dig.", [("pool", "too small")])
    '[Memory context]\\n- pool: too small\\n[/Memory context]\\n\\n[cron:report report] Dig.'
    >>> texts.span("dig", "report", "r1")
    'subagent category="cron" agent_alias=dig cron_job_id=report run_id=r1 spawn_site="cron"'
    """

    def prompt(self, job: str, prompt: str, memories: Sequence[tuple[str, str]]) -> str:
        lines = "".join(f"- {clean_line(key)}: {quote_headers(content)}\n" for key, content in memories)
        context = f"[Memory context]\n{lines}[/Memory context]\n\n" if lines else ""
        return f"{context}[cron:{job} {job}] {prompt}"

    def blocked(self, reason: str) -> str:
        return f"{BLOCKED}: {reason}"

    def tool_refusal(self, text: str) -> str:
        """A tool's refusal because of the policy in the form of `blocked`; any other text is unchanged.

        >>> ZeroclawCronTexts().tool_refusal("Security policy: rm is not allowed")
        'blocked by security policy: rm is not allowed'
        """
        return self.blocked(text.removeprefix(_OTHER_PREFIX)) if text.startswith(_OTHER_PREFIX) else text

    def unknown_agent(self, alias: str) -> str:
        return spawn_failed(no_agent(alias))

    def spawn_failed(self, reason: str) -> str:
        return spawn_failed(reason)

    def span(self, agent: str, job: str, run_id: RunId | None) -> str:
        return f'subagent category="cron" {line(agent_alias=agent, cron_job_id=job, run_id=run_id)} spawn_site="cron"'
