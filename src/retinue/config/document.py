"""A settings file as it was read: its values, and a way to find the line of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from retinue.config.key_paths import KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a reader makes of a file's text: plain tables, arrays, strings, numbers, booleans and dates.

    `line_of` finds the line on which a key is written, counted from 1, or None; it is asked only about mistakes, so a
    reader may look for it then.
    """

    values: Mapping[str, object]
    line_of: Callable[[KeyPath], int | None]

    def nearest_line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the table that it is missing from."""
        for end in range(len(path), 0, -1):
            if (line := self.line_of(path[:end])) is not None:
                return line
        return None


Reader: TypeAlias = Callable[[str, str], Document]
"""Reads a file's text; its name, which comes second, is for the `ConfigError` that says why it cannot."""
