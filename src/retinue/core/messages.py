"""Vendor-neutral messages, tool calls, replies and streaming deltas.

Wires translate these to and from their own format. Messages are immutable and shared: between turns, between a run
and its forks, and with a wire's cache of encoded messages.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.attachments import Attachment
from retinue.core.text import NOT_JSON
from retinue.core.usage import NO_USAGE, Usage

Origin = Literal["caller", "peer", "notice", "engine"]
"""Sender of a user message: the caller, another run (`peer`), a child's end (`notice`: data, never consent), or retinue
(`engine`).
"""

Stop = Literal["end", "calls", "length", "refusal", "pause"]
"""Why the model stopped: final answer, tool calls, output limit, refusal, or a pause in its own turn, which goes on."""


class ToolCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool call requested by a model.

    `arguments` is the text as the model wrote it, which may be invalid JSON. `id` is the vendor's and may repeat or be
    empty: retinue identifies calls by turn and index.
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    @property
    def understood(self) -> str:
        """The arguments as they are parsed: of a repeated key the last value, without escapes and whitespace.

        >>> ToolCall("shell", '{"command": "ls",  "comm\\u0061nd": "rm"}').understood
        '{"command":"rm"}'
        """
        try:
            return msgspec.json.encode(msgspec.json.decode(self.arguments)).decode()
        except NOT_JSON:
            return self.arguments

    @property
    def readable(self) -> str:
        """The arguments as the model wrote them, if they say what is understood; else as they are understood.

        >>> [ToolCall("shell", text).readable for text in ('{"a": 1}', '{"a": 1, "a": 2}')]
        ['{"a": 1}', '{"a":2}']
        """
        try:
            plain = msgspec.json.format(self.arguments.encode(), indent=-1).decode()
        except NOT_JSON:
            return self.arguments
        return self.arguments if plain == self.understood else self.understood


class Thinking(Struct, frozen=True, gc=False, omit_defaults=True):
    """A reasoning block to be sent back to the vendor; `signature` and `opaque` are kept byte for byte."""

    text: str = ""
    signature: str = ""
    opaque: str = ""


class UserMessage(Struct, frozen=True, gc=False, omit_defaults=True, tag="user"):
    """Input for the model; `origin` is its sender, so that a child's text is never taken for the caller's."""

    text: str
    origin: Origin = "caller"
    attachments: tuple[Attachment, ...] = ()


class Citation(Struct, frozen=True, gc=False, omit_defaults=True):
    """A source of a part of an answer: `start` to `end` are characters of its text, of which `quote` is the evidence.

    `url` is empty for a source that has none, such as a file.
    """

    url: str = ""
    title: str = ""
    quote: str = ""
    start: int = 0
    end: int = 0


class AssistantMessage(Struct, frozen=True, gc=False, omit_defaults=True, tag="assistant"):
    """A model's text, the tool calls it requested, and its reasoning blocks.

    `citations` are the sources that the vendor's own tools gave for the text.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thinking: tuple[Thinking, ...] = ()
    citations: tuple[Citation, ...] = ()


class ToolMessage(Struct, frozen=True, gc=False, omit_defaults=True, tag="tool"):
    """The result of a tool call; `failed` marks an error."""

    name: str
    text: str
    call_id: str = ""
    failed: bool = False
    attachments: tuple[Attachment, ...] = ()


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage
"""One entry of a conversation."""


MAX_CALLS = 1000
"""The most tool calls of one reply."""


class Reply(Struct, frozen=True, gc=False, omit_defaults=True):
    """One complete reply of a model.

    `usage` is None when the provider reports none; `cost` is in nanodollars, None when no price is known. `model` and
    `response_id` are as the vendor reports them. With `calls_in_text` the model wrote its calls as text, and the
    provider recognised them. `call_error` says why a text that was meant as a call could not be read as one.
    `server_tools` counts the uses of tools that the vendor ran.
    """

    message: AssistantMessage
    usage: Usage | None = NO_USAGE
    cost: int | None = None
    stop: Stop = "end"
    model: str = ""
    response_id: str = ""
    calls_in_text: bool = False
    call_error: str = ""
    server_tools: tuple[tuple[str, int], ...] = ()


class StartDelta(Struct, frozen=True, gc=False, tag="start"):
    """An attempt began to stream; deltas of earlier attempts are void. `id` is the vendor's response id, if known.

    Optional for providers that publish whole answers.
    """

    id: str = ""


class DiscardDelta(Struct, frozen=True, gc=False, tag="discard"):
    """The attempt was discarded: everything since the last `StartDelta` is void, and the model is called again.

    Published by the engine, never by a provider, before the first delta of the next attempt.
    """


class TextDelta(Struct, frozen=True, gc=False, tag="text"):
    """The next piece of the answer's text; published to subscribers, never stored."""

    text: str


class ThinkingDelta(Struct, frozen=True, gc=False, tag="thinking"):
    """The next piece of the reasoning."""

    text: str


class CallDelta(Struct, frozen=True, gc=False, tag="call"):
    """The next piece of a tool call's arguments; the first piece of a call carries its name, and its id if any."""

    index: int
    name: str = ""
    arguments: str = ""
    id: str = ""


Delta: TypeAlias = StartDelta | DiscardDelta | TextDelta | ThinkingDelta | CallDelta
"""One piece of a reply that streams."""
