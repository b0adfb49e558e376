"""Mutations of bytes: bits, numbers, copies, cuts, words of a language, nesting, and splices of two inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9007199254740993", b"1" + b"0" * 30, b"-" + b"9" * 40, b"0.1", b"1e-400")
ODD_BYTES = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"\\ud83d",
    b"\x1b[",
)
PAIRS = ((b"[", b"]"), (b"{", b"}"), (b'{"a":', b"}"), (b"(", b")"), (b'"', b'"'), (b"'", b"'"), (b"$(", b")"))

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutate(rng: random.Random, corpus: Sequence[bytes], words: Sequence[bytes], *, max_bytes: int) -> bytes:
    """An input made of one or two of the `corpus` by a few mutations, with at most `max_bytes` bytes.

    >>> rng = random.Random(1)
    >>> all(len(mutate(rng, [b"ab", b"[1,2]"], [b"x"], max_bytes=9)) <= 9 for _ in range(100))
    True
    """
    data = rng.choice(corpus) if corpus else b""
    if len(corpus) > 1 and rng.random() < 0.2:
        data = splice(rng, data, rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        data = rng.choice(MUTATIONS)(rng, data, words)[:max_bytes]
    return data


def splice(rng: random.Random, first: bytes, second: bytes) -> bytes:
    """The beginning of one input and the end of another."""
    return first[: rng.randint(0, len(first))] + second[rng.randint(0, len(second)) :]


def _span(rng: random.Random, data: bytes, longest: int = 64) -> tuple[int, int]:
    begin = rng.randint(0, len(data))
    return begin, min(len(data), begin + rng.randint(1, longest))


def _put(rng: random.Random, data: bytes, new: bytes) -> bytes:
    """The data with `new` inserted, or in place of a few bytes."""
    begin, end = _span(rng, data, 8)
    return data[:begin] + new + data[begin if rng.random() < 0.6 else end :]


def _flip_bit(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    if not data:
        return bytes([rng.randrange(256)])
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _random_byte(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    return _put(rng, data, bytes([rng.randrange(256)]))


def _odd_byte(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    return _put(rng, data, rng.choice(ODD_BYTES))


def _number(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    """A number of the data, or any place in it, becomes an odd number."""
    digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return _put(rng, data, rng.choice(NUMBERS))
    begin = end = rng.choice(digits)
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:begin] + rng.choice(NUMBERS) + data[end:]


def _cut(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def _truncate(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _copy(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    return _put(rng, data, data[begin:end])


def _repeat(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data, 16)
    return data[:end] + data[begin:end] * rng.choice((1, 2, 10, 100, 1000)) + data[end:]


def _nest(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    left, right = rng.choice(PAIRS)
    begin, end = _span(rng, data)
    times = rng.choice((1, 1, 2, 10, 100, 1000))
    return data[:begin] + left * times + data[begin:end] + right * rng.choice((times, times, 0)) + data[end:]


def _word(rng: random.Random, data: bytes, words: Sequence[bytes]) -> bytes:
    return _put(rng, data, rng.choice(words)) if words else _random_byte(rng, data, words)


def _swap_lines(rng: random.Random, data: bytes, _words: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bit,
    _random_byte,
    _odd_byte,
    _number,
    _cut,
    _truncate,
    _copy,
    _repeat,
    _nest,
    _word,
    _word,
    _word,
    _swap_lines,
)
