"""The tools of `codex` as a model sees them, the parsing of their arguments, and the paths of agents.

Invalid arguments raise `CallRefused` alone, with a text of `answers.py` that lists what is valid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from retinue.core.agent import Agent, ToolSpec
from retinue.core.model_options import EFFORTS, Effort
from retinue.dialects import agent_names
from retinue.dialects.arguments import name_schema, tool_spec, typed
from retinue.dialects.codex import answers
from retinue.dialects.codex.settings import DEFAULTS, CodexSettings
from retinue.dialects.error_codes import CallRefused

if TYPE_CHECKING:
    from retinue.dialects.sub_agents import Inherited

SPAWN, SEND, FOLLOW_UP = "spawn_agent", "send_message", "followup_task"
WAIT, INTERRUPT, LIST = "wait_agent", "interrupt_agent", "list_agents"
TOOL_NAMES = (SPAWN, SEND, FOLLOW_UP, WAIT, INTERRUPT, LIST)

ROOT = "/root"
"""The path of the run at the top of a tree."""

DEFAULT_ROLE = "default"
"""The agent type of an agent that is none of the configured ones."""

MAX_NAME = 64
MAX_TURNS = 2**31 - 1
MAX_MESSAGE = 1024 * 1024
"""Characters of a task or message."""

ABOUT = {
    SPAWN: (
        "Start an agent on a concrete task that can run beside your own work. Returns its canonical task name, such as "
        "/root/find_bug, at once. Its final answer reaches you as a message when it ends."
    ),
    SEND: "Send a message to a running agent, or to the one that started you. It starts no new turn of its own.",
    FOLLOW_UP: (
        "Give an agent that you started another task. One that has ended goes on with its whole history; one that "
        "runs reads the task at its next turn."
    ),
    WAIT: (
        "Wait until an agent ends or a message arrives. Returns no content: that reaches you as a message. "
        "Call it only if you cannot go on without a result."
    ),
    INTERRUPT: (
        "Stop an agent and all that it started, and return its previous status. It stays available for followup_task."
    ),
    LIST: "List the agents of this tree with their statuses.",
}


class SpawnArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `spawn_agent`."""

    task_name: str
    message: str
    agent_type: str | None = None
    fork_turns: str | int | None = None
    model: str | None = None
    reasoning_effort: Effort | None = None
    service_tier: str | None = None


class MessageArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `send_message` and `followup_task`."""

    target: str
    message: str


class WaitArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `wait_agent`."""

    timeout_ms: int | float | None = None


class InterruptArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `interrupt_agent`."""

    target: str


class ListArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `list_agents`."""

    path_prefix: str | None = None


def message_of(text: str) -> str:
    """A task or message that may be sent; raises `CallRefused`."""
    if not text.strip():
        raise CallRefused(answers.NO_MESSAGE)
    if len(text) > MAX_MESSAGE:
        raise answers.too_long(len(text), MAX_MESSAGE)
    return text


_NAME = re.compile(rf"[a-z0-9_]{{1,{MAX_NAME}}}")


def plain(name: str) -> str:
    """A name as paths have it: in lower case, with underscores.

    >>> plain("Find-Bug 2")
    'find_bug_2'
    """
    return agent_names.plain_name(name).replace("-", "_")


def path_of(parent: str, task_name: str) -> str:
    """The path of a new agent; raises `CallRefused` for a name that is not valid.

    >>> path_of("/root", "Find bug")
    '/root/find_bug'
    >>> path_of("/root", "a/b")
    Traceback (most recent call last):
    retinue.dialects.error_codes.CallRefused: Invalid task_name 'a/b'. Valid: lowercase letters, digits and underscores, at most 64, and not root.
    """  # noqa: E501  # the message is one line
    name = plain(task_name)
    if not _NAME.fullmatch(name) or name == "root":
        raise answers.invalid_name(task_name, MAX_NAME)
    return f"{parent}/{name}"


def resolved(reference: str, own: str) -> str:
    """The path that a reference means to the agent at the path `own`: canonical, or relative to it.

    >>> resolved("/root/a/b", "/root"), resolved("Log-Reader/x", "/root/lead"), resolved("root", "/root/a")
    ('/root/a/b', '/root/lead/log_reader/x', '/root')
    """
    path = "/".join(plain(part) for part in reference.strip().strip("/").split("/"))
    if path == ROOT[1:] or path.startswith(f"{ROOT[1:]}/"):
        return f"/{path}"
    return f"{own}/{path}" if path else own


def inherited(fork_turns: str | int | None) -> Inherited:
    """How much of the caller's conversation an agent begins with; everything unless the call says something else.

    >>> inherited(None), inherited("NONE"), inherited("3"), inherited(2)
    ('all', 'none', 3, 2)
    """
    text = str(fork_turns if fork_turns is not None else "all").strip().lower() or "all"
    if text == "all":
        return "all"
    if text == "none":
        return "none"
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) > 0):
        raise answers.invalid_fork(text)
    return min(int(text), MAX_TURNS)


MAX_ROLES = 900
"""Characters of the list of roles in a tool; the system text has more."""


def role_named(name: str | None, agents: Sequence[Agent]) -> Agent | None:
    """The configured agent of that name, leniently; None for none and for `default`; raises `CallRefused`.

    >>> role_named("writer", [Agent(name="log_reader")])
    Traceback (most recent call last):
    retinue.dialects.error_codes.CallRefused: Unknown agent_type 'writer'. Valid: default, log_reader.
    """
    if name is None or not name.strip():
        return None
    agent = agent_names.agent_named(name, agents)
    if agent is None and plain(name) != DEFAULT_ROLE:
        raise answers.unknown_type(name, (DEFAULT_ROLE, *(agent.name for agent in agents)))
    return agent


def seconds_of(request: WaitArguments, settings: CodexSettings) -> tuple[float, str]:
    """How long a call waits, and a sentence about a timeout that was raised; raises `CallRefused` for a longer one."""
    asked = request.timeout_ms
    if asked is None:
        return settings.default_wait_timeout_ms / 1000, ""
    if not asked <= settings.max_wait_timeout_ms:
        raise answers.wait_too_long(settings.max_wait_timeout_ms)
    least = settings.min_wait_timeout_ms
    if asked >= least:
        return asked / 1000, ""
    return least / 1000, answers.raised_timeout(asked, least)


def specs(agents: Sequence[Agent] = (), settings: CodexSettings = DEFAULTS) -> dict[str, ToolSpec]:
    """The six tools as a model sees them, with the agent types that a call may use."""
    target = typed("string", "Task name, relative or canonical.")
    role = "Configured agent; omit for a general one."
    spawn_properties: dict[str, object] = {
        "task_name": typed("string", "Name of the new agent: lowercase letters, digits, underscores."),
        "message": typed("string", "The task: goal, facts, and the form of the answer."),
        "agent_type": name_schema((DEFAULT_ROLE, *(agent.name for agent in agents)) if agents else ())
        | {"description": f"{role}{agent_names.agent_list(agents, MAX_ROLES)}"},
        "fork_turns": typed(
            "string", "How much of your conversation it begins with: all (default), none, or a number of last turns."
        ),
        "model": typed("string", "name or provider:name; default yours, or the agent's."),
        "reasoning_effort": {"type": "string", "enum": list(EFFORTS), "description": "Default yours, or the agent's."},
        "service_tier": typed("string", "The vendor's word; omit unless asked for."),
    }
    bounds = f"{settings.default_wait_timeout_ms}, min {settings.min_wait_timeout_ms}"
    timeout = typed("number", f"Default {bounds}, max {settings.max_wait_timeout_ms}.")
    text = typed("string", "The text.")
    made = (
        tool_spec(SPAWN, ABOUT[SPAWN], spawn_properties, "task_name", "message"),
        tool_spec(SEND, ABOUT[SEND], {"target": target, "message": text}, "target", "message"),
        tool_spec(FOLLOW_UP, ABOUT[FOLLOW_UP], {"target": target, "message": text}, "target", "message"),
        tool_spec(WAIT, ABOUT[WAIT], {"timeout_ms": timeout}),
        tool_spec(INTERRUPT, ABOUT[INTERRUPT], {"target": target}, "target"),
        tool_spec(LIST, ABOUT[LIST], {"path_prefix": typed("string", "Only this agent and those below it.")}),
    )
    return {spec.name: spec for spec in made}
