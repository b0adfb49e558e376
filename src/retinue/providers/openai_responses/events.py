"""Stream events of the OpenAI Responses API.

Every field is optional, and unknown ones are ignored: servers other than OpenAI's send less, or more.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from retinue.core.usage import Usage
from retinue.providers.lenient_json import decode_lenient, decode_or_none
from retinue.providers.stream_decoder import NULL
from retinue.providers.vendor_usage import NO_DETAILS, TokenDetails, normalized_usage


class Event(Struct, gc=False):
    """One event; its fields depend on its type."""

    type: str = ""
    delta: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    summary_index: int | None = None
    arguments: str | dict[str, object] | None = None
    item: msgspec.Raw = NULL
    response: msgspec.Raw = NULL
    error: object = None


class EventType(Struct, gc=False):
    """The type of an event whose other fields have unexpected types."""

    type: str = ""


class Part(Struct, gc=False):
    """A piece of a message or of a summary."""

    text: str | None = None
    refusal: str | None = None


class OutputItem(Struct, gc=False):
    """An item of the response: a message, reasoning or a call."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, object] | None = None
    content: list[Part] | str | None = None
    summary: list[Part] | None = None


class IncompleteDetails(Struct, gc=False):
    """Why a response is incomplete."""

    reason: str | None = None


class Response(Struct, gc=False):
    """The whole response."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = NULL
    error: object = None
    incomplete_details: IncompleteDetails | None = None


class _Tokens(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


decode_event: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode
decode_type: Callable[[bytes], EventType] = msgspec.json.Decoder(EventType).decode
_decode_item = msgspec.json.Decoder(OutputItem).decode
_decode_response = msgspec.json.Decoder(Response | None).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode


def decode_item(raw: msgspec.Raw) -> OutputItem:
    """Decode an item; raises `ProviderError` if it is unreadable."""
    return decode_lenient(_decode_item, bytes(raw))


def decode_response(body: bytes | msgspec.Raw) -> Response:
    """Decode a response, empty for null; raises `ProviderError` if it is unreadable."""
    return decode_lenient(_decode_response, bytes(body)) or Response()


def decode_usage(raw: msgspec.Raw) -> Usage | None:
    """The usage; None if the server did not count, or in an unknown format."""
    tokens = decode_or_none(_decode_tokens, raw)
    if tokens is None:
        return None
    input_details = tokens.input_tokens_details or NO_DETAILS
    output_details = tokens.output_tokens_details or NO_DETAILS
    return normalized_usage(
        tokens.input_tokens,
        tokens.output_tokens,
        cached=input_details.cached_tokens,
        reasoning=output_details.reasoning_tokens,
        written=input_details.cache_write_tokens,
    )
