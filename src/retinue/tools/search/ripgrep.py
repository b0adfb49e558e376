"""Search of file contents: runs `search_program.py`, with ripgrep where there is one, and collects one page of matches.

The program runs in the opened folder and prints only the positions of matches. It reaches files by descriptors, and so
does what reads the text of a line here: a folder that is swapped for a link during the search reveals nothing, whatever
the search prints. Every file is searched, also hidden ones, and ignored ones except with the preset `coding`; not those
in `ripgrep_arguments.LEFT_OUT`. Links are not followed, and a file with zero bytes is binary and left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import stat
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from retinue.core.errors import ToolError
from retinue.local.programs import find_program
from retinue.tools.files import FileAccess, OpenPath
from retinue.tools.pagination import page_limit
from retinue.tools.search.ripgrep_arguments import LEFT_OUT, Query
from retinue.tools.search.search_program import DESCRIPTORS, gitignore_text
from retinue.tools.threads import in_thread

MAX_COMPLAINT = 4000
SEARCHED = (0, 2)
"""Exit statuses of a complete search; with 2 some files, or the query, could not be read."""

SPARE = 10_000
"""Results that are kept beyond those of the page before files are dropped."""

MAX_ABOVE = 16 * 1024
"""Characters of `.gitignore` files above the folder that are handed to the program, in an argument."""

SHOWN = 500
"""Characters of a matching line that are returned."""

_PROGRAM = str(Path(__file__).with_name("search_program.py"))
_POSITION = re.compile(rb"(\d+)([:-])(\d+)[:-]")
_BINARY = b": WARNING: stopped searching binary file"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    seconds: float = 30.0
    kept: int = 8 * 1024 * 1024
    """Bytes of positions that are kept for a page; files after these cannot be paged to and are not counted."""
    pipe: int = 1024 * 1024
    """Size of the pipe from the program, and of one read."""


LIMITS = SearchLimits()


class SearchFailed(ToolError):
    """The program failed; the message is its own error message."""


class SearchTimedOut(ToolError):
    """The program took too long and was stopped."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Command timed out after {seconds:g} seconds")


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of results; `counted` is false if there are more matches than `total`."""

    results: list[str]
    total: int
    counted: bool = True


async def matches(
    access: FileAccess,
    path: str,
    query: Query,
    *,
    offset: int,
    limit: int,
    ripgrep: str | None = None,
    limits: SearchLimits = LIMITS,
    with_ignored: bool = True,
) -> SearchPage:
    """A page of matches by path and line; `ripgrep` is the program: None looks for it, "" uses the fallback.

    `with_ignored` searches files that `.gitignore` names, too; so does `no_ignore` of the query.
    """
    with contextlib.ExitStack() as stack:
        folder, prefix, query = _where(stack, access, path, query)
        if not (with_ignored or query.no_ignore):
            query = replace(query, ignores_above=ignores_above(access, folder))
        closed = access.closed_below(folder.names)
        program = await _ripgrep(access) if ripgrep is None else ripgrep
        limit = page_limit(limit)
        collector = MatchCollector(query, closed, wanted=offset + limit, max_kept=limits.kept)
        code, complaint = await _run(_argv(query, closed, program), folder, collector.feed, limits)
        collector.close()
        if code not in SEARCHED:  # its output is incomplete
            raise SearchFailed(complaint or f"the search ended with status {code}")
        if not collector.total and complaint:
            raise SearchFailed(complaint)
        results = await in_thread(collector.page, access, folder, prefix, offset, limit)
    return SearchPage(results, collector.total, collector.counted)


def _where(stack: contextlib.ExitStack, access: FileAccess, path: str, query: Query) -> tuple[OpenPath, str, Query]:
    """The folder to search, the prefix of paths in the results, and the query for that folder."""
    with access.target(path, "read") as target:
        found, names = target.stat(), target.names
    if found is None or stat.S_ISDIR(found.st_mode):
        bare = path.rstrip("/")
        return stack.enter_context(access.folder(path)), "" if bare == "." else f"{bare}/", query
    stack.enter_context(access.file(path))  # raises if the file is unusable
    folder = stack.enter_context(access.folder("/" + "/".join(names[:-1])))
    return folder, path, replace(query, only=names[-1])


def ignores_above(access: FileAccess, folder: OpenPath) -> list[tuple[tuple[str, ...], str]]:
    """The `.gitignore` files from the workspace to above a folder in it, outermost first, with the path from there."""
    with access.folder(".") as workspace:
        first = len(workspace.names)
        if folder.names[:first] != workspace.names:
            return []
    found: list[tuple[tuple[str, ...], str]] = []
    room = MAX_ABOVE
    for depth in range(first, len(folder.names)):
        with access.folder("/" + "/".join(folder.names[:depth])) as above:
            text = gitignore_text(above.fd)[:room]
        room -= len(text)
        if text:
            found.append((folder.names[depth:], text))
    return found


# ---- the programs ----------------------------------------------------------------------------------------------------


async def _ripgrep(access: FileAccess) -> str:
    """Path of a ripgrep that is new enough and that no agent could have written; empty if there is none."""
    program = find_program("rg", agents_write=access.agents_write).path
    if not program or not access.is_trusted_program(program):
        return ""
    return program if await in_thread(_is_new_enough, program) else ""


@functools.cache
def _is_new_enough(program: str) -> bool:
    try:
        printed = subprocess.run(
            [program, "--version"], capture_output=True, timeout=5, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.match(rb"ripgrep (\d+)\.", printed.stdout)
    return version is not None and int(version[1]) >= 12


def _argv(query: Query, closed: Sequence[tuple[str, ...]], ripgrep: str) -> list[str]:
    """The program, which is given ripgrep only where a file can be opened again through its descriptor."""
    left_out = () if query.only else LEFT_OUT
    program = ripgrep if os.path.isdir(DESCRIPTORS) else ""
    request = json.dumps({"query": asdict(query), "closed": closed, "left_out": left_out, "ripgrep": program})
    return [sys.executable, "-I", "-S", "-B", _PROGRAM, request]


async def _run(
    argv: Sequence[str], folder: OpenPath, feed: Callable[[bytes], None], limits: SearchLimits
) -> tuple[int, str]:
    """Run a program in the folder, without a shell, to its end; returns its exit status and its error output."""
    complaint = bytearray()

    def complain(piece: bytes) -> None:
        complaint.extend(piece[: MAX_COMPLAINT - len(complaint)])

    async with contextlib.AsyncExitStack() as stack:
        try:
            output, writable = await _wide_pipe(stack, limits.pipe)
        except OSError as error:
            raise SearchFailed(str(error)) from error
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=_path_of(folder),
                env={"LC_ALL": "C.UTF-8"},
                stdin=DEVNULL,
                stdout=writable,
                stderr=PIPE,
                start_new_session=True,  # it is killed together with the ripgrep that it runs
            )
        except (OSError, ValueError) as error:
            raise SearchFailed(str(error)) from error
        finally:
            os.close(writable)
        assert process.stderr is not None
        try:
            async with asyncio.timeout(limits.seconds):
                await asyncio.gather(_read(output, feed, limits.pipe), _read(process.stderr, complain, limits.pipe))
                code = await process.wait()
        except TimeoutError as error:
            raise SearchTimedOut(limits.seconds) from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the second on macOS, for a dead process
                os.killpg(process.pid, signal.SIGKILL)
            # asyncio notices the end of a process only once its pipe is read to the end.
            while await process.stderr.read(65536):
                pass
            await process.wait()
    return code, complaint.decode("utf-8", "replace").strip()


async def _wide_pipe(stack: contextlib.AsyncExitStack, size: int) -> tuple[asyncio.StreamReader, int]:
    """A pipe with a large buffer, so that a program with very many matches rarely blocks on it."""
    readable, writable = os.pipe()
    with contextlib.suppress(AttributeError, OSError):  # unsupported, or beyond the limit of the system
        fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, size)
    loop = asyncio.get_running_loop()
    output = asyncio.StreamReader(limit=size)
    protocol = asyncio.StreamReaderProtocol(output)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(readable, "rb", buffering=0))
    stack.callback(transport.close)
    return output, writable


def _path_of(folder: OpenPath) -> str:
    """A path to the opened folder, even if another folder has its name by now; its name where there is no /proc."""
    inside = f"/proc/self/fd/{folder.fd}"
    return inside if os.path.isdir(inside) else "/" + "/".join(folder.names)


async def _read(pipe: asyncio.StreamReader, take: Callable[[bytes], None], size: int) -> None:
    while piece := await pipe.read(size):
        take(piece)


# ---- their output ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file with matches: how many results it gives, and the output rows for them."""

    path: bytes
    order: list[bytes]
    results: int
    rows: bytes

    @property
    def size(self) -> int:
        return len(self.path) + len(self.rows)


class MatchCollector:
    """Collects the output of a search while it arrives: counts all results and keeps the first `wanted`.

    A program prints a file in one piece: path, zero byte, one row per line, empty row. Files come in any order; only
    the first by path are kept, as many as the page can need. A dropped file never comes back, because later files can
    only push it further away. Output that is only counted is not copied, so that a search with very many matches costs
    little more than the program itself.
    """

    def __init__(
        self, query: Query, closed: Sequence[tuple[str, ...]], wanted: int, max_kept: int = LIMITS.kept
    ) -> None:
        self._query = query
        self._by_line = query.mode == "lines"
        self._closed = tuple(os.fsencode("/".join(path)) for path in closed)
        self._wanted = wanted
        self._max_kept = max_kept
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._first_rows = b""
        self._files: list[_File] = []
        self._size = 0
        self._room = 2 * wanted + SPARE
        self._last: list[bytes] | None = None
        self._dropped = 0
        self._shortened = False
        self._lost = False

    @property
    def total(self) -> int:
        """Results that can be paged to."""
        return sum(file.results for file in self._files) + (0 if self._lost else self._dropped)

    @property
    def counted(self) -> bool:
        """Whether `total` is the number of all matches."""
        return not (self._lost or self._shortened)

    def feed(self, piece: bytes) -> None:
        self._append(piece)
        if b"\0" in piece:
            output = b"".join(self._pending)
            self._pending, self._pending_size = [], 0
            self._append(output[self._take(output) :])
        elif self._pending_size > 2 * self._max_kept:  # all of it is one file
            self._shorten()

    def close(self) -> None:
        """Take the rest of the output after the program has ended."""
        output = b"".join(self._pending)
        start = self._take(output)
        if (zero := output.find(b"\0", start)) >= 0:
            self._add(output, start, zero, len(output.rstrip(b"\n")))
        self._drop()

    def _append(self, piece: bytes) -> None:
        self._pending.append(piece)
        self._pending_size += len(piece)

    def _take(self, output: bytes) -> int:
        """Add each file that is complete, and return the offset of the next one."""
        start = 0
        while (zero := output.find(b"\0", start)) >= 0 and (end := self._end(output, zero)) >= 0:
            self._add(output, start, zero, end)
            start = end + (2 if self._by_line else 1)
        return start

    def _end(self, output: bytes, zero: int) -> int:
        if not self._by_line:
            return output.find(b"\n", zero)
        following = output.find(b"\0", zero + 1)
        return -1 if following < 0 else output.rfind(b"\n\n./", zero, following)

    def _add(self, output: bytes, start: int, zero: int, end: int) -> None:
        path = output[start:zero].removeprefix(b"./")
        order = path.split(b"/")
        rows, self._first_rows = self._first_rows, b""
        if any(path == closed or path.startswith(closed + b"/") for closed in self._closed):
            return
        results = 1
        if self._by_line:
            last = max(output.rfind(b"\n", zero, end), zero) + 1
            if not _POSITION.match(output, last) or output.find(_BINARY, last, end) >= 0:
                return
            results = (rows.count(b"\n") if rows else output.count(b"\n", zero, end)) + 1
            # Not an option of the program: it would stop before it sees that a file is binary.
            most = self._query.max_count
            self._shortened = self._shortened or (bool(rows) and not 0 < most <= results)
            results = min(results, most or results)
        if self._last is not None and order > self._last:
            self._dropped += results
            return
        rows = rows or output[zero + 1 : end]
        if self._query.max_count:
            rows = b"\n".join(rows.split(b"\n", results)[:results])
        file = _File(path, order, results, rows)
        self._files.append(file)
        self._size += file.size
        self._room -= results
        if self._room < 0 or self._size > 4 * self._max_kept:
            self._drop()

    def _shorten(self) -> None:
        """Keep the first rows of one file with very many matches, and its last row, which may be a warning."""
        path, _, rows = b"".join(self._pending).partition(b"\0")
        self._first_rows = self._first_rows or rows[: rows.rfind(b"\n", 0, self._max_kept)]
        self._pending, self._pending_size = [], 0
        self._append(path + b"\0" + rows[rows.rfind(b"\n", 0, -1) + 1 :])

    def _drop(self) -> None:
        """Keep the first files, as many as the page needs and the limit allows; count the others."""
        self._files.sort(key=lambda file: file.order)
        results = size = kept = 0
        for file in self._files:
            if results >= self._wanted or size > self._max_kept:
                self._lost = self._lost or results < self._wanted
                self._last = self._files[kept - 1].order
                break
            results += file.results
            size += file.size
            kept += 1
        self._dropped += sum(file.results for file in self._files[kept:])
        del self._files[kept:]
        self._size = size
        self._room = self._wanted + SPARE

    def page(self, access: FileAccess, folder: OpenPath, prefix: str, offset: int, limit: int) -> list[str]:
        results: list[str] = []
        for file in self._files:
            if offset >= file.results:
                offset -= file.results
                continue
            if len(results) >= limit:
                break
            path = prefix if self._query.only else prefix + file.path.decode("utf-8", "replace")
            if self._query.mode == "files":
                results.append(path)
            elif self._query.mode == "count":
                results.append(f"{path}:{min(int(file.rows), self._query.max_count or int(file.rows))}")
            else:
                last = min(offset + limit - len(results), file.results)
                rows = file.rows.split(b"\n", last)[offset:last]
                with access.beneath(folder, os.fsdecode(file.path).split("/")) as opened:
                    results.extend(_line(path, row, opened) for row in rows)
            offset = 0
        return results


def _line(path: str, row: bytes, file: OpenPath | None) -> str:
    found = _POSITION.match(row)
    assert found is not None
    number, mark, start = found[1].decode(), found[2].decode(), int(found[3])
    text = "[changed while it was searched]"
    if file is not None and start <= file.stat.st_size:
        with contextlib.suppress(OSError):
            line = os.pread(file.fd, 4 * SHOWN + 4, start).split(b"\n", 1)[0].removesuffix(b"\r")
            text = line.decode("utf-8", "replace")
            text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{path}{mark}{number}{mark}{text}"
