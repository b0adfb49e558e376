"""How plain objects take a batch back: every change leaves behind the way to reverse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")


class Undo:
    """The ways back of one batch, the latest last.

    >>> undo, table = Undo(), {"a": 1}
    >>> undo.put(table, "b", 2), undo.drop(table, "a"), undo.roll_back(), table
    (None, None, None, {'a': 1})
    """

    __slots__ = ("_ways_back",)

    def __init__(self) -> None:
        self._ways_back: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def by(self, way_back: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
        """Something was changed, and this call reverses it."""
        self._ways_back.append((way_back, args))

    def put(self, table: dict[K, V], name: K, value: V) -> None:
        """Set an entry of a table."""
        if name in table:
            before = table[name]
            self.by(lambda: table.__setitem__(name, before))
        else:
            self.by(lambda: table.pop(name))
        table[name] = value

    def drop(self, table: dict[K, V], name: K) -> None:
        """Remove an entry of a table, if it is there."""
        if name in table:
            before = dict(table)  # an entry that comes back has to come back in its place
            self.by(lambda: (table.clear(), table.update(before)))
            del table[name]

    def swap(self, table: dict[K, V], entries: dict[K, V]) -> None:
        """Let a table hold these entries and no others."""
        before = dict(table)
        self.by(lambda: (table.clear(), table.update(before)))
        table.clear()
        table.update(entries)

    def roll_back(self) -> None:
        """Reverse everything since the last `forget`, the latest change first."""
        while self._ways_back:
            way_back, args = self._ways_back.pop()
            way_back(*args)

    def forget(self) -> None:
        """What was done stays."""
        self._ways_back.clear()
