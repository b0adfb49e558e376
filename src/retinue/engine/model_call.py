"""Asking the model: room in the ledger, a permit of the gate, one attempt after another, each with a deadline."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace as replace_in
from functools import reduce
from typing import TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge
from retinue.core.compaction import ContextOverflow, is_near_limit, reserved
from retinue.core.errors import BadInput, ProviderError
from retinue.core.events import ReplyReceived, TurnFailed
from retinue.core.ledger import Held
from retinue.core.messages import AssistantMessage, Delta, Reply, StartDelta
from retinue.core.ports import Prices, Provider, Request
from retinue.core.run import LimitMet, Limits
from retinue.core.step import CallModel
from retinue.core.usage import NO_USAGE, Usage, add_cost
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import is_its_own_doing, kind_and_words_of
from retinue.engine.live_run import LiveRun
from retinue.engine.rate_limiter import RateLimiter
from retinue.engine.timeouts import RESOLUTION, Deadline, Deadlines

log = logging.getLogger("retinue.engine")

ATTEMPTS = 4
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 600.0
"""Seconds that a provider may ask to wait; who asks for more is told to a person instead."""
WAITS = 20
"""How often a call may be refused while others get through; such a refusal is no attempt, but a place in a queue."""
A_MOMENT = 0.05
"""Seconds between two looks at a model that has not said a word yet, at least."""


class Question(Struct, frozen=True):
    """What is asked of one model, about how many tokens that is, and who hears the answer as it streams in."""

    request: Request
    size: Callable[[], int]
    tell: Callable[[Delta], None]
    wrap_up: bool = False


class Replied(Struct, frozen=True):
    """A model answered; `charges` is what the run's windows have to remember of it."""

    reply: Reply
    charges: tuple[Charge, ...]


class NoReply(Struct, frozen=True):
    """Nobody answered: every model that was asked, and why it did not; `charges` as of a reply."""

    failures: tuple[tuple[str, ProviderError], ...]
    charges: tuple[Charge, ...] = ()

    @property
    def used(self) -> Usage:
        """What was used for nothing."""
        return sum((error.usage for _, error in self.failures), NO_USAGE)

    @property
    def cost(self) -> int | None:
        """What that cost."""
        return reduce(add_cost, (error.cost for _, error in self.failures), 0)

    @property
    def last(self) -> ProviderError:
        """The fault that ended it."""
        return self.failures[-1][1]

    def __str__(self) -> str:
        if len(self.failures) == 1:
            return str(self.last)
        return "; ".join(f"{model}: {error}" for model, error in self.failures)


Forms: TypeAlias = Callable[[str, str, Provider], Question | ContextOverflow]
"""The question for a provider (its name and itself) and a model; or that this one cannot be asked so much."""


async def ask(live: LiveRun, step: CallModel, engine: EngineContext) -> None:
    """Ask once, and record the reply or the failure; or find that the allowance is spent or the history too long."""

    def form(name: str, model: str, provider: Provider) -> Question | ContextOverflow:
        window = live.window(name, model, provider)
        if window is not None and (overflow := _crowded(live, window)):
            return overflow
        return Question(_request(name, model, live, step), live.expected_input, live.publish, step.wrap_up)

    answer = await first_reply(live, engine, form)
    match answer:
        case Replied(reply=reply, charges=charges):
            live.partial.clear()
            turn = live.run.turns + 1
            live.record(ReplyReceived(at=engine.clock.now(), turn=turn, reply=reply), charges=charges)
        case LimitMet():
            live.spent = answer
        case ContextOverflow():
            live.overflow = answer
        case NoReply():
            partial = answer.last.partial or "".join(live.partial)
            if answer.last.fault == "too_long":
                live.partial.clear()
                live.overflow = _refused(live, answer, partial, engine)
            else:
                fail(live, answer, str(answer), partial, engine)
        case None:
            pass
        case _:
            assert_never(answer)


def _crowded(live: LiveRun, window: int) -> ContextOverflow | None:
    """That the history is too near to the window, unless that was found for this turn already."""
    run, run_spec = live.run, live.run.run_spec
    if run.compactions or live.left_alone == run.seq:
        return None
    kept_free = reserved(window, max_output=run_spec.max_output, think=run_spec.think)
    return (
        ContextOverflow(window=window, reserved=kept_free) if is_near_limit(live.context(), window, kept_free) else None
    )


def _refused(live: LiveRun, answer: NoReply, partial: str, engine: EngineContext) -> ContextOverflow:
    """That a provider finds the history too long, whatever was known about its window."""
    run_spec = live.run.run_spec
    name, model = models_of(run_spec)[len(answer.failures) - 1]
    provider = engine.providers.find(name)
    window = live.window(name, model, provider) if provider is not None else None
    kept_free = reserved(window, max_output=run_spec.max_output, think=run_spec.think) if window is not None else 0
    return ContextOverflow(window=window, reserved=kept_free, error=str(answer), partial=partial)


def fail(live: LiveRun, answer: NoReply, error: str, partial: str, engine: EngineContext) -> None:
    """Record that the model could not be asked."""
    live.record(
        TurnFailed(
            at=engine.clock.now(),
            turn=live.run.turns + 1,
            fault=answer.last.fault,
            error=error,
            partial=partial,
            usage=answer.used,
            cost=answer.cost,
        ),
        charges=answer.charges,
    )


def models_of(run_spec: RunSpec) -> tuple[tuple[str, str], ...]:
    """Whom to ask, in this order: providers, each with a model."""
    return ((run_spec.provider, run_spec.model), *run_spec.fallback)


async def first_reply(
    live: LiveRun, engine: EngineContext, form: Forms
) -> Replied | LimitMet | ContextOverflow | NoReply | None:
    """The reply of the first model that can be had; None when the run is being stopped.

    A model that cannot be had is followed by the next of the run's fallback; every turn begins with the first again.
    """
    failures: tuple[tuple[str, ProviderError], ...] = ()
    charges: list[Charge] = []
    for name, model in models_of(live.run.run_spec):
        try:
            provider = _find(name, engine)
            question = form(name, model, provider)
            if isinstance(question, ContextOverflow):
                return question
            answer = await _reply(name, model, provider, question, live, engine, charges)
            return _with_failures(answer, NoReply(failures, tuple(charges))) if failures else answer
        except ProviderError as error:
            failures = (*failures, (f"{name}:{model}", error))
            if not _is_worth_another_model(error):
                break
    return NoReply(failures, tuple(charges))


def _with_failures(answer: Replied | LimitMet | None, before: NoReply) -> Replied | LimitMet | None:
    """The answer of a later model, with what the earlier ones used for nothing."""
    if not isinstance(answer, Replied) or not before.used.total:
        return answer
    reply = answer.reply
    usage, cost = (reply.usage or NO_USAGE) + before.used, add_cost(reply.cost, before.cost)
    return Replied(replace(reply, usage=usage, cost=cost), (*before.charges, *answer.charges))


async def _reply(
    name: str,
    model: str,
    provider: Provider,
    question: Question,
    live: LiveRun,
    engine: EngineContext,
    charges: list[Charge],
) -> Replied | LimitMet | None:
    """This model's reply: room for its worst case is held before, and what it used is settled after.

    What a failure used is settled too; `charges` takes what the windows have to remember of it.
    """
    run, request = live.run, question.request
    held: Held | None = None
    try:
        if engine.accounts.is_capped(run.run_id):
            room = await _room(provider, question, live, engine)
            if isinstance(room, LimitMet):
                return room
            held, request = room, replace_in(request, max_output=room.output)
        rate_limiter = engine.rate_limiters.at(name, model)
        reply = await _attempts(provider, rate_limiter, request, live, question.tell, engine.deadlines)
        if live.stopping:
            return None
        if run.run_spec.fallback and not reply.model:
            reply = replace(reply, model=model)
        return Replied(reply, engine.accounts.settle(held, reply) if held is not None else ())
    except ProviderError as error:
        if held is not None and error.usage.total:
            charges += engine.accounts.settle(held, Reply(AssistantMessage(), usage=error.usage, cost=error.cost))
        raise
    finally:
        if held is not None:
            engine.accounts.ledger.release(held)


def _find(name: str, engine: EngineContext) -> Provider:
    # Recovery asks for a run's first provider alone, and any can be taken away from a process while a run waits.
    try:
        provider = engine.providers.find(name)
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


async def _room(provider: Provider, question: Question, live: LiveRun, engine: EngineContext) -> Held | LimitMet:
    """Room for the worst case of the call under every limit that binds the run."""
    request = question.request
    price = provider.price(request.model) if isinstance(provider, Prices) else None
    return await engine.accounts.hold(
        live.run_id, input=question.size(), output=request.max_output, price=price, wrap_up=question.wrap_up
    )


def _request(provider: str, model: str, live: LiveRun, step: CallModel) -> Request:
    run, run_spec = live.run, live.run.run_spec
    return Request(
        model=model,
        system=run.system,
        messages=run.history,
        tools=live.tool_set.specs if step.tools else (),
        max_output=run_spec.max_output,
        temperature=temperature_for(provider, run_spec),
        think=run_spec.think,
        output=run_spec.output,
        run_id=run.accepted.run_id,
        agent=run.accepted.agent,
        path=run.accepted.path,
        turn=run.turns + 1,
        memo=live.memo,
    )


def temperature_for(provider: str, run_spec: RunSpec) -> float | None:
    """The temperature of a run, for the provider that it was settled for."""
    return run_spec.temperature if provider == run_spec.provider else None


async def _attempts(
    provider: Provider,
    rate_limiter: RateLimiter,
    request: Request,
    live: LiveRun,
    tell: Callable[[Delta], None],
    deadlines: Deadlines,
) -> Reply:
    """The reply of the first attempt that gets one; raises the error of the last that was worth making."""
    accepted = live.run.accepted
    attempt, waits, passed = 1, 0, rate_limiter.passed
    while True:
        async with rate_limiter.permit(tree=accepted.root_id, depth=accepted.depth):
            try:
                reply = await _attempt(provider, request, live, tell, deadlines)
            except ProviderError as error:
                failure = error
                pause = _pause(attempt + waits, error)
                if error.wants_less:
                    # Nobody waits as long as that: whoever comes next is to hear it too, and not to stand at the gate.
                    rate_limiter.throttled(pause if pause <= LONGEST_PAUSE else 0.0)
            else:
                rate_limiter.eased()
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
        if waits < WAITS and _asks_for_less(failure) and rate_limiter.passed > passed:
            # Others got through meanwhile: they share a limit, and this one has only to wait for its turn.
            waits += 1
        elif attempt < ATTEMPTS:
            attempt += 1
        else:
            raise _given_up(failure, attempt + waits)
        passed = rate_limiter.passed
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


async def _attempt(
    provider: Provider, request: Request, live: LiveRun, tell: Callable[[Delta], None], deadlines: Deadlines
) -> Reply:
    """One attempt, bounded as a whole, until its first word and between any two pieces of its stream."""
    limits = live.run.accepted.limits
    live.partial.clear()
    patience = _Patience(deadlines, limits, tell)
    try:
        with patience:
            # The request is this attempt's alone; a copy of it would cost more than all the rest of the patience.
            object.__setattr__(request, "alive", patience.hear)
            return await provider.answer(request, patience.publish)
    except ProviderError:
        raise
    except TimeoutError as error:
        if not patience.expired:  # a bound of the provider's own, which may be shorter
            raise ProviderError(kind_and_words_of(error), fault="timeout") from error
        after = f"{patience.silence:g} s of silence" if patience.fell_silent else f"{limits.model_seconds:g} s"
        raise ProviderError(f"the model did not answer: stopped after {after}", fault="timeout") from None
    except asyncio.CancelledError as error:
        if live.stopping:
            raise
        raise ProviderError("the provider gave up without a reason", fault="cut") from error
    except BaseException as error:
        if not is_its_own_doing(error, live.busy.values()):
            raise
        raise ProviderError(kind_and_words_of(error), fault="internal") from error


class _Patience(Deadline):
    """Ends an attempt that takes too long or has fallen silent; what it hears sets no timer.

    A model may think, and a machine read a long prompt, for long without a word: the first may take longer than others.
    """

    __slots__ = ("_ends", "_heard", "_idle", "_tell", "_time", "fell_silent", "silence")

    def __init__(self, deadlines: Deadlines, limits: Limits, tell: Callable[[Delta], None]) -> None:
        # The shorter silence: with the first word it may be the one that counts, and no timer is set for that.
        super().__init__(deadlines, min(limits.model_seconds, limits.idle_seconds))
        self._time = asyncio.get_running_loop().time
        self._idle = limits.idle_seconds
        self.silence = max(limits.first_seconds, limits.idle_seconds)
        """How long it may be silent now."""
        self._tell = tell
        self._heard = self._time()
        self._ends = self._heard + limits.model_seconds
        self.fell_silent = False

    def publish(self, delta: Delta) -> None:
        self._heard = self._time()
        if self.silence != self._idle and not isinstance(delta, StartDelta):
            self.silence = self._idle
        self._tell(delta)

    def hear(self) -> None:
        """There was a sign of life."""
        self._heard = self._time()

    def is_due(self) -> None:
        """It has taken as long as it may, or has at least been silent for a while."""
        silent_at, now = self._heard + self.silence, self._time()
        last = min(self._ends, silent_at)
        if now + RESOLUTION < last:
            self.due = min(last, now + max(self._idle, A_MOMENT))
        else:
            self.fell_silent = silent_at < self._ends
            super().is_due()
