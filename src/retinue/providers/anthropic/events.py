"""Stream events of the Anthropic Messages API.

Unknown events, blocks and fields are ignored: the vendor adds some every year.
"""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.usage import Usage
from retinue.providers.lenient_json import decode_lenient, decode_or_none, repair_json
from retinue.providers.stream_decoder import DONE, NULL
from retinue.providers.vendor_usage import normalized_usage

_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error"}
)
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_DELTAS = frozenset({"text_delta", "thinking_delta", "signature_delta", "input_json_delta"})


class BlockDelta(Struct, gc=False):
    """An addition to a block, or the stop reason of the message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Block(Struct, gc=False):
    """A content block (text, thinking or a call), mostly as it begins."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = NULL


class Message(Struct, gc=False):
    """A message: its beginning in a stream, or the whole of it without one."""

    type: str = ""
    id: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = NULL
    error: object = None


class Event(Struct, gc=False):
    """Any event; its fields depend on `type`."""

    type: str = ""
    index: int = 0
    delta: BlockDelta | None = None
    content_block: Block | None = None
    message: Message | None = None
    usage: msgspec.Raw = NULL
    error: object = None


class _AnyEvent(Struct, gc=False):
    """An event whose fields have unexpected types."""

    type: object = None
    index: object = None
    delta: object = None
    content_block: object = None


class _Details(Struct, gc=False):
    thinking_tokens: int | None = None


class TokenCounts(Struct, gc=False):
    """Token counts so far; cached input is counted apart from the rest of the input."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _Details | None = None

    def updated(self, raw: msgspec.Raw) -> TokenCounts:
        """These counts with newer ones: they are sent at the beginning and again at the end, and only ever grow."""
        new = decode_or_none(_decode_tokens, raw)
        if new is None:
            return self
        return TokenCounts(
            _larger(self.input_tokens, new.input_tokens),
            _larger(self.output_tokens, new.output_tokens),
            _larger(self.cache_read_input_tokens, new.cache_read_input_tokens),
            _larger(self.cache_creation_input_tokens, new.cache_creation_input_tokens),
            new.output_tokens_details or self.output_tokens_details,
        )

    def usage(self) -> Usage | None:
        """The usage; None if the server did not count."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        cached, written = max(0, self.cache_read_input_tokens or 0), max(0, self.cache_creation_input_tokens or 0)
        details = self.output_tokens_details
        return normalized_usage(
            max(0, self.input_tokens or 0) + written + cached,
            self.output_tokens,
            cached=cached,
            reasoning=details.thinking_tokens if details is not None else None,
            written=written,
        )


decode_event = msgspec.json.Decoder(Event).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_any = msgspec.json.Decoder(_AnyEvent).decode
_decode_tokens = msgspec.json.Decoder(TokenCounts).decode


def read_event(payload: bytes) -> Event:
    """Decode an event; raises `ProviderError` if it is unreadable."""
    if payload.strip() == DONE:  # sent by other vendors that speak this format
        return Event()
    try:
        return decode_lenient(decode_event, payload)
    except ProviderError:
        ignored = _unknown_event(repair_json(payload) or b"")
        if ignored is None:
            raise
        return ignored


def read_message(body: bytes) -> Message:
    """Decode a whole message; raises `ProviderError` if it is unreadable."""
    return decode_lenient(_decode_message, body)


def _unknown_event(payload: bytes) -> Event | None:
    """An event to ignore, if `payload` is of an unknown type or about an unknown block; otherwise None."""
    event = decode_or_none(_decode_any, payload)
    if event is None:
        return None
    kind = event.type
    if kind == "content_block_delta":
        return Event() if _is_unknown(_type_of(event.delta), _DELTAS) else None
    if kind == "content_block_start" and _is_unknown(_type_of(event.content_block), _BLOCKS):
        if not isinstance(event.index, int):
            return Event()
        return Event("content_block_start", event.index, content_block=Block("unknown"))
    return Event() if _is_unknown(kind, _EVENTS) else None


def _is_unknown(kind: object, known: frozenset[str]) -> bool:
    return isinstance(kind, str) and kind not in known


def _type_of(part: object) -> object:
    return cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((number for number in (one, other) if number is not None), default=None)
