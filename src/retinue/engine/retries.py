"""Retries of a model call: which failures are tried again, how often and after which pause, and timeouts of attempts.

Whether an error is transient follows from its fault, which `providers/http_errors.py` decides from the server's
response.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace as replace_in

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ProviderError
from retinue.core.log_context import logger
from retinue.core.messages import MAX_CALLS, Delta, Reply, StartDelta, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.run import Limits
from retinue.core.usage import MAX_COST, NO_USAGE, Spent, Usage, add_cost, attach_spent, spent_of
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import is_recordable, type_and_message_of
from retinue.engine.live_run import LiveRun
from retinue.engine.rate_limiter import RateLimiter
from retinue.engine.run_view import Pause
from retinue.engine.timeouts import RESOLUTION, Timeout, Timeouts

log = logger("retinue.engine")

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
