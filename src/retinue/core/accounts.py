"""One account and the line above it: what is spent, held and promised, and the room that is left under every limit.

The arithmetic behind the ledger; it knows nothing of who asks, and decides nothing.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter

from retinue.core.amounts import CALLS, DIMENSIONS, Amount, Numbers, add, negative, vector


class Limited:
    """What accounts and windows have in common: something spent, something held, and limits in some dimensions."""

    __slots__ = ("capped", "held", "id", "limit", "soft", "spent")

    def __init__(
        self, name: str, limits: dict[int, int], spent: list[int], held: list[int], *, soft: bool = False
    ) -> None:
        self.id = name
        self.soft = soft
        self.capped = tuple(sorted(limits))
        self.limit = [limits.get(d, 0) for d in range(len(DIMENSIONS))]
        self.spent = spent
        self.held = held


class Account(Limited):
    """One account. `allowed` are the dimensions in which its limit is kept for it by those above it, `unused` how much
    of that it neither spent nor holds, `reserve` what is set aside for its wrap-up turn (and counted in `carved`)."""

    __slots__ = ("allowed", "ancestors", "carved", "closed", "reserve", "unused", "windows")

    def __init__(self, name: str, limits: dict[int, int], allowed: tuple[int, ...], parent: Account | None) -> None:
        super().__init__(name, limits, [0] * 6, [0] * 6)
        self.ancestors: tuple[Account, ...] = (parent, *parent.ancestors) if parent else ()
        self.windows: tuple[WindowLimit, ...] = ()
        self.allowed = allowed
        self.unused = [0] * 6
        self.carved = [0] * 6
        self.reserve = [0] * 6
        self.closed = False


class WindowLog:
    """The charges of one window, oldest first, and their sum."""

    __slots__ = ("charges", "held", "name", "span", "spent")

    def __init__(self, name: str, span: float) -> None:
        self.name = name
        self.span = span
        self.charges: deque[tuple[float, Amount]] = deque()
        self.spent = [0] * 6
        self.held = [0] * 6

    def add(self, numbers: Numbers, amount: Amount, at: float) -> None:
        if self.charges and at < self.charges[-1][0]:
            insort(self.charges, (at, amount), key=itemgetter(0))
        else:
            self.charges.append((at, amount))
        add(self.spent, numbers)

    def age(self, now: float) -> None:
        """Let go of what is too old at `now`."""
        while self.charges and self.charges[0][0] + self.span <= now:
            add(self.spent, negative(vector(self.charges.popleft()[1])))

    def frees(self, d: int, wanted: int) -> float | None:
        """The moment at which `wanted` more is free, if it ever is."""
        for at, amount in self.charges:
            wanted -= vector(amount)[d]
            if wanted <= 0:
                return at + self.span
        return None


class WindowLimit(Limited):
    """A window under the caps of one account; what was spent and is held belongs to all that share it."""

    __slots__ = ("log",)

    def __init__(self, log: WindowLog, limits: dict[int, int], *, soft: bool = False) -> None:
        super().__init__(log.name, limits, log.spent, log.held, soft=soft)
        self.log = log


def rooms(
    account: Account, spare: Numbers, *, alone: bool, windows: bool = True, actions: bool = True
) -> Iterator[tuple[Account | WindowLimit, int, int]]:
    """Every limit that binds `account`, nearest first, with the room under it; `alone` leaves calls in flight out.

    `actions` are the windows' limits on calls of tools: whoever has used them up may still think.
    """
    kept = list[int]()
    for each in (account, *account.ancestors):
        for d in each.capped:
            room = each.limit[d] - each.spent[d]
            if not alone:
                room -= each.held[d]
            # Above an allowance the room is there already, as part of what is carved. What is spent and held counts all
            # the same: where calls used more than their worst case and the limit is gone, no promise brings it back.
            if d not in kept:
                room -= each.carved[d] - spare[d]
            yield each, d, room
        kept += each.allowed
    for limit in account.windows if windows else ():
        for d in limit.capped:
            if actions or d != CALLS:
                yield limit, d, limit.limit[d] - limit.spent[d] - (0 if alone else limit.held[d])


def first_obstacle(account: Account, worst: Numbers, spare: Numbers) -> tuple[Account | WindowLimit, int, int] | None:
    """The first limit with too little room for `worst` as things are now."""
    for found in rooms(account, spare, alone=False, actions=worst[CALLS] > 0):
        if needed(found[0], worst[found[1]]) > found[2]:
            return found
    return None


def needed(limited: Limited, wanted: int) -> int:
    """The room that a call must find to be made: for a soft limit, any at all will do."""
    return 1 if limited.soft else wanted


def keep(account: Account, change: Numbers) -> None:
    """Count a call in flight, or count it no longer; `recount` has to follow."""
    add(account.held, change)
    for each in account.ancestors:
        add(each.held, change)
    for limit in account.windows:
        add(limit.held, change)


def spend(account: Account, amount: Amount, now: float, *, in_windows: bool = True) -> None:
    """Count what was used on the account, everything above it, and its windows."""
    numbers = vector(amount)
    add(account.spent, numbers)
    for each in account.ancestors:
        add(each.spent, numbers)
    for limit in account.windows if in_windows else ():
        limit.log.add(numbers, amount, now)
    recount(account)


def recount(account: Account) -> None:
    """Bring what is kept for each account of the line up to date with what it has spent and holds."""
    for each in (account, *account.ancestors):
        for d in each.allowed:
            unused = max(0, each.limit[d] - each.spent[d] - each.held[d])
            if unused != each.unused[d]:
                carve_along(each.ancestors, d, unused - each.unused[d])
                each.unused[d] = unused


def carve_along(line: Sequence[Account], d: int, change: int) -> None:
    """Keep `change` more along `line`, up to the first account that has an allowance of its own to keep it in."""
    for each in line:
        each.carved[d] += change
        if d in each.allowed:
            return


def reserve(account: Account, change: Numbers) -> None:
    """Set more aside for the account's wrap-up turn, or less."""
    for d, number in enumerate(change):
        if number:
            account.reserve[d] += number
            carve_along((account, *account.ancestors), d, number)
