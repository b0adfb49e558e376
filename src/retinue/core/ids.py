"""Names for runs: UUIDs of version 7, which sort by the moment they were made."""

from __future__ import annotations

import os
import time
from typing import TypeAlias

RunId: TypeAlias = str
SessionId: TypeAlias = str
DriverId: TypeAlias = str
Key: TypeAlias = str
"""What makes a verb repeatable: the same verb with the same key answers as it did the first time."""


def uuid7(milliseconds: int, random: bytes) -> str:
    """A version-7 UUID from a moment and ten random bytes.

    >>> uuid7(0x019467D97E3A, bytes(10))
    '019467d9-7e3a-7000-8000-000000000000'
    """
    tail = int.from_bytes(random[:10], "big")
    value = (
        (milliseconds & (1 << 48) - 1) << 80
        | 0x7 << 76
        | (tail >> 64 & 0xFFF) << 64
        | 0b10 << 62
        | tail & (1 << 62) - 1
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class RandomIds:
    """Ids as programs use them; within one process each sorts after the one before."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> str:
        """A fresh id."""
        # Two ids of one millisecond would sort by chance; a borrowed millisecond keeps them in the order of their
        # making.
        self._last = max(time.time_ns() // 1_000_000, self._last + 1)
        return uuid7(self._last, os.urandom(10))

    def follow(self, earlier: RunId) -> None:
        """Let every further id sort after one that another process made; it may have borrowed milliseconds too.

        >>> ids = RandomIds()
        >>> ids.follow("ffffffff-0000-7000-8000-000000000000")
        >>> ids.new()[:13]
        'ffffffff-0001'
        """
        try:
            moment = int(earlier.replace("-", "")[:12], 16)
        except ValueError:
            return  # not made by us
        self._last = max(self._last, moment)


def call_key(run_id: RunId, turn: int, index: int) -> Key:
    """The key of the `index`-th call of a run's `turn`-th reply.

    >>> call_key("r1", 3, 0)
    'r1/3/0'
    """
    return f"{run_id}/{turn}/{index}"
