"""Where in a tree of files a query matches: ripgrep finds it where there is one, our own program otherwise.

Either program stands in the opened folder and only says *where* the matches are. What is shown of a line is read by us,
through a descriptor that `Reach` opened: a folder that is swapped for a link while ripgrep is at work leads to nothing.
Every file is searched, hidden and ignored ones too, but those in folders that tools fill (`query.LEFT_OUT`); links are
not followed, and a file with zero bytes is binary and left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from retinue.core.errors import ToolError
from retinue.tools.files import Opened, Reach
from retinue.tools.pagination import results_of
from retinue.tools.search.collector import Places
from retinue.tools.search.query import LEFT_OUT, Query
from retinue.tools.threads import in_thread

SECONDS = 30.0
MAX_COMPLAINT = 4000
DONE = (0, 2)
"""The statuses of a program that looked through everything; with 2 it could not read some of it, or the query."""

NOTHING_FOUND = 1
"""So ripgrep says; of a program in Python it is a crash."""

PIPE_SIZE = 1024 * 1024
_FALLBACK = str(Path(__file__).with_name("fallback.py"))
_PLAIN = re.compile(r"[A-Za-z0-9_.+@=-][A-Za-z0-9_.+@= -]*(?<! )")


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
        fallback = not program or (query.only and not _PLAIN.fullmatch(query.only))
        limit = results_of(limit)
        places = Places(query, closed, wanted=offset + limit)
        argv = _scan(query, closed) if fallback else _rg(program, query, closed)
        code, complaint = await _run(argv, folder, places.feed)
        places.close()
        if code not in (DONE if fallback else (*DONE, NOTHING_FOUND)):  # what it told so far is not all
            raise SearchFailed(complaint or f"the search ended with status {code}")
        if not places.total and complaint:
            raise SearchFailed(complaint)
        results = await in_thread(places.page, reach, folder, prefix, offset, limit)
    return Matches(results, places.total, places.counted)


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


def _rg(program: str, query: Query, closed: Sequence[tuple[str, ...]]) -> list[str]:
    # Neither what is forbidden nor what tools fill is worth reading; both are looked at again in what comes back.
    unwanted = [f"!/{'/'.join(path)}" for path in closed if all(map(_PLAIN.fullmatch, path))]
    globs = [f"/{query.only}"] if query.only else [*query.globs, *(f"!{name}/" for name in LEFT_OUT), *unwanted]
    return [
        *(program, "--no-config", "--no-messages", "--color=never", "--heading", "--with-filename", "--null"),
        *("--line-number", "--byte-offset", "--no-mmap", "--encoding=none", "--no-ignore", "--hidden"),
        "--max-columns=1",  # the text of a line is not wanted, only its place
        "--no-context-separator",
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
    return [sys.executable, "-I", "-S", "-B", _FALLBACK, asked]


async def _run(argv: Sequence[str], folder: Opened, told: Callable[[bytes], None]) -> tuple[int, str]:
    """Run a program in the folder, without a shell; its status and what it complains of. It is gone in any case."""
    complaint = bytearray()

    def complain(piece: bytes) -> None:
        complaint.extend(piece[: MAX_COMPLAINT - len(complaint)])

    async with contextlib.AsyncExitStack() as stack:
        try:
            output, writable = await _wide_pipe(stack)
        except OSError as error:
            raise SearchFailed(str(error)) from error
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=_standing_in(folder), env={"LC_ALL": "C.UTF-8"}, stdin=DEVNULL, stdout=writable, stderr=PIPE
            )
        except (OSError, ValueError) as error:
            raise SearchFailed(str(error)) from error
        finally:
            os.close(writable)
        assert process.stderr is not None
        try:
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(_read(output, told), _read(process.stderr, complain))
                code = await process.wait()
        except TimeoutError as error:
            raise SearchTimedOut from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # The end of a program is only noticed once its pipe is read to the end.
            while await process.stderr.read(65536):
                pass
            await process.wait()
    return code, complaint.decode("utf-8", "replace").strip()


async def _wide_pipe(stack: contextlib.AsyncExitStack) -> tuple[asyncio.StreamReader, int]:
    """A pipe that holds much: a program that tells of very many matches waits less for us to read them."""
    readable, writable = os.pipe()
    with contextlib.suppress(AttributeError, OSError):  # not every system can; and there are limits
        fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    loop = asyncio.get_running_loop()
    output = asyncio.StreamReader(limit=PIPE_SIZE)
    protocol = asyncio.StreamReaderProtocol(output)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(readable, "rb", buffering=0))
    stack.callback(transport.close)
    return output, writable


def _standing_in(folder: Opened) -> str:
    """A path to the very folder that was opened, even if another one has its name by now; without /proc, its name."""
    inside = f"/proc/self/fd/{folder.fd}"
    return inside if os.path.isdir(inside) else "/" + "/".join(folder.names)


async def _read(pipe: asyncio.StreamReader, take: Callable[[bytes], None]) -> None:
    while piece := await pipe.read(PIPE_SIZE):
        take(piece)
