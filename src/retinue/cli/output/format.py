"""Numbers, times and names in the short forms that people read on a terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from retinue.core.errors import BadInput
from retinue.core.ids import RunId
from retinue.core.usage import NANO

SHORT = 8
"""Characters of a short id. The end of an id is what tells it from others: its beginning is the time it was made."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
STEERING = r"\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
"""Characters beyond the first ones that steer a terminal, turn the direction of text, or cannot be seen at all."""
_CONTROL = re.compile(f"[\\x00-\\x08\\x0b-\\x1f{STEERING}]")


def short(run_id: RunId) -> str:
    """An id as a table shows it.

    >>> short("019467d9-7e3a-7000-8000-00000badcafe")
    '0badcafe'
    """
    return run_id[-SHORT:]


def count(number: int) -> str:
    """A number of tokens.

    >>> count(950), count(12_345), count(3_400_000)
    ('950', '12.3k', '3.4M')
    """
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"


def tokens(number: int) -> str:
    """A number of tokens, with the word.

    >>> tokens(1), tokens(950), tokens(12_345)
    ('1 token', '950 tokens', '12.3k tokens')
    """
    return f"{count(number)} token{'' if number == 1 else 's'}"


def money(cost: int | None) -> str:
    """A cost in dollars; what nobody knows is a question mark.

    >>> money(0), money(None), money(1_234_567), money(2_500_000_000)
    ('$0', '?', '$0.0012', '$2.50')
    """
    if cost is None:
        return "?"
    if cost == 0:
        return "$0"
    return f"${cost / NANO:.2f}" if cost >= NANO // 10 else f"${cost / NANO:.4f}"


def dollars_in_full(cost: int) -> str:
    """A cost to the last nanodollar, for where a limit is told that may be smaller than a cent.

    >>> dollars_in_full(100), dollars_in_full(0), dollars_in_full(500_000_000)
    ('$0.0000001', '$0', '$0.5')
    """
    return "$" + f"{cost // NANO}.{cost % NANO:09d}".rstrip("0").rstrip(".")


def elapsed(seconds: float) -> str:
    """How long something took.

    >>> elapsed(3.24), elapsed(125), elapsed(3720), elapsed(200_000)
    ('3.2 s', '2m 05s', '1h 02m', '2d 07h')
    """
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{max(0.0, seconds):.1f} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def many(number: int, thing: str) -> str:
    """A number of things.

    >>> many(1, "turn"), many(3, "turn")
    ('1 turn', '3 turns')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def moment(at: float) -> str:
    """A moment of the machine's own day, to the second."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds(duration: str) -> float:
    """A duration that a person wrote.

    >>> seconds("30d"), seconds("12h"), seconds("1.5m")
    (2592000.0, 43200.0, 90.0)
    """
    found = _DURATION.fullmatch(duration.strip().lower())
    if found is None:
        raise BadInput(f"{duration!r} is not a duration; expected a number and a unit: 45m, 12h, 30d or 8w")
    return float(found[1]) * _UNITS[found[2]]


def clean(text: str) -> str:
    """Somebody's words without what would steer a terminal: models write these, and files they have read.

    >>> clean("red \\x1b[31malert")
    'red ␛[31malert'
    """
    return _CONTROL.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)


def one_line(text: str, limit: int = 100) -> str:
    """The beginning of somebody's words, on one line.

    >>> one_line("find\\n  it", 6)
    'find …'
    """
    flat = clean(" ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
