"""Asking the model: room in the ledger, a permit of the gate, one attempt after another, each with a deadline."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec.structs import replace

from retinue.core.errors import BadInput, ProviderError
from retinue.core.events import ReplyReceived, TurnFailed
from retinue.core.ledger import Held
from retinue.core.messages import Delta, Reply
from retinue.core.ports import Prices, Provider, Request
from retinue.core.run import LimitMet
from retinue.core.step import Ask
from retinue.engine.driven import Driven
from retinue.engine.gate import Gate
from retinue.engine.parts import Parts

log = logging.getLogger("retinue.engine")

ATTEMPTS = 4
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 600.0
"""Seconds that a provider may ask to wait; who asks for more is told to a person instead."""
WAITS = 20
"""How often a call may be refused while others get through; such a refusal is no attempt, but a place in a queue."""


async def ask(driven: Driven, step: Ask, parts: Parts) -> None:
    """Ask once, and record the reply, the failure, or that the allowance is spent.

    A model that cannot be had is followed by the next of the run's fallback; every turn begins with the first again.
    """
    brief = driven.run.brief
    failures: list[tuple[str, ProviderError]] = []
    for provider, model in ((brief.provider, brief.model), *brief.fallback):
        failure = await _ask_one(provider, model, driven, step, parts)
        if failure is None:
            return
        failures.append((f"{provider}:{model}", failure))
        if not _is_worth_another_model(failure):
            break
    _fail(driven, failures, parts)


async def _ask_one(name: str, model: str, driven: Driven, step: Ask, parts: Parts) -> ProviderError | None:
    """Ask this model; the failure, where there was neither a reply nor an end of the allowance to record."""
    run = driven.run
    held: Held | None = None
    try:
        provider = _find(name, parts)
        if parts.accounts.is_capped(run.run_id):
            room = await _room(provider, model, driven, step, parts)
            if isinstance(room, LimitMet):
                driven.spent = room
                return None
            held = room
        request = _request(name, model, driven, step, held.output if held is not None else run.brief.max_output)
        reply = await _attempts(provider, parts.gates.at(name, model), request, driven)
        if driven.stopping:
            return None
        if run.brief.fallback and not reply.model:
            reply = replace(reply, model=model)
        charges = parts.accounts.settle(held, reply) if held is not None else ()
        driven.partial.clear()
        driven.record(ReplyReceived(at=parts.clock.now(), turn=run.turns + 1, reply=reply), charges=charges)
    except ProviderError as error:
        return error
    finally:
        if held is not None:
            parts.accounts.ledger.release(held)


def _find(name: str, parts: Parts) -> Provider:
    # Adoption asks for a run's first provider alone, and any can be taken away from a process while a run waits.
    try:
        provider = parts.providers.find(name)
    except BadInput as wrong:
        raise ProviderError(f"provider {name!r} cannot be asked: {wrong}", fault="bad_request", status=404) from wrong
    if provider is None:
        raise ProviderError(f"no provider named {name!r} here", fault="bad_request", status=404)
    return provider


def _is_worth_another_model(failure: ProviderError) -> bool:
    """Whether the fault is with the model or its provider. What is wrong with the question stays so with any model."""
    match failure.fault:
        case "rate_limited" | "overloaded" | "unreachable" | "cut" | "timeout" | "auth" | "internal":
            return True
        case "bad_request":
            return failure.status == 404  # there is no such model, or no longer
        case "too_long" | "refused":
            return False
        case _:
            assert_never(failure.fault)


async def _room(provider: Provider, model: str, driven: Driven, step: Ask, parts: Parts) -> Held | LimitMet:
    """Room for the worst case of the call under every limit that binds the run."""
    price = provider.price(model) if isinstance(provider, Prices) else None
    output = driven.run.brief.max_output
    return await parts.accounts.hold(
        driven.run_id, input=driven.expected_input(), output=output, price=price, wrap_up=step.wrap_up
    )


def _fail(driven: Driven, failures: Sequence[tuple[str, ProviderError]], parts: Parts) -> None:
    """Nobody answered: the last fault, and the words of all."""
    _, last = failures[-1]
    words = str(last) if len(failures) == 1 else "; ".join(f"{model}: {error}" for model, error in failures)
    turn = driven.run.turns + 1
    partial = last.partial or "".join(driven.partial)
    driven.record(TurnFailed(at=parts.clock.now(), turn=turn, fault=last.fault, error=words, partial=partial))


def _request(provider: str, model: str, driven: Driven, step: Ask, max_output: int | None) -> Request:
    run, brief = driven.run, driven.run.brief
    return Request(
        model=model,
        system=brief.system,
        messages=run.history,
        tools=driven.bench.specs if step.tools else (),
        max_output=max_output,
        temperature=brief.temperature if provider == brief.provider else None,  # it was settled for that one
        think=brief.think,
        output=brief.output,
        run_id=run.accepted.run_id,
        agent=run.accepted.agent,
        path=run.accepted.path,
        turn=run.turns + 1,
        memo=driven.memo,
    )


async def _attempts(provider: Provider, gate: Gate, request: Request, driven: Driven) -> Reply:
    """The reply of the first attempt that gets one; raises the error of the last that was worth making."""
    accepted = driven.run.accepted
    attempt, waits, passed = 1, 0, gate.passed
    while True:
        async with gate.permit(tree=accepted.root_id, depth=accepted.depth):
            try:
                reply = await _attempt(provider, request, driven)
            except ProviderError as error:
                failure = error
                pause = _pause(attempt + waits, error)
                if error.fault in ("rate_limited", "overloaded"):
                    gate.throttled(pause)
            else:
                gate.eased()
                return reply
        if not failure.transient:
            raise failure
        if pause > LONGEST_PAUSE:
            raise ProviderError(
                f"{failure} (it asks to wait {pause:g} s, which is too long)",
                fault=failure.fault,
                status=failure.status,
            )
        log.info("run %s waits %.1f s: %s", accepted.run_id, pause, failure)
        if waits < WAITS and _asks_for_less(failure) and gate.passed > passed:
            # Others got through meanwhile: they share a limit, and this one has only to wait for its turn.
            waits += 1
        elif attempt < ATTEMPTS:
            attempt += 1
        else:
            raise _given_up(failure, attempt + waits)
        passed = gate.passed
        await asyncio.sleep(pause if failure.retry_after is None else pause + _spread(pause))


def _given_up(failure: ProviderError, attempts: int) -> ProviderError:
    """The last error, and that it was not the only one: trying again at once would not help."""
    return ProviderError(
        f"{failure} ({attempts} attempts were made; try again later)",
        fault=failure.fault,
        status=failure.status,
        partial=failure.partial,
    )


def _asks_for_less(failure: ProviderError) -> bool:
    return failure.fault == "rate_limited" or (failure.fault == "overloaded" and failure.retry_after is not None)


def _pause(time: int, error: ProviderError) -> float:
    if error.retry_after is not None:
        return error.retry_after
    return FIRST_PAUSE * 2 ** min(time - 1, 6) * random.uniform(0.75, 1.25)


def _spread(pause: float) -> float:
    """A little more than was asked for, so that those who were refused together do not come back together."""
    return random.uniform(0.0, min(pause / 10, 1.0))


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
