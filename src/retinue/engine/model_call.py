"""Model calls: a hold in the ledger, the call with its retries, the settlement, and fallback models.

Whether an error is transient follows from its fault, which `providers/http_errors.py` decides from the server's
response.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace as replace_in
from functools import reduce
from math import ceil
from typing import TypeAlias, TypedDict, assert_never

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import RunSpec, ToolSpec
from retinue.core.attachments import described
from retinue.core.budget import Amount
from retinue.core.commands import Charge
from retinue.core.compaction import THINKING_OUTPUT, ContextOverflow, is_near_limit, reserved, usual_output
from retinue.core.errors import BadInput, ProviderError
from retinue.core.events import STOPPED, ReplyReceived, TurnFailed
from retinue.core.ledger import Held
from retinue.core.limit_text import cut_text, held_text, limit_text
from retinue.core.log_context import logger
from retinue.core.messages import MAX_CALLS, AssistantMessage, Delta, Reply, StartDelta, UserMessage
from retinue.core.ports import (
    Provider,
    Request,
    cached_price_of,
    counts_exactly,
    defaults_of,
    longest_reply_of,
    maker_of,
    price_factor_of,
    price_of,
)
from retinue.core.run import LimitMet, Limits
from retinue.core.step import CallModel
from retinue.core.usage import MAX_COST, NO_USAGE, Spent, Usage, add_cost, attach_spent, spent_of
from retinue.engine.budgets import CallPrice, InputEstimate, at_least, limit_met
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import is_recordable, type_and_message_of
from retinue.engine.live_run import LiveRun
from retinue.engine.rate_limiter import RateLimiter
from retinue.engine.run_view import Pause
from retinue.engine.timeouts import RESOLUTION, Timeout, Timeouts

log = logger("retinue.engine")

make_request = maker_of(Request)

MAX_ATTEMPTS = 4
MAX_PAUSE = 600.0
"""Seconds that a provider may ask to wait; a longer wait is reported as an error instead."""
MAX_THROTTLED = 20
"""How often a call may be throttled while other calls succeed; such a refusal does not count as an attempt."""
MAX_BACKOFF = 60.0
"""The longest pause before an overloaded model is called again, in seconds and without jitter."""
LEAST_OVERLOAD_PAUSE = 10.0
"""Seconds for each of which of a run's `retry_for` at most one more attempt is made, however short the pauses are."""
SHOWN_PAUSE = 2.0
"""Seconds of a pause from which on the run is shown as waiting."""
MIN_CHECK_INTERVAL = 0.05
"""Least seconds between two checks of a silent model."""


class ModelCall(Struct, frozen=True):
    """A request to one model, the estimate of its input, and the receiver of its deltas."""

    request: Request
    input: Callable[[], InputEstimate]
    publish: Callable[[Delta], None]
    wrap_up: bool = False


class Replied(Struct, frozen=True):
    """The reply of a model, the charges to store in the run's windows, and the limit that cut the reply off.

    `failed` and `failed_cost` are what failed attempts before the reply used, `estimated` and `estimated_cost` what is
    charged for a reply whose provider counted nothing.
    """

    reply: Reply
    charges: tuple[Charge, ...]
    cut_by: LimitMet | None = None
    failed: Usage = NO_USAGE
    failed_cost: int | None = 0
    estimated: Usage | None = None
    estimated_cost: int | None = None


class NoReply(Struct, frozen=True):
    """No model replied: each model that was called, with its error, and the charges to store."""

    failures: tuple[tuple[str, ProviderError], ...]
    charges: tuple[Charge, ...] = ()

    @property
    def used(self) -> Usage:
        return sum((error.usage for _, error in self.failures), NO_USAGE)

    @property
    def cost(self) -> int | None:
        return reduce(add_cost, (error.cost for _, error in self.failures), 0)

    @property
    def last(self) -> ProviderError:
        return self.failures[-1][1]

    def __str__(self) -> str:
        if len(self.failures) == 1:
            return str(self.last)
        return "; ".join(f"{model}: {error}" for model, error in self.failures)


MakeCall: TypeAlias = Callable[[str, str, Provider], ModelCall | ContextOverflow]
"""The call for a provider's name, a model and the provider; or that the history is too long for that model."""


async def ask(live: LiveRun, step: CallModel, engine: EngineContext) -> None:
    """Call the model and record the reply or the failure; or note that a limit is met or the history is too long."""

    def make_call(name: str, model: str, provider: Provider) -> ModelCall | ContextOverflow:
        window = live.context_window(name, model, provider)
        if window is not None and (overflow := _overflow(live, window)):
            return overflow
        return ModelCall(_request(name, model, live, step), live.input_estimate, live.publish, step.wrap_up)

    began = engine.clock.now()
    answer = await first_reply(live, engine, make_call)
    match answer:
        case Replied(reply=reply, charges=charges, cut_by=cut_by):
            try:
                if engine.journal.is_full:
                    await engine.journal.room()
            finally:  # a reply that was paid for is recorded, also if the run is stopped meanwhile
                live.partial.clear()
                turn = live.run.turns + 1
                now = engine.clock.now()
                event = ReplyReceived(
                    at=now,
                    turn=turn,
                    reply=reply,
                    cut_by=cut_by,
                    failed=answer.failed,
                    failed_cost=answer.failed_cost,
                    estimated=answer.estimated,
                    estimated_cost=answer.estimated_cost,
                    duration=seconds_since(began, now),
                )
                live.record(event, charges=charges)
        case LimitMet():
            live.limit_met = answer
        case ContextOverflow():
            live.overflow = answer
        case NoReply():
            partial = answer.last.partial or "".join(live.partial)
            if answer.last.fault == "too_long":
                live.partial.clear()
                live.overflow = _too_long(live, answer, partial, engine)
            else:
                fail(live, answer, f"{answer}{_attachment_hint(live, answer)}", partial, engine, began=began)
        case None:
            pass
        case _:
            assert_never(answer)


def _attachment_hint(live: LiveRun, answer: NoReply) -> str:
    """A hint for a refused request with images or files: few servers say that their model has none."""
    if answer.last.fault != "bad_request":
        return ""
    messages = (message for message in live.run.history if not isinstance(message, AssistantMessage))
    sent = [each for message in messages for each in message.attachments]
    model = answer.failures[-1][0]
    return f" (the request had {described(sent)}; perhaps {model} takes none)" if sent else ""


def _overflow(live: LiveRun, window: int) -> ContextOverflow | None:
    """An overflow if the history is too near to the context window and was not compacted for this turn already."""
    run, run_spec = live.run, live.run.run_spec
    if run.compactions or live.not_compactable_at == run.seq:
        return None
    kept_free = reserved(window, max_output=run_spec.max_output, think=run_spec.thinks)
    if is_near_limit(live.context_tokens(), window, kept_free):
        return ContextOverflow(window=window, reserved=kept_free)
    return None


def _too_long(live: LiveRun, answer: NoReply, partial: str, engine: EngineContext) -> ContextOverflow:
    """The overflow after a provider refused the history as too long, whatever is known about its window."""
    run_spec = live.run.run_spec
    name, model = models_of(run_spec)[len(answer.failures) - 1]
    provider = engine.providers.find(name)
    window = live.context_window(name, model, provider) if provider is not None else None
    kept_free = reserved(window, max_output=run_spec.max_output, think=run_spec.thinks) if window is not None else 0
    return ContextOverflow(window=window, reserved=kept_free, error=str(answer), partial=partial)


def seconds_since(began: float, now: float) -> float:
    """A duration as events have it; the wall clock may have been set back."""
    return round(max(0.0, now - began), 6)


def fail(
    live: LiveRun, answer: NoReply, error: str, partial: str, engine: EngineContext, *, began: float | None = None
) -> None:
    now = engine.clock.now()
    live.record(
        TurnFailed(
            at=now,
            turn=live.run.turns + 1,
            fault=answer.last.fault,
            error=error,
            partial=partial,
            usage=answer.used,
            cost=answer.cost,
            duration=None if began is None else seconds_since(began, now),
        ),
        charges=answer.charges,
    )


def models_of(run_spec: RunSpec) -> tuple[tuple[str, str], ...]:
    return ((run_spec.provider, run_spec.model), *run_spec.fallback)


async def first_reply(
    live: LiveRun, engine: EngineContext, make_call: MakeCall
) -> Replied | LimitMet | ContextOverflow | NoReply | None:
    """The reply of the first available model; None when the run is being stopped.

    An unavailable model is followed by the next fallback of the run; every turn begins with the first model again.
    """
    failures: tuple[tuple[str, ProviderError], ...] = ()
    charges: list[Charge] = []
    for name, model in models_of(live.run.run_spec):
        try:
            provider = _find(name, engine)
            call = make_call(name, model, provider)
            if isinstance(call, ContextOverflow):
                return call
            answer = await _reply(name, model, provider, call, live, engine, charges)
            return _with_failures(answer, NoReply(failures, tuple(charges))) if failures else answer
        except ProviderError as error:
            failures = (*failures, (f"{name}:{model}", error))
            if not _is_worth_another_model(error):
                break
        except asyncio.CancelledError as stopped:
            _record_spent(live, NoReply(failures, tuple(charges)), spent_of(stopped), engine)
            raise
    return NoReply(failures, tuple(charges))


def _record_spent(live: LiveRun, before: NoReply, spent: Spent, engine: EngineContext) -> None:
    """Record what a call used that was stopped with its run, and the failed calls of other models before it."""
    usage, cost = before.used + spent.usage, add_cost(before.cost, spent.cost)
    if usage.total and live.stopping:
        event = TurnFailed(
            at=engine.clock.now(),
            turn=live.run.turns + 1,
            fault=STOPPED,
            error="stopped before the reply was complete",
            usage=usage,
            cost=cost,
        )
        live.record(event, charges=before.charges)


def _with_failures(answer: Replied | LimitMet | None, before: NoReply) -> Replied | LimitMet | None:
    """The answer of a later model, with the usage of the failed ones added."""
    if not isinstance(answer, Replied) or not before.used.total:
        return answer
    reply = answer.reply
    usage, cost = (reply.usage or NO_USAGE) + before.used, add_cost(reply.cost, before.cost)
    return replace(answer, reply=replace(reply, usage=usage, cost=cost), charges=(*before.charges, *answer.charges))


async def _reply(
    name: str,
    model: str,
    provider: Provider,
    call: ModelCall,
    live: LiveRun,
    engine: EngineContext,
    charges: list[Charge],
) -> Replied | LimitMet | None:
    """The reply of one model: its worst case, or what is left, is held before the call; its usage is settled after.

    The usage of a failure is settled too; its charges are added to `charges`.
    """
    run, request, hooks = live.run, call.request, engine.hooks
    held: Held | None = None
    if hooks.before_model:
        hooked = await hooks.request(request)
        if isinstance(hooked, Reply):
            return Replied(hooked if hooked.cost is not None else replace(hooked, cost=0), ())
        request = hooked
    estimate, price = InputEstimate(0, 0), None
    try:
        if engine.budgets.is_capped(run.run_id):
            estimate, price = call.input(), _price(provider, request)
            configured = request.with_defaults(defaults_of(provider))
            usual = usual_output(configured.chosen_effort)
            room = await engine.budgets.hold(
                run.run_id,
                input=estimate,
                output=configured.max_output,
                longest=_longest_reply(provider, configured, usual),
                usual=usual,
                price=price,
                wrap_up=call.wrap_up,
            )
            if isinstance(room, LimitMet):
                log.info("%s%s", engine.id_field(run), limit_text(room))
                return room
            if room.shortage is not None:
                met = limit_met(room.shortage, run.run_id, held=room.output)
                log.debug("%s%s", engine.id_field(run), held_text(met))
            held, request = room, replace_in(request, max_output=room.output)
        rate_limiter = engine.rate_limiters.at(name, model)
        is_last_model = (name, model) == models_of(run.run_spec)[-1]
        attempted = await reply_with_retries(
            provider, rate_limiter, request, live, call.publish, engine, is_last_model=is_last_model
        )
        if live.stopping:
            return None
        reply, charged = attempted.reply, attempted.reply
        if hooks.after_model:
            reply = await hooks.reply(request, reply)
            if reply is not attempted.reply:
                live.discard_attempt()
        if run.run_spec.fallback and not reply.model:
            reply = replace(reply, model=model)
        replied = Replied(reply, (), failed=attempted.failed, failed_cost=attempted.failed_cost)
        is_uncounted = reply.usage is None and not counts_exactly(provider)
        if is_uncounted and held is None:
            estimate, price = call.input(), _price(provider, request)
        if is_uncounted or (held is not None and not counts_exactly(provider)):
            charged = at_least(reply, estimate, price)
        if is_uncounted:
            replied = replace(replied, estimated=charged.usage, estimated_cost=charged.cost)
        if held is None:
            return replied
        if (cut_by := _cut_by(held, reply)) is not None:
            log.info("%sthe reply was %s", engine.id_field(run), cut_text(cut_by))
        return replace(replied, charges=engine.budgets.settle(held, _with_failed(charged, attempted)), cut_by=cut_by)
    except ProviderError as error:
        if held is not None and error.usage.total:
            charges += engine.budgets.settle(held, Reply(AssistantMessage(), usage=error.usage, cost=error.cost))
        raise
    except asyncio.CancelledError as stopped:
        if held is not None and (spent := spent_of(stopped)).usage.total:
            charges += engine.budgets.settle(held, Reply(AssistantMessage(), usage=spent.usage, cost=spent.cost))
        raise
    finally:
        if held is not None:
            engine.budgets.release(held)


def _with_failed(reply: Reply, attempted: Attempted) -> Reply:
    """A reply with the usage of the failed attempts before it, as limits charge it."""
    if not attempted.failed.total:
        return reply
    cost = (reply.cost or 0) + (attempted.failed_cost or 0)
    return replace(reply, usage=(reply.usage or NO_USAGE) + attempted.failed, cost=cost)


def _price(provider: Provider, request: Request) -> CallPrice | None:
    price = price_of(provider, request.model)
    if price is None:
        return None
    cached = cached_price_of(provider, request.model)
    each = (*price, price[0] if cached is None else cached)
    factor = price_factor_of(provider, request)
    return CallPrice(*(each if factor == 1 else (ceil(number * factor) for number in each)))


def _longest_reply(provider: Provider, request: Request, usual: int) -> int:
    """The output tokens of a call that sets no limit: the longest reply of its model, if that is known."""
    return longest_reply_of(provider, request.model) or (THINKING_OUTPUT if request.thinks else usual)


def _cut_by(held: Held, reply: Reply) -> LimitMet | None:
    """The limit whose rest was held for the reply and cut it off, if one did."""
    shortage = held.shortage
    if shortage is None or reply.stop != "length":
        return None
    used = Amount.of(reply.usage or NO_USAGE, reply.cost)
    by_dimension = {"input": used.input, "output": used.output, "tokens": used.tokens, "cost": used.cost}
    met = limit_met(shortage, held.account, held=held.output)
    return replace(met, used=met.used + by_dimension.get(shortage.dimension, 0), left=0)


def _find(name: str, engine: EngineContext) -> Provider:
    # Recovery checks the first provider of a run only, and a provider may be removed while a run waits.
    try:
        provider = engine.providers.find(name)
    except BadInput as wrong:
        raise ProviderError(f"provider {name!r} cannot be asked: {wrong}", fault="bad_request", status=404) from wrong
    if provider is None:
        raise ProviderError(f"no provider named {name!r} here", fault="bad_request", status=404)
    return provider


def _is_worth_another_model(failure: ProviderError) -> bool:
    """Whether the fault is with the model or its provider; a faulty request fails with every model."""
    match failure.fault:
        case "rate_limited" | "overloaded" | "unreachable" | "cut" | "timeout" | "auth" | "internal":
            return True
        case "bad_request":
            return failure.status == 404  # no such model, or no longer
        case "too_long" | "refused":
            return False
        case _:
            assert_never(failure.fault)


def _request(provider: str, model: str, live: LiveRun, step: CallModel) -> Request:
    run, run_spec = live.run, live.run.run_spec
    return make_request(
        model=model,
        system=run.system,
        messages=run.history,
        tools=live.tool_set.specs if step.tools else (),
        withheld_tools=() if step.tools else _withheld_tools(live),
        server_tools=live.tool_set.server_tools if step.tools or _withheld_tools(live) else (),
        max_output=run_spec.max_output,
        **sampling_for(provider, run_spec),
        think=run_spec.think,
        effort=run_spec.effort,
        options=run_spec.options if provider == run_spec.provider else run_spec.options.portable,
        output=run_spec.output,
        cache_key=run.accepted.run_spec,
        run_id=run.accepted.run_id,
        agent=run.accepted.agent,
        path=run.accepted.path,
        turn=run.turns + 1,
        trace="" if live.tracing is None else live.tracing.context_of_run(run.accepted),
        memo=live.memo,
    )


def _withheld_tools(live: LiveRun) -> tuple[ToolSpec, ...]:
    """The tools of a turn without tools, if earlier requests of the conversation had them."""
    return live.tool_set.specs if live.run.turns or live.run.accepted.inherits else ()


class SamplingOptions(TypedDict):
    """How the tokens of a reply are chosen."""

    temperature: float | None
    top_p: float | None


def sampling_for(provider: str, run_spec: RunSpec) -> SamplingOptions:
    """The sampling options of a request to this provider. Fallback providers get none: their ranges differ."""
    if provider != run_spec.provider:
        return {"temperature": None, "top_p": None}
    return {"temperature": run_spec.temperature, "top_p": run_spec.top_p}


class Attempted(Struct, frozen=True, gc=False):
    """The reply of the first successful attempt, and what the failed ones before it used, as their provider counted."""

    reply: Reply
    failed: Usage = NO_USAGE
    failed_cost: int | None = 0


async def reply_with_retries(
    provider: Provider,
    rate_limiter: RateLimiter,
    request: Request,
    live: LiveRun,
    publish: Callable[[Delta], None],
    engine: EngineContext,
    *,
    is_last_model: bool = True,
) -> Attempted:
    """The reply of the first successful attempt; raises the error of the last one, with the usage of all.

    An overloaded model is called for as long as the limit `retry_for` of the run says, unless another model follows.
    """
    before = _Failed()
    try:
        reply = await _retried(
            provider, rate_limiter, request, live, publish, engine, before, is_last_model=is_last_model
        )
    except asyncio.CancelledError as stopped:
        spent = spent_of(stopped)
        if before.usage.total:
            attach_spent(stopped, Spent(before.usage + spent.usage, add_cost(before.cost, spent.cost)))
        raise
    return Attempted(reply, before.usage, before.cost)


class _Failed:
    """What the failed attempts of a call have used."""

    __slots__ = ("cost", "usage")

    def __init__(self) -> None:
        self.usage: Usage = NO_USAGE
        self.cost: int | None = 0


async def _retried(
    provider: Provider,
    rate_limiter: RateLimiter,
    request: Request,
    live: LiveRun,
    publish: Callable[[Delta], None],
    engine: EngineContext,
    failed: _Failed,
    *,
    is_last_model: bool,
) -> Reply:
    """The reply of the first successful attempt; what others used is added to `failed`."""
    accepted = live.run.accepted
    overload = _Overload(accepted.limits.retry_for if is_last_model else 0.0, engine.timeouts.time)
    attempt, throttled, successes = 1, 0, rate_limiter.successes
    in_batch = request.options.batch_hours is not None
    while True:
        # A call that waits for a batch makes no request of its own now, and may wait for hours.
        permit = nullcontext() if in_batch else rate_limiter.permit(tree=accepted.root_id, depth=accepted.depth)
        async with permit:
            if not engine.gate.is_open:
                await engine.gate.wait()
            engine.gate.requests += 1
            try:
                reply = await _attempt(provider, request, live, publish, engine.timeouts)
            except ProviderError as error:
                failure = error
                if error.usage.total:
                    failed.usage, failed.cost = failed.usage + error.usage, add_cost(failed.cost, error.cost)
                pause = _pause(attempt + throttled, error, engine.tuning.first_pause)
                if error.wants_less:
                    # A pause that is too long is an error for this call; the next call gets its own answer, and does
                    # not wait for a permit that long.
                    rate_limiter.throttled(pause if pause <= MAX_PAUSE else 0.0)
            else:
                rate_limiter.succeeded()
                return reply
            finally:
                engine.gate.requests -= 1
        if failed.usage.total:
            failure.usage, failure.cost = failed.usage, failed.cost
        if not failure.transient:
            raise failure
        if pause > MAX_PAUSE:
            raise ProviderError(
                f"{failure} (it asks to wait {pause:g} s, which is too long)",
                fault=failure.fault,
                status=failure.status,
                usage=failure.usage,
                cost=failure.cost,
            )
        log.info("%swaits %.1f s: %s", engine.id_field(live.run), pause, failure)
        if throttled < MAX_THROTTLED and _is_throttled(failure) and rate_limiter.successes > successes:
            # Other calls succeeded meanwhile: they share a rate limit, and this one only has to wait for its turn.
            throttled += 1
        elif attempt < MAX_ATTEMPTS or (failure.fault == "overloaded" and overload.allows(attempt, pause)):
            attempt += 1
        else:
            raise _given_up(failure, attempt + throttled)
        successes = rate_limiter.successes
        if failure.slip:
            request = _with_notice_of_slip(request, failure.slip)
        live.discard_attempt()
        await _sleep(live, pause if failure.retry_after is None else pause + _jitter(pause), failure)


class _Overload:
    """How long an overloaded model is called again: up to a number of seconds since the first attempt."""

    __slots__ = ("_began", "_seconds", "_time")

    def __init__(self, seconds: float, time: Callable[[], float]) -> None:
        self._time = time
        self._began = time()
        self._seconds = seconds

    def allows(self, attempts: int, pause: float) -> bool:
        """Whether one more attempt may be made after this pause."""
        more = attempts - MAX_ATTEMPTS < self._seconds / LEAST_OVERLOAD_PAUSE
        return more and self._time() - self._began + pause <= self._seconds


async def _sleep(live: LiveRun, seconds: float, failure: ProviderError) -> None:
    """Wait before the next attempt. The screen shows why; in a long pause, views show a run that waits for time."""
    live.pause = Pause(until=asyncio.get_running_loop().time() + seconds, error=str(failure))
    if seconds >= SHOWN_PAUSE:
        live.waiting_for = "time"
    try:
        await asyncio.sleep(seconds)
    finally:
        live.pause = live.waiting_for = None


SLIP = (
    "[Your last reply was rejected by the server of the model and has no effect. What was wrong: {slip} "
    "Reply again; call only functions that are offered, with arguments as their schemas demand.]"
)
"""What the model reads after it wrote something that its own server rejected."""


def _with_notice_of_slip(request: Request, slip: str) -> Request:
    """The request of the next attempt, which tells the model what was wrong; the run's history stays as it is."""
    return replace_in(request, messages=(*request.messages, UserMessage(SLIP.format(slip=slip), origin="engine")))


def _given_up(failure: ProviderError, attempts: int) -> ProviderError:
    """The last error, with the number of attempts: an immediate retry by the caller would not help."""
    return ProviderError(
        f"{failure} ({attempts} attempts were made; try again later)",
        fault=failure.fault,
        status=failure.status,
        partial=failure.partial,
        usage=failure.usage,
        cost=failure.cost,
    )


def _is_throttled(failure: ProviderError) -> bool:
    return failure.fault == "rate_limited" or (failure.fault == "overloaded" and failure.retry_after is not None)


def _pause(failures: int, error: ProviderError, first: float) -> float:
    if error.retry_after is not None:
        return error.retry_after
    return min(first * 2 ** min(failures - 1, 7), MAX_BACKOFF) * random.uniform(0.75, 1.25)


def _jitter(pause: float) -> float:
    """A random addition to a pause, so that calls that were refused together do not return together."""
    return random.uniform(0.0, min(pause / 10, 1.0))


async def _attempt(
    provider: Provider, request: Request, live: LiveRun, publish: Callable[[Delta], None], timeouts: Timeouts
) -> Reply:
    """One attempt, with a limit on its whole time, on the time to its first delta and on each silence after that."""
    limits = live.run.accepted.limits
    live.discard_attempt()
    if request.options.batch_hours is not None:
        return await _attempt_in_batch(provider, request, live, publish)
    timeout = _AttemptTimeout(timeouts, limits, publish)
    try:
        with timeout:
            # The request belongs to this attempt; a copy of it would cost more than the whole timeout.
            object.__setattr__(request, "alive", timeout.alive)
            return _within_bounds(await provider.answer(request, timeout.publish))
    except ProviderError:
        raise
    except TimeoutError as error:
        if not timeout.expired:  # a timeout of the provider itself, which may be shorter
            raise ProviderError(type_and_message_of(error), fault="timeout") from error
        after = f"{timeout.silence:g} s of silence" if timeout.fell_silent else f"{limits.model_timeout:g} s"
        spent = spent_of(error.__cause__)
        raise ProviderError(
            f"the model did not answer: stopped after {after}", fault="timeout", usage=spent.usage, cost=spent.cost
        ) from None
    except asyncio.CancelledError as error:
        if live.stopping:
            raise
        spent = spent_of(error)
        raise ProviderError(
            "the provider gave up without a reason", fault="cut", usage=spent.usage, cost=spent.cost
        ) from error
    except BaseException as error:
        if not is_recordable(error, live.in_flight.values()):
            raise
        raise ProviderError(type_and_message_of(error), fault="internal") from error


async def _attempt_in_batch(
    provider: Provider, request: Request, live: LiveRun, publish: Callable[[Delta], None]
) -> Reply:
    """One attempt that may wait for a batch of the vendor, which has a limit of hours of its own."""
    live.waiting_for = "time"
    try:
        return _within_bounds(await provider.answer(request, publish))
    except (ProviderError, asyncio.CancelledError):
        raise
    except BaseException as error:
        if not is_recordable(error, live.in_flight.values()):
            raise
        raise ProviderError(type_and_message_of(error), fault="internal") from error
    finally:
        live.waiting_for = None


def _within_bounds(reply: Reply) -> Reply:
    """The reply with numbers that can be stored; raises `ProviderError` if it has more calls than can be made."""
    if not isinstance(reply, Reply):  # pyright: ignore[reportUnnecessaryIsInstance] providers may be untyped
        found = type(reply).__name__
        raise ProviderError(f"the provider returned {found}: expected a retinue.messages.Reply", fault="bad_request")
    if len(reply.message.calls) > MAX_CALLS:
        raise ProviderError(f"the reply has more than {MAX_CALLS} tool calls", fault="internal")
    usage = reply.usage and reply.usage.within_bounds()
    if usage is reply.usage and (reply.cost is None or 0 <= reply.cost <= MAX_COST):
        return reply
    return replace(reply, usage=usage, cost=reply.cost and min(max(0, reply.cost), MAX_COST))


class _AttemptTimeout(Timeout):
    """Ends an attempt that takes too long or has fallen silent; a delta updates a time and sets no timer.

    A model may think, or a server read a long prompt, before the first delta: that silence may be longer than others.
    """

    __slots__ = ("_ends", "_has_begun", "_heard", "_idle", "_publish", "_time", "fell_silent", "silence")

    def __init__(self, timeouts: Timeouts, limits: Limits, publish: Callable[[Delta], None]) -> None:
        # The shorter limit: after the first delta it may be the one that counts, and no timer is set for that.
        super().__init__(timeouts, min(limits.model_timeout, limits.idle_timeout))
        self._time = timeouts.time
        self._idle = limits.idle_timeout
        self.silence = max(limits.first_timeout, limits.idle_timeout)
        """Seconds that the model may be silent now."""
        self._publish = publish
        self._has_begun = False
        self._heard = self._time()
        self._ends = self._heard + limits.model_timeout
        self.fell_silent = False

    def publish(self, delta: Delta) -> None:
        self._heard = self._time()
        if not self._has_begun and type(delta) is not StartDelta:
            self._has_begun = True
            self.silence = self._idle
        self._publish(delta)

    def alive(self) -> None:
        """The provider received something that is no delta; it ends a silence."""
        self._heard = self._time()

    def is_due(self) -> None:
        """Expire if a limit is reached, else set the time of the next check."""
        silent_at, now = self._heard + self.silence, self._time()
        last = min(self._ends, silent_at)
        if now + RESOLUTION < last:
            self.due = min(last, now + max(self._idle, MIN_CHECK_INTERVAL))
        else:
            self.fell_silent = silent_at < self._ends
            super().is_due()
