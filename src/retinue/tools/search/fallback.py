"""A program that searches the files of a folder and answers as ripgrep does, for machines without ripgrep.

It is started with the query as its one argument, searches the folder it stands in, and prints where the matches are:
`./path`, a zero byte, a row `line:offset:` for each match (`line-offset-` for a line of context), and an empty row. It
is a program of its own, because a regular expression can take for ever and only a program can be stopped then. The
standard library is all it needs.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple

from retinue.tools.search.regex import Globs, compiled

MAX_DEPTH = 256
"""Folders inside folders; each level keeps a descriptor open."""

BLOCK = 64 * 1024
MAX_LINE = 64 * 1024 * 1024

Kind = Literal["d", "f", "l", "o"]


class Entry(NamedTuple):
    """Something in the tree; `folder` is the descriptor of its folder, open until the walk goes on."""

    path: tuple[str, ...]
    kind: Kind
    folder: int

    def stat(self) -> os.stat_result:
        """What is known about it; a link is a link."""
        return os.stat(self.path[-1], dir_fd=self.folder, follow_symlinks=False)


def walk(folder: int, enter: Callable[[tuple[str, ...]], bool], path: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Everything below an open folder, sorted by component; no link is followed, and closed folders are passed over."""
    try:
        with os.scandir(folder) as found:
            entries: dict[str, Kind] = {entry.name: _kind(entry) for entry in found}
    except OSError:
        return
    for name, kind in sorted(entries.items(), key=lambda entry: os.fsencode(entry[0])):
        here = (*path, name)
        yield Entry(here, kind, folder)
        if kind != "d" or len(here) > MAX_DEPTH or not enter(here):
            continue
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            yield from walk(inner, enter, here)
        finally:
            os.close(inner)


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "l"
    return "d" if entry.is_dir(follow_symlinks=False) else "f" if entry.is_file(follow_symlinks=False) else "o"


class _Binary(Exception):
    """The file has a zero byte: it is no text."""


class Scan:
    """One search: what to look for, and how to tell of it."""

    def __init__(self, query: dict[str, Any], out: BinaryIO) -> None:
        self._pattern = compiled(query["pattern"], ignore_case=query["ignore_case"])
        self._invert: bool = query["invert"]
        self._before: int = query["before"]
        self._after: int = query["after"]
        self._depth: int = query["max_depth"] or sys.maxsize
        self._mode: str = query["mode"]
        self._only: str = query["only"]
        self._globs = Globs([] if self._only else query["globs"])
        self._out = out

    def run(self, folder: int, closed: Collection[tuple[str, ...]], left_out: Sequence[str]) -> None:
        """Search an open folder."""

        def enter(path: tuple[str, ...]) -> bool:
            return (
                len(path) < self._depth
                and not self._only
                and path[-1] not in left_out
                and path not in closed
                and not self._globs.leave_out("/".join(path), is_folder=True)
            )

        for entry in walk(folder, enter):
            if entry.kind != "f" or entry.path in closed or (self._only and entry.path != (self._only,)):
                continue
            if not self._globs.leave_out("/".join(entry.path), is_folder=False):
                self._search(entry)

    def _search(self, entry: Entry) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(entry.path[-1], flags, dir_fd=entry.folder)
        except OSError:
            return
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            try:
                hits = list(self._hits(file))
            except (_Binary, OSError):
                return
            path = b"./%b\0" % os.fsencode("/".join(entry.path))
            count = sum(mark == b":" for _, _, mark in hits)
            if self._mode == "lines":
                if hits:
                    rows = (b"%d%b%d%b\n" % (number, mark, at, mark) for number, at, mark in hits)
                    self._out.writelines((path, *rows, b"\n"))
            elif count:
                self._out.write(b"%b%d\n" % (path, count))

    def _hits(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and mark of each line to tell of: `:` for a match, `-` for context."""
        before: deque[tuple[int, int]] = deque(maxlen=self._before)
        trailing, number, offset = 0, 0, 0
        for block in _whole_lines(file):
            if not (self._invert or trailing or self._before or self._pattern.search(_text(block))):
                number += block.count(b"\n")
                offset += len(block)
                continue
            for line in block.split(b"\n")[: None if not block.endswith(b"\n") else -1]:
                number += 1
                if bool(self._pattern.search(_text(line))) != self._invert:
                    yield from ((early, at, b"-") for early, at in before)
                    before.clear()
                    yield number, offset, b":"
                    trailing = self._after
                elif trailing:
                    trailing -= 1
                    yield number, offset, b"-"
                else:
                    before.append((number, offset))
                offset += len(line) + 1


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks that end with a line; raises `_Binary` at a zero byte."""
    rest = b""
    size = BLOCK
    while block := file.read(max(size - len(rest), BLOCK // 4)):
        if b"\0" in block:
            raise _Binary
        rest += block
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield rest[:cut]
            rest, size = rest[cut:], BLOCK
        else:
            size = 2 * size
            if len(rest) > MAX_LINE:
                break
    if rest:
        yield rest


def main(argument: str) -> int:
    """Search, and give ripgrep's exit code: 0 for done, 2 for a query that cannot be."""
    asked = json.loads(argument)
    try:
        scan = Scan(asked["query"], sys.stdout.buffer)
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    scan.run(os.open(".", os.O_RDONLY | os.O_DIRECTORY), {tuple(path) for path in asked["closed"]}, asked["left_out"])
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
