"""What is not quite right is mended here: halves of characters, and arguments that are no JSON object.

Servers are strict where models and other servers are careless. The same carelessness is always mended in the same way.
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
"""How many bytes are shown of an event that makes no sense."""

T = TypeVar("T")
D = TypeVar("D")

_HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def sound(text: str) -> str:
    r"""The text without halves of characters, which UTF-8 cannot carry.

    >>> sound("a\ud83d")
    'a?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def verbatim(text: str) -> msgspec.Raw:
    """JSON that somebody wrote, such as a schema, to be sent as it is."""
    return msgspec.Raw(sound(text).encode())


def as_object(arguments: str) -> str:
    """A call's arguments as a JSON object, which servers insist on; what a model wrote instead is found inside of one.

    >>> as_object(' {"a": 1}'), as_object(""), as_object("[1]")
    (' {"a": 1}', '{}', '{"not_a_json_object":"[1]"}')
    """
    if not arguments.strip():
        return "{}"
    try:
        if _HALF_A_CHARACTER.search(arguments):  # fine with us, but servers refuse the whole request
            arguments = sound(json.dumps(json.loads(arguments), ensure_ascii=False))
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return msgspec.json.encode({"not_a_json_object": sound(arguments)}).decode()
    return arguments


def json_text(arguments: str | dict[str, object] | None) -> str:
    """Arguments as text, also where a server sends the object itself."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def read(decode: Callable[[bytes], T], data: bytes) -> T:
    """What some data says, mended if need be; raises `ProviderError` for nonsense."""
    try:
        return decode(data)
    except NOT_JSON:
        again = mended(data)
    try:
        if again is not None:
            return decode(again)
    except NOT_JSON:
        pass
    raise unreadable(data, is_json=again is not None)


def if_readable(decode: Callable[[D], T], data: D) -> T | None:
    """What some data says, or None for nonsense that does no harm."""
    try:
        return decode(data)
    except NOT_JSON:
        return None


def mended(payload: bytes) -> bytes | None:
    """Data that is not quite JSON as JSON, because half a character should not cost the whole answer; None if it is
    something else altogether.

    >>> mended(b'["a\\\\ud83d"]'), mended(b"nonsense")
    (b'["a?"]', None)
    """
    try:
        value = json.loads(payload.decode("utf-8", "replace"))
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None


def unreadable(payload: bytes, *, is_json: bool) -> ProviderError:
    """The error for an event that makes no sense, which counts as a broken connection."""
    what = "is not what was expected" if is_json else "cannot be read"
    beginning = payload[:SHOWN_OF_EVENT].decode("utf-8", "replace")
    return ProviderError(f"an event of the stream {what}: {beginning}", fault="cut")
