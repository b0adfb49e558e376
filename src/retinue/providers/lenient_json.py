"""Lenient JSON: lone surrogates, damaged events, and tool arguments that are not a JSON object.

Servers are strict where models and other servers are careless. The same damage is always repaired in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from retinue.core.errors import ProviderError
from retinue.core.text import NOT_JSON

SHOWN_OF_EVENT = 120
"""How many bytes of an unreadable event an error message repeats."""

MAX_REPAIRED_BYTES = 1024 * 1024
"""The longest data that is repaired: decoded without a type, it takes many times its size."""

T = TypeVar("T")
D = TypeVar("D")

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def utf8_safe(text: str) -> str:
    r"""The text with lone surrogates replaced, which UTF-8 cannot carry.

    >>> utf8_safe("a\ud83d")
    'a?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def raw_json(text: str) -> msgspec.Raw:
    """JSON text from elsewhere, such as a schema, to be sent unchanged."""
    return msgspec.Raw(utf8_safe(text).encode())


def as_json_object(arguments: str) -> str:
    """The arguments of a tool call as a JSON object, which servers insist on; other text is wrapped in an object.

    >>> as_json_object(' {"a": 1}'), as_json_object(""), as_json_object("[1]")
    (' {"a": 1}', '{}', '{"not_a_json_object":"[1]"}')
    """
    if not arguments.strip():
        return "{}"
    try:
        if _LONE_SURROGATE.search(arguments):  # valid JSON, but servers reject the whole request
            arguments = utf8_safe(json.dumps(json.loads(arguments), ensure_ascii=False))
        _decode_object(arguments)
    except (ValueError, RecursionError):
        return msgspec.json.encode({"not_a_json_object": utf8_safe(arguments)}).decode()
    return arguments


def json_text(arguments: str | dict[str, object] | None) -> str:
    """Arguments as text, also where a server sends the object itself."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def decode_lenient(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode data, repaired if need be; raises `ProviderError` if it is unreadable."""
    try:
        return decode(data)
    except NOT_JSON:
        repaired = repair_json(data)
    try:
        if repaired is not None:
            return decode(repaired)
    except NOT_JSON:
        pass
    raise unreadable_event(data, is_json=repaired is not None)


def decode_or_none(decode: Callable[[D], T], data: D) -> T | None:
    """Decode data, or return None where unreadable data does no harm."""
    try:
        return decode(data)
    except NOT_JSON:
        return None


def repair_json(payload: bytes) -> bytes | None:
    """Damaged JSON as valid JSON, so that one lone surrogate does not cost the whole answer.

    None if it is no JSON, or longer than `MAX_REPAIRED_BYTES`.

    >>> repair_json(b'["a\\\\ud83d"]'), repair_json(b"nonsense")
    (b'["a?"]', None)
    """
    if len(payload) > MAX_REPAIRED_BYTES:
        return None
    try:
        value = json.loads(payload.decode("utf-8", "replace"))
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None


def unreadable_event(payload: bytes, *, is_json: bool) -> ProviderError:
    """The error for an event that cannot be decoded; its fault is that of a broken connection."""
    problem = "is not what was expected" if is_json else "cannot be read"
    beginning = payload[:SHOWN_OF_EVENT].decode("utf-8", "replace")
    return ProviderError(f"an event of the stream {problem}: {beginning}", fault="cut")
