"""Regular expressions of others, matched within bounds: one that may take long is matched in a process of its own.

`run_apart` starts such a process. Large answers are validated in one, too (`app/structured_output.py`).
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

import msgspec

MAX_PATTERN = 2000
"""Characters of a pattern."""
MAX_STEPS = 5_000_000
"""Estimated steps of a search that is made in this process: a fraction of a second."""
SECONDS = 2.0
"""Seconds that the other searches of one validation have, all together."""

_SEARCH = """
import json, re, sys
pattern, text = json.load(sys.stdin.buffer)  # in UTF-8, whatever the encoding of the system
print(int(re.search(pattern, text) is not None))
"""


class PatternTooSlow(Exception):
    """A search that was not finished in time."""


class SearchDeadline:
    """The time that is left for the slow searches of one validation, and for a validation in a process."""

    def __init__(self) -> None:
        self.left = SECONDS


class BoundedPattern:
    """A compiled pattern with the two methods that a validator uses; they return whether there is a match."""

    def __init__(self, pattern: re.Pattern[str], deadline: SearchDeadline) -> None:
        self._pattern = pattern
        self._deadline = deadline
        self._repeats = repeats_of(pattern.pattern)

    def search(self, text: str) -> bool:
        """Raises `PatternTooSlow`."""
        if self._repeats is not None and (len(text) + 1) ** max(self._repeats, 1) <= MAX_STEPS:
            return self._pattern.search(text) is not None
        return _search_apart(self._pattern.pattern, text, self._deadline)

    match = search
    """Used for patterns of formats alone, which begin with an anchor."""


def repeats_of(pattern: str) -> int | None:
    """The number of parts that can be repeated; None if the time of a search can grow faster than a power of that.

    >>> repeats_of("^[a-z]+-[0-9]{4}$"), repeats_of("^(a+)+$"), repeats_of("^(a|aa)+$")
    (1, None, None)
    """
    parser: Any = import_module("re._parser")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _repeats(parser.parse(pattern), inside=False)
        except (re.error, RecursionError, OverflowError):
            return None


def _repeats(parsed: Iterable[Any], *, inside: bool) -> int | None:
    total = 0
    for operation, argument in parsed:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, body = argument
            varies = least != most
            if inside and varies:
                return None
            below = _repeats(body, inside=inside or int(most) > 1)
            total += int(varies and int(most) > 1)
        elif name == "BRANCH":
            if inside:
                return None
            parts = [_repeats(branch, inside=inside) for branch in argument[1]]
            below = None if None in parts else sum(cast("list[int]", parts))
        elif name == "SUBPATTERN":
            below = _repeats(argument[-1], inside=inside)
        elif name in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "CATEGORY", "RANGE"):
            below = 0
        else:  # a reference to a group, an assertion, a condition
            return None
        if below is None:
            return None
        total += below
    return total


def _search_apart(pattern: str, text: str, deadline: SearchDeadline) -> bool:
    try:
        return run_apart(_SEARCH, [pattern, text], deadline).strip() == b"1"
    except TimeoutError as error:
        raise PatternTooSlow(pattern) from error


def run_apart(program: str, given: object, deadline: SearchDeadline) -> bytes:
    """The output of Python code that reads `given` as JSON, in a process without site packages and variables.

    Raises `TimeoutError` if it does not end in the time that is left, or fails.
    """
    begin = time.monotonic()
    try:
        if deadline.left <= 0:
            raise TimeoutError
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            input=msgspec.json.encode(given),
            capture_output=True,
            timeout=deadline.left,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    finally:
        deadline.left -= time.monotonic() - begin
    if ended.returncode != 0:
        raise TimeoutError
    return ended.stdout
