"""Timeouts: the rules of `asyncio.timeout`, with one timer for all of them."""

import asyncio

import pytest

from retinue.engine.timeouts import Timeouts


def now() -> float:
    """The time of the loop."""
    return asyncio.get_running_loop().time()


async def wait_within(timeouts: Timeouts, limit: float | None, seconds: float) -> str:
    """The result of a sleep within a time limit."""
    began = now()
    try:
        with timeouts.within(limit):
            await asyncio.sleep(seconds)
    except TimeoutError:
        return f"stopped after {now() - began:g} s"
    return f"done after {now() - began:g} s"


async def test_a_block_is_stopped_at_its_timeout() -> None:
    assert await wait_within(Timeouts(), 2.0, 10.0) == "stopped after 2 s"


async def test_a_block_that_ends_in_time_is_not_stopped() -> None:
    timeouts = Timeouts()

    assert await wait_within(timeouts, 2.0, 1.0) == "done after 1 s"
    await asyncio.sleep(5.0)


async def test_without_a_timeout_nothing_is_stopped() -> None:
    assert await wait_within(Timeouts(), None, 10_000.0) == "done after 10000 s"


async def test_a_timeout_of_zero_stops_the_first_await() -> None:
    assert await wait_within(Timeouts(), 0.0, 1.0) == "stopped after 0 s"


async def test_each_block_is_stopped_at_its_own_timeout_in_any_order() -> None:
    timeouts = Timeouts()
    bounds = (9.0, 3.0, 6.0, 3.0, 1.0)

    ends = await asyncio.gather(*(wait_within(timeouts, limit, 5.0) for limit in bounds))

    assert ends == ["done after 5 s", "stopped after 3 s", "done after 5 s", "stopped after 3 s", "stopped after 1 s"]


async def test_a_deadline_fires_despite_clock_rounding() -> None:
    timeouts = Timeouts()

    await asyncio.sleep(0.1)

    assert 0.1 + 0.05 > 0.15  # by float arithmetic, while the timer fires at 0.15
    assert await wait_within(timeouts, 0.05, 1.0) == "stopped after 0.05 s"


async def test_an_inner_timeout_ends_only_its_own_block() -> None:
    timeouts = Timeouts()

    with timeouts.within(5.0) as outer:
        inner = await wait_within(timeouts, 2.0, 10.0)

    assert (inner, outer.expired) == ("stopped after 2 s", False)


async def test_an_outer_timeout_ends_both_blocks() -> None:
    timeouts = Timeouts()

    with pytest.raises(TimeoutError), timeouts.within(2.0) as outer, timeouts.within(5.0) as inner:
        await asyncio.sleep(10.0)

    assert (outer.expired, inner.expired, now()) == (True, False, 2.0)


async def test_a_cancellation_by_other_code_stays_a_cancellation() -> None:
    task = asyncio.create_task(wait_within(Timeouts(), 5.0, 10.0))
    await asyncio.sleep(1.0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_moment_of_the_deadline_stays_a_cancellation() -> None:
    timeouts = Timeouts()
    task = asyncio.create_task(wait_within(timeouts, 5.0, 10.0))
    asyncio.get_running_loop().call_at(5.0, task.cancel)

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_block_is_not_a_timeout() -> None:
    async def fails_when_stopped() -> None:
        with Timeouts().within(1.0):
            try:
                await asyncio.sleep(2.0)
            except asyncio.CancelledError:
                raise KeyError("mine") from None

    with pytest.raises(KeyError):
        await fails_when_stopped()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


class Uncancellable(asyncio.Future[None]):
    """A task whose `cancel` raises."""

    def cancel(self, msg: object = None) -> bool:
        raise RuntimeError("never")


async def test_an_uncancellable_block_does_not_delay_other_timeouts() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context.get("exception"))))
    timeouts, future = Timeouts(), Uncancellable()

    async def waits_in_vain() -> None:
        with timeouts.within(1.0):
            await future

    stuck = asyncio.create_task(waits_in_vain())
    ends = await asyncio.gather(wait_within(timeouts, 1.0, 5.0), wait_within(timeouts, 2.0, 5.0))
    future.set_result(None)
    await stuck

    assert (ends, told) == (["stopped after 1 s", "stopped after 2 s"], ["never"])
