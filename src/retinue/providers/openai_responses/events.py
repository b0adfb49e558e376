"""The events of OpenAI's Responses, as much of them as matters here, and what they are in bytes.

Everything may be missing, and unknown fields are passed over: servers other than OpenAI's send less, or more.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from retinue.core.usage import Usage
from retinue.providers.lenient_json import if_readable, read
from retinue.providers.stream_decoder import NULL
from retinue.providers.vendor_usage import NO_DETAILS, Details, counted


class Event(Struct, gc=False):
    """One event; which of its fields mean something depends on its type."""

    type: str = ""
    delta: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    summary_index: int | None = None
    arguments: str | dict[str, object] | None = None
    item: msgspec.Raw = NULL
    response: msgspec.Raw = NULL
    error: object = None


class EventName(Struct, gc=False):
    """What is left of an event whose other fields are not what was expected."""

    type: str = ""


class Part(Struct, gc=False):
    """A piece of a message or of a summary."""

    text: str | None = None
    refusal: str | None = None


class Output(Struct, gc=False):
    """An item of the answer: a message, thoughts or a call."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, object] | None = None
    content: list[Part] | str | None = None
    summary: list[Part] | None = None


class Why(Struct, gc=False):
    """Why an answer is not complete."""

    reason: str | None = None


class Response(Struct, gc=False):
    """The answer as a whole."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = NULL
    error: object = None
    incomplete_details: Why | None = None


class _Tokens(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None


decode_event: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode
decode_name: Callable[[bytes], EventName] = msgspec.json.Decoder(EventName).decode
_decode_output = msgspec.json.Decoder(Output).decode
_decode_response = msgspec.json.Decoder(Response | None).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode


def output_in(raw: msgspec.Raw) -> Output:
    """An item from its JSON; raises `ProviderError` if it is none."""
    return read(_decode_output, bytes(raw))


def response_in(body: bytes | msgspec.Raw) -> Response:
    """An answer from its JSON, empty if there is none; raises `ProviderError` if it is something else."""
    return read(_decode_response, bytes(body)) or Response()


def usage_in(raw: msgspec.Raw) -> Usage | None:
    """Tokens by kind; None if the server did not count, or in a way that nobody knows."""
    tokens = if_readable(_decode_tokens, raw)
    if tokens is None:
        return None
    given, made = tokens.input_tokens_details or NO_DETAILS, tokens.output_tokens_details or NO_DETAILS
    return counted(
        tokens.input_tokens,
        tokens.output_tokens,
        cached=given.cached_tokens,
        reasoning=made.reasoning_tokens,
        written=given.cache_write_tokens,
    )
