"""Places of values in settings files: paths of keys, and where a moved value stands in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Names of tables and keys, and array indices."""

ROOT_DEFAULTS = "(root)"
"""The table of defaults of root runs, which translated settings files have alone. No key of a file has this name."""


def origin_of(path: KeyPath, origins: Mapping[KeyPath, KeyPath]) -> KeyPath:
    """The path in the file of a value that was moved; `origins` has the file's path of each value or table that was.

    >>> moved = {("providers", "ollama"): ("provider", "ollama")}
    >>> origin_of(("providers", "ollama", "headers", "X"), moved), origin_of(("tools", "network"), moved)
    (('provider', 'ollama', 'headers', 'X'), ('tools', 'network'))
    """
    for end in range(len(path), 0, -1):
        if (place := origins.get(path[:end])) is not None:
            return (*place, *path[end:])
    return path
