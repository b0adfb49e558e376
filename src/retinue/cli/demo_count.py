"""Counts model calls across a crash: which were finished before it, and whether one of those was made again."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TypeAlias

from msgspec import Struct

from retinue.cli.words import many

Call: TypeAlias = tuple[str, int]
"""A model call: the path of its run in the tree, and its turn."""


class Count(Struct, frozen=True, kw_only=True):
    """What a crash cost.

    `finished` calls had their answer on disk when the process was killed, `lost` ones were answered but not yet on
    disk. `again` are those that were made a second time although they were finished, `later` counts what was made after
    the crash.
    """

    finished: int
    later: int
    lost: tuple[Call, ...] = ()
    again: tuple[Call, ...] = ()

    def __str__(self) -> str:
        again = ", ".join(f"{path} turn {turn}" for path, turn in self.again)
        lost = f" {many(len(self.lost), 'answer')} came too late to be kept." if self.lost else ""
        return (
            f"{many(self.finished, 'model call')} were finished before the kill; "
            f"{f'made again: {again}' if again else 'none was made again'}.{lost} {self.later} followed."
        )


def count_calls(on_disk: Set[Call], first: Sequence[Call], second: Sequence[Call]) -> Count:
    """Compare what was on disk at the kill with the calls that the model answered in the first and the second process.

    >>> print(count_calls({("root", 1), ("root", 2)}, [("root", 1), ("root", 2)], [("root", 3)]))
    2 model calls were finished before the kill; none was made again. 1 followed.
    >>> print(count_calls({("root", 1), ("root", 2)}, [("root", 1), ("root", 2)], [("root", 2)]))
    2 model calls were finished before the kill; made again: root turn 2. 1 followed.
    """
    twice = [call for process in (first, second) for call in process if process.count(call) > 1]
    return Count(
        finished=len(on_disk),
        later=len(second),
        lost=tuple(sorted(set(first) - on_disk)),
        again=tuple(sorted({*(on_disk & set(second)), *twice})),
    )
