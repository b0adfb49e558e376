"""TOML parsing with the line of each key, which `tomllib` does not provide.

`tomllib` validates the text; `KeyLines` only finds lines, and skips what it cannot parse.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple, cast

from retinue.config.error_texts import MAX_VALUES, Document, dotted
from retinue.core.errors import ConfigError, Problem
from retinue.core.key_paths import KeyPath

_PART = r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(rf"({_DOTTED})[ \t]*=[ \t]*")
_HEADER = re.compile(rf"(\[\[?)[ \t]*({_DOTTED})[ \t]*\]")
_STRING = re.compile(r'''"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|'[^'\n]*\'''', re.DOTALL)
_SCALAR = re.compile(r"[^,\[\]{}#\n]*")
_LINE = re.compile(r"[^\n]*\n?")


class Repeat(NamedTuple):
    """A key or table that is written a second time."""

    path: KeyPath
    first: int
    line: int


class KeyLines:
    """The lines of all keys and array items; of a key that is written twice, the first."""

    def __init__(self, text: str) -> None:
        self.repeats: list[Repeat] = []
        self._lines: dict[KeyPath, int] = {}
        self._written: set[KeyPath] = set()
        self._arrays: dict[KeyPath, int] = {}
        self._text = text
        self._breaks = [found.start() for found in re.finditer("\n", text)]
        # Too deeply nested arrays: keep the lines found so far.
        with suppress(RecursionError):
            self._document()

    def find(self, path: KeyPath) -> int | None:
        return self._lines.get(path)

    def _document(self) -> None:
        table: KeyPath = ()
        at = _skip(_BLANK, self._text, 0)
        while at < len(self._text):
            if header := _HEADER.match(self._text, at):
                table = self._table(header[1] == "[[", _names(header[2]), at)
                at = header.end()
            elif _KEY.match(self._text, at):
                at = self._setting(table, at)
            else:
                at = _skip(_LINE, self._text, at)
            at = _skip(_BLANK, self._text, at)

    def _table(self, is_item: bool, names: tuple[str, ...], at: int) -> KeyPath:
        """The path of the table that begins here; below an array of tables it belongs to the last item."""
        path: KeyPath = ()
        for index, name in enumerate(names):
            path += (name,)
            is_last = index == len(names) - 1
            self._note(path, at, "written" if is_last and not is_item else "implied")
            if is_item and is_last:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path += (self._arrays[path],)
                self._note(path, at, "implied")
        return path

    def _setting(self, table: KeyPath, at: int) -> int:
        found = _KEY.match(self._text, at)
        if found is None:
            return at
        names = _names(found[1])
        for end in range(1, len(names)):
            self._note((*table, *names[:end]), at, "implied")
        path = (*table, *names)
        self._note(path, at, "written")
        return self._value(path, found.end())

    def _value(self, path: KeyPath, at: int) -> int:
        match self._text[at : at + 1]:
            case "[":
                return self._items(path, at + 1, close="]")
            case "{":
                return self._items(path, at + 1, close="}")
            case '"' | "'":
                return _skip(_STRING, self._text, at)
            case _:
                return _skip(_SCALAR, self._text, at)

    def _items(self, path: KeyPath, at: int, *, close: Literal["]", "}"]) -> int:
        index = 0
        while (at := _skip(_BLANK, self._text, at)) < len(self._text) and self._text[at] != close:
            begin = at
            if close == "}":
                at = self._setting(path, at)
            else:
                self._note((*path, index), at, "implied")
                at = self._value((*path, index), at)
                index += 1
            at = _skip(_BLANK, self._text, at)
            if self._text[at : at + 1] == "," or at == begin:
                at += 1
        return at + 1

    def _note(self, path: KeyPath, at: int, how: Literal["written", "implied"]) -> None:
        line = bisect_left(self._breaks, at) + 1
        first = self._lines.setdefault(path, line)
        if how == "implied":
            return
        if path in self._written:
            self.repeats.append(Repeat(path, first, line))
        self._written.add(path)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _names(key: str) -> tuple[str, ...]:
    """The names in a dotted key; `tomllib` interprets quotes and escapes."""
    names: list[str] = []
    try:
        below: Any = tomllib.loads(f"{key} = 0")
    except ValueError:
        return (key,)
    while isinstance(below, dict):
        ((name, below),) = cast("dict[str, Any]", below).items()
        names.append(name)
    return tuple(names)


_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z")
_DUPLICATES = ("Cannot overwrite", "Cannot declare", "Cannot redefine", "Cannot mutate", "Duplicate inline table key")


UNCHECKED_CHARS = 16_384
"""A text of at most this length is parsed in no time, whatever it says."""

MAX_PARTS = 64
"""The most parts of a key: the time of `tomllib` grows with their square."""

_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?(?:"""|\Z)|\'{3}.*?(?:\'{3}|\Z)|"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?|#[^\n]*+'''
    r"|[A-Za-z0-9_-]++|[ \t]++|.",
    re.DOTALL,
)


def _check_amount(text: str, file: str) -> None:
    """Raise `ConfigError` for a text that would take long to parse: very many values, or keys of very many parts."""
    values = dots = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case ".":
                dots += 1
            case "=" | "," | "[" | "\n":
                values += token[0] != "\n"
                dots = 0
            case _:
                continue
        if dots >= MAX_PARTS or values > MAX_VALUES:
            line = text.count("\n", 0, token.start()) + 1
            complaint = f"a key of more than {MAX_PARTS} parts" if dots else f"more than {MAX_VALUES} values"
            raise ConfigError(Problem(file=file, line=line, complaint=f"not readable: {complaint}"))


def read_toml(text: str, file: str) -> Document:
    """Parse `text`; raises `ConfigError` for syntax errors, with line and column."""
    if len(text) > UNCHECKED_CHARS:
        _check_amount(text, file)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_problem(str(error), text, file)) from None
    except ValueError as error:  # a number with more digits than Python converts
        raise ConfigError(Problem(file=file, complaint=f"not valid TOML: {_lowered(str(error))}")) from None
    except RecursionError:
        raise ConfigError(Problem(file=file, complaint="not readable: nested too deeply")) from None
    lines = cache(lambda: KeyLines(text))

    def line_of(path: KeyPath) -> int | None:
        return lines().find(path)

    return Document(values=values, line_of=line_of)


def _syntax_problem(message: str, text: str, file: str) -> Problem:
    position = _POSITION.search(message)
    details = _POSITION.sub("", message)
    if position is not None and position[1] is not None:
        line, column = int(position[1]), int(position[2])
    else:  # unexpected end of the text
        lines = text.split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    if details.startswith(_DUPLICATES):
        return _duplicate_problem(text, file, line, column)
    return Problem(file=file, line=line, column=column, complaint=f"not valid TOML: {_lowered(details)}", found=details)


def _duplicate_problem(text: str, file: str, line: int, column: int) -> Problem:
    # `tomllib` stops at the first duplicate, after its value.
    for repeat in KeyLines(text).repeats:
        if repeat.line <= line:
            complaint = f"set twice; the first is on line {repeat.first}"
            return Problem(file=file, line=repeat.line, key=dotted(repeat.path), complaint=complaint)
    return Problem(file=file, line=line, column=column, complaint="this key or table is set above in another way")


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
