"""Server-sent events: a stream has the events that the format says, however the network splits it."""

from __future__ import annotations

import random

from retinue.net.sse import EventReader, EventTooLarge
from tests.fuzz.target import Target

LIMIT = 4096


def check(data: bytes) -> None:
    """Any bytes are events, or have one that is too large; the split into chunks and the fast paths change nothing."""
    whole = events_of([data])
    rng = random.Random(len(data))
    assert events_of([data[at : at + 1] for at in range(len(data))] or [b""]) == whole or whole is None
    chunks: list[bytes] = []
    at = 0
    while at < len(data):
        size = rng.choice((1, 2, 3, 7, 50, 1000))
        chunks.append(data[at : at + size])
        at += size
    assert events_of(chunks) == whole or whole is None
    if whole is not None:
        assert whole == by_the_rules(data)


def events_of(chunks: list[bytes]) -> list[bytes] | None:
    """The events of a stream that arrives in these chunks; None if one is too large."""
    reader = EventReader(limit=LIMIT)
    try:
        return [event for chunk in chunks for event in reader.feed(chunk)] + reader.end()
    except EventTooLarge:
        return None


def by_the_rules(data: bytes) -> list[bytes]:
    """The events of a whole stream, line by line, without any short cut."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in [*text.split(b"\n"), b""]:
        if not line:
            if lines:
                found.append(b"\n".join(lines))
            lines = []
        elif line == b"data" or line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return found


TARGET = Target(
    check=check,
    seeds=(
        b'data: {"a":1}\n\ndata: [DONE]\n\n',
        b"event: message_start\ndata: {}\n\nevent: ping\ndata: {}\n\n",
        b": comment\r\n\r\ndata: one\r\ndata: two\r\n\r\n",
        b"\xef\xbb\xbfid: 1\rretry: 5\rdata\rdata: x\r\r",
    ),
    words=(
        b"data: ",
        b"data:",
        b"data",
        b"event: ",
        b"\n\n",
        b"\r\n",
        b"\r",
        b"\r\r",
        b": ",
        b"id: 1\n",
        b"\xef\xbb\xbf",
    ),
    max_bytes=8192,
)
