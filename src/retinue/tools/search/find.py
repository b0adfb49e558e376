"""Search for files and folders by name, size and age: those tests of `find` that change nothing."""

from __future__ import annotations

import fnmatch
import math
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.core.errors import ToolError
from retinue.tools.files import FileAccess
from retinue.tools.function import as_text
from retinue.tools.pagination import results_of
from retinue.tools.search.fallback import Entry, walk
from retinue.tools.search.query import split

Test = Callable[[Entry, str, float], bool]
"""Whether an entry passes, given its path in the results and the current time."""

TYPES = {"": "f", "f": "f", "d": "d", "l": "l"}


@dataclass(slots=True)
class FindQuery:
    """The tests that an entry must pass, and the depths to search."""

    tests: list[Test] = field(default_factory=list[Test])
    least_depth: int = 1
    most_depth: int = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """One page of paths, and how many there are in all."""

    paths: list[str]
    total: int


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
) -> Found:
    """A page of the paths below a folder, sorted by component; raises `TimeoutError` when stopped or too slow."""
    bare = path.rstrip("/")
    prefix = "" if bare == "." else f"{bare}/"
    limit = results_of(limit)
    paths: list[str] = []
    total = 0
    now = time.time()
    with access.folder(path) as folder:
        closed = set(access.closed_below(folder.names))

        def enter(below: tuple[str, ...]) -> bool:
            return below not in closed and len(below) < query.most_depth

        for entry in walk(folder.fd, enter):
            if stop.is_set() or time.monotonic() > end:
                raise TimeoutError
            if entry.path in closed or not query.least_depth <= len(entry.path) <= query.most_depth:
                continue
            found = prefix + "/".join(entry.path)
            if all(test(entry, found, now) for test in query.tests):
                if offset <= total < offset + limit:
                    paths.append(as_text(found))
                total += 1
    return Found(paths, total)


# ---- the tests -------------------------------------------------------------------------------------------------------


def _not(test: Test) -> Test:
    return lambda entry, path, now: not test(entry, path, now)


def _named(glob: str, flags: int = 0) -> Test:
    name = re.compile(fnmatch.translate(glob), flags)
    return lambda entry, path, now: name.match(entry.path[-1]) is not None


def _at_path(glob: str, flags: int = 0) -> Test:
    pattern = re.compile(fnmatch.translate(glob), flags)
    # `find .` prints paths with ./ in front, and patterns are written for that.
    return lambda entry, path, now: pattern.match(path) is not None or pattern.match(f"./{path}") is not None


def _empty(entry: Entry, path: str, now: float) -> bool:
    try:
        if entry.kind == "d":
            return next(iter(_inside(entry)), None) is None
        return entry.kind == "f" and entry.stat().st_size == 0
    except OSError:
        return False


def _inside(entry: Entry) -> list[str]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    fd = os.open(entry.path[-1], flags, dir_fd=entry.folder)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


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

        def test(entry: Entry, path: str, now: float) -> bool:
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
