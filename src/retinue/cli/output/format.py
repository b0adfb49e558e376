"""Numbers, times, durations, costs and runs in short form for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from retinue.app.engine_types import RunView
from retinue.core.errors import BadInput
from retinue.core.events import RunAccepted, TreeEvent
from retinue.core.ids import RunId
from retinue.core.text import clean_line
from retinue.core.usage import NO_USAGE, Usage, add_cost
from retinue.core.usage import count as count
from retinue.core.usage import money as money
from retinue.core.usage import tokens_text as tokens_text

SHORT = 8
"""Characters of a short id, from its end: ids begin with the time of their creation, so their beginnings look alike."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def short(run_id: RunId) -> str:
    """A short run id for tables.

    >>> short("019467d9-7e3a-7000-8000-00000badcafe")
    '0badcafe'
    """
    return run_id[-SHORT:]


def elapsed(seconds: float) -> str:
    """A duration.

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


def moment(at: float) -> str:
    """A time in the local time zone, to the second."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds(duration: str) -> float:
    """The seconds of a duration as users write it.

    >>> seconds("30d"), seconds("12h"), seconds("1.5m")
    (2592000.0, 43200.0, 90.0)
    """
    found = _DURATION.fullmatch(duration.strip().lower())
    if found is None:
        raise BadInput(f"{duration!r} is not a duration; expected a number and a unit: 45m, 12h, 30d or 8w")
    return float(found[1]) * _UNITS[found[2]]


def one_line(text: str, limit: int = 100) -> str:
    """Untrusted text on one line, cut to `limit` characters.

    >>> one_line("find\\n  it", 6)
    'find …'
    """
    flat = " ".join(clean_line(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def status_of(view: RunView) -> str:
    """One word for the status of a run: the result if it has ended, else its state."""
    if view.outcome is not None:
        return "empty" if view.outcome.reason == "empty" else view.outcome.result
    return view.state


def name_of(view: RunView | TreeEvent | RunAccepted) -> str:
    """Agent, handle and label: what distinguishes the runs of a tree for users; on one line, each of limited length."""
    handle = f" {one_line(view.handle.name)}" if view.handle is not None else ""
    label = f" [{one_line(view.label)}]" if view.label and view.label != view.agent else ""
    return f"{one_line(view.agent) or 'run'}{handle}{label}"


def tokens_of(view: RunView) -> str:
    """The tokens of a run; those that are estimated, and marked as such, if its server counted nothing."""
    is_estimated = view.estimated.total and not view.usage.total
    return f"~{count(view.estimated.total)}" if is_estimated else count(view.usage.total)


def estimate_text(views: Iterable[RunView]) -> str:
    """What is estimated for replies that no server counted, for a line about runs; empty if there are none."""
    estimated, cost = NO_USAGE, 0
    for view in views:
        estimated += view.estimated
        cost += view.estimated_cost
    if not estimated.total:
        return ""
    price = f", {money(cost)}" if cost else ""
    return f"not counted by the server: about {tokens_text(estimated.input)} in, {count(estimated.output)} out{price}"


def total(views: Iterable[RunView]) -> tuple[Usage, int | None]:
    usage = NO_USAGE
    cost: int | None = 0
    for view in views:
        usage += view.usage
        cost = add_cost(cost, view.cost)
    return usage, cost


def unsuccessful(children: Sequence[RunView]) -> list[str]:
    """How many children ended in another way than with an answer; nothing if none did."""
    ends = Counter(status_of(view) for view in children if view.outcome is not None and not view.outcome.ok)
    if not ends:
        return []
    failed = ", ".join(f"{number} {status}" for status, number in ends.items())
    return [f"of {len(children)} {'child' if len(children) == 1 else 'children'} {failed}"]
