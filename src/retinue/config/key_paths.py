"""Where a setting stands in its file: the way from the top to a key, and how that is written for people."""

from __future__ import annotations

import re
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Names of tables and keys, and places in arrays, counted from 0."""

LONGEST = 64
"""Characters of a key or value that are shown."""

_BARE = re.compile(f"[A-Za-z0-9_-]{{1,{LONGEST}}}")


def dotted(path: KeyPath) -> str:
    """The path as one would write it in the file.

    >>> dotted(("agents", "my agent", "tools", 0))
    'agents."my agent".tools[0]'
    """
    words = ""
    for part in path:
        if isinstance(part, int):
            words += f"[{part}]"
        else:
            words += ("." if words else "") + (part if _BARE.fullmatch(part) else quoted(part))
    return words


def quoted(text: str, *, longest: int = LONGEST) -> str:
    """Text in quotes, on one line however many it has, and not longer than anyone wants to read.

    >>> print(quoted("two\\nlines"))
    "two\\nlines"
    """
    shown = text if len(text) <= longest else f"{text[:longest]}..."
    return '"' + "".join(map(_printed, shown)) + '"'


def _printed(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else character.encode("unicode_escape").decode()
