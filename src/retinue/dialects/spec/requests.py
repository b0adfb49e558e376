"""What an orchestrator can ask of the `subagent` tool: requests, parsed and checked before anything happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.dialects.arguments import (
    Coded,
    Members,
    action_of,
    fields_of,
    integer_of,
    mistyped,
    positive_of,
    switched_off,
    text_of,
    texts_of,
)
from retinue.dialects.spec.schema import SUBAGENT, actions_of
from retinue.dialects.spec.settings import SUBAGENT_EXTENSIONS

MAX_TASK_TOKENS = 1000
MAX_PROMPT_TOKENS = 4000
MAX_NAME_CHARACTERS = 64
DEFAULT_TURNS = 10
MAX_TURNS = 25
DEFAULT_WAIT_MS = 600_000
MAX_WAIT_MS = 3_600_000

ALL = frozenset(SUBAGENT_EXTENSIONS)

_AGENT_NAME = re.compile(r"[a-z0-9_-]+")


class ListAgents(Struct, frozen=True):
    """Which specialists are there?"""


class Define(Struct, frozen=True, kw_only=True):
    """Register a new specialist; an empty model means the orchestrator's own."""

    name: str
    description: str
    system_prompt: str
    tools: tuple[str, ...] = ()
    model: str = ""
    max_turns: int = DEFAULT_TURNS


class Extend(Struct, frozen=True, kw_only=True):
    """Register a specialist that is like another one; what is None is as it is there."""

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
    """Let a specialist that was defined before be another one from now on."""

    definition: Definition


class Spawn(Struct, frozen=True):
    """Start a task on a specialist, after other tasks if it depends on some."""

    agent: str
    task: str
    depends_on: tuple[str, ...] = ()
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


class Status(Struct, frozen=True):
    """How far is the task?"""

    task_id: str


class Collect(Struct, frozen=True):
    """Take the result of a finished task; afterwards its id is no longer valid."""

    task_id: str


class Cancel(Struct, frozen=True):
    """Stop the task and take what it has; afterwards its id is no longer valid."""

    task_id: str


class Progress(Struct, frozen=True):
    """What has the subagent said and done lately?"""

    task_id: str


class Wait(Struct, frozen=True):
    """Come back when some of these tasks are over: any, all or so many of them."""

    task_ids: tuple[str, ...]
    mode: Literal["any", "all"] | int = "all"
    timeout_ms: int = DEFAULT_WAIT_MS

    @property
    def needed(self) -> int:
        """How many of the tasks have to be over."""
        match self.mode:
            case "all":
                return len(self.task_ids)
            case "any":
                return min(1, len(self.task_ids))
            case count:
                return min(count, len(self.task_ids))


Request: TypeAlias = ListAgents | Define | Extend | Redefine | Spawn | Status | Collect | Cancel | Progress | Wait


def tokens(text: str) -> int:
    """How much a text counts against the limits.

    >>> tokens(""), tokens("x" * 4003), tokens("x" * 4004)
    (0, 1000, 1001)
    """
    return len(text) // 4


def parse(arguments: str, extensions: AbstractSet[str] = ALL) -> Request:
    """The request that a call makes; raises `Coded` when it cannot be made out."""
    fields = fields_of(arguments)
    match action_of(fields, actions_of(extensions)):
        case "list_agents":
            return ListAgents()
        case "define":
            return _definition(fields, extensions)
        case "redefine":
            return Redefine(_definition(fields, extensions))
        case "spawn":
            return _spawn(fields, extensions)
        case "status":
            return Status(text_of(fields, "task_id"))
        case "cancel":
            return Cancel(text_of(fields, "task_id"))
        case "progress":
            return Progress(text_of(fields, "task_id"))
        case "wait":
            return _wait(fields)
        case _:
            return Collect(text_of(fields, "task_id"))


def _definition(fields: Members, extensions: AbstractSet[str]) -> Definition:
    switched_off(fields, "extends", "system_prompt_append", extension="extends", on=extensions)
    if "extends" in fields:
        return Extend(
            name=text_of(fields, "name"),
            extends=text_of(fields, "extends"),
            description=text_of(fields, "description") if "description" in fields else None,
            system_prompt=text_of(fields, "system_prompt") if "system_prompt" in fields else None,
            system_prompt_append=text_of(fields, "system_prompt_append", ""),
            tools=without_delegation(texts_of(fields, "tools")) if "tools" in fields else None,
            model=text_of(fields, "model") if "model" in fields else None,
            max_turns=clamped(integer_of(fields, "max_turns", DEFAULT_TURNS)) if "max_turns" in fields else None,
        )
    if "system_prompt_append" in fields:
        raise Coded("INVALID_REQUEST", "Field 'system_prompt_append' needs 'extends'.")
    return Define(
        name=text_of(fields, "name"),
        description=text_of(fields, "description"),
        system_prompt=text_of(fields, "system_prompt"),
        tools=without_delegation(texts_of(fields, "tools")),
        model=text_of(fields, "model", ""),
        max_turns=clamped(integer_of(fields, "max_turns", DEFAULT_TURNS)),
    )


def _spawn(fields: Members, extensions: AbstractSet[str]) -> Spawn:
    switched_off(fields, "depends_on", extension="depends_on", on=extensions)
    switched_off(fields, "max_input_tokens", "max_output_tokens", extension="budgets", on=extensions)
    return Spawn(
        text_of(fields, "agent"),
        text_of(fields, "task"),
        tuple(dict.fromkeys(texts_of(fields, "depends_on"))),
        positive_of(fields, "max_input_tokens"),
        positive_of(fields, "max_output_tokens"),
    )


def _wait(fields: Members) -> Wait:
    task_ids = tuple(dict.fromkeys(texts_of(fields, "task_ids", required=True)))
    timeout_ms = min(max(integer_of(fields, "timeout_ms", DEFAULT_WAIT_MS), 0), MAX_WAIT_MS)
    return Wait(task_ids, _mode(fields), timeout_ms)


def _mode(fields: Members) -> Literal["any", "all"] | int:
    match fields.get("mode", "all"):
        case "any":
            return "any"
        case "all":
            return "all"
        case int() | float():
            return positive_of(fields, "mode") or 1
        case str(other):
            raise Coded("INVALID_REQUEST", f"Field 'mode' must be 'any', 'all' or a number of tasks, got: {other!r}")
        case found:
            raise mistyped("mode", "'any', 'all' or a number of tasks", found)


def without_delegation(tools: tuple[str, ...]) -> tuple[str, ...]:
    """The tools that a subagent may have: it never delegates further, so `subagent` is left out without a word.

    >>> without_delegation(("search_logs", "subagent", "search_logs"))
    ('search_logs',)
    """
    return tuple(name for name in dict.fromkeys(tools) if name != SUBAGENT)


def clamped(max_turns: int | None) -> int:
    """The turns that a subagent gets: what was asked for, within 1 to 25; 10 when nothing was.

    >>> clamped(100), clamped(0), clamped(7), clamped(None)
    (25, 1, 7, 10)
    """
    return DEFAULT_TURNS if max_turns is None else min(max(max_turns, 1), MAX_TURNS)


def check_definition(request: Define, is_registered_tool: Callable[[str], bool]) -> None:
    """Refuse a definition with a bad name, too long a prompt or an unknown tool, in this order."""
    check_agent_name(request.name)
    check_prompt(request.system_prompt)
    check_tools(request.tools, is_registered_tool)


def check_agent_name(name: str) -> None:
    """Refuse a name that is too short, too long or has other characters than it may."""
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise Coded("INVALID_AGENT_NAME", f"Agent name must be 1-{MAX_NAME_CHARACTERS} characters, got {len(name)}.")
    if not _AGENT_NAME.fullmatch(name):
        raise Coded("INVALID_AGENT_NAME", f"Agent name must match [a-z0-9_-]+, got: {name!r}")


def check_prompt(system_prompt: str) -> None:
    """Refuse a prompt that is no focused instruction any more."""
    size = tokens(system_prompt)
    if size > MAX_PROMPT_TOKENS:
        raise Coded("PROMPT_TOO_LARGE", f"System prompt is ~{size} tokens, max is {MAX_PROMPT_TOKENS}.")


def check_tools(tools: Iterable[str], is_registered_tool: Callable[[str], bool]) -> None:
    """Refuse tools that the application does not have."""
    for tool in tools:
        if not is_registered_tool(tool):
            raise Coded("INVALID_TOOL", f"Tool not in application registry: {tool!r}")


def check_task(task: str) -> None:
    """Refuse a task that should have been written to shared context instead."""
    size = tokens(task)
    if size > MAX_TASK_TOKENS:
        raise Coded("TASK_TOO_LARGE", f"Task string is ~{size} tokens, max is {MAX_TASK_TOKENS}.")
