"""The events of Anthropic's streams as they come over the wire.

Events, blocks and fields that are not known here are passed over: the vendor adds some every year.
"""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.usage import Usage
from retinue.providers.lenient_json import if_readable, mended, read
from retinue.providers.stream_decoder import DONE, NULL
from retinue.providers.vendor_usage import counted

_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error"}
)
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_GROWTH = frozenset({"text_delta", "thinking_delta", "signature_delta", "input_json_delta"})


class Growth(Struct, gc=False):
    """What is new about a block; or about the message, which is why it ended."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Block(Struct, gc=False):
    """A block: words, a thought or a call; mostly how it begins."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = NULL


class Message(Struct, gc=False):
    """A message: its beginning in a stream, or all of it without one."""

    type: str = ""
    id: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = NULL
    error: object = None


class Event(Struct, gc=False):
    """Any event; `type` says which fields it has."""

    type: str = ""
    index: int = 0
    delta: Growth | None = None
    content_block: Block | None = None
    message: Message | None = None
    usage: msgspec.Raw = NULL
    error: object = None


class _Strange(Struct, gc=False):
    """An event that does not look as it should."""

    type: object = None
    index: object = None
    delta: object = None
    content_block: object = None


class _Details(Struct, gc=False):
    thinking_tokens: int | None = None


class Tokens(Struct, gc=False):
    """What was counted so far; what the vendor had cached is counted apart from the rest of the input."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _Details | None = None

    def updated(self, raw: msgspec.Raw) -> Tokens:
        """With newer counts: they are told at the beginning and again, complete, at the end, and only ever grow."""
        new = if_readable(_decode_tokens, raw)
        if new is None:
            return self
        return Tokens(
            _most(self.input_tokens, new.input_tokens),
            _most(self.output_tokens, new.output_tokens),
            _most(self.cache_read_input_tokens, new.cache_read_input_tokens),
            _most(self.cache_creation_input_tokens, new.cache_creation_input_tokens),
            new.output_tokens_details or self.output_tokens_details,
        )

    def usage(self) -> Usage | None:
        """Tokens by kind; None if the server did not count."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        cached, written = max(0, self.cache_read_input_tokens or 0), max(0, self.cache_creation_input_tokens or 0)
        details = self.output_tokens_details
        return counted(
            max(0, self.input_tokens or 0) + written + cached,
            self.output_tokens,
            cached=cached,
            reasoning=details.thinking_tokens if details is not None else None,
            written=written,
        )


decode_event = msgspec.json.Decoder(Event).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_strange = msgspec.json.Decoder(_Strange).decode
_decode_tokens = msgspec.json.Decoder(Tokens).decode


def read_event(payload: bytes) -> Event:
    """The event in some data; raises `ProviderError` for nonsense."""
    if payload.strip() == DONE:  # a habit of other vendors
        return Event()
    try:
        return read(decode_event, payload)
    except ProviderError:
        passed_over = _unknown(mended(payload) or b"")
        if passed_over is None:
            raise
        return passed_over


def read_message(body: bytes) -> Message:
    """The message in some data; raises `ProviderError` for nonsense."""
    return read(_decode_message, body)


def _unknown(payload: bytes) -> Event | None:
    """An event that does not fit and need not, because it is, or speaks of, something that is not known here."""
    strange = if_readable(_decode_strange, payload)
    if strange is None:
        return None
    kind = strange.type
    if kind == "content_block_delta":
        return Event() if _is_other(_kind_of(strange.delta), _GROWTH) else None
    if kind == "content_block_start" and _is_other(_kind_of(strange.content_block), _BLOCKS):
        if not isinstance(strange.index, int):
            return Event()
        return Event("content_block_start", strange.index, content_block=Block("unknown"))
    return Event() if _is_other(kind, _EVENTS) else None


def _is_other(kind: object, known: frozenset[str]) -> bool:
    return isinstance(kind, str) and kind not in known


def _kind_of(part: object) -> object:
    return cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None


def _most(one: int | None, other: int | None) -> int | None:
    return max((number for number in (one, other) if number is not None), default=None)
