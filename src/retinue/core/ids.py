"""Run ids: version-7 UUIDs, which sort by creation time; names of sessions; keys of tool calls; the wall clock."""

from __future__ import annotations

import os
import re
import time
from typing import TypeAlias

RunId: TypeAlias = str
SessionId: TypeAlias = str
DriverId: TypeAlias = str
Key: TypeAlias = str
"""Idempotency key: a repeated operation with the same key returns the first result."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OF_JOB = "cron-"


def is_unnamed(session_id: SessionId) -> bool:
    """Whether the id of a session was generated for the runs of one process, and not chosen by a person.

    >>> is_unnamed("019467d9-7e3a-7000-8000-00000badcafe"), is_unnamed("audit")
    (True, False)
    """
    return _UUID.fullmatch(session_id) is not None


def is_of_job(session_id: SessionId) -> bool:
    """Whether the id of a session was generated for a scheduled job, whose next run uses the session again.

    >>> is_of_job("cron-019467d9-7e3a-7000-8000-00000badcafe"), is_of_job("cron-audit")
    (True, False)
    """
    return session_id.startswith(_OF_JOB) and is_unnamed(session_id.removeprefix(_OF_JOB))


def uuid7(milliseconds: int, random: bytes) -> str:
    """A version-7 UUID from a Unix time in milliseconds and ten random bytes.

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
    """Random version-7 UUIDs; within one process each sorts after the previous one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> str:
        # Two ids of one millisecond would sort at random; a borrowed millisecond keeps them in creation order.
        self._last = max(time.time_ns() // 1_000_000, self._last + 1)
        return uuid7(self._last, os.urandom(10))

    def follow(self, earlier: RunId) -> None:
        """Make all further ids sort after `earlier`, whose process may have borrowed milliseconds too.

        >>> ids = RandomIds()
        >>> ids.follow("ffffffff-0000-7000-8000-000000000000")
        >>> ids.new()[:13]
        'ffffffff-0001'
        """
        try:
            moment = int(earlier.replace("-", "")[:12], 16)
        except ValueError:
            return  # not one of these ids
        self._last = max(self._last, moment)


class SystemClock:
    """The wall clock of the machine."""

    def now(self) -> float:
        return time.time()


def call_key(run_id: RunId, turn: int, index: int) -> Key:
    """The key of the `index`-th call of a run's `turn`-th reply.

    >>> call_key("r1", 3, 0)
    'r1/3/0'
    """
    return f"{run_id}/{turn}/{index}"
