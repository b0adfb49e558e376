"""The `subagent` tool as a model sees it: its actions and parameters, those of the extensions that are on included."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from retinue.core.agent import ToolSpec
from retinue.dialects.text import compact

SUBAGENT = "subagent"

CORE = ("list_agents", "define", "spawn", "status", "collect")
FURTHER = ("redefine", "cancel", "progress", "wait")
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
    """The actions there are with these extensions.

    >>> actions_of({"cancel", "hint"})
    ('list_agents', 'define', 'spawn', 'status', 'collect', 'cancel')
    """
    return (*CORE, *(action for action in FURTHER if action in extensions))


def spec_of(extensions: AbstractSet[str]) -> ToolSpec:
    """The tool with these extensions."""
    actions = actions_of(extensions)
    more = [action for action in actions if action in FURTHER]
    further = f" There are also {', '.join(more[:-1])} and {more[-1]}." if len(more) > 1 else ""
    if len(more) == 1:
        further = f" There is also {more[0]}."
    action = {
        "type": "string",
        "enum": actions,
        "description": " ".join(f"{name}: {ABOUT_ACTIONS[name]}" for name in actions),
    }
    properties = {"action": action, **dict(_properties(extensions))}
    return ToolSpec(
        SUBAGENT, ABOUT + further, compact({"type": "object", "properties": properties, "required": ["action"]})
    )


def _properties(extensions: AbstractSet[str]) -> Iterator[tuple[str, dict[str, object]]]:
    define = "define and redefine" if "redefine" in extensions else "define"
    new = "" if "redefine" in extensions else "new, "
    required = "required unless extends is given" if "extends" in extensions else "required"
    yield (
        "name",
        _text(
            f"{define}, required: a {new}unique name; lowercase letters, digits, underscores and hyphens, "
            "1 to 64 characters."
        ),
    )
    yield "description", _text(f"{define}, {required}: the agent's purpose in one line.")
    yield (
        "system_prompt",
        _text(f"{define}, {required}: focused instructions for the agent; at most 4000 tokens."),
    )
    if "extends" in extensions:
        yield "extends", _text(f"{define}: an agent to begin with; what you do not give is as it is there.")
        yield "system_prompt_append", _text(f"{define} with extends: instructions to add after those of that agent.")
    yield (
        "tools",
        _texts(f"{define}: the names of the agent's tools; none by default. Agents cannot delegate."),
    )
    yield "model", _text(f"{define}: the agent's model; yours by default.")
    yield "max_turns", _integer(f"{define}: how many turns the agent may take, 1 to 25; 10 by default.")
    yield "agent", _text("spawn, required: the name of the agent to run.")
    yield (
        "task",
        _text(
            "spawn, required: what to do, at most 1000 tokens. The agent sees nothing of this conversation: refer to "
            "shared context keys for more."
        ),
    )
    if "depends_on" in extensions:
        yield (
            "depends_on",
            _texts(
                "spawn: ids of tasks that have to complete first; the task is pending until then and is given their "
                "results. It fails if one of them fails."
            ),
        )
    if "budgets" in extensions:
        yield "max_input_tokens", _integer("spawn: the input tokens that the task may use; from 1.")
        yield "max_output_tokens", _integer("spawn: the output tokens that the task may use; from 1.")
    users = ["status", "collect", *(action for action in ("cancel", "progress") if action in extensions)]
    yield "task_id", _text(f"{', '.join(users[:-1])} and {users[-1]}, required: the task, such as t_01.")
    if "wait" in extensions:
        yield "task_ids", _texts("wait, required: the tasks to wait for.")
        yield (
            "mode",
            {
                "anyOf": [{"type": "string", "enum": ["any", "all"]}, {"type": "integer", "minimum": 1}],
                "description": "wait: how many of the tasks have to be over: any, all (the default), or a number.",
            },
        )
        yield (
            "timeout_ms",
            _integer("wait: milliseconds after which to return anyway; 600000 by default, at most 3600000."),
        )


def _text(about: str) -> dict[str, object]:
    return {"type": "string", "description": about}


def _integer(about: str) -> dict[str, object]:
    return {"type": "integer", "description": about}


def _texts(about: str) -> dict[str, object]:
    return {"type": "array", "items": {"type": "string"}, "description": about}
