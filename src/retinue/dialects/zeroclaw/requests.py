"""The tools of `zeroclaw` as a model sees them, and the parsing of their arguments.

Invalid arguments raise `CallRefused` alone, with a text of `answers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast
from uuid import UUID

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import compact_json, decode, list_of, name_schema, typed
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.zeroclaw import answers

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


DelegateRequest: TypeAlias = Handover | Parallel | CheckResult | ListResults | CancelTask | Await


# ---- the tools as a model sees them ---------------------------------------------------------------------------------


def spawn_spec() -> ToolSpec:
    """`spawn_subagent`."""
    return ToolSpec(
        SPAWN,
        "Run yourself again, under your own identity, for a focused subtask: same permissions, model, memory and "
        "tools, but a conversation of its own. The call returns when the subagent is done, with its final response "
        "alone. A subagent cannot spawn subagents. Use delegate to hand a task to a different agent.",
        compact_json(
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


def delegate_spec(agents: Sequence[str], *, caller: str = "") -> ToolSpec:
    """`delegate`, with the names of the configured agents; the `caller` cannot delegate to itself."""
    others = name_schema([name for name in agents if name != caller])
    return ToolSpec(
        DELEGATE,
        "Hand a task to a different configured agent, which works under its own identity, permissions and model. "
        "By default the call waits for its response. With background it returns a task_id at once: look at the result "
        "with check_result, list_results or await, stop the task with cancel_task. With parallel several agents get "
        "the same task and work at the same time.",
        compact_json(
            {
                "type": "object",
                "properties": {
                    "action": typed(
                        "string", "What to do; delegate unless said otherwise.", enum=list(ACTIONS), default="delegate"
                    ),
                    "agent": {
                        **others,
                        "minLength": 1,
                        "description": f"The agent that gets the task. Available: {answers.available(agents)}",
                    },
                    "prompt": typed("string", "The task, self-contained and explicit.", minLength=1),
                    "context": typed("string", "What the agent should know besides, put in front of the task."),
                    "background": typed(
                        "boolean",
                        "Whether to return a task_id at once, instead of waiting for the response.",
                        default=False,
                    ),
                    "parallel": typed(
                        "array",
                        "Names of agents that get the same task at the same time; agent and background are then left "
                        "out of account.",
                        items=others,
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


# ---- reading a call -------------------------------------------------------------------------------------------------


def prompt_of(arguments: str) -> str:
    """The prompt of `spawn_subagent`, unchanged."""
    prompt = _members(arguments).get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise CallRefused(answers.NO_PROMPT)
    return prompt


def parse(arguments: str) -> DelegateRequest:
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
            raise answers.unknown_action(_shown(other), ACTIONS[:4])


def _delegation(fields: Mapping[str, object]) -> Handover | Parallel:
    parallel = fields.get("parallel")
    if parallel is not None:
        agents = _parallel(parallel)
        return Parallel(agents, _task(fields, " for parallel execution"))
    agent = fields.get("agent")
    if not isinstance(agent, str):
        raise answers.missing("agent")
    if not agent.strip():
        raise answers.empty("agent")
    task = _task(fields, "")
    background = fields.get("background", False)
    if not isinstance(background, bool):
        raise answers.wrong("background", "a boolean")
    return Handover(agent.strip(), task, background)


def _parallel(given: object) -> tuple[str, ...]:
    entries = cast("list[object]", given) if isinstance(given, list) else []
    if not any(isinstance(entry, str) and entry.strip() for entry in entries):
        raise answers.wrong_list("parallel", "contain at least one agent name")
    # An entry that is no string is refused as an unknown agent; leaving it out would hide the error.
    return tuple(entry.strip() if isinstance(entry, str) else _shown(entry) for entry in entries)


def _task(fields: Mapping[str, object], where: str) -> str:
    prompt, context = fields.get("prompt"), fields.get("context", "")
    if not isinstance(prompt, str):
        raise answers.missing("prompt", where)
    if not prompt.strip():
        raise answers.empty("prompt")
    if not isinstance(context, str):
        raise answers.wrong("context", "a string")
    return f"[Context]\n{context}\n\n[Task]\n{prompt}" if context.strip() else prompt


def _task_id(fields: Mapping[str, object], action: str) -> tuple[str, str]:
    task_id = fields.get("task_id")
    if not isinstance(task_id, str):
        raise answers.missing("task_id", f" for {action}")
    return _uuid(task_id), task_id


def _task_ids(fields: Mapping[str, object]) -> tuple[str, ...]:
    given = fields.get("task_ids")
    if not isinstance(given, list):
        raise answers.missing("task_ids", " for await")
    entries = cast("list[object]", given)
    if not 1 <= len(entries) <= MAX_TASKS:
        raise answers.wrong_list("task_ids", f"contain between 1 and {MAX_TASKS} task ids")
    task_ids = tuple(_uuid(entry if isinstance(entry, str) else _shown(entry)) for entry in entries)
    if len(set(task_ids)) < len(task_ids):
        raise answers.wrong_list("task_ids", "not contain duplicates")
    return task_ids


def _seconds(fields: Mapping[str, object]) -> float:
    timeout = fields.get("timeout_ms", DEFAULT_TIMEOUT_MS)
    is_whole = (isinstance(timeout, int) and not isinstance(timeout, bool)) or (
        isinstance(timeout, float) and timeout.is_integer()
    )
    if not is_whole or not 0 <= cast("float", timeout) <= MAX_TIMEOUT_MS:
        raise answers.wrong("timeout_ms", f"an integer between 0 and {MAX_TIMEOUT_MS}")
    return cast("float", timeout) / 1000


def _uuid(task_id: str) -> str:
    """The canonical task id, which is also the name of its file: nothing else becomes part of a path."""
    try:
        return str(UUID(task_id)) if len(task_id) <= 64 else str(UUID(""))
    except ValueError:
        raise answers.invalid_task_id(task_id) from None


def _members(arguments: str) -> Mapping[str, object]:
    """The members of the call; null means absent, and arguments that are no object have none."""
    try:
        given = decode(arguments, dict[str, object], refuse=CallRefused)
    except CallRefused:
        return {}
    return {name: value for name, value in given.items() if value is not None}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else compact_json(value)
