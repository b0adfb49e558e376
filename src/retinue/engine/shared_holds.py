"""Holds of model calls in windows that other processes use too: taken and ended in the store.

A hold is an entry of the key-value namespace `holds`, named by its driver. The store takes it only if the charges of
each window, all holds and the new one fit under its limit, in one transaction: so of two processes that want the last
of a window, one gets it. The entry is removed in the transaction that charges what the call used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from retinue.core.budget import Amount, added
from retinue.core.commands import AmountLimit, Change, Decision, WindowFull
from retinue.core.ids import RunId
from retinue.core.ledger import Held, WindowCaps
from retinue.core.ports import Store
from retinue.engine.driver_table import is_gone
from retinue.engine.journal_writer import Journal

SPACE: Final = "holds"
"""The key-value namespace with the holds of all processes."""


class StoredHold(Struct, frozen=True, array_like=True):
    """The worst case of a call in flight, and the windows in which it is held."""

    windows: tuple[str, ...]
    input: int
    output: int
    cost: int

    @property
    def amount(self) -> Amount:
        return Amount(self.input, self.output, self.cost)


class SharedHolds:
    """The holds of this process in the store, and what others hold there."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal = journal
        self._store = store
        self._names: dict[int, str] = {}
        """The entries of holds that are neither settled nor released, by the number of the hold."""
        self._settled: dict[RunId, list[str]] = {}
        """The entries of settled holds whose charges are not queued yet."""
        self._void: frozenset[str] = frozenset()
        """Entries of processes that no longer exist, as of the last look; the next hold removes them."""
        self.has_seen_others = False
        """Whether other processes held anything at the last look."""

    async def take(self, held: Held, windows: Sequence[WindowCaps], now: float) -> bool:
        """Hold a call in the store; whether it fits. A cancelled caller gives it back."""
        name = f"{self._journal.driver_id}/{held.id}"
        hold = StoredHold(tuple(each.name for each in windows), held.worst.input, held.worst.output, held.worst.cost)
        void = self._void

        def decide(content: Mapping[str, bytes]) -> Decision:
            total = _by_window(value for other, value in content.items() if other not in void)
            return Decision(
                b"",
                puts={name: msgspec.json.encode(hold)},
                drops=tuple(other for other in content if other in void),
                within=tuple(_limit(each, total.get(each.name, Amount()), hold, now) for each in windows),
            )

        self._names[held.id] = name
        try:
            (answer,) = await self._journal.commit(Change(space=SPACE, decide=decide))
        except BaseException:
            self.release(held)
            raise
        if isinstance(answer, WindowFull):
            del self._names[held.id]
            return False
        self._void -= void
        return True

    async def of_others(self) -> dict[str, Amount]:
        """What living processes except this one hold, by the names of the windows."""
        content = await self._journal.peek(self._store.key_value, SPACE)
        self.has_seen_others = False
        if not content:
            return {}
        rows = await self._journal.peek(self._store.drivers)
        living = {row.driver_id for row in rows if not row.dead and not is_gone(row.host, row.process)}
        self._void = frozenset(name for name in content if _driver_of(name) not in living)
        own = self._journal.driver_id
        others = [name for name in content if name not in self._void and _driver_of(name) != own]
        self.has_seen_others = bool(others)
        return _by_window(content[name] for name in others)

    def settle(self, held: Held) -> None:
        """Mark a hold as settled: it ends with the record of its charges, see `end_settled`."""
        name = self._names.pop(held.id, None)
        if name is not None:
            self._settled.setdefault(held.account, []).append(name)

    def end_settled(self, run_id: RunId) -> tuple[Change, ...]:
        """The write that removes the settled holds of a run."""
        names = self._settled.pop(run_id, None)
        return () if names is None else (_removal(*names),)

    def release(self, held: Held) -> None:
        """Remove a hold whose call used nothing; has no effect after `settle`."""
        name = self._names.pop(held.id, None)
        if name is not None:
            self._journal.write(_removal(name))

    def close(self, run_id: RunId) -> None:
        """Remove what is left of a run that ended without recording its charges."""
        for change in self.end_settled(run_id):
            self._journal.write(change)


def _removal(*names: str) -> Change:
    decision = Decision(b"", drops=names)
    return Change(space=SPACE, decide=lambda _: decision)


def _driver_of(name: str) -> str:
    return name.rpartition("/")[0]


def _by_window(values: Iterable[bytes]) -> dict[str, Amount]:
    """The sums of stored holds by the names of their windows."""
    sums: dict[str, Amount] = {}
    for value in values:
        hold = msgspec.json.decode(value, type=StoredHold)
        for window in hold.windows:
            sums[window] = added(sums.get(window, Amount()), hold.amount)
    return sums


def _limit(window: WindowCaps, held: Amount, hold: StoredHold, now: float) -> AmountLimit:
    """What may be charged to a window already, so that the call still fits; a soft window needs any room at all."""
    asked = Amount(1, 1, 1) if window.soft else hold.amount
    caps = window.caps

    def rest(cap: int | None, taken: int, wanted: int) -> int | None:
        return None if cap is None else cap - taken - wanted

    return AmountLimit(
        window=window.name,
        after=now - window.span,
        input=rest(caps.input, held.input, asked.input),
        output=rest(caps.output, held.output, asked.output),
        tokens=rest(caps.tokens, held.tokens, 1 if window.soft else asked.tokens),
        cost=rest(caps.cost, held.cost, asked.cost),
    )
