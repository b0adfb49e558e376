"""Asking the model: room in the ledger, a permit of the gate, one attempt after another, each with a deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from retinue.core.errors import ProviderError
from retinue.core.events import ReplyReceived, TurnFailed
from retinue.core.ledger import Held
from retinue.core.messages import Delta, Reply
from retinue.core.ports import Prices, Provider, Request
from retinue.core.run import LimitMet
from retinue.core.step import Ask
from retinue.engine.driven import Driven
from retinue.engine.parts import Parts

ATTEMPTS = 4
FIRST_PAUSE = 0.5


async def ask(driven: Driven, step: Ask, parts: Parts) -> None:
    """Ask once, and record the reply, the failure, or that the allowance is spent."""
    run = driven.run
    provider = parts.providers.find(run.brief.provider)
    if provider is None:
        # Adoption checks this; a provider can still be taken away from a process while a run waits.
        failed = ProviderError(f"no provider named {run.brief.provider!r} here", fault="bad_request")
        _fail(driven, failed, parts)
        return
    held: Held | None = None
    if parts.accounts.is_capped(run.run_id):
        room = await _room(provider, driven, step, parts)
        if isinstance(room, LimitMet):
            driven.spent = room
            return
        held = room
    try:
        max_output = held.output if held is not None else run.brief.max_output
        reply = await _attempts(provider, _request(driven, step, max_output), driven, parts)
        if driven.stopping:
            return
        charges = parts.accounts.settle(held, reply) if held is not None else ()
        driven.partial.clear()
        driven.record(ReplyReceived(at=parts.clock.now(), turn=run.turns + 1, reply=reply), charges=charges)
    except ProviderError as error:
        _fail(driven, error, parts)
    finally:
        if held is not None:
            parts.accounts.ledger.release(held)


async def _room(provider: Provider, driven: Driven, step: Ask, parts: Parts) -> Held | LimitMet:
    """Room for the worst case of the call under every limit that binds the run."""
    brief = driven.run.brief
    price = provider.price(brief.model) if isinstance(provider, Prices) else None
    return await parts.accounts.hold(
        driven.run_id, input=driven.expected_input(), output=brief.max_output, price=price, wrap_up=step.wrap_up
    )


def _fail(driven: Driven, error: ProviderError, parts: Parts) -> None:
    turn = driven.run.turns + 1
    partial = error.partial or "".join(driven.partial)
    driven.record(TurnFailed(at=parts.clock.now(), turn=turn, fault=error.fault, error=str(error), partial=partial))


def _request(driven: Driven, step: Ask, max_output: int | None) -> Request:
    run, brief = driven.run, driven.run.brief
    return Request(
        model=brief.model,
        system=brief.system,
        messages=run.history,
        tools=driven.bench.specs if step.tools else (),
        max_output=max_output,
        temperature=brief.temperature,
        think=brief.think,
        run_id=run.accepted.run_id,
        agent=run.accepted.agent,
        path=run.accepted.path,
        turn=run.turns + 1,
        memo=driven.memo,
    )


async def _attempts(provider: Provider, request: Request, driven: Driven, parts: Parts) -> Reply:
    """The reply of the first attempt that gets one; raises the error of the last that was worth making."""
    accepted = driven.run.accepted
    gate = parts.gates.at(driven.run.brief.provider, request.model)
    attempt = 1
    while True:
        async with gate.permit(tree=accepted.root_id, depth=accepted.depth):
            try:
                reply = await _attempt(provider, request, driven)
            except ProviderError as error:
                failure = error
                pause = _pause(attempt, error)
                if error.fault in ("rate_limited", "overloaded"):
                    gate.throttled(pause)
            else:
                gate.eased()
                return reply
        if attempt == ATTEMPTS or not failure.transient:
            raise failure
        attempt += 1
        await asyncio.sleep(pause)


def _pause(attempt: int, error: ProviderError) -> float:
    if error.retry_after is not None:
        return error.retry_after
    return FIRST_PAUSE * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)


async def _attempt(provider: Provider, request: Request, driven: Driven) -> Reply:
    """One attempt, bounded as a whole and between any two pieces of its stream."""
    limits = driven.run.accepted.limits
    driven.partial.clear()
    patience = _Patience(limits.model_seconds, limits.idle_seconds, driven.publish)
    try:
        async with asyncio.timeout(None) as scope:
            patience.begin(scope)
            return await provider.answer(request, patience.publish)
    except ProviderError:
        raise
    except TimeoutError:
        after = f"{limits.idle_seconds:g} s of silence" if patience.fell_silent else f"{limits.model_seconds:g} s"
        raise ProviderError(f"the model did not answer: stopped after {after}", fault="timeout") from None
    except asyncio.CancelledError as error:
        if driven.stopping:
            raise
        raise ProviderError("the provider gave up without a reason", fault="cut") from error
    except Exception as error:
        raise ProviderError(f"{type(error).__name__}: {error}", fault="internal") from error
    finally:
        patience.end()


class _Patience:
    """Ends an attempt that takes too long or has fallen silent, with one timer instead of one for each piece of it."""

    __slots__ = ("_due", "_heard", "_idle", "_loop", "_scope", "_tell", "_time", "_timer", "fell_silent")

    def __init__(self, whole: float, idle: float, tell: Callable[[Delta], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._idle = idle
        self._tell = tell
        self._heard = self._time()
        self._due = self._heard + whole
        self._scope: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.fell_silent = False

    def begin(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self._timer = self._loop.call_at(min(self._due, self._heard + self._idle), self._check)

    def publish(self, delta: Delta) -> None:
        self._heard = self._time()
        self._tell(delta)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        silent_at = self._heard + self._idle
        due = min(self._due, silent_at)
        if self._time() < due:
            self._timer = self._loop.call_at(due, self._check)
        elif self._scope is not None:
            self.fell_silent = silent_at < self._due
            self._scope.reschedule(self._time())
