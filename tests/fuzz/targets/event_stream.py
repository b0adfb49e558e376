"""AWS event streams: frames are the same however the network splits them, and damaged ones are errors."""

from __future__ import annotations

import struct
from binascii import crc32
from contextlib import suppress

from retinue.core.errors import ProviderError
from retinue.net.event_stream import FrameReader
from retinue.net.sse import EventTooLarge
from retinue.providers.bedrock import Decoder
from tests.fuzz.target import Target

LIMIT = 4096


def check(data: bytes) -> None:
    """Any bytes are events or an error, also as headers and payload of a frame with right checksums."""
    for stream in (data, framed(data)):
        whole = events_of([stream])
        assert events_of([stream[at : at + 1] for at in range(len(stream))]) == whole
        for event in whole or ():
            decoder = Decoder()
            with suppress(ProviderError):
                decoder.feed(event)
                decoder.finish()


def framed(data: bytes) -> bytes:
    """A frame whose headers are as long as the first byte says."""
    headers, payload = data[1 : 1 + data[0]] if data else b"", data[1 + data[0] :] if data else b""
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    frame = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return frame + struct.pack(">I", crc32(frame))


def events_of(chunks: list[bytes]) -> list[bytes] | None:
    """The events of a stream that arrives in these chunks; None if a frame is damaged or too large."""
    reader = FrameReader(limit=LIMIT)
    try:
        return [event for chunk in chunks for event in reader.feed(chunk)] + reader.end()
    except (EventTooLarge, ProviderError):
        return None


_EVENT = b"\x0d:message-type\x07\x00\x05event\x0b:event-type\x07\x00\x11contentBlockDelta"

TARGET = Target(
    check=check,
    seeds=(
        bytes([len(_EVENT)]) + _EVENT + b'{"contentBlockIndex":0,"delta":{"text":"hello"}}',
        bytes([len(_EVENT)]) + _EVENT + b'{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"Hm."}}}',
        b"\x12\x0d:message-type\x00\x00\x00",
    ),
)
