"""Texts of settings errors: key paths, their lines in the file, and "found X; expected Y" messages."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import inspect

from retinue.core.key_paths import KeyPath

MAX_VALUES = 20_000
"""Maximum number of values in one file; in YAML with all aliases expanded."""

MAX_SHOWN = 64
"""Maximum length of a key or value in a message."""

_BARE = re.compile(f"[A-Za-z0-9_-]{{1,{MAX_SHOWN}}}")


def dotted(path: KeyPath) -> str:
    """The path in TOML notation.

    >>> dotted(("agents", "my agent", "tools", 0))
    'agents."my agent".tools[0]'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else quoted(part))
    return text


def quoted(text: str, *, max_shown: int = MAX_SHOWN) -> str:
    """`text` in quotes, escaped to one line and truncated to `max_shown` characters.

    >>> print(quoted("two\\nlines"))
    "two\\nlines"
    """
    shown = text if len(text) <= max_shown else f"{text[:max_shown]}..."
    return '"' + "".join(map(_escaped, shown)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else character.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed settings file: tables, arrays, strings, numbers, booleans and dates.

    `line_of` returns the line of a key, counted from 1, or None. It is called only for errors, so a parser may compute
    lines lazily. `origin` returns the path in the file of a value whose path in `values` is another one.
    """

    values: Mapping[str, object]
    line_of: Callable[[KeyPath], int | None]
    origin: Callable[[KeyPath], KeyPath] = lambda path: path

    def nearest_line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the innermost enclosing table that has one."""
        for end in range(len(path), 0, -1):
            if (line := self.line_of(path[:end])) is not None:
                return line
        return None


MAX_INTEGER = 2**63 - 1
"""The largest whole number that TOML and the store can hold."""


def describe_value(value: object, *, with_kind: bool, secret: bool = False) -> str:
    """A value as text, with its kind if that is the error; the content of a secret is not shown.

    >>> describe_value("ten", with_kind=True), describe_value(0, with_kind=False)
    ('"ten" (a string)', '0')
    >>> describe_value("sk-123", with_kind=False, secret=True)
    'a string of 6 characters'
    """
    match value:
        case str() if secret:
            return f"a string of {len(value)} characters"
        case str():
            shown, kind = quoted(value), "a string"
        case bool():
            shown, kind = str(value).lower(), "a boolean"
        case int() if value.bit_length() > 64:  # Python refuses to convert some of these to decimal
            return "a whole number of more than 64 bits"
        case int():
            shown, kind = str(value), "a whole number"
        case float():
            shown, kind = repr(value), "a number"
        case datetime.datetime() | datetime.date() | datetime.time():
            shown, kind = value.isoformat(), "a date or time"
        case dict():
            return "a table"
        case list():
            return "an array"
        case None:
            return "nothing"
        case _:
            return "something else"
    return f"{shown} ({kind})" if with_kind else shown


def describe_type(declared: inspect.Type, value: object = None) -> str:
    """What a declared type expects instead of `value`."""
    match declared:
        case inspect.IntType():
            return "a whole number" + _range(declared, value)
        case inspect.FloatType():
            return "a number" + _range(declared, value)
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(min_length=least):
            return "a string that is not empty" if least else "a string"
        case inspect.LiteralType(values=values):
            return one_of([str(each) for each in values])
        case inspect.VarTupleType(item_type=item):
            return f"an array of {_plural(item)}"
        case inspect.DictType(value_type=item):
            return f"a table of {_plural(item)}"
        case inspect.AnyType():
            return "a value"
        case inspect.StructType():
            return "a table"
        case _:
            raise TypeError(f"settings cannot be of the type {declared}")


def one_of(choices: Sequence[str]) -> str:
    return f"one of: {', '.join(choices)}"


def unknown_name(kind: str, name: str, known: Sequence[str]) -> str:
    """The message about an unknown name, with the closest known one.

    >>> unknown_name("key", "max_turn", ["model", "max_turns"])
    'unknown key, did you mean max_turns? Known: model, max_turns'
    """
    listed = f"nown: {', '.join(known)}"
    if match := closest_match(name, known):
        return f"unknown {kind}, did you mean {match}? K{listed}"
    return f"unknown {kind}; k{listed}"


def closest_match(name: str, known: Sequence[str]) -> str | None:
    """The known name most similar to `name`, or None if none is similar."""
    if len(name) > MAX_SHOWN:
        return None
    from difflib import get_close_matches  # loaded for a mistake alone, not at every start

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.65)), None)


def _range(declared: inspect.IntType | inspect.FloatType, value: object) -> str:
    low, high = declared.ge, declared.le
    text = "" if declared.gt is None else f" above {declared.gt}"
    text += "" if low is None else f" from {low}"
    # A technical upper limit is mentioned only to a value that exceeds it.
    number: Any = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if high is None and number > MAX_INTEGER:
        high = MAX_INTEGER
    if high is None or (high >= 10**9 and not number > high):
        return text
    return f"{text} to {high}" if low is not None else f"{text} and up to {high}" if text else f" up to {high}"


def _plural(item: inspect.Type) -> str:
    match item:
        case inspect.Metadata(type=inner):
            return _plural(inner)
        case inspect.StrType():
            return "strings"
        case inspect.AnyType():
            return "values"
        case inspect.VarTupleType(item_type=inner):
            return f"lists of {_plural(inner)}"
        case _:
            raise TypeError(f"settings cannot have a collection of the type {item}")


def mismatch(found: str, expected: str, hint: str = "") -> str:
    """The message about a value of another kind than its key takes.

    >>> mismatch("a table", "a string")
    'found a table; expected a string'
    """
    return f"found {found}; expected {expected}{hint}"
