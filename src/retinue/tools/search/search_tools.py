"""The search tools, and the search for files by name, size and age; they read only what the calling run may read.

`bash_find` knows those tests of `find` that change nothing. No shell is used.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from msgspec import Meta
from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files import AccessDenied, FileAccess
from retinue.tools.function import as_text, tool
from retinue.tools.pagination import NOTICE_CHARS, fitting, page_limit, page_text
from retinue.tools.search.ripgrep import LIMITS, SearchLimits, SearchPage, SearchTimedOut, ignores_above, matches
from retinue.tools.search.ripgrep_arguments import check_lengths, query_of, split
from retinue.tools.search.search_program import FolderEntry, GitIgnore, walk
from retinue.tools.threads import in_thread

DEADLINE = LIMITS.seconds + 10
"""Deadline of a call, for a search that does not stop by itself."""

IGNORED = "What .gitignore names is left out, except a file or folder that the call itself names."

FromZero: TypeAlias = Annotated[int, Meta(ge=0)]


def tools(dependencies: ToolDependencies, *, limits: SearchLimits = LIMITS) -> Sequence[Tool]:
    """`bash_find`, `bash_ripgrep` and `grep`; with the preset `coding` they leave out what git ignores."""
    with_ignored = dependencies.coding is None

    @tool(kind="pure", timeout=DEADLINE)
    async def bash_find(
        context: CallContext,
        path: str = ".",
        name: str = "",
        type_filter: str = "",
        extra_args: str = "",
        limit: FromZero = 20,
        offset: FromZero = 0,
    ) -> ToolResult:
        """Find files, or directories with type_filter "d", below a directory. Results are sorted.

        Answers {results, total, offset, limit, has_more, returned} or {error}. While has_more is true, ask again with
        offset increased by returned.

        Args:
            path: the directory to look in
            name: a glob for the file's name, such as *.py; empty finds all
            type_filter: f for files (also when empty), d for directories, l for symbolic links
            extra_args: tests of find: -name, -iname, -path, -ipath, -size, -mtime, -mmin, -empty, -type, -maxdepth,
                -mindepth, each perhaps after -not
            limit: how many results to return; 0 returns all that fit
            offset: how many results to skip
        """
        try:
            check_lengths(path=path, name=name, type_filter=type_filter, extra_args=extra_args)
            query = find_query(name, type_filter, extra_args)
            query.with_ignored = with_ignored
            found = await _find(FileAccess.of(context, dependencies), path, query, offset, limit, limits.seconds)
        except AccessDenied as refusal:
            raise ToolError(f"Path outside CWD not allowed: {path}") from refusal
        except SearchTimedOut as slow:
            return _error(str(slow))
        except ToolError as trouble:
            return _error(f"Command failed: {trouble}")
        return ToolResult(
            page_text(found.results, total=found.total, offset=offset, limit=limit, room=dependencies.max_result)
        )

    @tool(kind="pure", timeout=DEADLINE)
    async def bash_ripgrep(
        pattern: str,
        context: CallContext,
        files: str = ".",
        extra_args: str = "",
        limit: FromZero = 20,
        offset: FromZero = 0,
    ) -> ToolResult:
        """Search the contents of files with a regular expression, line by line. Results are path:line:text, sorted.

        Hidden files are searched too; folders such as .git, node_modules and .venv only when files names one of them.
        Answers {results, total, offset, limit, has_more, returned} or {error}. While has_more is true, ask again with
        offset increased by returned.

        Args:
            pattern: a regular expression as ripgrep has them, without look-around and backreferences
            files: the file or directory to search
            extra_args: arguments of ripgrep: -i, -s, -S, -F, -w, -x, -v, -l, -c, -A, -B, -C, -m, -d, -g GLOB, -t TYPE
            limit: how many results to return; 0 returns all that fit
            offset: how many results to skip
        """
        try:
            check_lengths(files=files, extra_args=extra_args)
            query = query_of(pattern, extra_args)
            access = FileAccess.of(context, dependencies)
            found = await matches(
                access, files, query, offset=offset, limit=limit, limits=limits, with_ignored=with_ignored
            )
        except AccessDenied as refusal:
            raise ToolError(f"Path outside CWD not allowed: {files}") from refusal
        except SearchTimedOut as slow:
            return _error(str(slow))
        except ToolError as trouble:
            return _error(f"No matches found or command failed: {trouble}")
        if not found.total:
            return _error("No matches found or command failed: ")
        room, more = dependencies.max_result, f"more than {found.total} matches; narrow the pattern to count them"
        note = {} if found.counted else {"note": more}
        return ToolResult(page_text(found.results, total=found.total, offset=offset, limit=limit, room=room, note=note))

    @tool(kind="pure", timeout=DEADLINE)
    async def grep(
        pattern: str,
        caller: CallContext,
        path: str = ".",
        include: str = "",
        ignore_case: bool = False,
        context: Annotated[int, Meta(ge=0, le=50)] = 0,
        limit: FromZero = 50,
        offset: FromZero = 0,
    ) -> str:
        """Search the contents of files with a regular expression, line by line. Results are path:line:text, sorted.

        Hidden files are searched too; folders such as .git, node_modules and .venv only when path names one of them.

        Args:
            pattern: a regular expression, without look-around and backreferences
            path: the file or folder to search
            include: a glob for the files to search, such as *.py
            ignore_case: whether upper and lower case are the same
            context: how many lines to show before and after each match
            limit: how many lines to return; 0 returns all that fit
            offset: how many lines to skip
        """
        check_lengths(path=path, include=include)
        flags = [f"--glob={shlex.quote(include)}"] if include else []
        query = query_of(pattern, " ".join([*flags, *(["-i"] if ignore_case else []), f"-C{context}"]))
        access = FileAccess.of(caller, dependencies)
        found = await matches(access, path, query, offset=offset, limit=limit, limits=limits, with_ignored=with_ignored)
        if not found.total:
            return "No matches found"
        lines = fitting(found.results, dependencies.max_result - NOTICE_CHARS)
        last = offset + len(lines)
        if not lines:
            return f"[No results in range: there are {found.total}]"
        if last < found.total:
            more = "" if found.counted else "more than "
            lines = [*lines, f"[Results {offset + 1}-{last} of {more}{found.total}; go on with offset={last}]"]
        return "\n".join(lines)

    found = (bash_find, bash_ripgrep, grep)
    if not with_ignored:
        for each in found:
            each.spec = replace(each.spec, description=f"{each.spec.description}\n\n{IGNORED}")
    return found


async def _find(access: FileAccess, path: str, query: FindQuery, offset: int, limit: int, seconds: float) -> SearchPage:
    """Walk in a thread, which ends after `seconds` or when the call is cancelled."""
    stop = threading.Event()
    try:
        end = time.monotonic() + seconds
        return await in_thread(find, access, path, query, offset=offset, limit=limit, stop=stop, end=end)
    except TimeoutError as slow:
        raise SearchTimedOut(seconds) from slow
    finally:
        stop.set()


def _error(text: str) -> ToolResult:
    return ToolResult(as_text({"error": text}), failed=True)


Test = Callable[[FolderEntry, str, float], bool]
"""Whether an entry passes, given its path in the results and the current time."""

TYPES = {"": "f", "f": "f", "d": "d", "l": "l"}


@dataclass(slots=True)
class FindQuery:
    """The tests that an entry must pass, and the depths to search."""

    tests: list[Test] = field(default_factory=list[Test])
    least_depth: int = 1
    most_depth: int = 1000
    with_ignored: bool = True
    """Whether files that `.gitignore` names are found."""


def find_query(name: str, type_filter: str, extra_args: str) -> FindQuery:
    """The query for the arguments of the tool; raises `ToolError` for a test that is not allowed."""
    if type_filter not in TYPES:
        raise ToolError(f"type_filter {type_filter!r}; expected f (files; also when empty), d (folders) or l (links)")
    query = FindQuery()
    if name:
        query.tests.append(_named(name))
    rest = split(extra_args)[::-1]
    kind = TYPES[type_filter]
    while rest:
        argument = rest.pop()
        negated = False
        while argument in ("!", "-not") and rest:
            negated, argument = not negated, rest.pop()
        if argument == "-empty":
            test: Test = _empty
        elif argument in _TESTS and rest:
            test = _TESTS[argument](rest.pop())
        elif argument in ("-maxdepth", "-mindepth") and rest and not negated:
            depth = _whole(argument, rest.pop())
            if argument == "-maxdepth":
                query.most_depth = depth
            else:
                query.least_depth = max(1, depth)
            continue
        elif argument == "-type" and rest and not negated and rest[-1] in ("f", "d", "l"):
            kind = rest.pop()
            continue
        else:
            raise ToolError(f"extra_args: {argument} is not allowed or lacks its value; allowed: {ALLOWED}")
        query.tests.append(_not(test) if negated else test)
    query.tests.insert(0, lambda entry, path, now: entry.kind == kind)
    return query


def find(
    access: FileAccess, path: str, query: FindQuery, *, offset: int, limit: int, stop: threading.Event, end: float
) -> SearchPage:
    """A page of the paths below a folder, sorted by component; raises `TimeoutError` when stopped or too slow."""
    bare = path.rstrip("/")
    prefix = "" if bare == "." else f"{bare}/"
    limit = page_limit(limit)
    paths: list[str] = []
    total = 0
    now = time.time()
    with access.folder(path) as folder:
        closed = set(access.closed_below(folder.names))

        def enter(below: tuple[str, ...]) -> bool:
            return below not in closed and len(below) < query.most_depth

        above = None if query.with_ignored else ignores_above(access, folder)
        ignored = None if above is None else [GitIgnore(text, above=names) for names, text in above]
        for entry in walk(folder.fd, enter, ignored=ignored):
            if stop.is_set() or time.monotonic() > end:
                raise TimeoutError
            if entry.path in closed or not query.least_depth <= len(entry.path) <= query.most_depth:
                continue
            found = prefix + "/".join(entry.path)
            if all(test(entry, found, now) for test in query.tests):
                if offset <= total < offset + limit:
                    paths.append(as_text(found))
                total += 1
    return SearchPage(paths, total)


# ---- the tests of find -----------------------------------------------------------------------------------------------


def _not(test: Test) -> Test:
    return lambda entry, path, now: not test(entry, path, now)


def _named(glob: str, flags: int = 0) -> Test:
    name = re.compile(fnmatch.translate(glob), flags)
    return lambda entry, path, now: name.match(entry.path[-1]) is not None


def _at_path(glob: str, flags: int = 0) -> Test:
    pattern = re.compile(fnmatch.translate(glob), flags)
    # `find .` prints paths with ./ in front, and patterns are written for that.
    return lambda entry, path, now: pattern.match(path) is not None or pattern.match(f"./{path}") is not None


def _empty(entry: FolderEntry, path: str, now: float) -> bool:
    try:
        if entry.kind != "d":
            return entry.kind == "f" and entry.stat().st_size == 0
        fd = os.open(entry.path[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=entry.folder)
        try:
            return not os.listdir(fd)
        finally:
            os.close(fd)
    except OSError:
        return False


def _measured(
    argument: str, measure: Callable[[os.stat_result, float], float], units: str = ""
) -> Callable[[str], Test]:
    """A test of a number in the notation of find: `+n` more, `-n` less, `n` exactly, optionally with a unit."""

    def make(value: str) -> Test:
        parsed = re.fullmatch(rf"([+-]?)(\d{{1,12}})([{units}]?)" if units else r"([+-]?)(\d{1,12})()", value)
        if parsed is None:
            raise ToolError(f"extra_args: {argument}: expected a number such as 5, +5 or -5, found {value!r}")
        unit = {"": 512, "c": 1, "k": 1024, "M": 1024**2, "G": 1024**3}[parsed[3]] if units else 1
        sign, number = parsed[1], int(parsed[2])

        def test(entry: FolderEntry, path: str, now: float) -> bool:
            try:
                found = math.ceil(measure(entry.stat(), now) / unit)
            except OSError:
                return False
            return found > number if sign == "+" else found < number if sign == "-" else found == number

        return test

    return make


def _whole(argument: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 7):
        raise ToolError(f"extra_args: {argument}: expected a number, found {value!r}")
    return int(value)


_TESTS: dict[str, Callable[[str], Test]] = {
    "-name": _named,
    "-iname": lambda glob: _named(glob, re.IGNORECASE),
    "-path": _at_path,
    "-ipath": lambda glob: _at_path(glob, re.IGNORECASE),
    "-size": _measured("-size", lambda found, now: found.st_size, "ckMG"),
    "-mtime": _measured("-mtime", lambda found, now: (now - found.st_mtime) // 86400),
    "-mmin": _measured("-mmin", lambda found, now: (now - found.st_mtime) / 60),
}
ALLOWED = ", ".join((*_TESTS, "-empty", "-type f|d|l", "-maxdepth N", "-mindepth N", "-not"))
