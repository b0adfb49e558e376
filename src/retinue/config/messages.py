"""What stands in a settings file and what may stand there, in the words of people and not of types."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Sequence
from typing import Any

from msgspec import inspect

from retinue.config.key_paths import LONGEST, quoted

LARGEST = 2**63 - 1
"""The largest whole number that TOML and the store can hold."""


def found(value: object, *, with_kind: bool, secret: bool = False) -> str:
    """A value, with what kind of thing it is where that is the mistake.

    >>> found("ten", with_kind=True), found(0, with_kind=False), found("sk-123", with_kind=False, secret=True)
    ('"ten" (a string)', '0', 'a string of 6 characters')
    """
    match value:
        case str() if secret:
            return f"a string of {len(value)} characters"
        case str():
            shown, kind = quoted(value), "a string"
        case bool():
            shown, kind = str(value).lower(), "a boolean"
        case int() if value.bit_length() > 64:  # Python refuses to write some of these in digits
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


def expected(declared: inspect.Type, value: object = None) -> str:
    """What a declared type wants to see in place of `value`."""
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
            return f"an array of {_many(item)}"
        case inspect.DictType(value_type=item):
            return f"a table of {_many(item)}"
        case inspect.StructType():
            return "a table"
        case _:
            raise TypeError(f"settings cannot be of the type {declared}")


def one_of(choices: Sequence[str]) -> str:
    """Everything that may be chosen."""
    return f"one of: {', '.join(choices)}"


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """That nobody knows a name, with the one that was probably meant.

    >>> unknown("key", "max_turn", ["model", "max_turns"])
    'unknown key, did you mean max_turns? Known: model, max_turns'
    """
    listed = f"nown: {', '.join(known)}"
    if meant := nearest(name, known):
        return f"unknown {kind}, did you mean {meant}? K{listed}"
    return f"unknown {kind}; k{listed}"


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that looks most like this one, if any does."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.65) if len(name) <= LONGEST else []
    return close[0] if close else None


def _range(declared: inspect.IntType | inspect.FloatType, value: object) -> str:
    low, high = declared.ge, declared.le
    words = "" if declared.gt is None else f" above {declared.gt}"
    words += "" if low is None else f" from {low}"
    # A limit that exists for the machine's sake is not worth mentioning to those who stay below it.
    asked: Any = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if high is None and asked > LARGEST:
        high = LARGEST
    if high is None or (high >= 10**9 and not asked > high):
        return words
    return f"{words} to {high}" if low is not None else f"{words} and up to {high}" if words else f" up to {high}"


def _many(item: inspect.Type) -> str:
    match item:
        case inspect.Metadata(type=inner):
            return _many(inner)
        case inspect.StrType():
            return "strings"
        case inspect.VarTupleType(item_type=inner):
            return f"lists of {_many(inner)}"
        case _:
            raise TypeError(f"settings cannot have a collection of the type {item}")
