"""Reads TOML, and says where it is not."""

from __future__ import annotations

import re
import tomllib
from functools import cache

from retinue.config.document import Document
from retinue.config.keys import KeyPath, dotted
from retinue.config.toml_lines import KeyLines
from retinue.core.errors import ConfigError, Problem

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z")
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot redefine", "Cannot mutate", "Duplicate inline table key")


def read_toml(text: str, file: str) -> Document:
    """The document that `text` is; mistakes of writing are raised with their line and column."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_mistake(str(error), text, file)) from None
    except ValueError as error:  # a number of thousands of digits, which Python does not read
        raise ConfigError(Problem(file=file, complaint=f"not valid TOML: {_lowered(str(error))}")) from None
    except RecursionError:
        raise ConfigError(Problem(file=file, complaint="not readable: arrays in arrays, too deep")) from None
    lines = cache(lambda: KeyLines(text))

    def line_of(path: KeyPath) -> int | None:
        return lines().find(path)

    return Document(values=values, line_of=line_of)


def _mistake(message: str, text: str, file: str) -> Problem:
    place = _PLACE.search(message)
    words = _PLACE.sub("", message)
    if place is not None and place[1] is not None:
        line, column = int(place[1]), int(place[2])
    else:  # the end of the text came too early
        lines = text.split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    if words.startswith(_TWICE):
        return _repetition(text, file, line, column)
    return Problem(file=file, line=line, column=column, complaint=f"not valid TOML: {_lowered(words)}", found=words)


def _repetition(text: str, file: str, line: int, column: int) -> Problem:
    # The reader stops at the first repetition, behind its value.
    for repeat in KeyLines(text).repeats:
        if repeat.line <= line:
            complaint = f"set twice; the first is on line {repeat.first}"
            return Problem(file=file, line=repeat.line, key=dotted(repeat.path), complaint=complaint)
    return Problem(file=file, line=line, column=column, complaint="this key or table is set above in another way")


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
