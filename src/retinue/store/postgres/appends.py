"""Records of runs as arrays: the values of the functions `append`, `append_if_read` and `commit_appends`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from retinue.core.commands import Progress, Record
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.core.inbox import Item
from retinue.core.run import Outcome
from retinue.store import rules

Encode = Callable[[Event | Item | Outcome], bytes]
"""The bytes to store for a value; a large one is stored as a blob before."""

ARRAYS: Final = (
    "%s::text[], %s::integer[], %s::integer[], %s::text[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[], "
    "%s::bigint[], %s::bigint[], %s::bytea[], %s::double precision[], %s::integer[], %s::integer[], %b::bytea[]"
)
"""The placeholders of `Append.values`; bodies are sent as they are, not as hexadecimal text."""


class Move:
    """The combined row update of successive records of one run."""

    __slots__ = ("before", "last", "progress", "run_id")

    def __init__(self, first: Record) -> None:
        self.run_id: RunId = first.run_id
        self.before = self.last = first.seq - 1
        self.progress: Progress | None = None

    def is_followed_by(self, record: Record) -> bool:
        """Whether `record`, of the same run, directly continues this one."""
        ended = self.progress is not None and self.progress.phase == "ended"
        return record.seq == self.last + 1 and not ended


class Append:
    """Updates of different runs, and the events that they add, for one call of a function."""

    def __init__(self) -> None:
        self.moves: dict[RunId, Move] = {}
        self._events: list[tuple[RunId, int, bytes]] = []

    def values(self, encode: Encode) -> tuple[object, ...]:
        """The values of `ARRAYS`."""
        moves = list(self.moves.values())
        place = {move.run_id: n for n, move in enumerate(moves, 1)}
        progress = [move.progress or _UNCHANGED for move in moves]
        return (
            [move.run_id for move in moves],
            [move.before for move in moves],
            [move.last for move in moves],
            [None if each is _UNCHANGED else each.phase for each in progress],
            [each.turns for each in progress],
            [each.usage.input for each in progress],
            [each.usage.output for each in progress],
            [each.usage.cached for each in progress],
            [each.usage.reasoning for each in progress],
            [each.cost for each in progress],
            [None if each.outcome is None else encode(each.outcome) for each in progress],
            [None if each.ended_at is None else float(each.ended_at) for each in progress],
            [place[run_id] for run_id, _, _ in self._events],
            [seq for _, seq, _ in self._events],
            [body for _, _, body in self._events],
        )

    def add(self, move: Move, record: Record, encode: Encode) -> None:
        move.last = record.seq - 1 + len(record.events)
        move.progress = rules.progress_after(record) or move.progress
        for seq, event in enumerate(record.events, record.seq):
            self._events.append((record.run_id, seq, encode(event)))


_UNCHANGED: Final = Progress(phase="queued")


def appends_of(records: Iterable[Record], encode: Encode) -> list[Append]:
    """The calls that add these records in order: one, unless a record does not follow and will be rejected.

    An error in an earlier record has precedence, so the calls before are made first.
    """
    calls = [Append()]
    for record in records:
        move = calls[-1].moves.get(record.run_id)
        if move is not None and not move.is_followed_by(record):
            calls.append(Append())
            move = None
        if move is None:
            move = calls[-1].moves[record.run_id] = Move(record)
        calls[-1].add(move, record, encode)
    return calls
