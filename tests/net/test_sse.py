"""An event stream is decoded the same however it is split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.net.sse import EventReader, EventTooLarge


def read(*chunks: bytes, limit: int | None = None) -> list[bytes]:
    reader = EventReader() if limit is None else EventReader(limit=limit)
    return [data for chunk in chunks for data in reader.feed(chunk)] + reader.end()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(stream)) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\r\n\ndata: two\n\r\n", [b"one", b"two"]),
        (b"data: first line\ndata: second line\n\n", [b"first line\nsecond line"]),
        (b"data: a\n:between\nid: 7\ndata: b\n\n", [b"a\nb"]),
        (b"event: error\ndata: x\nretry: 5\n\n", [b"x"]),
        (b": a comment\n\n: another\n\ndata: x\n\n", [b"x"]),
        (b"event: ping\n\ndata: x\n\n", [b"x"]),
        (b"\n\n\n\ndata: x\n\n\n\n\ndata: y\n\n", [b"x", b"y"]),
        (b"data:no space\n\ndata:  two spaces\n\n", [b"no space", b" two spaces"]),
        (b"data\n\ndata:\n\ndata: \n\n", [b"", b"", b""]),
        (b"database: no\ndat: no\n data: no\n\ndata: yes\n\n", [b"yes"]),
        (b"data: a: b: c\n\n", [b"a: b: c"]),
        (b"\xef\xbb\xbfdata: after a byte order mark\n\n", [b"after a byte order mark"]),
        (b"\xef\xbbdata: not quite one\n\n", []),
        (b"data: \xef\xbb\xbf\n\n", [b"\xef\xbb\xbf"]),
        (b"data: never ended\n", [b"never ended"]),
        (b"data: not even the line", [b"not even the line"]),
        ("data: naïve 日本語 🦆 \u2028\n\n".encode(), ["naïve 日本語 🦆 \u2028".encode()]),
        (b"", []),
    ],
)
def test_events_follow_the_standard_however_the_stream_is_split(stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == events
    assert [read(stream[:i], b"", stream[i:]) for i in range(len(stream))] == [events] * len(stream)


PIECES = st.sampled_from(
    [b"data: ", b"data:", b"data", b"{}", b"\n", b"\r", b"\r\n", b"\n\n", b": c", b"id", b"\xef\xbb\xbf"]
)


@given(st.lists(PIECES, max_size=20).map(b"".join), st.lists(st.integers(0, 100)))
def test_any_split_gives_the_same_events(stream: bytes, places: list[int]) -> None:
    assert read(*cut(stream, places)) == read(stream)


WRITABLE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))


@given(st.lists(WRITABLE), st.sampled_from(["\n", "\r\n", "\r"]))
def test_encoded_events_are_decoded(texts: list[str], newline: str) -> None:
    stream = "".join(f"data: {text}{newline}{newline}" for text in texts).encode()

    assert read(stream) == [text.encode() for text in texts]


@given(st.binary(), st.lists(st.integers(0, 100)))
def test_any_bytes_can_be_read(stream: bytes, places: list[int]) -> None:
    assert read(*cut(stream, places)) == read(stream)


def test_a_long_event_may_arrive_byte_by_byte() -> None:
    stream = b"data: " + b"x" * 300_000 + b"\n\n"

    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == [b"x" * 300_000]


@pytest.mark.parametrize(
    ("chunks", "size"),
    [
        ([b"data: 12345\n"], 11),
        ([b"data: 12", b"345\n", b"and no end"], 11),
        ([b"data: 1\n\n", b"data: 12345\n\n"], 11),
        ([b"data: 1\n\ndata: 12345"], 11),
    ],
)
def test_an_endless_event_is_an_error(chunks: list[bytes], size: int) -> None:
    with pytest.raises(EventTooLarge) as refused:
        read(*chunks, limit=10)

    assert str(refused.value) == f"an event of the stream has {size} bytes or more; the limit is 10"
    assert (refused.value.size, refused.value.limit) == (size, 10)


def test_many_events_in_one_piece_may_exceed_the_event_limit() -> None:
    assert read(b"data: 1234\n\n" * 100, limit=10) == [b"1234"] * 100


def test_the_size_of_an_event_does_not_depend_on_how_the_network_splits_it() -> None:
    event = b"data: " + b"x" * 94 + b"\n\n"

    reader = EventReader(limit=100)
    assert [data for at in range(len(event)) for data in reader.feed(event[at : at + 1])] == [b"x" * 94]
    assert EventReader(limit=100).feed(event) == [b"x" * 94]
