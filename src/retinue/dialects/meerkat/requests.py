"""What a model can ask of the `meerkat` tools, read and checked before anything happens.

Nothing that a model can write raises anything but `CallRefused`, whose text is what the model reads.
"""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from retinue.dialects.arguments import CallRefused, decode

S = TypeVar("S", bound=Struct)

SHOWN = 200
"""Characters of a model's own words that a refusal repeats."""


def invalid(text: str) -> CallRefused:
    """The arguments are wrong."""
    return CallRefused(f"Invalid arguments: {text}")


def failed(text: str) -> CallRefused:
    """The arguments are fine, and it cannot be done."""
    return CallRefused(f"Execution failed: {text}")


def shown(text: str) -> str:
    """What a model wrote, short enough to be told back to it.

    >>> shown("gpt-9"), len(shown("x" * 1_000_000))
    ('gpt-9', 203)
    """
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class ToolAccess(Struct, frozen=True):
    """Which of its parent's tools a child has; names that nobody has are ignored."""

    policy: Literal["inherit", "allow_list", "deny_list"]
    tools: tuple[str, ...] | None = None

    def among(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `names` that are left.

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

Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Budget(Struct, frozen=True):
    """How much a sub-agent may use."""

    max_tokens: Amount | None = None
    max_turns: Amount | None = None
    max_tool_calls: Amount | None = None


class SpawnArguments(Struct, frozen=True, kw_only=True):
    """A sub-agent with nothing but a prompt."""

    prompt: str
    provider: str | None = None
    model: str | None = None
    tool_access: ToolAccess | str | None = None
    budget: Budget | str | None = None
    system_prompt: str | None = None
    host_mode: bool | None = None


class StrictSpawnArguments(SpawnArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same where there are no other fields."""


class ForkRequest(Struct, frozen=True, kw_only=True):
    """A sub-agent that knows the whole conversation."""

    prompt: str
    provider: str | None = None
    model: str | None = None
    tool_access: ToolAccess | str | None = None
    budget_policy: str | None = None


class OneRequest(Struct, frozen=True):
    """Something about one sub-agent."""

    agent_id: str


class ListRequest(Struct, frozen=True):
    """All of them."""


def parsed(arguments: str, kind: type[S]) -> S:
    """The request that a call makes.

    >>> parsed('{"prompt": "dig"}', SpawnArguments).prompt
    'dig'
    """
    return _decoded(arguments if arguments.strip() else "{}", kind, "")


def access_of(given: ToolAccess | str | None) -> ToolAccess:
    """The tool access of a call: an object, or the object as JSON in a string, as some models write it."""
    access = _decoded(given, ToolAccess, "tool_access: ") if isinstance(given, str) else given or INHERIT_ALL
    if access.policy != "inherit" and access.tools is None:
        raise invalid(f"Invalid parameters: tool_access: {access.policy} needs tools")
    return access


def budget_of(given: Budget | str | None) -> Budget:
    """The budget of a call, in the same two forms."""
    return _decoded(given, Budget, "budget: ") if isinstance(given, str) else given or Budget()


def _decoded(text: str, kind: type[S], what: str) -> S:
    return decode(text, kind, refuse=lambda reason: invalid(f"Invalid parameters: {what}{shown(reason)}"))


def agent_id_of(text: str) -> str:
    """The id of a sub-agent in its one spelling; refused when it is no UUID.

    >>> agent_id_of("019467D9-7E3A-7000-8000-000000000000")
    '019467d9-7e3a-7000-8000-000000000000'
    """
    try:
        return str(uuid.UUID(text))
    except ValueError as wrong:
        raise invalid(f"Invalid agent_id format: {wrong}") from wrong


_FIXED = re.compile(r"fixed:\s*(\d{1,18})")


def fixed_budget(policy: str) -> int | None:
    """The tokens of a policy `fixed:<tokens>`; None for any other.

    >>> fixed_budget("fixed:500"), fixed_budget("fixed:abc"), fixed_budget("equal")
    (500, None, None)
    """
    found = _FIXED.fullmatch(policy.strip())
    return int(found[1]) if found else None
