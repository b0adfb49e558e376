"""What every run may still use: the accounts of a process, and the holds that keep parallel calls from overspending.

An account counts its own charges and those of everything below it. What is left is `limit - spent - held - carved`:
held are the worst cases of calls in flight, carved is what living children were promised and a wrap-up turn will need.
Every call is held before it is made, so an account goes over its limit by no more than what the calls in flight at its
last grant used beyond their worst cases.

The ledger does arithmetic and nothing else: it never waits, reads no clock and stores nothing. It has one owner, who
tells it what happened and asks again after `on_freed` when it was told to wait.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.budget import (
    CALLS,
    COST,
    DIMENSIONS,
    NOTHING,
    OUTPUT,
    TOKENS,
    UNLIMITED,
    Amount,
    Caps,
    Dimension,
    Numbers,
    Price,
    Window,
    add,
    amount_of,
    caps_of,
    negative,
    numbers_of,
    vector,
)
from retinue.core.errors import BadInput, UnknownName


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

    __slots__ = ("allowed", "ancestors", "closed", "reserve", "reserved", "unused", "windows")

    def __init__(self, name: str, limits: dict[int, int], allowed: tuple[int, ...], parent: Account | None) -> None:
        super().__init__(name, limits, [0] * 6, [0] * 6)
        self.ancestors: tuple[Account, ...] = (parent, *parent.ancestors) if parent else ()
        self.windows: tuple[WindowLimit, ...] = ()
        self.allowed = allowed
        self.unused = [0] * 6
        self.reserved = [0] * 6
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
                room -= each.reserved[d] - spare[d]
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
        each.reserved[d] += change
        if d in each.allowed:
            return


def reserve(account: Account, change: Numbers) -> None:
    """Set more aside for the account's wrap-up turn, or less."""
    for d, number in enumerate(change):
        if number:
            account.reserve[d] += number
            carve_along((account, *account.ancestors), d, number)


AccountId: TypeAlias = str


class Opened(Struct, frozen=True):
    """The account exists. `caps` are its own limits; `carved` is the part of them that its parent keeps for it."""

    account: AccountId
    caps: Caps
    reserved: Caps = UNLIMITED


class NoRoom(Struct, frozen=True):
    """Nothing can be set apart: `account`, which is asked or above the one asked, has too little left."""

    account: AccountId
    dimension: Dimension
    asked: int
    left: int


class Held(Struct, frozen=True):
    """The call may be made with up to `output` tokens of output. Settle or release it, whatever becomes of the call."""

    id: int
    account: AccountId
    output: int
    worst: Amount


class MustWait(Struct, frozen=True):
    """The call would fit if other calls in flight were over: ask again after `on_freed`."""

    account: AccountId
    dimension: Dimension
    asked: int
    left: int


class Exhausted(Struct, frozen=True):
    """Not even the shortest form of the call, which needs `asked`, fits under the limit.

    `account` is the name of a window if `window` says so. Such a limit is met only for a time: `until` is when enough
    of it will be free, or None if that moment never comes because the call is larger than the whole limit.
    """

    account: AccountId
    dimension: Dimension
    asked: int
    left: int
    spent: int
    limit: int
    window: bool = False
    until: float | None = None


class Standing(Struct, frozen=True):
    """An account as it stands; `carved` is what living children and wrap-up turns were promised and have not used."""

    caps: Caps
    spent: Amount
    held: Amount
    reserved: Caps


OpenAnswer: TypeAlias = Opened | NoRoom
HoldAnswer: TypeAlias = Held | MustWait | Exhausted


class Ledger:
    """All accounts of one owner.

    >>> ledger = Ledger()
    >>> ledger.open("run", Caps(tokens=1000))
    Opened(account='run', caps=Caps(tokens=1000), reserved=Caps())
    >>> held = ledger.hold("run", input=300, output=4000, now=0.0)
    >>> held
    Held(id=1, account='run', output=700, worst=Amount(input=300, output=700, cost=0, turns=1, calls=0))
    >>> ledger.settle(held, Amount(input=290, output=110, turns=1), now=1.0)
    >>> ledger.left("run", now=1.0).tokens
    600
    """

    def __init__(self, on_freed: Callable[[], None] | None = None) -> None:
        self.on_freed = on_freed
        """Called after anything that can change an answer of MustWait."""
        self.version = 0
        """Grows whenever `on_freed` is called, for an owner who prefers to look."""
        self._accounts: dict[AccountId, Account] = {}
        self._logs: dict[tuple[str, float], WindowLog] = {}
        self._holds: dict[int, _Hold] = {}
        self._last_hold = 0

    def open(
        self,
        account_id: AccountId,
        caps: Caps = UNLIMITED,
        *,
        parent: AccountId | None = None,
        windows: Sequence[Window] = (),
        carve: Caps | None = None,
    ) -> OpenAnswer:
        """Open an account under `parent`, whose own parents and windows bind it too.

        In the dimensions that `carve` names, the account gets that much or what is left above it, whichever is less,
        and that part is kept for it until it is closed. In all others it draws on the same pot as its parent.

        To rebuild accounts after a crash, open those that live, oldest first and with what was carved for them, and
        `charge` what is known to have been used: at no moment were living children promised more than the limit.
        """
        if account_id in self._accounts:
            raise BadInput(f"account {account_id!r} is open already")
        above = self._account(parent) if parent is not None else None
        limits = numbers_of(caps)
        asked = {d: min(number, limits.get(d, number)) for d, number in numbers_of(carve).items()}
        granted = dict(asked)
        for each, d, room in rooms(above, NOTHING, alone=False, windows=False) if above else ():
            if d in asked:
                if room <= 0 < asked[d]:
                    return NoRoom(each.id, DIMENSIONS[d], asked[d], 0)
                granted[d] = min(granted[d], max(room, 0))
        account = Account(account_id, limits | granted, tuple(granted), above)
        account.windows = self._window_limits(windows, above.windows if above else ())
        self._accounts[account_id] = account
        recount(account)
        return Opened(account_id, caps_of(limits | granted), caps_of(granted))

    def close(self, account_id: AccountId) -> None:
        """Give back what was kept for this account and is not promised on to its living children.

        It can still be charged, asked and a parent; closing it twice is the same as once.
        """
        account = self._account(account_id)
        if account.closed:
            return
        account.closed = True
        reserve(account, negative(account.reserve))
        allowed, account.allowed = account.allowed, ()
        for d in allowed:
            carve_along(account.ancestors, d, account.reserved[d] - account.unused[d])
        self._freed()

    def forget(self, account_id: AccountId) -> None:
        """Close the account and drop its name, so that a long life does not collect them; those below keep working."""
        self.close(account_id)
        del self._accounts[account_id]

    def hold(
        self,
        account_id: AccountId,
        *,
        input: int,
        output: int,
        min_output: int = 1,
        price: Price | None = None,
        turns: int = 1,
        calls: int = 0,
        now: float,
        wrap_up: bool = False,
    ) -> HoldAnswer:
        """Keep room for the worst case of one call, on the account, everything above it and its windows.

        If the call would not fit even with nothing else in flight, its output is shortened, down to `min_output`.
        Children's allowances count as gone, so nobody ever waits for an idle child. An account that is over a limit
        stops every call, also one that asks nothing in that dimension; but windows that limit calls of tools stop only
        those. Without a `price` no cost is held. With
        `wrap_up`, what was set aside for the account may be used.
        """
        account = self._account(account_id)
        for limit in account.windows:
            limit.log.age(now)
        spare = account.reserve if wrap_up else NOTHING
        worst = _worst(input, output, price, turns, calls)
        if first_obstacle(account, worst, spare) is not None:
            least = _worst(input, min(output, min_output), price, turns, calls)
            for each, d, room in rooms(account, spare, alone=True, actions=calls > 0):
                if needed(each, least[d]) > room:
                    return _exhausted(each, d, least[d], room)
                if not each.soft:
                    output = min(output, _longest(d, room, input, output, price))
            worst = _worst(input, output, price, turns, calls)
            if (obstacle := first_obstacle(account, worst, spare)) is not None:
                each, d, room = obstacle
                return MustWait(each.id, DIMENSIONS[d], worst[d], max(room, 0))
        taken = NOTHING
        if wrap_up:
            taken = tuple(map(min, spare, worst))
            reserve(account, negative(taken))
        keep(account, worst)
        recount(account)
        self._last_hold += 1
        self._holds[self._last_hold] = _Hold(account, worst, taken)
        return Held(self._last_hold, account_id, output, amount_of(worst))

    def settle(self, held: Held, actual: Amount, now: float) -> None:
        """The call is over and used this much; a hold is settled once."""
        hold = self._holds.pop(held.id, None)
        if hold is None:
            raise BadInput(f"hold {held.id} of account {held.account!r} was settled or released before")
        keep(hold.account, negative(hold.worst))
        spend(hold.account, actual, now)
        # Also when nothing came back: who waited for this call may now have to hear that it does not fit at all.
        self._freed()

    def release(self, held: Held) -> None:
        """The call used nothing; after `settle` or another `release` this changes nothing."""
        hold = self._holds.pop(held.id, None)
        if hold is None:
            return
        keep(hold.account, negative(hold.worst))
        recount(hold.account)
        if not hold.account.closed:
            reserve(hold.account, hold.taken)
        self._freed()

    def charge(self, account_id: AccountId, amount: Amount, now: float, *, in_windows: bool = True) -> None:
        """Count what was used without a hold: tool calls, and facts remembered from before a crash.

        Windows have a memory of their own, from which they `recall`; what is in it is not charged to them again.
        """
        spend(self._account(account_id), amount, now, in_windows=in_windows)

    def act(self, account_id: AccountId, now: float) -> Exhausted | None:
        """Take one tool call from the account's windows that limit calls; None if all of them had room for it.

        It is spent at once: nobody waits for an action to be over.

        >>> ledger = Ledger()
        >>> opened = ledger.open("run", windows=[Window("actions", 3600.0, Caps(calls=1))])
        >>> ledger.act("run", now=0.0) is None, ledger.act("run", now=1.0).until, ledger.act("run", now=3600.0) is None
        (True, 3600.0, True)
        """
        account = self._account(account_id)
        for limit in account.windows:
            if CALLS in limit.capped:
                limit.log.age(now)
                if (room := limit.limit[CALLS] - limit.spent[CALLS]) < 1:
                    return _exhausted(limit, CALLS, 1, room)
        spend(account, Amount(calls=1), now)
        return None

    def over(self, account_id: AccountId, now: float) -> Exhausted | None:
        """The first window of the account in which more calls were made than it allows, if there is one."""
        for limit in self._account(account_id).windows:
            if CALLS in limit.capped:
                limit.log.age(now)
                if (room := limit.limit[CALLS] - limit.spent[CALLS]) < 0:
                    return _exhausted(limit, CALLS, 0, room)
        return None

    def recall(self, window: Window, amount: Amount, at: float) -> None:
        """Count in a window what a run used that has no account any more."""
        self._log(window).add(vector(amount), amount, at)

    def set_aside(self, account_id: AccountId, amount: Amount) -> NoRoom | None:
        """Keep this much for the account's wrap-up turn, in place of what was set aside before; None if there is room.

        Where a dimension has no limit nothing has to be kept. Closing the account gives it back.
        """
        account = self._account(account_id)
        if account.closed:
            raise BadInput(f"account {account_id!r} is closed; nothing can be set aside for it")
        wanted = vector(amount)
        for each, d, room in rooms(account, account.reserve, alone=False, windows=False):
            if wanted[d] > max(room, 0):
                return NoRoom(each.id, DIMENSIONS[d], wanted[d], max(room, 0))
        reserve(account, negative(account.reserve))
        reserve(account, wanted)
        self._freed()
        return None

    def left(self, account_id: AccountId, now: float) -> Caps:
        """What the account can still use, with everything above it and its windows considered."""
        account = self._account(account_id)
        for limit in account.windows:
            limit.log.age(now)
        least: dict[int, int] = {}
        for _, d, room in rooms(account, NOTHING, alone=False):
            least[d] = max(0, min(room, least.get(d, room)))
        return caps_of(least)

    def spent(self, account_id: AccountId) -> Amount:
        """What the account and everything below it used."""
        return amount_of(self._account(account_id).spent)

    def standing(self, account_id: AccountId) -> Standing:
        """The account by itself, without what is above it."""
        account = self._account(account_id)
        return Standing(
            caps_of({d: account.limit[d] for d in account.capped}),
            amount_of(account.spent),
            amount_of(account.held),
            caps_of({d: account.reserved[d] for d in account.capped}),
        )

    def _account(self, account_id: AccountId) -> Account:
        try:
            return self._accounts[account_id]
        except KeyError:
            raise UnknownName("account", account_id) from None

    def _freed(self) -> None:
        self.version += 1
        if self.on_freed is not None:
            self.on_freed()

    def _log(self, window: Window) -> WindowLog:
        key = (window.name, window.span_seconds)
        if key not in self._logs:
            self._logs[key] = WindowLog(window.name, window.span_seconds)
        return self._logs[key]

    def _window_limits(self, own: Sequence[Window], above: tuple[WindowLimit, ...]) -> tuple[WindowLimit, ...]:
        """One limit for each window on the line: a child cannot leave its parent's windows, only narrow them."""
        limits = {limit.log: {d: limit.limit[d] for d in limit.capped} for limit in above}
        soft = {limit.log: limit.soft for limit in above}
        for window in own:
            log = self._log(window)
            soft[log] = window.soft and soft.get(log, True)
            known = limits.setdefault(log, {})
            for d, number in numbers_of(window.caps).items():
                known[d] = min(number, known.get(d, number))
        return tuple(WindowLimit(log, numbers, soft=soft[log]) for log, numbers in limits.items())


class _Hold(NamedTuple):
    account: Account
    worst: Numbers
    taken: Numbers
    """What came out of the account's reserve, to be put back if the call is not made."""


def _exhausted(each: Account | WindowLimit, d: int, asked: int, room: int) -> Exhausted:
    answer = Exhausted(each.id, DIMENSIONS[d], asked, max(room, 0), each.spent[d], each.limit[d])
    if isinstance(each, Account):
        return answer
    return replace(answer, window=True, until=each.log.frees(d, asked - room))


def _worst(input: int, output: int, price: Price | None, turns: int, calls: int) -> Numbers:
    cost = input * price[0] + output * price[1] if price else 0
    return (input, output, input + output, cost, turns, calls)


def _longest(d: int, room: int, input: int, output: int, price: Price | None) -> int:
    """The longest output, up to `output`, that keeps the call within `room` in one dimension."""
    if d == OUTPUT:
        return min(output, room)
    if d == TOKENS:
        return min(output, room - input)
    if d == COST and price and price[1]:
        return min(output, (room - input * price[0]) // price[1])
    return output
