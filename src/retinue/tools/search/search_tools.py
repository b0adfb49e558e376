"""The search tools; they read only what the calling run may read, and use no shell."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files import AccessDenied, FileAccess
from retinue.tools.function import as_text, tool
from retinue.tools.pagination import NOTICE, page_text, that_fit
from retinue.tools.search.find import FindQuery, Found, find, find_query
from retinue.tools.search.query import query_of
from retinue.tools.search.ripgrep import LIMITS, Matches, SearchLimits, SearchTimedOut, matches
from retinue.tools.threads import in_thread

DEADLINE = LIMITS.seconds + 10
"""Deadline of a call, for a search that does not stop by itself."""

FromZero: TypeAlias = Annotated[int, Meta(ge=0)]


def tools(dependencies: ToolDependencies, *, limits: SearchLimits = LIMITS) -> Sequence[Tool]:
    """`bash_find`, `bash_ripgrep` and `grep`."""

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
            query = find_query(name, type_filter, extra_args)
            found = await _find(FileAccess.of(context, dependencies), path, query, offset, limit, limits.seconds)
        except AccessDenied as refusal:
            raise ToolError(f"Path outside CWD not allowed: {path}") from refusal
        except SearchTimedOut as slow:
            return _error(str(slow))
        except ToolError as trouble:
            return _error(f"Command failed: {trouble}")
        return ToolResult(
            page_text(found.paths, total=found.total, offset=offset, limit=limit, room=dependencies.max_result)
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
            query = query_of(pattern, extra_args)
            access = FileAccess.of(context, dependencies)
            found = await matches(access, files, query, offset=offset, limit=limit, limits=limits)
        except AccessDenied as refusal:
            raise ToolError(f"Path outside CWD not allowed: {files}") from refusal
        except SearchTimedOut as slow:
            return _error(str(slow))
        except ToolError as trouble:
            return _error(f"No matches found or command failed: {trouble}")
        if not found.total:
            return _error("No matches found or command failed: ")
        room, note = dependencies.max_result, _note(found)
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
        query = query_of(pattern, _as_arguments(include, ignore_case, context))
        access = FileAccess.of(caller, dependencies)
        found = await matches(access, path, query, offset=offset, limit=limit, limits=limits)
        if not found.total:
            return "No matches found"
        lines = that_fit(found.results, dependencies.max_result - NOTICE)
        last = offset + len(lines)
        if not lines:
            return f"[No results in range: there are {found.total}]"
        if last < found.total:
            more = "" if found.counted else "more than "
            lines = [*lines, f"[Results {offset + 1}-{last} of {more}{found.total}; go on with offset={last}]"]
        return "\n".join(lines)

    return (bash_find, bash_ripgrep, grep)


async def _find(access: FileAccess, path: str, query: FindQuery, offset: int, limit: int, seconds: float) -> Found:
    """Walk in a thread, which ends after `seconds` or when the call is cancelled."""
    stop = threading.Event()
    try:
        end = time.monotonic() + seconds
        return await in_thread(find, access, path, query, offset=offset, limit=limit, stop=stop, end=end)
    except TimeoutError as slow:
        raise SearchTimedOut(seconds) from slow
    finally:
        stop.set()


def _as_arguments(include: str, ignore_case: bool, context_lines: int) -> str:
    flags = [f"--glob={shlex.quote(include)}"] if include else []
    return " ".join([*flags, *(["-i"] if ignore_case else []), f"-C{context_lines}"])


def _note(found: Matches) -> dict[str, object]:
    return {} if found.counted else {"note": f"more than {found.total} matches; narrow the pattern to count them"}


def _error(text: str) -> ToolResult:
    return ToolResult(as_text({"error": text}), failed=True)
