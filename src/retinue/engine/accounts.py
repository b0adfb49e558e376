"""Every run's account in the ledger, and the patience of calls that have to wait for room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retinue.core.amounts import UNLIMITED, Amount, Caps, Price, Window
from retinue.core.errors import NoAllowance
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ledger import Exhausted, Held, Ledger, MustWait, NoRoom
from retinue.core.messages import Reply
from retinue.core.ports import Clock, Store
from retinue.core.records import Charge
from retinue.core.run import EndReason, LimitMet, Limits
from retinue.core.usage import NO_USAGE
from retinue.engine.journal import Journal

USUAL_OUTPUT = 8192
"""The output that a call is expected to need at most when nobody says."""

SHORTEST_OUTPUT = 16
"""A call that could not even say this much is not worth making."""


class Accounts:
    """The ledger of this process, with the runs' names on its accounts."""

    def __init__(self, clock: Clock, journal: Journal, store: Store) -> None:
        self.ledger = Ledger(on_freed=self._freed)
        self._clock = clock
        self._journal = journal
        self._store = store
        self._recalled: set[tuple[str, float]] = set()
        self._learning = asyncio.Lock()
        self._windows: dict[RunId, tuple[Window, ...]] = {}
        """Of every run with an account: its own, and those of the runs above it."""
        self._waiting: list[asyncio.Future[None]] = []

    async def learn(self, windows: Sequence[Window]) -> None:
        """Recall from the store what windows remember, before their first use here."""
        # One at a time: who comes second must not go ahead with a window that is only half recalled.
        async with self._learning:
            for window in windows:
                if (window.name, window.span_seconds) not in self._recalled:
                    since = self._clock.now() - window.span_seconds
                    for charge in await self._journal.read(self._store.charges, window.name, since):
                        amount = Amount(charge.input, charge.output, charge.cost, calls=charge.calls)
                        self.ledger.recall(window, amount, charge.at)
                    self._recalled.add((window.name, window.span_seconds))

    def open(self, run: RunAccepted, *, above: RunId | None = None) -> None:
        """Open a run's account under its parent's, or `above`'s; a carved one takes its allowance from there.

        A run that nothing limits has none: nobody would ever ask what it has used.
        """
        caps = caps_of(run.limits)
        above = above or run.parent_id
        parent = above if above in self._windows else None
        if parent is None and caps == UNLIMITED and not run.windows:
            return
        carve = caps if run.carved else None
        answer = self.ledger.open(run.run_id, caps, parent=parent, windows=run.windows, carve=carve)
        if isinstance(answer, NoRoom):
            raise NoAllowance(account=answer.account, dimension=answer.dimension, asked=answer.asked, left=answer.left)
        inherited = self._windows[parent] if parent is not None else ()
        known = {(window.name, window.span_seconds): window for window in (*inherited, *run.windows)}
        self._windows[run.run_id] = tuple(known.values())
        if run.limits.wrap_up:
            self.ledger.set_aside(run.run_id, _wrap_up_share(answer.caps))

    def close(self, run_id: RunId) -> None:
        """Give back what the run did not use."""
        if run_id in self._windows:
            self.ledger.forget(run_id)
            del self._windows[run_id]

    def is_capped(self, run_id: RunId) -> bool:
        """Whether anything limits what the run's calls may use, so that it has an account."""
        return run_id in self._windows

    async def hold(
        self, run_id: RunId, *, input: int, output: int | None, price: Price | None, wrap_up: bool
    ) -> Held | LimitMet:
        """Room for one call, after waiting for others if only they are in the way."""
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
        return tuple(
            Charge(window.name, now, now + window.span_seconds, usage.input, usage.output, reply.cost or 0)
            for window in self._windows.get(held.account, ())
        )

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
