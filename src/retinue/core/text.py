"""Text for its readers: cut to a size, with moments that anyone can read; and what is raised for what is no JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

Unit = Literal["characters", "bytes"]

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding raises for text that is no JSON, or not the JSON that was expected; models and servers write anything,
also halves of characters and a thousand brackets.
"""

INVISIBLE = r"\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
"""Characters above U+001F that control a terminal, change the text direction, or are invisible; for a regex class."""

_CONTROL = re.compile(f"[\\x00-\\x08\\x0b-\\x1f{INVISIBLE}]")


class Cut(NamedTuple):
    """A text as a reader gets it; `size` and `kept` count the original and what is left of it, without the notice."""

    text: str
    size: int
    kept: int

    @property
    def shortened(self) -> bool:
        """Whether something was left out."""
        return self.kept < self.size


def cut(text: str, limit: int, notice: str, *, unit: Unit = "characters") -> Cut:
    """The longest beginning of `text` that fits into `limit`, followed by `notice` if something is missing.

    The notice comes on top of the limit. A character is never cut in two, so less than the limit may be kept.

    >>> cut("abcdef", 4, " [more]")
    Cut(text='abcd [more]', size=6, kept=4)
    >>> cut("né", 2, "…", unit="bytes")
    Cut(text='n…', size=3, kept=1)
    >>> cut("short", 5, "…").shortened
    False
    """
    if unit == "characters":
        kept = text[:limit]
        return Cut(kept + notice if len(text) > limit else text, len(text), len(kept))
    whole = text.encode()
    if len(whole) <= limit:
        return Cut(text, len(whole), len(whole))
    beginning = whole[:limit].decode(errors="ignore")
    return Cut(beginning + notice, len(whole), len(beginning.encode()))


def whole_lines(text: str, limit: int) -> int:
    """A limit at or a little below `limit` at which a cut falls between two lines, or `limit` where no line ends near.

    At most a tenth of what would fit is given up for it.

    >>> whole_lines("one\\ntwo\\nthree", 8), whole_lines("x" * 100, 50), whole_lines("head\\n" + "x" * 100, 50)
    (8, 50, 50)
    >>> whole_lines("x" * 47 + "\\n" + "y" * 50, 50)
    48
    """
    end = text.rfind("\n", limit - limit // 10 - 1, limit) + 1
    return end or limit


def rfc3339(at: float) -> str:
    """A moment in UTC, to the second.

    >>> rfc3339(1771597800.75)
    '2026-02-20T14:30:00Z'
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clean(text: str) -> str:
    """Untrusted text with control characters replaced by visible ones; models and files may contain escape codes.

    >>> clean("red \\x1b[31malert")
    'red ␛[31malert'
    """
    return _CONTROL.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)


def plural(number: int, thing: str) -> str:
    """A number with its noun.

    >>> plural(1, "turn"), plural(3, "turn")
    ('1 turn', '3 turns')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
