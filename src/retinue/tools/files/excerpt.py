"""Excerpts of text files of any size: lines are counted in blocks, and the file is never held in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO

from retinue.tools.files.atomic_write import BLOCK, blocks
from retinue.tools.files.paths import OpenPath, UnusablePath

MAX_FILE = 4 * 1024**3
"""Bytes of a file that is read by lines; counting the lines of more would take too long."""

MAX_LINE = 2000
"""Characters of a line that are returned."""

BINARY_IN = 8192
"""A zero byte among this many first bytes makes a file binary."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive lines of a file, and how many it has in all."""

    lines: list[str]
    total: int


def excerpt(file: OpenPath, *, skip: int, limit: int, room: int) -> Excerpt:
    """Up to `limit` lines (0: any number) after the first `skip`, with at most `room` characters together.

    There is at least one line, if the file has one, so that paging makes progress. Raises `UnusablePath` for a binary
    file.
    """
    if file.stat.st_size > MAX_FILE:
        raise UnusablePath(file.path, f"too large to read by lines ({file.stat.st_size} bytes); search it instead")
    try:
        if b"\0" in os.pread(file.fd, BINARY_IN, 0):
            raise UnusablePath(file.path, f"binary file, {file.stat.st_size} bytes, not shown")
        total, start, end = _count(file, skip)
        lines: list[str] = []
        with open(os.dup(file.fd), "rb") as reader:
            reader.seek(start)
            while skip + len(lines) < total and not (limit and len(lines) == limit):
                line = _next(reader, end)
                if line is None:  # the file has become shorter since it was counted
                    return Excerpt(lines, skip + len(lines))
                room -= len(line) + 1
                if room < 0 and lines:
                    break
                lines.append(line)
    except OSError as error:
        raise UnusablePath.because(error, file.path) from error
    return Excerpt(lines, total)


def _count(file: OpenPath, skip: int) -> tuple[int, int, int]:
    """Number of lines, offset of the line after the first `skip`, and end offset; later appends are ignored."""
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
    """The next line without its line end, up to offset `end`; a long line is cut and ends with what was left out."""
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
    """A line cut to its limit; `left_out` bytes of it were not read."""
    if len(text) <= MAX_LINE and not left_out:
        return text
    return f"{text[:MAX_LINE]}… ({len(text[MAX_LINE:]) + left_out} more)"
