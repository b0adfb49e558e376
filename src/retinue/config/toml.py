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
    if message.startswith(_TWICE) and (repeats := KeyLines(text).repeats):
        # The reader stops at the first repetition, and the lines are in order.
        path, first, line = repeats[0]
        return Problem(file=file, line=line, key=dotted(path), complaint=f"set twice; the first is on line {first}")
    place = _PLACE.search(message)
    words = _PLACE.sub("", message)
    line, column = (place[1], place[2]) if place else (None, None)
    if line is None or column is None:  # the end of the text came too early
        lines = text.splitlines() or [""]
        line, column = len(lines), len(lines[-1]) + 1
    return Problem(
        file=file, line=int(line), column=int(column), complaint=f"not valid TOML: {_lowered(words)}", found=words
    )


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
