"""Key paths in a settings file, their dotted notation, and the parsed file with the line of each key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Path to a value: names of tables and keys, and array indices, which count from 0."""

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
    lines lazily.
    """

    values: Mapping[str, object]
    line_of: Callable[[KeyPath], int | None]

    def nearest_line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the innermost enclosing table that has one."""
        for end in range(len(path), 0, -1):
            if (line := self.line_of(path[:end])) is not None:
                return line
        return None


Parser: TypeAlias = Callable[[str, str], Document]
"""Parses a file's text; the second argument is the file's name, for `ConfigError`."""
