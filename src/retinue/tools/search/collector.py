"""Where matches are, taken in while a program tells of them: each line is counted, only those of a page are looked at.

A program tells of a file in one go: its path, a zero byte, a row for each line, and an empty row. Of files in any order
only the first ones by path are kept, as many as the page can need: one that was put aside never comes back, because
files that are told of later can only push it further away. Nothing is copied that is only counted: a search with very
many matches costs hardly more than the program itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.tools.files import Opened, Reach
from retinue.tools.search.query import Query

MAX_KEPT = 8 * 1024 * 1024
"""Bytes of places to keep for a page; files after these cannot be paged to and are not counted."""

SPARE = 10_000
"""Results that are kept beyond those of the page before the files are looked through."""

SHOWN = 500
"""Characters of a matching line that are shown."""

_PLACE = re.compile(rb"(\d+)([:-])(\d+)[:-]")
_BINARY = b": WARNING: stopped searching binary file"


@dataclass(frozen=True, slots=True)
class _File:
    """A file that matches: how many results it gives, and the rows that tell of them."""

    path: bytes
    order: list[bytes]
    results: int
    rows: bytes

    @property
    def size(self) -> int:
        return len(self.path) + len(self.rows)


class Places:
    """The places that a program tells of; the first `wanted` results can be shown."""

    def __init__(self, query: Query, closed: Sequence[tuple[str, ...]], wanted: int) -> None:
        self._query = query
        self._by_line = query.mode == "lines"
        self._closed = tuple(os.fsencode("/".join(path)) for path in closed)
        self._wanted = wanted
        self._begun: list[bytes] = []
        self._begun_size = 0
        self._first_rows = b""
        self._files: list[_File] = []
        self._size = 0
        self._room = 2 * wanted + SPARE
        self._last: list[bytes] | None = None
        self._aside = 0
        self._shortened = False
        self._lost = False

    @property
    def total(self) -> int:
        """How many results can be paged to."""
        return sum(file.results for file in self._files) + (0 if self._lost else self._aside)

    @property
    def counted(self) -> bool:
        """Whether those are all there are."""
        return not (self._lost or self._shortened)

    def feed(self, piece: bytes) -> None:
        """Take in more of what a program prints."""
        self._begin(piece)
        if b"\0" in piece:
            told = b"".join(self._begun)
            self._begun, self._begun_size = [], 0
            self._begin(told[self._take(told) :])
        elif self._begun_size > 2 * MAX_KEPT:  # and all of one file
            self._shorten()

    def close(self) -> None:
        """The program has ended."""
        told = b"".join(self._begun)
        start = self._take(told)
        if (zero := told.find(b"\0", start)) >= 0:
            self._add(told, start, zero, len(told.rstrip(b"\n")))
        self._put_aside()

    def _begin(self, piece: bytes) -> None:
        self._begun.append(piece)
        self._begun_size += len(piece)

    def _take(self, told: bytes) -> int:
        """Take in each file that is told of to its end, and say where the next one starts."""
        start = 0
        while (zero := told.find(b"\0", start)) >= 0 and (end := self._end(told, zero)) >= 0:
            self._add(told, start, zero, end)
            start = end + (2 if self._by_line else 1)
        return start

    def _end(self, told: bytes, zero: int) -> int:
        if not self._by_line:
            return told.find(b"\n", zero)
        following = told.find(b"\0", zero + 1)
        return -1 if following < 0 else told.rfind(b"\n\n./", zero, following)

    def _add(self, told: bytes, start: int, zero: int, end: int) -> None:
        path = told[start:zero].removeprefix(b"./")
        order = path.split(b"/")
        rows, self._first_rows = self._first_rows, b""
        if any(path == shut or path.startswith(shut + b"/") for shut in self._closed):
            return
        results = 1
        if self._by_line:
            last = max(told.rfind(b"\n", zero, end), zero) + 1
            if not _PLACE.match(told, last) or told.find(_BINARY, last, end) >= 0:
                return
            results = (rows.count(b"\n") if rows else told.count(b"\n", zero, end)) + 1
            # Asked of the program, it would stop before it sees that a file is binary.
            most = self._query.max_count
            self._shortened = self._shortened or (bool(rows) and not 0 < most <= results)
            results = min(results, most or results)
        if self._last is not None and order > self._last:
            self._aside += results
            return
        rows = rows or told[zero + 1 : end]
        if self._query.max_count:
            rows = b"\n".join(rows.split(b"\n", results)[:results])
        file = _File(path, order, results, rows)
        self._files.append(file)
        self._size += file.size
        self._room -= results
        if self._room < 0 or self._size > 4 * MAX_KEPT:
            self._put_aside()

    def _shorten(self) -> None:
        """Of one file with very many matches only the first are kept, and its last row, which may be a warning."""
        path, _, rows = b"".join(self._begun).partition(b"\0")
        self._first_rows = self._first_rows or rows[: rows.rfind(b"\n", 0, MAX_KEPT)]
        self._begun, self._begun_size = [], 0
        self._begin(path + b"\0" + rows[rows.rfind(b"\n", 0, -1) + 1 :])

    def _put_aside(self) -> None:
        """Keep the first files, as many as the page needs and the bounds allow."""
        self._files.sort(key=lambda file: file.order)
        results = size = kept = 0
        for file in self._files:
            if results >= self._wanted or size > MAX_KEPT:
                self._lost = self._lost or results < self._wanted
                self._last = self._files[kept - 1].order
                break
            results += file.results
            size += file.size
            kept += 1
        self._aside += sum(file.results for file in self._files[kept:])
        del self._files[kept:]
        self._size = size
        self._room = self._wanted + SPARE

    def page(self, reach: Reach, folder: Opened, prefix: str, offset: int, limit: int) -> list[str]:
        """Results as the model reads them."""
        results: list[str] = []
        for file in self._files:
            if offset >= file.results:
                offset -= file.results
                continue
            if len(results) >= limit:
                break
            shown = prefix if self._query.only else prefix + file.path.decode("utf-8", "replace")
            if self._query.mode == "files":
                results.append(shown)
            elif self._query.mode == "count":
                results.append(f"{shown}:{min(int(file.rows), self._query.max_count or int(file.rows))}")
            else:
                last = min(offset + limit - len(results), file.results)
                rows = file.rows.split(b"\n", last)[offset:last]
                with reach.beneath(folder, os.fsdecode(file.path).split("/")) as opened:
                    results.extend(_line(shown, row, opened) for row in rows)
            offset = 0
        return results


def _line(path: str, row: bytes, file: Opened | None) -> str:
    found = _PLACE.match(row)
    assert found is not None
    number, mark, start = found[1].decode(), found[2].decode(), int(found[3])
    text = "[changed while it was searched]"
    if file is not None and start <= file.stat.st_size:
        with contextlib.suppress(OSError):
            line = os.pread(file.fd, 4 * SHOWN + 4, start).split(b"\n", 1)[0].removesuffix(b"\r")
            text = line.decode("utf-8", "replace")
            text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{path}{mark}{number}{mark}{text}"
