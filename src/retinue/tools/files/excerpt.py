"""Some lines of a file that may be of any size: it is counted in blocks and never held whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO

from retinue.tools.files.atomic_write import BLOCK, blocks
from retinue.tools.files.paths import Opened, Unusable

MAX_FILE = 4 * 1024**3
"""Bytes of a file that is read for its lines; counting more would take longer than anybody waits."""

MAX_LINE = 2000
"""Characters of a line that are shown."""

BINARY_IN = 8192
"""A zero byte in so many bytes at the start makes a file binary."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines in a row, of how many in all."""

    lines: list[str]
    total: int


def excerpt(file: Opened, *, skip: int, limit: int, room: int) -> Excerpt:
    """Up to `limit` lines (0: any number) after the first `skip`, as long as they have no more than `room` characters.

    There is at least one line, if there is one, so that whoever pages gets on. Raises `Unusable` for binary files.
    """
    if file.stat.st_size > MAX_FILE:
        raise Unusable(file.path, f"too large to read by lines ({file.stat.st_size} bytes); search it instead")
    try:
        if b"\0" in os.pread(file.fd, BINARY_IN, 0):
            raise Unusable(file.path, f"binary file, {file.stat.st_size} bytes, not shown")
        total, start, end = _count(file, skip)
        lines: list[str] = []
        with open(os.dup(file.fd), "rb") as reader:
            reader.seek(start)
            while skip + len(lines) < total and not (limit and len(lines) == limit):
                line = _next(reader, end)
                if line is None:  # it has become shorter since it was counted
                    return Excerpt(lines, skip + len(lines))
                room -= len(line) + 1
                if room < 0 and lines:
                    break
                lines.append(line)
    except OSError as error:
        raise Unusable.because(error, file.path) from error
    return Excerpt(lines, total)


def _count(file: Opened, skip: int) -> tuple[int, int, int]:
    """How many lines there are, the byte at which the line after the first `skip` starts, and the one after the last.

    What is added meanwhile is not counted.
    """
    seen, start, at, last = 0, 0, 0, b"\n"
    for block in blocks(file.fd, file.stat.st_size):
        here = block.count(b"\n")
        if seen < skip <= seen + here:
            cut = -1
            for _ in range(skip - seen):
                cut = block.index(b"\n", cut + 1)
            start = at + cut + 1
        seen += here
        at += len(block)
        last = block[-1:]
    return seen + (last != b"\n"), start, at


def _next(reader: BinaryIO, end: int) -> str | None:
    """The next line without its end, up to the byte `end`; what is too much of it is passed over and told."""
    head = reader.readline(min(4 * MAX_LINE, end - reader.tell()))
    if not head:
        return None
    ended, left_out = head.endswith(b"\n"), 0
    text = head.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
    while not ended and (piece := reader.readline(min(BLOCK, end - reader.tell()))):
        ended = piece.endswith(b"\n")
        left_out += len(piece) - ended
    return _shortened(text, left_out)


def _shortened(text: str, left_out: int) -> str:
    """A line as it is shown; `left_out` bytes of it are missing already."""
    if len(text) <= MAX_LINE and not left_out:
        return text
    return f"{text[:MAX_LINE]}… ({len(text[MAX_LINE:]) + left_out} more)"
