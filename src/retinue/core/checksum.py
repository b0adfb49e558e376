"""Checksum (CRC-32) of the values of a stored row. It finds damage, not forgery."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

_encode: Final = msgspec.msgpack.Encoder().encode


def checksum(*values: object) -> int:
    """The checksum of values as SQLite returns them: None, int, float, str or bytes.

    >>> checksum("s", 1.0, "open") == checksum("s", 1.0, "open")
    True
    >>> checksum("s", 1.0, "open") == checksum("s", 1, "open")
    False
    """
    return crc32(_encode(values))
