"""Where in a tree of files a query matches: ripgrep finds it where there is one, our own program otherwise.

Either program stands in the opened folder and only says *where* the matches are. What is shown of a line is read by us,
through a descriptor that `Reach` opened: a folder that is swapped for a link while ripgrep is at work leads to nothing.
Every file is searched, hidden and ignored ones too, but those in folders that tools fill (`query.LEFT_OUT`); links are
not followed, and a file with zero bytes is binary and left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from retinue.core.errors import ToolError
from retinue.tools.paths import Opened, Reach
from retinue.tools.query import LEFT_OUT, Query
from retinue.tools.threads import in_thread

SECONDS = 30.0
MAX_INDEX = 8 * 1024 * 1024
"""Bytes in which a program tells of its matches; with more of them their number is no longer counted."""

MAX_PAGE = 1000
SHOWN = 500
"""Characters of a matching line that are shown."""

_PACKAGES = str(Path(__file__).resolve().parents[2])
_SCAN = "import sys; sys.path.insert(0, sys.argv[1]); from retinue.tools.scan import main; sys.exit(main(sys.argv[2]))"
_PLAIN = re.compile(r"[A-Za-z0-9_.+@=-][A-Za-z0-9_.+@= -]*(?<! )")
_PLACE = re.compile(rb"(\d+)([:-])(\d+)[:-]")
_BY_LINE = re.compile(rb"^([^\0\n]+)\0(\d+[:-]\d+[:-]).*\n", re.MULTILINE)
_BY_FILE = re.compile(rb"^([^\0\n]+)\0(\d+)\n", re.MULTILINE)
_BINARY = re.compile(rb"^([^\0\n]+): WARNING: stopped searching binary file", re.MULTILINE)


class SearchFailed(ToolError):
    """The program did not search; its own words say why."""


class SearchTimedOut(ToolError):
    """The program took too long and was stopped."""

    def __init__(self) -> None:
        super().__init__(f"Command timed out after {SECONDS:g} seconds")


@dataclass(frozen=True, slots=True)
class Matches:
    """One page of results; `counted` is false where there are more matches than were counted."""

    results: list[str]
    total: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class _Told:
    """What a program printed, and whether that was all."""

    output: bytes
    complaint: str
    whole: bool


async def matches(
    reach: Reach, place: str, query: Query, *, offset: int, limit: int, ripgrep: str | None = None
) -> Matches:
    """A page of what `query` finds in a file or folder, in order of path and line.

    `ripgrep` is the program to use; None looks for one, and an empty string goes without.
    """
    with contextlib.ExitStack() as stack:
        folder, prefix, query = _where(stack, reach, place, query)
        closed = reach.closed_below(folder.names)
        program = await _ripgrep(reach) if ripgrep is None else ripgrep
        if not program or (query.only and not _PLAIN.fullmatch(query.only)):
            told = await _run(_scan(query, closed), folder)
        else:
            told = await _run(_rg(program, query, closed, in_order=False), folder)
            if (
                not told.whole
            ):  # side by side, its threads tell of matches in any order: the first ones need another run
                told = await _run(_rg(program, query, closed, in_order=True), folder)
        index = _Index(told, query, closed)
        if not index.total and told.complaint:
            raise SearchFailed(told.complaint)
        results = await in_thread(index.page, reach, folder, prefix, offset, min(limit or MAX_PAGE, MAX_PAGE))
    return Matches(results, index.total, told.whole)


def _where(stack: contextlib.ExitStack, reach: Reach, place: str, query: Query) -> tuple[Opened, str, Query]:
    """The folder to search, what the paths in it start with for the model, and the query for it."""
    with reach.spot(place, "read") as spot:
        found, names = spot.stat(), spot.names
    if found is None or stat.S_ISDIR(found.st_mode):
        bare = place.rstrip("/")
        return stack.enter_context(reach.folder(place)), "" if bare == "." else f"{bare}/", query
    stack.enter_context(reach.file(place))  # or it says what is wrong with that file
    folder = stack.enter_context(reach.folder("/" + "/".join(names[:-1])))
    return folder, place, replace(query, only=names[-1])


# ---- the programs ----------------------------------------------------------------------------------------------------


async def _ripgrep(reach: Reach) -> str:
    """A ripgrep that is new enough, and that no agent could have put there; else nothing."""
    folders = [folder for folder in os.get_exec_path() if os.path.isabs(folder)]
    program = shutil.which("rg", path=os.pathsep.join(folders))
    if program is None or not reach.vouches_for(program):
        return ""
    return program if await in_thread(_is_new_enough, program) else ""


@functools.cache
def _is_new_enough(program: str) -> bool:
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, timeout=5, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.match(rb"ripgrep (\d+)\.", said.stdout)
    return version is not None and int(version[1]) >= 12


def _rg(program: str, query: Query, closed: Sequence[tuple[str, ...]], *, in_order: bool) -> list[str]:
    # Neither what is forbidden nor what tools fill is worth reading; both are looked at again in what comes back.
    unwanted = [f"!/{'/'.join(path)}" for path in closed if all(map(_PLAIN.fullmatch, path))]
    globs = [f"/{query.only}"] if query.only else [*query.globs, *(f"!{name}/" for name in LEFT_OUT), *unwanted]
    return [
        *(program, "--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--null"),
        *("--line-number", "--byte-offset", "--no-mmap", "--encoding=none", "--no-ignore", "--hidden"),
        "--max-columns=1",  # the text of a line is not wanted, only its place
        *(["--sort=path"] if in_order else []),
        # Not --files-with-matches: that one is content with a match before it sees that the file is binary.
        *([] if query.mode == "lines" else ["--count"]),
        *(["--ignore-case"] if query.ignore_case else ["--case-sensitive"]),
        *(["--invert-match"] if query.invert else []),
        *([f"--before-context={query.before}"] if query.before else []),
        *([f"--after-context={query.after}"] if query.after else []),
        *([f"--max-depth={depth}"] if (depth := 1 if query.only else query.max_depth) else []),
        *(f"--glob={glob}" for glob in globs),
        *(f"--regexp={query.pattern}", "--", "."),
    ]


def _scan(query: Query, closed: Sequence[tuple[str, ...]]) -> list[str]:
    asked = json.dumps({"query": asdict(query), "closed": closed, "left_out": [] if query.only else LEFT_OUT})
    return [sys.executable, "-I", "-S", "-B", "-c", _SCAN, _PACKAGES, asked]


async def _run(argv: Sequence[str], folder: Opened) -> _Told:
    """Run a program in the folder, without a shell; whatever happens, it is gone afterwards."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=_standing_in(folder), env={"LC_ALL": "C.UTF-8"}, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
    except (OSError, ValueError) as error:
        raise SearchFailed(str(error)) from error
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS):
            (output, whole), (complaint, _) = await asyncio.gather(
                _read(process.stdout, MAX_INDEX, process.kill), _read(process.stderr, 4000, None)
            )
            await process.wait()
    except TimeoutError as error:
        raise SearchTimedOut from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # The end of a program is only noticed once its pipes are read to their ends.
        while await process.stdout.read(65536) or await process.stderr.read(65536):
            pass
        await process.wait()
    return _Told(output, complaint.decode("utf-8", "replace").strip(), whole)


def _standing_in(folder: Opened) -> str:
    """A path to the very folder that was opened, even if another one has its name by now; without /proc, its name."""
    inside = f"/proc/self/fd/{folder.fd}"
    return inside if os.path.isdir(inside) else "/" + "/".join(folder.names)


async def _read(pipe: asyncio.StreamReader, most: int, enough: Callable[[], None] | None) -> tuple[bytes, bool]:
    """What comes out of a pipe until its end, up to so many bytes; `enough` is called when there is more."""
    pieces: list[bytes] = []
    size = 0
    while piece := await pipe.read(256 * 1024):
        if size <= most:
            pieces.append(piece)
            size += len(piece)
            if size > most and enough is not None:
                with contextlib.suppress(ProcessLookupError):
                    enough()
    return b"".join(pieces)[:most], size <= most


# ---- what they told --------------------------------------------------------------------------------------------------


class _Index:
    """Where the matches are, by path and in order."""

    def __init__(self, told: _Told, query: Query, closed: Sequence[tuple[str, ...]]) -> None:
        self._query = query
        self._closed = [os.fsencode("/".join(path)) for path in closed]
        found: dict[bytes, list[bytes]] = defaultdict(list)
        for path, place in (_BY_LINE if query.mode == "lines" else _BY_FILE).findall(told.output):
            found[path].append(place)
        binary = set(_BINARY.findall(told.output))
        by_path = {path.removeprefix(b"./"): places for path, places in found.items() if path not in binary}
        if query.max_count:  # asked of the program, it would stop before it sees that a file is binary
            by_path = {path: self._at_most(query.max_count, places) for path, places in by_path.items()}
        self._places = {
            path: by_path[path]
            for path in sorted(by_path, key=lambda path: path.split(b"/"))
            if not any(path == shut or path.startswith(shut + b"/") for shut in self._closed)
        }
        self.total = sum(map(len, self._places.values()))

    def _at_most(self, most: int, places: list[bytes]) -> list[bytes]:
        return [b"%d" % min(most, int(places[0]))] if self._query.mode != "lines" else places[:most]

    def page(self, reach: Reach, folder: Opened, prefix: str, offset: int, limit: int) -> list[str]:
        """Results as the model reads them."""
        results: list[str] = []
        for path, places in self._places.items():
            if offset >= len(places):
                offset -= len(places)
                continue
            wanted = places[offset : offset + limit - len(results)]
            offset = 0
            shown = prefix if self._query.only else prefix + path.decode("utf-8", "replace")
            if self._query.mode == "files":
                results.append(shown)
            elif self._query.mode == "count":
                results.append(f"{shown}:{wanted[0].decode()}")
            else:
                with reach.beneath(folder, os.fsdecode(path).split("/")) as file:
                    results.extend(_line(shown, place, file) for place in wanted)
            if len(results) >= limit:
                break
        return results


def _line(path: str, place: bytes, file: Opened | None) -> str:
    found = _PLACE.match(place)
    assert found is not None
    number, mark, start = found[1].decode(), found[2].decode(), int(found[3])
    text = "[changed while it was searched]"
    if file is not None and start <= file.stat.st_size:
        with contextlib.suppress(OSError):
            line = os.pread(file.fd, 4 * SHOWN + 4, start).split(b"\n", 1)[0].removesuffix(b"\r")
            text = line.decode("utf-8", "replace")
            text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{path}{mark}{number}{mark}{text}"
