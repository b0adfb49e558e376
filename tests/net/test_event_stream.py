"""Frames of AWS event streams: cut anywhere, damaged anywhere, and larger than allowed."""

import struct
from binascii import crc32
from contextlib import suppress
from random import Random

import pytest

from retinue.core.errors import ProviderError
from retinue.net.event_stream import FrameReader
from retinue.net.sse import EventTooLarge
from tests.providers.fakes.bedrock import event, exception, frame

EVENTS = [
    b'{"messageStart":{"role":"assistant"}}',
    b'{"contentBlockDelta":{"delta":{"text":"na\xc3\xafve"},"contentBlockIndex":0}}',
    b'{"error":{"type":"throttlingException","message":"slow down"}}',
    b'{"messageStop":{"stopReason":"end_turn"}}',
]
STREAM = b"".join(
    (
        event("messageStart", role="assistant"),
        event("contentBlockDelta", delta={"text": "naïve"}, contentBlockIndex=0),
        frame(b"", message_type="something-new"),
        exception("throttlingException", "slow down"),
        event("messageStop", stopReason="end_turn"),
    )
)


def test_frames_are_read_wherever_the_network_cuts_them() -> None:
    whole = FrameReader().feed(STREAM)
    for cut in range(len(STREAM) + 1):
        reader = FrameReader()
        assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == whole
    reader = FrameReader()
    assert [each for byte in STREAM for each in reader.feed(bytes([byte]))] == whole == EVENTS


def test_a_stream_that_ends_early_has_the_events_before_its_end() -> None:
    for cut in range(len(STREAM)):
        reader = FrameReader()
        found = reader.feed(STREAM[:cut]) + reader.end()
        assert found == EVENTS[: len(found)]
        assert len(found) < len(EVENTS)


def test_every_changed_byte_is_found() -> None:
    for place in range(len(STREAM)):
        changed = bytearray(STREAM)
        changed[place] ^= 0x20
        with pytest.raises(ProviderError, match="the event stream is damaged"):
            FrameReader().feed(bytes(changed))


def with_checksums(size: int, headers: int, rest: bytes) -> bytes:
    prelude = struct.pack(">II", size, headers)
    whole = prelude + struct.pack(">I", crc32(prelude)) + rest
    return whole + struct.pack(">I", crc32(whole))


def test_lengths_are_bounded_before_anything_is_kept() -> None:
    too_large = with_checksums(2**31, 0, b"")
    with pytest.raises(EventTooLarge) as caught:
        FrameReader(limit=1000).feed(too_large[:12])
    assert (caught.value.size, caught.value.limit) == (2**31, 1000)
    for size, headers in ((15, 0), (0, 0), (40, 25), (16, 1), (200_000, 140_000)):
        with pytest.raises(ProviderError, match=f"a frame of {size} bytes cannot have {headers} bytes of headers"):
            FrameReader().feed(with_checksums(size, headers, bytes(24)))


@pytest.mark.parametrize(
    "headers",
    [b"\x05", b"\x01a", b"\x01a\x07", b"\x01a\x07\x00\x09abc", b"\x01a\x63", b"\xff", b"\x01a\x06\xff\xff"],
)
def test_headers_that_cannot_be_read_are_an_error(headers: bytes) -> None:
    with pytest.raises(ProviderError, match="the event stream is damaged"):
        FrameReader().feed(with_checksums(16 + len(headers), len(headers), headers))


def test_headers_of_every_type_are_skipped() -> None:
    values = {0: b"", 1: b"", 2: b"x", 3: b"xx", 4: b"x" * 4, 5: b"x" * 8, 6: b"\0\2xx", 8: b"x" * 8, 9: b"x" * 16}
    headers = b"".join(b"\x01h" + bytes([kind]) + value for kind, value in values.items())
    for name, text in ((b":message-type", b"event"), (b":event-type", b"ping")):
        headers += bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(text)) + text

    assert FrameReader().feed(with_checksums(16 + len(headers), len(headers), headers)) == [b'{"ping":{}}']


def test_an_error_message_becomes_an_error() -> None:
    whole = frame(b"", message_type="error", error_code="InternalError", error_message="An internal error.")

    assert FrameReader().feed(whole) == [b'{"error":{"type":"InternalError","message":"An internal error."}}']


def test_the_name_of_an_event_cannot_add_fields() -> None:
    assert FrameReader().feed(frame(b"{}", message_type="event", event_type='a":1,"error')) == []


def test_noise_is_never_an_event() -> None:
    random = Random(18)
    for _ in range(2000):
        noise = random.randbytes(random.randrange(200))
        with suppress(ProviderError):
            assert FrameReader().feed(noise) == []
