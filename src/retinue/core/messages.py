"""What is said between a caller, a model and its tools, in words that belong to no vendor.

Wires translate these to and from their own format. Messages are immutable and shared: between turns, between a run
and its forks, and with whatever a wire has already encoded.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.usage import NO_USAGE, Usage

Origin = Literal["caller", "peer", "notice", "engine"]
"""Who speaks in a user message: who gave the task, another run, news of a child (data, never consent), or retinue."""

Stop = Literal["end", "calls", "length", "refusal"]
"""Why the model stopped speaking."""


class ToolCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A model's wish to use a tool.

    `arguments` is the JSON text as the model wrote it, which may not be JSON at all; `id` is the vendor's, which may
    repeat or be missing: retinue counts turn and index itself.
    """

    name: str
    arguments: str = "{}"
    id: str = ""


class Thinking(Struct, frozen=True, gc=False, omit_defaults=True):
    """Reasoning that a vendor wants to see again; `signature` and `opaque` are kept byte for byte."""

    text: str = ""
    signature: str = ""
    opaque: str = ""


class UserMessage(Struct, frozen=True, gc=False, omit_defaults=True, tag="user"):
    """Words for the model; `origin` says whose, so that a child's words are never mistaken for a person's."""

    text: str
    origin: Origin = "caller"


class AssistantMessage(Struct, frozen=True, gc=False, omit_defaults=True, tag="assistant"):
    """What the model said, and the calls it wants made."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thinking: tuple[Thinking, ...] = ()


class ToolMessage(Struct, frozen=True, gc=False, omit_defaults=True, tag="tool"):
    """What a call came to."""

    name: str
    text: str
    call_id: str = ""
    failed: bool = False


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage
"""One entry of a conversation."""


class Reply(Struct, frozen=True, gc=False, omit_defaults=True):
    """One whole answer of a model; `usage` is None when the provider reports none, `cost` when no price is known."""

    message: AssistantMessage
    usage: Usage | None = NO_USAGE
    cost: int | None = None
    stop: Stop = "end"
    model: str = ""
    response_id: str = ""


class StartDelta(Struct, frozen=True, gc=False, tag="start"):
    """An attempt has begun to answer, and what was published of an earlier one counts no longer; `id` is the vendor's
    name for the response, where it is known by now. Providers that publish whole answers need not say it.
    """

    id: str = ""


class TextDelta(Struct, frozen=True, gc=False, tag="text"):
    """A few more characters of the answer, as they stream in; published, never stored."""

    text: str


class ThinkingDelta(Struct, frozen=True, gc=False, tag="thinking"):
    """A few more characters of reasoning."""

    text: str


class CallDelta(Struct, frozen=True, gc=False, tag="call"):
    """A few more characters of a call's arguments; the first of a call carries its name, and its id if it has one."""

    index: int
    name: str = ""
    arguments: str = ""
    id: str = ""


Delta: TypeAlias = StartDelta | TextDelta | ThinkingDelta | CallDelta
"""One piece of a reply that streams."""
