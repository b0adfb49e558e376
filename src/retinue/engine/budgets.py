"""The ledger accounts of runs: hold the worst case of a model call, settle what it used, and count actions.

Windows are shared with other processes through the store: their charges are read before a decision depends on them, and
calls in flight are held there, too.

A shared hold is an entry of the key-value namespace `holds`, named by its driver. The store takes it only if the
charges of each window, all holds and the new one fit under its limit, in one transaction: so of two processes that want
the last of a window, one gets it. The entry is removed in the transaction that charges what the call used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.budget import UNLIMITED, Amount, Caps, LeastInput, Price, Window, added
from retinue.core.commands import AmountLimit, CallLimit, Change, Charge, Decision, WindowFull
from retinue.core.compaction import CHARACTERS_PER_TOKEN, USUAL_OUTPUT, characters
from retinue.core.errors import NoAllowance
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ledger import Exhausted, Held, InsufficientBudget, Ledger, MustWait, Shortage, WindowCaps
from retinue.core.messages import Reply
from retinue.core.ports import Clock, Store
from retinue.core.run import EndReason, LimitMet, Limits
from retinue.core.usage import NO_USAGE
from retinue.engine.driver_table import is_gone
from retinue.engine.journal_writer import Journal

LARGEST_SHARE = 4
"""A call without `max_output` is held with room for the longest reply of its model, but with no more than this part of
what the limits leave, so that parallel runs below one limit do not wait for each other; room for the thinking that was
asked for, and for a usual answer, at least."""

MIN_OUTPUT = 16
"""A call with room for fewer output tokens than this is not made."""

PLAUSIBLE_SHARE = 64
"""A count below this part of the estimate is not believed: no tokenizer has 256 characters of a prompt in a token."""

ELSEWHERE_SHARE = 10
"""A run that is driven elsewhere without limits of its own gets one part in so many of what its parent has left."""

MAX_AGE = 0.2
"""Seconds for which a model call relies on the last read of other processes' charges."""

LOOK_INTERVAL = 0.25
"""Seconds between two looks at the holds of other processes, while a call waits for them."""

MAX_DELAY = 60.0
"""Seconds after which no process commits a charge any more: by then it would have been declared dead."""


class InputEstimate(Struct, frozen=True, gc=False):
    """The input tokens of a model call: an estimate, the `least` it may be, and how many of those may be cached."""

    tokens: int
    least: int
    cached: int = 0


def at_least(reply: Reply, input: InputEstimate, price: CallPrice | None) -> Reply:
    """The reply as limits charge it: with the estimate where its provider counted nothing, and never with much less.

    A server could otherwise make a limit void. The counts of a tokenizer are above the least, and stay as they are.
    What is recorded and shown is always the provider's count.
    """
    usage = reply.usage or NO_USAGE
    output = characters(reply.message) // CHARACTERS_PER_TOKEN
    if usage.total:
        least_input, least_output = input.tokens // PLAUSIBLE_SHARE, output // PLAUSIBLE_SHARE
    else:
        least_input, least_output = input.tokens, output
    if usage.input >= least_input and usage.output >= least_output:
        return reply
    usage = replace(usage, input=max(usage.input, least_input), output=max(usage.output, least_output))
    cost = reply.cost
    if price is not None:
        cost = max(cost or 0, least_input * price.cached + least_output * price.output)
    return replace(reply, usage=usage, cost=cost)


class CallPrice(Struct, frozen=True, gc=False):
    """Nanodollars per token of input, of output, and of input that the vendor has cached."""

    input: int
    output: int
    cached: int


class Budgets:
    """The ledger of this process; each limited run has an account, named by its run id."""

    def __init__(self, clock: Clock, journal: Journal, store: Store) -> None:
        self._clock = clock
        self._journal = journal
        self._store = store
        self._shared_holds = SharedHolds(journal, store)
        self._known_charges: dict[tuple[str, float], _KnownCharges] = {}
        self._loading = asyncio.Lock()
        self._windows: dict[RunId, tuple[Window, ...]] = {}
        """The windows of every run with an account: its own, and those of the runs above it."""
        self._waiting: list[asyncio.Future[None]] = []

    @cached_property
    def ledger(self) -> Ledger:
        """The accounts of the limited runs, made with the first of them."""
        return Ledger(on_freed=self._freed)

    async def load_windows(self, windows: Sequence[Window], *, max_age: float | None = None) -> None:
        """Load the stored charges of windows, before their first use in this process.

        With `max_age`, read those again that were last read longer ago than that.
        """
        # One at a time: a second caller must not go ahead with a window that is only half loaded.
        async with self._loading:
            for window in windows:
                known = self._known_charges.setdefault((window.name, window.span_seconds), _KnownCharges())
                now = self._clock.now()
                if known.read_at is not None and (max_age is None or 0 <= now - known.read_at < max_age):
                    continue
                since = now - window.span_seconds
                if known.read_at is not None:
                    since = max(since, min(now, known.read_at) - MAX_DELAY)
                # Charges that are queued here are counted already: only committed ones of other processes matter.
                charges = await self._journal.peek(self._store.charges, window.name, since)
                for charge in known.add(charges, since):
                    amount = Amount(charge.input, charge.output, charge.cost, calls=charge.calls)
                    self.ledger.charge_window(window, amount, charge.at)
                known.read_at = now

    def open(self, run: RunAccepted, *, above: RunId | None = None) -> None:
        """Open a run's account under its parent's, or `above`'s; a reserved one takes its allowance from there.

        A run without any limit has no account. Raises `NoAllowance` if the account above has too little left.
        """
        caps = caps_of(run.limits)
        above = above or run.parent_id
        parent = above if above in self._windows else None
        if parent is None and caps == UNLIMITED and not run.windows:
            return
        reserve = caps if run.reserved else None
        answer = self.ledger.open(run.run_id, caps, parent=parent, windows=run.windows, reserve=reserve)
        if isinstance(answer, InsufficientBudget):
            raise NoAllowance(account=answer.account, dimension=answer.dimension, asked=answer.asked, left=answer.left)
        inherited = self._windows[parent] if parent is not None else ()
        known = {(window.name, window.span_seconds): window for window in (*inherited, *run.windows)}
        self._windows[run.run_id] = tuple(known.values())
        if run.limits.wrap_up:
            self.ledger.reserve_wrap_up(run.run_id, _wrap_up_share(answer.caps))

    def add_windows(self, run_id: RunId, windows: Sequence[Window]) -> None:
        """Bind a run that makes no model call now to further windows, also one that had no limit."""
        if run_id in self._windows:
            self.ledger.add_windows(run_id, windows)
        else:
            self.ledger.open(run_id, UNLIMITED, windows=windows)
        known = {(window.name, window.span_seconds): window for window in (*self._windows.get(run_id, ()), *windows)}
        self._windows[run_id] = tuple(known.values())

    def for_elsewhere(self, run: RunAccepted) -> RunAccepted:
        """A new run as another process can drive it: its limits are reserved from its parent's, no hold is shared.

        What the run did not limit itself, and its parent has a limit for, is limited to a share of what is left there.
        The windows of the runs above become its own; their charges and holds are in the store.
        """
        parent = run.parent_id
        if parent is None or parent not in self._windows:
            return run
        left, limits = self.left(parent), run.limits
        limits = replace(
            limits,
            max_input_tokens=_share(limits.max_input_tokens, left.input),
            max_output_tokens=_share(limits.max_output_tokens, left.output),
            max_tokens=_share(limits.max_tokens, left.tokens),
            max_nanodollars=_share(limits.max_nanodollars, left.cost),
        )
        known = {(window.name, window.span_seconds): window for window in (*self._windows[parent], *run.windows)}
        return replace(run, limits=limits, reserved=caps_of(limits) != UNLIMITED, windows=tuple(known.values()))

    def renew(self, run: RunAccepted, before: Amount | None) -> Amount | None:
        """Reset what the run's limits count.

        Returns the total used so far by the run and its descendants (`before` plus what was counted since); None for a
        run without an account.
        """
        if run.run_id not in self._windows:
            return None
        spent = self.ledger.spent(run.run_id)
        self.ledger.credit(run.run_id, spent)
        if run.limits.wrap_up:
            self.ledger.reserve_wrap_up(run.run_id, _wrap_up_share(self.ledger.account_state(run.run_id).caps))
        return spent if before is None else added(before, spent)

    def close(self, run_id: RunId) -> None:
        self._shared_holds.close(run_id)
        if run_id in self._windows:
            self.ledger.forget(run_id)
            del self._windows[run_id]

    def left(self, run_id: RunId) -> Caps:
        """What a run may still use; None for each amount that is not limited."""
        return self.ledger.left(run_id, self._clock.now()) if run_id in self._windows else UNLIMITED

    def unspent(self, run_id: RunId) -> Caps:
        """What a run was given and has not spent; the holds of calls in flight are not deducted."""
        if run_id not in self._windows:
            return UNLIMITED
        state = self.ledger.account_state(run_id)
        caps, spent = state.caps, state.spent
        return Caps(
            input=_difference(caps.input, spent.input),
            output=_difference(caps.output, spent.output),
            tokens=_difference(caps.tokens, spent.tokens),
            cost=_difference(caps.cost, spent.cost),
        )

    def is_capped(self, run_id: RunId) -> bool:
        """Whether any limit applies to the run's calls, so that it has an account."""
        return run_id in self._windows

    async def hold(
        self,
        run_id: RunId,
        *,
        input: InputEstimate,
        output: int | None,
        price: CallPrice | None,
        wrap_up: bool,
        longest: int = USUAL_OUTPUT,
        usual: int = USUAL_OUTPUT,
    ) -> Held | LimitMet:
        """Hold one call, after waiting for the holds of other calls; or the limit that is met.

        The worst case is held where it fits. Otherwise all that is left is held, and the call's output is limited to
        it: so a budget can be used up. The limit is met only by a call whose input alone is larger than what is left.
        For a call without a limit on its `output`, the worst case is the `longest` reply of its model, or the part of
        the rest that `LARGEST_SHARE` says, but not less than the `usual` reply.
        """
        shared: list[Window] = []
        if (windows := self._windows[run_id]) and self._store.shared:
            shared = [window for window in windows if window.limits_replies]
            await self.load_windows(shared, max_age=MAX_AGE)
            if self._shared_holds.has_seen_others:
                await self._look_elsewhere(shared)
        refused = False
        wanted = self._output_share(run_id, input, price, longest, usual) if output is None else output
        while True:
            now = self._clock.now()
            answer = self.ledger.hold(
                run_id,
                input=input.tokens,
                output=wanted,
                min_output=min(MIN_OUTPUT, wanted),
                price=_highest(price),
                least=_least(input, price),
                turns=0,
                now=now,
                wrap_up=wrap_up,
            )
            match answer:
                case Held():
                    if not shared or await self._shared_holds.take(answer, self.ledger.reply_limits(run_id), now):
                        return answer
                    self.ledger.release(answer)
                    if refused:  # what is in the way is not visible here yet, such as a charge that is being written
                        await self._wait_for_room(shared)
                    else:
                        await self._look_elsewhere(shared)
                    refused = True
                case Exhausted():
                    return limit_met(answer, run_id)
                case MustWait():
                    await self._wait_for_room(shared)

    def _output_share(
        self, run_id: RunId, input: InputEstimate, price: CallPrice | None, longest: int, usual: int
    ) -> int:
        """The output tokens to hold for a call without a limit on its output."""
        if longest <= usual:
            return longest
        left = self.ledger.left(run_id, self._clock.now())
        outputs = [] if left.output is None else [left.output]
        if left.tokens is not None:
            outputs.append(left.tokens - input.tokens)
        if left.cost is not None and price is not None and price.output:
            outputs.append((left.cost - input.tokens * price.input) // price.output)
        return min((longest, *(max(usual, room // LARGEST_SHARE) for room in outputs)))

    async def _look_elsewhere(self, windows: Sequence[Window]) -> None:
        """Read what other processes have charged to windows, and what they hold there."""
        await self.load_windows(windows, max_age=0.0)
        self.ledger.hold_elsewhere(await self._shared_holds.of_others())

    async def _wait_for_room(self, shared: Sequence[Window]) -> None:
        """Wait until a call of this process has ended; or for a moment, if other processes may hold what is missing."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if not shared:
            await waiter
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_INTERVAL):
                await waiter
        await self._look_elsewhere(shared)

    def release(self, held: Held) -> None:
        """End a hold whose call used nothing; has no effect after `settle`."""
        self.ledger.release(held)
        self._shared_holds.release(held)

    def settled_holds(self, run_id: RunId) -> tuple[Change, ...]:
        """The write that ends the settled holds of a run in the store; it goes with the charges that replace them."""
        return self._shared_holds.end_settled(run_id)

    def settle(self, held: Held, reply: Reply) -> tuple[Charge, ...]:
        """Replace a hold by what the call used; the charges to store in its windows."""
        self._shared_holds.settle(held)
        now = self._clock.now()
        usage = (reply.usage or NO_USAGE).within_bounds()
        self.ledger.settle(held, Amount.of(usage, reply.cost, turns=0), now)
        return self._count(
            Charge(window.name, now, now + window.span_seconds, usage.input, usage.output, reply.cost or 0)
            for window in self._windows.get(held.account, ())
            if window.limits_replies
        )

    def counts_actions(self, run_id: RunId) -> bool:
        return any(window.limits_calls for window in self._windows.get(run_id, ()))

    async def refresh_actions(self, run_id: RunId) -> None:
        """Read what other processes have charged to the windows that limit the run's actions."""
        if self._store.shared:
            await self.load_windows([each for each in self._windows.get(run_id, ()) if each.limits_calls], max_age=0.0)

    def has_used_up_actions(self, run_id: RunId) -> bool:
        """Whether a window of the run is known to have no action left; other processes may have taken more since."""
        return run_id in self._windows and self.ledger.without_calls_left(run_id, self._clock.now()) is not None

    def action(self, run_id: RunId) -> Decision | None:
        """One action of the run, for the store to charge to every window that limits them; None if no window does.

        The store decides, because other processes charge the same windows: of two that want the last action, one gets
        it. The action is performed only once its charges are on disk, so that no crash makes one free of charge.
        """
        limits = self.ledger.call_limits(run_id) if run_id in self._windows else ()
        if not limits:
            return None
        now = self._clock.now()
        return Decision(
            b"",
            charges=self._count(Charge(name, now, now + span, calls=1) for name, span, _ in limits),
            within=tuple(CallLimit(name, now - span, calls) for name, span, calls in limits),
        )

    def settle_action(self, run_id: RunId, action: Decision, *, charged: bool) -> None:
        """Count an action that the store has charged, or forget one that it has refused."""
        if not charged:
            for known, charge in self._known(action.charges):
                known.charges[charge] -= 1
        elif run_id in self._windows:
            self.ledger.charge(run_id, Amount(calls=1), action.charges[0].at)

    def _count(self, charges: Iterable[Charge]) -> tuple[Charge, ...]:
        """Mark charges as counted by the ledger, so that they are not counted again when they are read back."""
        made = tuple(charges)
        for known, charge in self._known(made):
            known.charges[charge] += 1
        return made

    def _known(self, charges: Iterable[Charge]) -> Iterator[tuple[_KnownCharges, Charge]]:
        for charge in charges if self._store.shared else ():  # the charges of an unshared store are read once
            for (name, _), known in self._known_charges.items():
                if name == charge.window:
                    yield known, charge

    def recharge(self, run_id: RunId, spent: Amount) -> None:
        """Charge what the store says was used before this process; windows load their own charges."""
        if run_id in self._windows:
            self.ledger.charge(run_id, spent, self._clock.now(), in_windows=False)

    def credit(self, run_id: RunId, spent: Amount) -> None:
        """Take back from a run's own account what was used before its limits began to count anew."""
        if run_id in self._windows:
            self.ledger.credit(run_id, spent)

    def _freed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class _KnownCharges:
    """The charges of a window that the ledger has counted, since about the last read of the store.

    Charges have no ids, so equal ones are distinguished by their count: of three in the store and two known ones, one
    is new.
    """

    __slots__ = ("charges", "read_at")

    def __init__(self) -> None:
        self.read_at: float | None = None
        self.charges: Counter[Charge] = Counter()

    def add(self, charges: Sequence[Charge], since: float) -> list[Charge]:
        found = Counter(charges)
        new = list((found - self.charges).elements())
        # Own charges that are still queued stay known; what is too old to be read again is dropped.
        self.charges = Counter({each: count for each, count in (self.charges | found).items() if each.at >= since})
        return new


def _share(own: int | None, left: int | None) -> int | None:
    """The limit of a run that is driven elsewhere: its own within what its parent has left, else a share of that."""
    if left is None:
        return own
    return max(1, left // ELSEWHERE_SHARE) if own is None else min(own, left)


def caps_of(limits: Limits) -> Caps:
    """The limits that a run shares with its descendants: tokens and cost. Turns and calls are counted for each run."""
    return Caps(
        input=limits.max_input_tokens,
        output=limits.max_output_tokens,
        tokens=limits.max_tokens,
        cost=limits.max_nanodollars,
    )


def _wrap_up_share(caps: Caps) -> Amount:
    """A fifth of every limit, set aside for the wrap-up turn, which reads the whole conversation again."""

    def share(limit: int | None) -> int:
        return 0 if limit is None else limit // 5

    tokens = share(caps.tokens)
    return Amount(
        input=share(caps.input) or (tokens - tokens // 4),
        output=share(caps.output) or tokens // 4,
        cost=share(caps.cost),
    )


def _highest(price: CallPrice | None) -> Price | None:
    return None if price is None else (price.input, price.output)


def _least(input: InputEstimate, price: CallPrice | None) -> LeastInput:
    """The input at the lower of its estimates, with the cached part at the price of cached input."""
    cached = min(input.cached, input.least)
    cost = 0 if price is None else cached * price.cached + (input.least - cached) * price.input
    return LeastInput(input.least, cost)


def limit_met(shortage: Shortage, run_id: RunId, *, held: int = 0) -> LimitMet:
    """The limit that leaves too little for a run's next call, or only `held` output tokens."""
    reason: EndReason = "window" if shortage.window else "max_cost" if shortage.dimension == "cost" else "max_tokens"
    return LimitMet(
        reason,
        shortage.spent,
        shortage.limit,
        dimension=shortage.dimension,
        left=shortage.left,
        needed=0 if held else shortage.asked,
        held=held,
        account="" if shortage.account == run_id else shortage.account,
    )


def _difference(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


# ---- holds that processes share --------------------------------------------------------------------------------------


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
