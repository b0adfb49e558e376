"""What an orchestrator can ask of the `subagent` tool: five requests, parsed and checked before anything happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from retinue.dialects.coded import Coded, action_of, fields_of, integer_of, text_of, texts_of
from retinue.dialects.spec_texts import ACTIONS, NAME

MAX_TASK_TOKENS = 1000
MAX_PROMPT_TOKENS = 4000
MAX_NAME_CHARACTERS = 64
DEFAULT_TURNS = 10
MAX_TURNS = 25

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


class Spawn(Struct, frozen=True):
    """Start a task on a specialist."""

    agent: str
    task: str


class Status(Struct, frozen=True):
    """How far is the task?"""

    task_id: str


class Collect(Struct, frozen=True):
    """Take the result of a finished task; afterwards its id is no longer valid."""

    task_id: str


Request: TypeAlias = ListAgents | Define | Spawn | Status | Collect


def tokens(text: str) -> int:
    """How much a text counts against the limits.

    >>> tokens(""), tokens("x" * 4003), tokens("x" * 4004)
    (0, 1000, 1001)
    """
    return len(text) // 4


def parse(arguments: str) -> Request:
    """The request that a call makes; raises `Coded` when it cannot be made out."""
    fields = fields_of(arguments)
    match action_of(fields, ACTIONS):
        case "list_agents":
            return ListAgents()
        case "define":
            return Define(
                name=text_of(fields, "name"),
                description=text_of(fields, "description"),
                system_prompt=text_of(fields, "system_prompt"),
                tools=without_delegation(texts_of(fields, "tools")),
                model=text_of(fields, "model", ""),
                max_turns=clamped(integer_of(fields, "max_turns", DEFAULT_TURNS)),
            )
        case "spawn":
            return Spawn(text_of(fields, "agent"), text_of(fields, "task"))
        case "status":
            return Status(text_of(fields, "task_id"))
        case _:
            return Collect(text_of(fields, "task_id"))


def without_delegation(tools: tuple[str, ...]) -> tuple[str, ...]:
    """The tools that a subagent may have: it never delegates further, so `subagent` is left out without a word.

    >>> without_delegation(("search_logs", "subagent", "search_logs"))
    ('search_logs',)
    """
    return tuple(name for name in dict.fromkeys(tools) if name != NAME)


def clamped(max_turns: int | None) -> int:
    """The turns that a subagent gets: what was asked for, within 1 to 25; 10 when nothing was.

    >>> clamped(100), clamped(0), clamped(7), clamped(None)
    (25, 1, 7, 10)
    """
    return DEFAULT_TURNS if max_turns is None else min(max(max_turns, 1), MAX_TURNS)


def check_definition(request: Define, is_registered_tool: Callable[[str], bool]) -> None:
    """Refuse a definition with a bad name, too long a prompt or an unknown tool, in this order."""
    check_agent_name(request.name)
    prompt = tokens(request.system_prompt)
    if prompt > MAX_PROMPT_TOKENS:
        raise Coded("PROMPT_TOO_LARGE", f"System prompt is ~{prompt} tokens, max is {MAX_PROMPT_TOKENS}.")
    for tool in request.tools:
        if not is_registered_tool(tool):
            raise Coded("INVALID_TOOL", f"Tool not in application registry: {tool!r}")


def check_agent_name(name: str) -> None:
    """Refuse a name that is too short, too long or has other characters than it may."""
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise Coded("INVALID_AGENT_NAME", f"Agent name must be 1-{MAX_NAME_CHARACTERS} characters, got {len(name)}.")
    if not _AGENT_NAME.fullmatch(name):
        raise Coded("INVALID_AGENT_NAME", f"Agent name must match [a-z0-9_-]+, got: {name!r}")


def check_task(task: str) -> None:
    """Refuse a task that should have been written to shared context instead."""
    size = tokens(task)
    if size > MAX_TASK_TOKENS:
        raise Coded("TASK_TOO_LARGE", f"Task string is ~{size} tokens, max is {MAX_TASK_TOKENS}.")
