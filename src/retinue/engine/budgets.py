"""Every run's account in the ledger, and the patience of calls that have to wait for room.

Windows are shared with other processes through the store: what those charged is read before it matters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from retinue.core.budget import UNLIMITED, Amount, Caps, Price, Window
from retinue.core.commands import Charge
from retinue.core.errors import NoAllowance
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ledger import Exhausted, Held, InsufficientBudget, Ledger, MustWait
from retinue.core.messages import Reply
from retinue.core.ports import Clock, Store
from retinue.core.run import EndReason, LimitMet, Limits
from retinue.core.usage import NO_USAGE
from retinue.engine.journal import Journal

USUAL_OUTPUT = 8192
"""The output that a call is expected to need at most when nobody says."""

SHORTEST_OUTPUT = 16
"""A call that could not even say this much is not worth making."""

FRESH = 0.2
"""Seconds for which a model call relies on what was last read of the others' charges."""

LATE = 60.0
"""Seconds after which no process commits a charge any more: by then it would have been declared dead."""


class Accounts:
    """The ledger of this process, with the runs' names on its accounts."""

    def __init__(self, clock: Clock, journal: Journal, store: Store) -> None:
        self.ledger = Ledger(on_freed=self._freed)
        self._clock = clock
        self._journal = journal
        self._store = store
        self._recollections: dict[tuple[str, float], _Recollection] = {}
        self._learning = asyncio.Lock()
        self._windows: dict[RunId, tuple[Window, ...]] = {}
        """Of every run with an account: its own, and those of the runs above it."""
        self._waiting: list[asyncio.Future[None]] = []

    async def learn(self, windows: Sequence[Window], *, fresh: float | None = None) -> None:
        """Recall from the store what windows remember, before their first use here.

        With `fresh`, look again at those that were last looked at longer ago than that.
        """
        # One at a time: who comes second must not go ahead with a window that is only half recalled.
        async with self._learning:
            for window in windows:
                known = self._recollections.setdefault((window.name, window.span_seconds), _Recollection())
                now = self._clock.now()
                if known.read_at is not None and (fresh is None or 0 <= now - known.read_at < fresh):
                    continue
                since = now - window.span_seconds
                if known.read_at is not None:
                    since = max(since, min(now, known.read_at) - LATE)
                # What is on its way from here is counted already: only what others have committed is of interest.
                charges = await self._journal.peek(self._store.charges, window.name, since)
                for charge in known.news(charges, since):
                    amount = Amount(charge.input, charge.output, charge.cost, calls=charge.calls)
                    self.ledger.charge_window(window, amount, charge.at)
                known.read_at = now

    def open(self, run: RunAccepted, *, above: RunId | None = None) -> None:
        """Open a run's account under its parent's, or `above`'s; a carved one takes its allowance from there.

        A run that nothing limits has none: nobody would ever ask what it has used.
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

    def close(self, run_id: RunId) -> None:
        """Give back what the run did not use."""
        if run_id in self._windows:
            self.ledger.forget(run_id)
            del self._windows[run_id]

    def left(self, run_id: RunId) -> Caps:
        """What a run may still use, of everything that is limited."""
        return self.ledger.left(run_id, self._clock.now()) if run_id in self._windows else UNLIMITED

    def is_capped(self, run_id: RunId) -> bool:
        """Whether anything limits what the run's calls may use, so that it has an account."""
        return run_id in self._windows

    async def hold(
        self, run_id: RunId, *, input: int, output: int | None, price: Price | None, wrap_up: bool
    ) -> Held | LimitMet:
        """Room for one call, after waiting for others if only they are in the way."""
        if (windows := self._windows[run_id]) and self._store.shared:
            await self.learn([window for window in windows if window.limits_replies], fresh=FRESH)
        wanted = USUAL_OUTPUT if output is None else output
        while True:
            now = self._clock.now()
            answer = self.ledger.hold(
                run_id,
                input=input,
                output=wanted,
                min_output=min(SHORTEST_OUTPUT, wanted),
                price=price,
                turns=0,
                now=now,
                wrap_up=wrap_up,
            )
            match answer:
                case Held():
                    return answer
                case Exhausted():
                    return _met(answer)
                case MustWait():
                    await self._room()

    def settle(self, held: Held, reply: Reply) -> tuple[Charge, ...]:
        """The call is over; what its windows have to remember."""
        now = self._clock.now()
        usage = reply.usage or NO_USAGE
        self.ledger.settle(held, Amount.of(usage, reply.cost, turns=0), now)
        return self._remembered(
            Charge(window.name, now, now + window.span_seconds, usage.input, usage.output, reply.cost or 0)
            for window in self._windows.get(held.account, ())
            if window.limits_replies
        )

    # Actions

    def counts_actions(self, run_id: RunId) -> bool:
        """Whether a window limits how often a run acts."""
        return any(window.limits_calls for window in self._windows.get(run_id, ()))

    async def look_at_actions(self, run_id: RunId) -> None:
        """Read what other processes have taken from the windows in which a run's actions count."""
        if self._store.shared:
            await self.learn([each for each in self._windows.get(run_id, ()) if each.limits_calls], fresh=0.0)

    def act(self, run_id: RunId) -> tuple[Charge, ...] | None:
        """Take one action from every window that limits a run's; what they have to remember, or None if one is used up.

        The action is performed only once that is on disk: a crash in between counts one too many, never one too few.
        """
        counted = [window for window in self._windows.get(run_id, ()) if window.limits_calls]
        now = self._clock.now()
        if counted and self.ledger.act(run_id, now) is not None:
            return None
        return self._remembered(Charge(each.name, now, now + each.span_seconds, calls=1) for each in counted)

    def has_overdrawn(self, run_id: RunId) -> bool:
        """Whether more actions were taken than a window of the run allows: by several processes in the same moment."""
        return run_id in self._windows and self.ledger.overdrawn(run_id, self._clock.now()) is not None

    def _remembered(self, charges: Iterable[Charge]) -> tuple[Charge, ...]:
        """Charges that the ledger has counted already, so that they are not news when they are read back."""
        made = tuple(charges)
        for charge in made if self._store.shared else ():  # what nobody else can write is read once
            for (name, _), known in self._recollections.items():
                if name == charge.window:
                    known.charges[charge] += 1
        return made

    def recharge(self, run_id: RunId, spent: Amount) -> None:
        """Count again what the store says was used before this process; windows recall that by themselves."""
        if run_id in self._windows:
            self.ledger.charge(run_id, spent, self._clock.now(), in_windows=False)

    async def _room(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _freed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class _Recollection:
    """What this process knows of a window in the store: when it looked, and the charges counted since about then.

    Charges have no names, so equal ones are told apart by their number: of three in the store and two that are known,
    one is news.
    """

    __slots__ = ("charges", "read_at")

    def __init__(self) -> None:
        self.read_at: float | None = None
        self.charges: Counter[Charge] = Counter()

    def news(self, charges: Sequence[Charge], since: float) -> list[Charge]:
        """Those of the store's charges that are not counted yet; all of them are known from now on."""
        found = Counter(charges)
        new = list((found - self.charges).elements())
        # Own charges that are still on their way to the disk stay known; what is too old to be read again is forgotten.
        self.charges = Counter({each: count for each, count in (self.charges | found).items() if each.at >= since})
        return new


def caps_of(limits: Limits) -> Caps:
    """The limits that are shared with a run's descendants: tokens and money. Turns and calls are each run's own."""
    return Caps(
        input=limits.max_input_tokens,
        output=limits.max_output_tokens,
        tokens=limits.max_tokens,
        cost=limits.max_cost,
    )


def _wrap_up_share(caps: Caps) -> Amount:
    """A fifth of every limit is set aside for the wrap-up turn, which has to read the whole conversation again."""

    def share(limit: int | None) -> int:
        return 0 if limit is None else limit // 5

    tokens = share(caps.tokens)
    return Amount(
        input=share(caps.input) or (tokens - tokens // 4),
        output=share(caps.output) or tokens // 4,
        cost=share(caps.cost),
    )


def _met(answer: Exhausted) -> LimitMet:
    reason: EndReason = "window" if answer.window else "max_cost" if answer.dimension == "cost" else "max_tokens"
    return LimitMet(reason, answer.spent, answer.limit)
