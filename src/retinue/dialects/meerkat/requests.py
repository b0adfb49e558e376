"""The tools of `meerkat` as a model sees them, and the parsing of their arguments.

Invalid arguments raise `CallRefused` alone, with a text of `answers.py`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import compact_json, decode, name_list_schema, name_schema, typed
from retinue.dialects.meerkat.answers import invalid, shown
from retinue.dialects.meerkat.settings import MeerkatSettings

SPAWN, FORK, STATUS, CANCEL, LIST = "agent_spawn", "agent_fork", "agent_status", "agent_cancel", "agent_list"
AGENT_TOOLS = (SPAWN, FORK, STATUS, CANCEL, LIST)

SEND_MESSAGE, SEND_REQUEST, SEND_RESPONSE, LIST_PEERS = "send_message", "send_request", "send_response", "list_peers"
SEND, PEERS = "send", "peers"
COMMS_TOOLS = (SEND_MESSAGE, SEND_REQUEST, SEND_RESPONSE, LIST_PEERS, SEND, PEERS)
"""The tools for messages, in both forms; settings choose one form."""
TOOL_NAMES = (*AGENT_TOOLS, *COMMS_TOOLS)

VENDORS: Mapping[str, str] = {"anthropic": "Anthropic", "gemini": "Gemini", "openai": "OpenAI"}

FAMILIES = ("anthropic", "openai", "gemini")
"""The vendors that a model can name."""


def allowed_in_words(allowed: Mapping[str, Iterable[str]]) -> str:
    """The allowed models, as the description of a tool lists them.

    >>> allowed_in_words({"openai": ["gpt-5.2"], "anthropic": ["claude-opus-4-6", "claude-opus-4-5"]})
    'Anthropic: claude-opus-4-6, claude-opus-4-5; OpenAI: gpt-5.2'
    """
    return "; ".join(f"{VENDORS.get(name, name)}: {', '.join(allowed[name])}" for name in sorted(allowed))


def specs(
    settings: MeerkatSettings, tools: Sequence[str] | None = None, usable: Sequence[str] = FAMILIES
) -> dict[str, ToolSpec]:
    """The five tools as a model sees them; `tools` are those of the caller that a child can have, if they are known.

    Of the vendors, a model can name those that are `usable`, and their models; where none is, a child has the model of
    its caller.
    """
    allowed = {name: models for name, models in settings.allowed_models.items() if name in usable}
    model = f"Model name (provider-specific). Allowed models - {allowed_in_words(allowed)}"
    names = {} if len(usable) == len(FAMILIES) else {"enum": list(usable)}
    models: dict[str, object] = {
        "provider": typed("string", "LLM provider: anthropic, openai, gemini.", **names),
        "model": {
            **name_schema(list(dict.fromkeys(model for models in allowed.values() for model in models))),
            "description": model,
        },
    }
    common: dict[str, object] = {
        **(models if usable else {}),
        "tool_access": {
            "type": "object",
            "description": "Tool access policy; inherit by default.",
            "properties": {
                "policy": {"type": "string", "enum": ["inherit", "allow_list", "deny_list"]},
                "tools": name_list_schema(tools, "Names of your tools, for allow_list and deny_list."),
            },
            "required": ["policy"],
        },
    }
    spawn: dict[str, object] = {
        "prompt": typed("string", "Initial prompt/task for the sub-agent."),
        **common,
        "budget": {
            "type": "object",
            "description": "Budget limits.",
            "properties": {
                name: {"type": "integer", "minimum": 0} for name in ("max_tokens", "max_turns", "max_tool_calls")
            },
        },
        "system_prompt": typed("string", "Override the system prompt for this sub-agent."),
    }
    if settings.enable_comms:
        spawn["host_mode"] = typed("boolean", "Keep agent alive processing comms messages after initial prompt.")
    budget_policy = "Budget allocation: equal (default), remaining, proportional, or fixed:<tokens>."
    fork: dict[str, object] = {
        "prompt": typed("string", "Additional prompt appended to the inherited conversation history."),
        **common,
        "budget_policy": typed("string", budget_policy),
    }
    one: dict[str, object] = {"agent_id": typed("string", "The sub-agent's UUID.")}
    closed = not settings.enable_comms
    return {
        SPAWN: _spec(SPAWN, "Create a sub-agent with clean context (just the prompt).", spawn, "prompt", closed=closed),
        FORK: _spec(FORK, "Create a sub-agent that inherits the full conversation history.", fork, "prompt"),
        STATUS: _spec(STATUS, "Get the status and output of a sub-agent by ID.", one, "agent_id"),
        CANCEL: _spec(CANCEL, "Cancel a running sub-agent.", one, "agent_id"),
        LIST: _spec(LIST, "List all sub-agents with their current states.", {}),
    }


def _spec(
    name: str, description: str, properties: Mapping[str, object], *required: str, closed: bool = False
) -> ToolSpec:
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": list(required)}
    if closed:
        schema["additionalProperties"] = False
    return ToolSpec(name, description, compact_json(schema))


S = TypeVar("S", bound=Struct)


class ToolAccess(Struct, frozen=True):
    """Which of its parent's tools a child has; unknown names are ignored."""

    policy: Literal["inherit", "allow_list", "deny_list"]
    tools: tuple[str, ...] | None = None

    def among(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The tools of `names` that the child has.

        >>> ToolAccess("deny_list", ("shell",)).among(("shell", "grep"))
        ('grep',)
        """
        listed = frozenset(self.tools or ())
        match self.policy:
            case "inherit":
                return names
            case "allow_list":
                return tuple(name for name in names if name in listed)
            case "deny_list":
                return tuple(name for name in names if name not in listed)


INHERIT_ALL = ToolAccess("inherit")

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class BudgetArgument(Struct, frozen=True):
    """The argument `budget`."""

    max_tokens: Count | None = None
    max_turns: Count | None = None
    max_tool_calls: Count | None = None


class SpawnArguments(Struct, frozen=True, kw_only=True):
    """Arguments of `agent_spawn`."""

    prompt: str
    provider: str | None = None
    model: str | None = None
    tool_access: ToolAccess | str | None = None
    budget: BudgetArgument | str | None = None
    system_prompt: str | None = None
    host_mode: bool | None = None


class StrictSpawnArguments(SpawnArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same without unknown fields."""


class ForkRequest(Struct, frozen=True, kw_only=True):
    """Arguments of `agent_fork`."""

    prompt: str
    provider: str | None = None
    model: str | None = None
    tool_access: ToolAccess | str | None = None
    budget_policy: str | None = None


class OneRequest(Struct, frozen=True):
    """Arguments of `agent_status` and `agent_cancel`."""

    agent_id: str


class ListRequest(Struct, frozen=True):
    """Arguments of `agent_list`."""


def arguments_struct(arguments: str, kind: type[S]) -> S:
    """The arguments of a call as a struct; no arguments are an empty object.

    >>> arguments_struct('{"prompt": "dig"}', SpawnArguments).prompt
    'dig'
    """
    return _decoded(arguments if arguments.strip() else "{}", kind, "")


def access_of(given: ToolAccess | str | None) -> ToolAccess:
    """The tool access of a call: an object, or the object as JSON in a string, as some models write it."""
    access = _decoded(given, ToolAccess, "tool_access: ") if isinstance(given, str) else given or INHERIT_ALL
    if access.policy != "inherit" and access.tools is None:
        raise invalid(f"Invalid parameters: tool_access: {access.policy} needs tools")
    return access


def budget_of(given: BudgetArgument | str | None) -> BudgetArgument:
    """The budget of a call, in the same two forms."""
    return _decoded(given, BudgetArgument, "budget: ") if isinstance(given, str) else given or BudgetArgument()


def _decoded(text: str, kind: type[S], what: str) -> S:
    return decode(text, kind, refuse=lambda reason: invalid(f"Invalid parameters: {what}{shown(reason)}"))


def agent_id_of(text: str) -> str:
    """The id of a sub-agent in canonical form; raises `CallRefused` if it is no UUID.

    >>> agent_id_of("019467D9-7E3A-7000-8000-000000000000")
    '019467d9-7e3a-7000-8000-000000000000'
    """
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise invalid(f"Invalid agent_id format: {error}") from error


_FIXED = re.compile(r"fixed:\s*(\d{1,18})")


def fixed_budget(policy: str) -> int | None:
    """The tokens of a policy `fixed:<tokens>`; None for any other.

    >>> fixed_budget("fixed:500"), fixed_budget("fixed:abc"), fixed_budget("equal")
    (500, None, None)
    """
    match = _FIXED.fullmatch(policy.strip())
    return int(match[1]) if match else None
