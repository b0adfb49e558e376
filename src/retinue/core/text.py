"""Text utilities: truncation, printable text, lists of names, RFC 3339 times, and the exceptions of invalid JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

Unit = Literal["characters", "bytes"]

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions of decoding invalid or unexpected JSON, including lone surrogates and too deep nesting."""

INVISIBLE = r"\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
"""Characters above U+001F that control a terminal, change the text direction, or are invisible; for a regex class."""

_SURROGATES = r"\ud800-\udfff"
_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters at which Python, an editor or a terminal begins a new line."""

_CONTROL = re.compile(f"[\\x00-\\x08\\x0b-\\x1f{INVISIBLE}{_SURROGATES}]")
_NOT_IN_A_LINE = re.compile(f"[\\x00-\\x1f{INVISIBLE}{_SURROGATES}]")


class Cut(NamedTuple):
    """A truncated text; `size` and `kept` count the original and the part that is left, without the notice."""

    text: str
    size: int
    kept: int

    @property
    def shortened(self) -> bool:
        return self.kept < self.size


def cut(text: str, limit: int, notice: str, *, unit: Unit = "characters") -> Cut:
    """The longest prefix of `text` that fits into `limit`, followed by `notice` if a part is missing.

    The notice does not count towards the limit. A character is never split, so less than the limit may be kept.

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
    """The end of the last line within `limit`, if it gives up at most a tenth of `limit`; otherwise `limit`.

    >>> whole_lines("one\\ntwo\\nthree", 8), whole_lines("x" * 100, 50), whole_lines("head\\n" + "x" * 100, 50)
    (8, 50, 50)
    >>> whole_lines("x" * 47 + "\\n" + "y" * 50, 50)
    48
    """
    end = text.rfind("\n", limit - limit // 10 - 1, limit) + 1
    return end or limit


def rfc3339(at: float) -> str:
    """A Unix time in UTC, to the second.

    >>> rfc3339(1771597800.75)
    '2026-02-20T14:30:00Z'
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clean(text: str) -> str:
    """Untrusted text with control characters replaced by visible ones; its line ends and tabs stay.

    Texts of models, vendors and files may contain escape codes, marks that change the direction of writing, and
    halves of characters that cannot be encoded. The output of the command line and log lines go through this function
    or through `clean_line`.

    >>> clean("red \\x1b[31malert")
    'red ␛[31malert'
    """
    return _CONTROL.sub(_visible, text.replace("\r\n", "\n"))


def clean_line(text: str) -> str:
    """Untrusted text as a part of one line: as `clean`, with a space for every line end and tab.

    The length stays the same, so that styles of parts of the text still fit.

    >>> clean_line("dig\\nmain: completed")
    'dig main: completed'
    """
    return _NOT_IN_A_LINE.sub(_visible_in_a_line, text)


def clean_body(text: str, *headings: str) -> str:
    """Untrusted text for a page with headings: as `clean`, and a line that begins like a heading is indented.

    >>> clean_body("-- end\\ncompleted", "-- ")
    '  -- end\\ncompleted'
    """
    return "\n".join(f"  {line}" if line.startswith(headings) else line for line in clean(text).split("\n"))


def _visible(found: re.Match[str]) -> str:
    return chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd"


def _visible_in_a_line(found: re.Match[str]) -> str:
    return " " if found[0] == "\t" or found[0] in _LINE_BREAKS else _visible(found)


def plural(number: int, thing: str) -> str:
    """A number with its noun.

    >>> plural(1, "turn"), plural(3, "turn")
    ('1 turn', '3 turns')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


MAX_LISTED = 100
"""Names that a schema or a text for the model lists; a list of unlimited length would fill the context."""


def name_list(names: Sequence[str]) -> str:
    """Names in a text for the model, in their order; of very many the first ones.

    >>> name_list(["grep", "fetch"]), name_list([])
    ('grep, fetch', '(none)')
    >>> name_list([f"tool_{number}" for number in range(150)])[-29:]
    'tool_98, tool_99, and 50 more'
    """
    shown = ", ".join(names[:MAX_LISTED]) or "(none)"
    return f"{shown}, and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else shown
