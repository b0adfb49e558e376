"""Requests to the `subagent` tool: the schema that a model sees, parsing, and checks before anything is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.text import name_list
from retinue.dialects.arguments import Fields, action_tool, list_of, mistyped, name_list_schema, typed
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.settings import SUBAGENT_EXTENSIONS

SUBAGENT = "subagent"

CORE = ("list_agents", "define", "spawn", "status", "collect")
EXTRA_ACTIONS = ("redefine", "cancel", "progress", "wait")
"""Actions that are extensions of the same name."""

ABOUT = (
    "Delegate tasks to specialist agents that work in the background. list_agents shows the specialists, define adds "
    "one, spawn starts a task and returns its task_id at once, status tells how far a task is, and collect takes the "
    "result of a finished task."
)
ABOUT_ACTIONS = {
    "list_agents": "the specialists there are.",
    "define": "register a new one.",
    "spawn": "start a task; returns at once.",
    "status": "whether a task is running, completed or failed.",
    "collect": "the result of a completed or failed task; its task_id is invalid afterwards.",
    "redefine": "replace an agent that you defined; running tasks keep the old one.",
    "cancel": "stop a task and take what it has so far; its task_id is invalid afterwards.",
    "progress": "the latest texts, tool calls and tool results of a task.",
    "wait": "return when tasks are over, or at the timeout; better than asking for status again and again.",
}


def actions_of(extensions: AbstractSet[str]) -> tuple[str, ...]:
    """The actions with these extensions switched on.

    >>> actions_of({"cancel", "hint"})
    ('list_agents', 'define', 'spawn', 'status', 'collect', 'cancel')
    """
    return (*CORE, *(action for action in EXTRA_ACTIONS if action in extensions))


def spec_of(
    extensions: AbstractSet[str],
    tools: Sequence[str] | None = None,
    models: Sequence[str] = (),
    agents: Sequence[str] = (),
) -> ToolSpec:
    """The tool's name, description and parameters.

    `tools` are those that a defined agent can be given, None if they are not known; `models` those of other agents, and
    `agents` those that are registered from the start.
    """
    actions = actions_of(extensions)
    more = [action for action in actions if action in EXTRA_ACTIONS]
    further = f" There are also {', '.join(more[:-1])} and {more[-1]}." if len(more) > 1 else ""
    if len(more) == 1:
        further = f" There is also {more[0]}."
    described = {action: ABOUT_ACTIONS[action] for action in actions}
    return action_tool(SUBAGENT, ABOUT + further, described, _properties(extensions, tools, models, agents))


def _properties(
    extensions: AbstractSet[str], tools: Sequence[str] | None, models: Sequence[str], agents: Sequence[str]
) -> dict[str, object]:
    properties: dict[str, object] = {}
    define = "define and redefine" if "redefine" in extensions else "define"
    new = "" if "redefine" in extensions else "new, "
    required = "required unless extends is given" if "extends" in extensions else "required"
    properties["name"] = typed(
        "string",
        f"{define}, required: a {new}unique name; lowercase letters, digits, underscores and hyphens, "
        "1 to 64 characters.",
    )
    properties["description"] = typed("string", f"{define}, {required}: the agent's purpose in one line.")
    properties["system_prompt"] = typed(
        "string", f"{define}, {required}: focused instructions for the agent; at most 4000 tokens."
    )
    if "extends" in extensions:
        properties["extends"] = typed(
            "string", f"{define}: an agent to begin with; what you do not give is as it is there."
        )
        properties["system_prompt_append"] = typed(
            "string", f"{define} with extends: instructions to add after those of that agent."
        )
    properties["tools"] = name_list_schema(
        tools, f"{define}: the names of the agent's tools; none by default. Agents cannot delegate."
    )
    in_use = f" Models of other agents: {name_list(models)}." if models else ""
    properties["model"] = typed("string", f"{define}: the agent's model; yours by default.{in_use}")
    properties["max_turns"] = typed("integer", f"{define}: how many turns the agent may take, 1 to 25; 10 by default.")
    # No enumeration: an agent can be defined and spawned in one reply.
    known = f" Registered: {name_list(agents)}; others have to be defined first." if agents else ""
    properties["agent"] = typed("string", f"spawn, required: the name of the agent to run.{known}")
    properties["task"] = typed(
        "string",
        "spawn, required: what to do, at most 1000 tokens. The agent sees nothing of this conversation: refer to "
        "shared context keys for more.",
    )
    if "depends_on" in extensions:
        properties["depends_on"] = list_of(
            "string",
            "spawn: ids of tasks that have to complete first; the task is pending until then and is given their "
            "results. It fails if one of them fails.",
        )
    if "budgets" in extensions:
        properties["max_input_tokens"] = typed("integer", "spawn: the input tokens that the task may use; from 1.")
        properties["max_output_tokens"] = typed("integer", "spawn: the output tokens that the task may use; from 1.")
    users = ["status", "collect", *(action for action in ("cancel", "progress") if action in extensions)]
    properties["task_id"] = typed(
        "string", f"{', '.join(users[:-1])} and {users[-1]}, required: the task, such as t_01."
    )
    if "wait" in extensions:
        properties["task_ids"] = list_of("string", "wait, required: the tasks to wait for.")
        properties["mode"] = {
            "anyOf": [{"type": "string", "enum": ["any", "all"]}, {"type": "integer", "minimum": 1}],
            "description": "wait: how many of the tasks have to be over: any, all (the default), or a number.",
        }
        properties["timeout_ms"] = typed(
            "integer", "wait: milliseconds after which to return anyway; 600000 by default, at most 3600000."
        )
    return properties


MAX_TASK_TOKENS = 1000
MAX_PROMPT_TOKENS = 4000
MAX_NAME_CHARACTERS = 64
DEFAULT_TURNS = 10
MAX_TURNS = 25
DEFAULT_WAIT_MS = 600_000
MAX_WAIT_MS = 3_600_000

ALL = frozenset(SUBAGENT_EXTENSIONS)

_ABSENT_IF_EMPTY = ("model", "extends", "system_prompt_append", "depends_on", "mode")
"""Optional fields for which the document gives an empty value no meaning of its own; a budget of 0 is an error."""

_AGENT_NAME = re.compile(r"[a-z0-9_-]+")


class ListAgents(Struct, frozen=True):
    """List the agents."""


class Define(Struct, frozen=True, kw_only=True):
    """Register a new agent; an empty model means the orchestrator's own."""

    name: str
    description: str
    system_prompt: str
    tools: tuple[str, ...] = ()
    model: str = ""
    max_turns: int = DEFAULT_TURNS


class Extend(Struct, frozen=True, kw_only=True):
    """Register an agent that extends another one; a field that is None is taken from there."""

    name: str
    extends: str
    description: str | None = None
    system_prompt: str | None = None
    system_prompt_append: str = ""
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_turns: int | None = None


Definition: TypeAlias = Define | Extend


class Redefine(Struct, frozen=True):
    """Replace an agent that was defined before."""

    definition: Definition


class Spawn(Struct, frozen=True):
    """Start a task on an agent, after the tasks that it depends on."""

    agent: str
    task: str
    depends_on: tuple[str, ...] = ()
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


class GetStatus(Struct, frozen=True):
    """Report the state of a task."""

    task_id: str


class Collect(Struct, frozen=True):
    """Take the result of a finished task; its id is invalid afterwards."""

    task_id: str


class CancelTask(Struct, frozen=True):
    """Stop a task and take its partial result; its id is invalid afterwards."""

    task_id: str


class GetProgress(Struct, frozen=True):
    """Report the latest texts, calls and results of a task."""

    task_id: str


class WaitForTasks(Struct, frozen=True):
    """Wait until any, all or a number of these tasks have ended."""

    task_ids: tuple[str, ...]
    mode: Literal["any", "all"] | int = "all"
    timeout_ms: int = DEFAULT_WAIT_MS

    @property
    def needed(self) -> int:
        """How many of the tasks have to end."""
        match self.mode:
            case "all":
                return len(self.task_ids)
            case "any":
                return min(1, len(self.task_ids))
            case count:
                return min(count, len(self.task_ids))


SubagentRequest: TypeAlias = (
    ListAgents | Define | Extend | Redefine | Spawn | GetStatus | Collect | CancelTask | GetProgress | WaitForTasks
)


def tokens(text: str) -> int:
    """The estimated tokens of a text, as the limits of the document count them.

    >>> tokens(""), tokens("x" * 4003), tokens("x" * 4004)
    (0, 1000, 1001)
    """
    return len(text) // 4


def parse(arguments: str, extensions: AbstractSet[str] = ALL) -> SubagentRequest:
    """The request of a call; raises `CodedRefusal` if the arguments are not valid."""
    fields = Fields.parse(arguments).without_empty(*_ABSENT_IF_EMPTY)
    match fields.action(actions_of(extensions)):
        case "list_agents":
            return ListAgents()
        case "define":
            return _definition(fields, extensions)
        case "redefine":
            return Redefine(_definition(fields, extensions))
        case "spawn":
            return _spawn(fields, extensions)
        case "status":
            return GetStatus(fields.text("task_id"))
        case "cancel":
            return CancelTask(fields.text("task_id"))
        case "progress":
            return GetProgress(fields.text("task_id"))
        case "wait":
            return _wait(fields)
        case _:
            return Collect(fields.text("task_id"))


def _definition(fields: Fields, extensions: AbstractSet[str]) -> Definition:
    fields.refuse_unless("extends", extensions, "extends", "system_prompt_append")
    if "extends" in fields:
        return Extend(
            name=fields.text("name"),
            extends=fields.text("extends"),
            description=fields.optional_text("description"),
            system_prompt=fields.optional_text("system_prompt"),
            system_prompt_append=fields.text("system_prompt_append", ""),
            tools=without_delegation(fields.texts("tools")) if "tools" in fields else None,
            model=fields.optional_text("model"),
            max_turns=clamped(fields.integer("max_turns", DEFAULT_TURNS)) if "max_turns" in fields else None,
        )
    if "system_prompt_append" in fields:
        raise CodedRefusal("INVALID_REQUEST", "Field 'system_prompt_append' needs 'extends'.")
    return Define(
        name=fields.text("name"),
        description=fields.text("description"),
        system_prompt=fields.text("system_prompt"),
        tools=without_delegation(fields.texts("tools")),
        model=fields.text("model", ""),
        max_turns=clamped(fields.integer("max_turns", DEFAULT_TURNS)),
    )


def _spawn(fields: Fields, extensions: AbstractSet[str]) -> Spawn:
    fields.refuse_unless("depends_on", extensions, "depends_on")
    fields.refuse_unless("budgets", extensions, "max_input_tokens", "max_output_tokens")
    # `name` belongs to define; small models take it for the name of the agent here, too.
    return Spawn(
        fields.text("name" if "agent" not in fields and "name" in fields else "agent"),
        fields.text("task"),
        fields.texts("depends_on"),
        fields.positive("max_input_tokens"),
        fields.positive("max_output_tokens"),
    )


def _wait(fields: Fields) -> WaitForTasks:
    task_ids = fields.texts("task_ids", required=True)
    timeout_ms = min(max(fields.integer("timeout_ms", DEFAULT_WAIT_MS), 0), MAX_WAIT_MS)
    return WaitForTasks(task_ids, _mode(fields), timeout_ms)


def _mode(fields: Fields) -> Literal["any", "all"] | int:
    match fields.get("mode", "all"):
        case "any":
            return "any"
        case "all":
            return "all"
        case int() | float():
            return fields.positive("mode") or 1
        case str(other):
            raise CodedRefusal(
                "INVALID_REQUEST", f"Field 'mode' must be 'any', 'all' or a number of tasks, got: {other!r}"
            )
        case mode:
            raise mistyped("mode", "'any', 'all' or a number of tasks", mode)


def without_delegation(tools: tuple[str, ...]) -> tuple[str, ...]:
    """The tools that a subagent may have: `subagent` is left out without an error, since it cannot delegate.

    >>> without_delegation(("search_logs", "subagent", "search_logs"))
    ('search_logs',)
    """
    return tuple(name for name in dict.fromkeys(tools) if name != SUBAGENT)


def clamped(max_turns: int | None) -> int:
    """The turns of a subagent: the requested number within 1 to 25; 10 by default.

    >>> clamped(100), clamped(0), clamped(7), clamped(None)
    (25, 1, 7, 10)
    """
    return DEFAULT_TURNS if max_turns is None else min(max(max_turns, 1), MAX_TURNS)


def check_definition(request: Define, registry: Sequence[str]) -> None:
    """Refuse an invalid name, a prompt that is too long or a tool that is not in the registry, in this order."""
    check_agent_name(request.name)
    check_prompt(request.system_prompt)
    check_tools(request.tools, registry)


def check_agent_name(name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise CodedRefusal(
            "INVALID_AGENT_NAME", f"Agent name must be 1-{MAX_NAME_CHARACTERS} characters, got {len(name)}."
        )
    if not _AGENT_NAME.fullmatch(name):
        raise CodedRefusal("INVALID_AGENT_NAME", f"Agent name must match [a-z0-9_-]+, got: {name!r}")


def check_prompt(system_prompt: str) -> None:
    size = tokens(system_prompt)
    if size > MAX_PROMPT_TOKENS:
        raise CodedRefusal("PROMPT_TOO_LARGE", f"System prompt is ~{size} tokens, max is {MAX_PROMPT_TOKENS}.")


def check_tools(tools: Iterable[str], registry: Sequence[str]) -> None:
    for tool in tools:
        if tool not in registry:
            message = f"Tool not in application registry: {tool!r}"
            raise CodedRefusal("INVALID_TOOL", message, available_tools=name_list(registry))


def check_task(task: str) -> None:
    """Refuse a task that is too long; its details belong into shared context."""
    size = tokens(task)
    if size > MAX_TASK_TOKENS:
        raise CodedRefusal("TASK_TOO_LARGE", f"Task string is ~{size} tokens, max is {MAX_TASK_TOKENS}.")
