"""Budget accounts of runs, with holds that keep parallel model calls from overspending.

An account counts its own charges and those of its descendants. What is left is `limit - spent - held - reserved`:
`held` are the worst cases of calls in flight, `reserved` is what living children and wrap-up turns are promised. Every
call is held before it is made, so an account exceeds its limit at most by what the calls in flight at its last grant
used beyond their holds. A call whose worst case does not fit gets what is left as its longest output.

The ledger only computes: it never waits, reads no clock and stores nothing. Its single owner reports what happened, and
repeats a hold that returned `MustWait` after `on_freed`.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from retinue.core import budget
from retinue.core.errors import BadInput, UnknownName


class _Limited:
    """Base of accounts and windows: amounts spent and held, and limits in some dimensions."""

    __slots__ = ("capped", "held", "id", "limit", "soft", "spent")

    def __init__(
        self, name: str, limits: dict[int, int], spent: list[int], held: list[int], *, soft: bool = False
    ) -> None:
        self.id = name
        self.soft = soft
        self.capped = tuple(sorted(limits))
        self.limit = [limits.get(d, 0) for d in range(len(budget.DIMENSIONS))]
        self.spent = spent
        self.held = held


class _Account(_Limited):
    """One account.

    `allowed` are the dimensions in which its ancestors reserve its limit; `unused` is the part of that allowance which
    it neither spent nor holds. `reserved` is what it promised to children and to its wrap-up turn; `wrap_up_reserve` is
    the latter alone.
    """

    __slots__ = ("allowed", "ancestors", "closed", "reserved", "unused", "windows", "wrap_up_reserve")

    def __init__(self, name: str, limits: dict[int, int], allowed: tuple[int, ...], parent: _Account | None) -> None:
        super().__init__(name, limits, [0] * 6, [0] * 6)
        self.ancestors: tuple[_Account, ...] = (parent, *parent.ancestors) if parent else ()
        self.windows: tuple[_WindowLimit, ...] = ()
        self.allowed = allowed
        self.unused = [0] * 6
        self.reserved = [0] * 6
        self.wrap_up_reserve = [0] * 6
        self.closed = False


class _WindowLog:
    """The charges of one window, oldest first, and their sum."""

    __slots__ = ("charges", "elsewhere", "held", "name", "span", "spent")

    def __init__(self, name: str, span: float) -> None:
        self.name = name
        self.span = span
        self.charges: deque[tuple[float, budget.Amount]] = deque()
        self.spent = [0] * 6
        self.held = [0] * 6
        self.elsewhere: budget.Numbers = budget.NOTHING
        """The part of `held` that other processes hold."""

    def add(self, numbers: budget.Numbers, amount: budget.Amount, at: float) -> None:
        if self.charges and at < self.charges[-1][0]:
            insort(self.charges, (at, amount), key=itemgetter(0))
        else:
            self.charges.append((at, amount))
        budget.add(self.spent, numbers)

    def expire(self, now: float) -> None:
        while self.charges and self.charges[0][0] + self.span <= now:
            budget.add(self.spent, budget.negative(budget.vector(self.charges.popleft()[1])))

    def free_at(self, d: int, wanted: int) -> float | None:
        """The time at which `wanted` more of dimension `d` is free; None if never."""
        for at, amount in self.charges:
            wanted -= budget.vector(amount)[d]
            if wanted <= 0:
                return at + self.span
        return None


class _WindowLimit(_Limited):
    """A window under the caps of one account; `spent` and `held` belong to all accounts that share the window."""

    __slots__ = ("log",)

    def __init__(self, log: _WindowLog, limits: dict[int, int], *, soft: bool = False) -> None:
        super().__init__(log.name, limits, log.spent, log.held, soft=soft)
        self.log = log


def _headroom(
    account: _Account, spare: budget.Numbers, *, alone: bool, windows: bool = True, actions: bool = True
) -> Iterator[tuple[_Account | _WindowLimit, int, int]]:
    """Every limit that binds `account`, nearest first, with its dimension and the room under it.

    `alone` ignores calls in flight. `actions=False` ignores the windows' limits on tool calls, which do not bind a
    model call. `spare` is the account's own wrap-up reserve where it may be used.
    """
    reserved_below = list[int]()
    for each in (account, *account.ancestors):
        for d in each.capped:
            room = each.limit[d] - each.spent[d]
            if not alone:
                room -= each.held[d]
            # An allowance is part of what its ancestors reserve, so their reservations do not bind it. Their spent and
            # held amounts do: when calls exceed their worst case and the limit is gone, no promise restores it.
            if d not in reserved_below:
                room -= each.reserved[d] - spare[d]
            yield each, d, room
        reserved_below += each.allowed
    for limit in account.windows if windows else ():
        for d in limit.capped:
            if actions or d != budget.CALLS:
                yield limit, d, limit.limit[d] - limit.spent[d] - (0 if alone else limit.held[d])


def _blocking_limit(
    account: _Account, worst: budget.Numbers, spare: budget.Numbers
) -> tuple[_Account | _WindowLimit, int, int] | None:
    for limit, d, room in _headroom(account, spare, alone=False, actions=worst[budget.CALLS] > 0):
        if _required(limit, worst[d]) > room:
            return limit, d, room
    return None


def _required(limited: _Limited, wanted: int) -> int:
    """The room that a call needs under a limit: any at all under a soft one."""
    return 1 if limited.soft else wanted


def _change_held(account: _Account, change: budget.Numbers) -> None:
    """Add a call in flight, or remove one; `_update_unused` has to follow."""
    budget.add(account.held, change)
    for each in account.ancestors:
        budget.add(each.held, change)
    for limit in account.windows:
        budget.add(limit.held, change)


def _spend(account: _Account, amount: budget.Amount, now: float, *, in_windows: bool = True) -> None:
    numbers = budget.vector(amount)
    budget.add(account.spent, numbers)
    for each in account.ancestors:
        budget.add(each.spent, numbers)
    for limit in account.windows if in_windows else ():
        limit.log.add(numbers, amount, now)
    _update_unused(account)


def _update_unused(account: _Account) -> None:
    """Adjust what ancestors reserve for each account of the line to what it has spent and holds."""
    for each in (account, *account.ancestors):
        for d in each.allowed:
            unused = max(0, each.limit[d] - each.spent[d] - each.held[d])
            if unused != each.unused[d]:
                _reserve_along(each.ancestors, d, unused - each.unused[d])
                each.unused[d] = unused


def _reserve_along(line: Sequence[_Account], d: int, change: int) -> None:
    """Reserve `change` more along `line`, up to the first account whose own allowance includes it."""
    for each in line:
        each.reserved[d] += change
        if d in each.allowed:
            return


def _change_wrap_up_reserve(account: _Account, change: budget.Numbers) -> None:
    for d, number in enumerate(change):
        if number:
            account.wrap_up_reserve[d] += number
            _reserve_along((account, *account.ancestors), d, number)


AccountId: TypeAlias = str

USEFUL_OUTPUT = 1024
"""Output tokens that the worst case of a call's input has to leave; otherwise a lower estimate of it is held."""


class AccountOpened(Struct, frozen=True):
    """The account was opened with the limits `caps`; `reserved` is the part of them that its parent reserves for it."""

    account: AccountId
    caps: budget.Caps
    reserved: budget.Caps = budget.UNLIMITED


class InsufficientBudget(Struct, frozen=True):
    """Nothing was reserved: `account`, the requested one or an ancestor of it, has too little left."""

    account: AccountId
    dimension: budget.Dimension
    asked: int
    left: int


class Shortage(Struct, frozen=True, repr_omit_defaults=True):
    """A limit that leaves `left` where a call asked for `asked`.

    With `window`, `account` is the name of a window, otherwise of an account.
    """

    account: AccountId
    dimension: budget.Dimension
    asked: int
    left: int
    spent: int
    limit: int
    window: bool = False


class WindowCaps(NamedTuple):
    """A window with its caps under one account."""

    name: str
    span: float
    caps: budget.Caps
    soft: bool


class Held(Struct, frozen=True, repr_omit_defaults=True):
    """A granted hold: the call may produce up to `output` tokens. It must be settled or released in any case.

    `shortage` is the limit that made the output shorter than asked for, if one did.
    """

    id: int
    account: AccountId
    output: int
    worst: budget.Amount
    shortage: Shortage | None = None


class MustWait(Struct, frozen=True):
    """The call would fit without the other calls in flight: repeat the hold after `on_freed`."""

    account: AccountId
    dimension: budget.Dimension
    asked: int
    left: int


class Exhausted(Shortage, frozen=True, repr_omit_defaults=True):
    """Not even the shortest form of the call, which needs `asked`, fits under the limit.

    `until` is when enough of a window will be free; None if never, because the call is larger than the whole limit.
    """

    until: float | None = None


class AccountState(Struct, frozen=True):
    """Snapshot of one account; `reserved` is the unused part of what children and wrap-up turns were promised."""

    caps: budget.Caps
    spent: budget.Amount
    held: budget.Amount
    reserved: budget.Caps


OpenAnswer: TypeAlias = AccountOpened | InsufficientBudget
HoldAnswer: TypeAlias = Held | MustWait | Exhausted


class Ledger:
    """The budget accounts of one process.

    >>> ledger = Ledger()
    >>> ledger.open("run", budget.Caps(tokens=1000))
    AccountOpened(account='run', caps=Caps(tokens=1000), reserved=Caps())
    >>> held = ledger.hold("run", input=300, output=4000, now=0.0)
    >>> held.output, held.worst.tokens, held.shortage.left
    (700, 1000, 1000)
    >>> ledger.settle(held, budget.Amount(input=290, output=110, turns=1), now=1.0)
    >>> ledger.left("run", now=1.0).tokens
    600
    """

    def __init__(self, on_freed: Callable[[], None] | None = None) -> None:
        self.on_freed = on_freed
        """Called after every change after which a hold that returned `MustWait` may succeed."""
        self.version = 0
        """Incremented whenever `on_freed` is called, for owners that poll."""
        self._accounts: dict[AccountId, _Account] = {}
        self._logs: dict[tuple[str, float], _WindowLog] = {}
        self._holds: dict[int, _Hold] = {}
        self._last_hold = 0

    def open(
        self,
        account_id: AccountId,
        caps: budget.Caps = budget.UNLIMITED,
        *,
        parent: AccountId | None = None,
        windows: Sequence[budget.Window] = (),
        reserve: budget.Caps | None = None,
    ) -> OpenAnswer:
        """Open an account under `parent`, whose ancestors and windows bind it too.

        In the dimensions of `reserve`, the account gets that much or what is left above it, whichever is less, and the
        amount stays reserved for it until it is closed. In all other dimensions it shares its parent's budget.

        To rebuild accounts after a crash, open those of unfinished runs, oldest first and with their `reserved` caps,
        and `charge` what is known to have been used: living children were never promised more than the limit.
        """
        if account_id in self._accounts:
            raise BadInput(f"account {account_id!r} is open already")
        above = self._account(parent) if parent is not None else None
        limits = budget.numbers_of(caps)
        asked = {d: min(number, limits.get(d, number)) for d, number in budget.numbers_of(reserve).items()}
        granted = dict(asked)
        for each, d, room in _headroom(above, budget.NOTHING, alone=False, windows=False) if above else ():
            if d in asked:
                if room <= 0 < asked[d]:
                    return InsufficientBudget(each.id, budget.DIMENSIONS[d], asked[d], 0)
                granted[d] = min(granted[d], max(room, 0))
        account = _Account(account_id, limits | granted, tuple(granted), above)
        account.windows = self._window_limits(windows, above.windows if above else ())
        self._accounts[account_id] = account
        _update_unused(account)
        return AccountOpened(account_id, budget.caps_of(limits | granted), budget.caps_of(granted))

    def add_windows(self, account_id: AccountId, windows: Sequence[budget.Window]) -> None:
        """Bind an open account, of which no hold is open, to further windows; accounts below it keep their own."""
        account = self._account(account_id)
        account.windows = self._window_limits(windows, account.windows)

    def close(self, account_id: AccountId) -> None:
        """Give back what is reserved for this account and not promised to its living children.

        A closed account can still be charged, queried and be a parent. Closing it again has no effect.
        """
        account = self._account(account_id)
        if account.closed:
            return
        account.closed = True
        _change_wrap_up_reserve(account, budget.negative(account.wrap_up_reserve))
        allowed, account.allowed = account.allowed, ()
        for d in allowed:
            _reserve_along(account.ancestors, d, account.reserved[d] - account.unused[d])
        self._freed()

    def forget(self, account_id: AccountId) -> None:
        """Close the account and remove it, so that accounts do not accumulate; its descendants keep working."""
        self.close(account_id)
        del self._accounts[account_id]

    def hold(
        self,
        account_id: AccountId,
        *,
        input: int,
        output: int,
        min_output: int = 1,
        price: budget.Price | None = None,
        least: budget.LeastInput | None = None,
        turns: int = 1,
        calls: int = 0,
        now: float,
        wrap_up: bool = False,
    ) -> HoldAnswer:
        """Hold the worst case of one call on the account, its ancestors and its windows.

        If the call would not fit even with nothing else in flight, its output is shortened to what is left, down to
        `min_output`. If the worst case of its input leaves less than a useful output, the call is held with the `least`
        that its input may take. Children's allowances count as used, so no call waits for an idle child. An account
        over a limit stops every call, also one that needs nothing in that dimension; windows that limit tool calls stop
        only those. Without a `price` no cost is held. With `wrap_up`, the account's wrap-up reserve may be used.
        """
        account = self._account(account_id)
        for limit in account.windows:
            limit.log.expire(now)
        spare = account.wrap_up_reserve if wrap_up else budget.NOTHING
        call = _Call(input, input * price[0] if price else 0, price[1] if price else 0, turns, calls)
        worst = call.worst(output)
        shortage: Shortage | None = None
        if _blocking_limit(account, worst, spare) is not None:
            fitted = _shortened(account, spare, call, output, min_output if least is None else USEFUL_OUTPUT)
            if isinstance(fitted, Exhausted) and least is not None:
                call = replace(call, input=min(input, least.tokens), input_cost=min(call.input_cost, least.cost))
                fitted = _shortened(account, spare, call, output, min_output)
            if isinstance(fitted, Exhausted):
                return fitted
            output, shortage = fitted
            worst = call.worst(output)
            if (blocking := _blocking_limit(account, worst, spare)) is not None:
                each, d, room = blocking
                return MustWait(each.id, budget.DIMENSIONS[d], worst[d], max(room, 0))
        taken = budget.NOTHING
        if wrap_up:
            taken = tuple(map(min, spare, worst))
            _change_wrap_up_reserve(account, budget.negative(taken))
        _change_held(account, worst)
        _update_unused(account)
        self._last_hold += 1
        self._holds[self._last_hold] = _Hold(account, worst, taken)
        return Held(self._last_hold, account_id, output, budget.amount_of(worst), shortage)

    def settle(self, held: Held, actual: budget.Amount, now: float) -> None:
        """End a hold: the call used `actual`. Raises `BadInput` if the hold was settled or released before."""
        hold = self._holds.pop(held.id, None)
        if hold is None:
            raise BadInput(f"hold {held.id} of account {held.account!r} was settled or released before")
        _change_held(hold.account, budget.negative(hold.worst))
        _spend(hold.account, actual, now)
        # Also when nothing became free: a call that waited for this one may now turn out not to fit at all.
        self._freed()

    def release(self, held: Held) -> None:
        """End a hold whose call used nothing; has no effect after `settle` or another `release`."""
        hold = self._holds.pop(held.id, None)
        if hold is None:
            return
        _change_held(hold.account, budget.negative(hold.worst))
        _update_unused(hold.account)
        if not hold.account.closed:
            _change_wrap_up_reserve(hold.account, hold.taken)
        self._freed()

    def charge(self, account_id: AccountId, amount: budget.Amount, now: float, *, in_windows: bool = True) -> None:
        """Charge what was used without a hold: tool calls, and amounts restored after a crash.

        Windows are restored by `charge_window`; `in_windows=False` keeps them from being charged twice.
        """
        _spend(self._account(account_id), amount, now, in_windows=in_windows)

    def credit(self, account_id: AccountId, amount: budget.Amount) -> None:
        """Subtract an amount from this account only, not from its ancestors; used when limits restart with an input."""
        account = self._account(account_id)
        account.spent = [max(0, spent - less) for spent, less in zip(account.spent, budget.vector(amount), strict=True)]
        _update_unused(account)
        self._freed()

    def without_calls_left(self, account_id: AccountId, now: float) -> Exhausted | None:
        """The first window that limits the account's tool calls and has none left; None if all have.

        >>> ledger = Ledger()
        >>> opened = ledger.open("run", windows=[budget.Window("actions", 3600.0, budget.Caps(calls=1))])
        >>> ledger.charge("run", budget.Amount(calls=1), now=0.0)
        >>> ledger.without_calls_left("run", now=1.0).until, ledger.without_calls_left("run", now=3600.0)
        (3600.0, None)
        """
        for limit in self._account(account_id).windows:
            if budget.CALLS in limit.capped:
                limit.log.expire(now)
                if (room := limit.limit[budget.CALLS] - limit.spent[budget.CALLS]) < 1:
                    return _exhausted(limit, budget.CALLS, 1, room)
        return None

    def call_limits(self, account_id: AccountId) -> list[tuple[str, float, int]]:
        """The name and span of each window that limits the account's tool calls, and how many it allows."""
        windows = self._account(account_id).windows
        return [
            (each.log.name, each.log.span, each.limit[budget.CALLS]) for each in windows if budget.CALLS in each.capped
        ]

    def reply_limits(self, account_id: AccountId) -> list[WindowCaps]:
        """The windows that limit what the account's model calls use, with their caps under this account."""
        windows = self._account(account_id).windows
        return [
            WindowCaps(each.log.name, each.log.span, budget.caps_of(caps), each.soft)
            for each in windows
            if (caps := {d: each.limit[d] for d in each.capped if d != budget.CALLS})
        ]

    def hold_elsewhere(self, held: Mapping[str, budget.Amount]) -> None:
        """Set what other processes hold in the windows with these names; nothing in all others."""
        for log in self._logs.values():
            numbers = budget.vector(held.get(log.name, budget.Amount()))
            budget.add(log.held, budget.negative(log.elsewhere))
            budget.add(log.held, numbers)
            log.elsewhere = numbers

    def charge_window(self, window: budget.Window, amount: budget.Amount, at: float) -> None:
        """Charge a window for a run that has no account here: one of another process, or of an earlier one."""
        self._log(window).add(budget.vector(amount), amount, at)

    def reserve_wrap_up(self, account_id: AccountId, amount: budget.Amount) -> InsufficientBudget | None:
        """Reserve `amount` for the account's wrap-up turn, replacing an earlier reserve; None on success.

        Unlimited dimensions need no reserve. Closing the account gives it back.
        """
        account = self._account(account_id)
        if account.closed:
            raise BadInput(f"account {account_id!r} is closed; nothing can be set aside for it")
        wanted = budget.vector(amount)
        for each, d, room in _headroom(account, account.wrap_up_reserve, alone=False, windows=False):
            if wanted[d] > max(room, 0):
                return InsufficientBudget(each.id, budget.DIMENSIONS[d], wanted[d], max(room, 0))
        _change_wrap_up_reserve(account, budget.negative(account.wrap_up_reserve))
        _change_wrap_up_reserve(account, wanted)
        self._freed()
        return None

    def left(self, account_id: AccountId, now: float) -> budget.Caps:
        """What the account can still use under its own limits, its ancestors' and its windows'."""
        account = self._account(account_id)
        for limit in account.windows:
            limit.log.expire(now)
        least: dict[int, int] = {}
        for _, d, room in _headroom(account, budget.NOTHING, alone=False):
            least[d] = max(0, min(room, least.get(d, room)))
        return budget.caps_of(least)

    def spent(self, account_id: AccountId) -> budget.Amount:
        return budget.amount_of(self._account(account_id).spent)

    def account_state(self, account_id: AccountId) -> AccountState:
        """Snapshot of the account alone, without its ancestors."""
        account = self._account(account_id)
        return AccountState(
            budget.caps_of({d: account.limit[d] for d in account.capped}),
            budget.amount_of(account.spent),
            budget.amount_of(account.held),
            budget.caps_of({d: account.reserved[d] for d in account.capped}),
        )

    def _account(self, account_id: AccountId) -> _Account:
        try:
            return self._accounts[account_id]
        except KeyError:
            raise UnknownName("account", account_id) from None

    def _freed(self) -> None:
        self.version += 1
        if self.on_freed is not None:
            self.on_freed()

    def _log(self, window: budget.Window) -> _WindowLog:
        key = (window.name, window.span_seconds)
        if key not in self._logs:
            self._logs[key] = _WindowLog(window.name, window.span_seconds)
        return self._logs[key]

    def _window_limits(self, own: Sequence[budget.Window], above: tuple[_WindowLimit, ...]) -> tuple[_WindowLimit, ...]:
        """One limit for each window of the account and its ancestors; a child can narrow its parent's windows only."""
        limits = {limit.log: {d: limit.limit[d] for d in limit.capped} for limit in above}
        soft = {limit.log: limit.soft for limit in above}
        for window in own:
            log = self._log(window)
            soft[log] = window.soft and soft.get(log, True)
            known = limits.setdefault(log, {})
            for d, number in budget.numbers_of(window.caps).items():
                known[d] = min(number, known.get(d, number))
        return tuple(_WindowLimit(log, numbers, soft=soft[log]) for log, numbers in limits.items())


class _Hold(NamedTuple):
    account: _Account
    worst: budget.Numbers
    taken: budget.Numbers
    """What came out of the wrap-up reserve; put back if the call is not made."""


class _Call(Struct, frozen=True):
    """A model call whose output is not fixed yet."""

    input: int
    input_cost: int
    output_price: int
    turns: int
    calls: int

    def worst(self, output: int) -> budget.Numbers:
        cost = self.input_cost + output * self.output_price
        return (self.input, output, self.input + output, cost, self.turns, self.calls)

    def longest(self, d: int, room: int, output: int) -> int:
        """The longest output, up to `output`, that keeps the call within `room` in one dimension."""
        if d == budget.OUTPUT:
            return min(output, room)
        if d == budget.TOKENS:
            return min(output, room - self.input)
        if d == budget.COST and self.output_price:
            return min(output, (room - self.input_cost) // self.output_price)
        return output


def _shortened(
    account: _Account, spare: budget.Numbers, call: _Call, output: int, min_output: int
) -> tuple[int, Shortage | None] | Exhausted:
    """The longest output with which the call fits if nothing else is in flight, and the limit that shortens it."""
    least, asked = call.worst(min(output, min_output)), call.worst(output)
    shortage: Shortage | None = None
    for each, d, room in _headroom(account, spare, alone=True, actions=call.calls > 0):
        if _required(each, least[d]) > room:
            return _exhausted(each, d, least[d], room)
        if not each.soft and (longest := call.longest(d, room, output)) < output:
            output, shortage = longest, _shortage(each, d, asked[d], room)
    return output, shortage


def _shortage(limit: _Account | _WindowLimit, d: int, asked: int, room: int) -> Shortage:
    is_window = isinstance(limit, _WindowLimit)
    return Shortage(limit.id, budget.DIMENSIONS[d], asked, max(room, 0), limit.spent[d], limit.limit[d], is_window)


def _exhausted(limit: _Account | _WindowLimit, d: int, asked: int, room: int) -> Exhausted:
    until = limit.log.free_at(d, asked - room) if isinstance(limit, _WindowLimit) else None
    return Exhausted(**asdict(_shortage(limit, d, asked, room)), until=until)
