"""Parser of AWS event streams: binary frames with headers, a payload and checksums.

A frame has its length and that of its headers, a checksum of both, the headers, the payload, and a checksum of all
before it. Every number has its most significant byte first.
"""

from __future__ import annotations

import re
import struct
from binascii import crc32

import msgspec

from retinue.core.errors import ProviderError
from retinue.core.text import NOT_JSON
from retinue.net.sse import MAX_EVENT_BYTES, EventTooLarge

MAX_HEADER_BYTES = 128 * 1024
PRELUDE = 12
"""Bytes before the headers."""

_LEAST = PRELUDE + 4
_prelude = struct.Struct(">III").unpack_from
_number = struct.Struct(">I").unpack_from
_length = struct.Struct(">H").unpack_from

_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Sizes of header values by their type; text and bytes have their length before them."""
_BYTES, _TEXT = 6, 7

_EVENT_NAME = re.compile(r"[A-Za-z]{1,64}")
_NOTHING = b"{}"


class FrameReader:
    """Takes a stream in chunks and returns each complete event as a JSON object with one field, the event's name.

    An error or an exception in the stream is an object with the field `error`. Damaged frames raise `ProviderError`,
    and one that is too large `EventTooLarge`, before any of its content is looked at.
    """

    __slots__ = ("_limit", "_rest", "_wanted")

    def __init__(self, *, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._wanted = PRELUDE
        """Bytes that have to be there before anything can be read."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes, in order."""
        rest = self._rest
        rest += chunk
        found: list[bytes] = []
        start = 0
        while len(rest) - start >= self._wanted:
            if self._wanted == PRELUDE:
                self._wanted = self._size(rest, start)
                continue
            end = start + self._wanted
            if (event := _event(bytes(rest[start:end]))) is not None:
                found.append(event)
            start, self._wanted = end, PRELUDE
        del rest[:start]
        return found

    def end(self) -> list[bytes]:
        """Nothing: a frame that is not complete is no event."""
        return []

    def _size(self, rest: bytearray, start: int) -> int:
        size, headers, checksum = _prelude(rest, start)
        if crc32(rest[start : start + 8]) != checksum:
            raise _damaged("the checksum of its length is wrong")
        if size > self._limit:
            raise EventTooLarge(size=size, limit=self._limit)
        if size < _LEAST or headers > min(size - _LEAST, MAX_HEADER_BYTES):
            raise _damaged(f"a frame of {size} bytes cannot have {headers} bytes of headers")
        return size


def _event(frame: bytes) -> bytes | None:
    """The event in a frame; None for one that is to be ignored."""
    (checksum,) = _number(frame, len(frame) - 4)
    if crc32(frame[:-4]) != checksum:
        raise _damaged("the checksum of a frame is wrong")
    _, size, _ = _prelude(frame)
    headers = _headers(frame[PRELUDE : PRELUDE + size])
    payload = frame[PRELUDE + size : -4]
    match headers.get(":message-type"):
        case "event":
            name = headers.get(":event-type", "")
            return b'{"%b":%b}' % (name.encode(), payload or _NOTHING) if _EVENT_NAME.fullmatch(name) else None
        case "exception":
            return _error(headers.get(":exception-type", ""), _message(payload))
        case "error":
            return _error(headers.get(":error-code", ""), headers.get(":error-message", ""))
        case _:
            return None


def _error(kind: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"type": kind, "message": message}})


def _message(payload: bytes) -> str:
    try:
        fields = msgspec.json.decode(payload, type=dict[str, object])
    except NOT_JSON:
        return payload.decode("utf-8", "replace")
    texts = (fields.get(name) for name in ("message", "Message", "originalMessage"))
    return next((text for text in texts if isinstance(text, str) and text), "")


def _headers(data: bytes) -> dict[str, str]:
    """The headers whose values are text."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            size = data[at]
            name = data[at + 1 : at + 1 + size].decode("utf-8", "replace")
            at += 1 + size
            kind = data[at]
            at += 1
            if kind in (_BYTES, _TEXT):
                (size,) = _length(data, at)
                at += 2
                if at + size > len(data):
                    raise _damaged("a header is longer than all headers")
                if kind == _TEXT:
                    found[name] = data[at : at + size].decode("utf-8", "replace")
                at += size
            else:
                at += _FIXED[kind]
    except (IndexError, KeyError, struct.error):
        raise _damaged("its headers cannot be read") from None
    return found


def _damaged(reason: str) -> ProviderError:
    return ProviderError(f"the event stream is damaged: {reason}", fault="cut")
