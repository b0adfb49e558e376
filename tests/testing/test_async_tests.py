"""The plugin in `tests/conftest.py` for `async def` tests."""

import asyncio
from collections.abc import Callable

import hypothesis
import hypothesis.strategies as some
import pytest

from retinue.testing.virtual_time import VirtualTimeLoop
from tests.conftest import as_plain_function

LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None
on_both_loops = pytest.mark.parametrize("loop_factory", [VirtualTimeLoop, None], ids=["held", "real"])


async def test_an_async_test_runs_on_a_virtual_time_loop_with_its_fixtures(stress: bool) -> None:
    assert (type(asyncio.get_running_loop()), type(stress)) == (VirtualTimeLoop, bool)


@pytest.mark.real_time
async def test_an_async_test_marked_real_time_runs_on_an_ordinary_loop() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@hypothesis.given(seconds=some.integers(1, 10**6))
async def test_every_example_of_a_property_has_a_loop_of_its_own(seconds: int) -> None:
    await asyncio.sleep(seconds)
    assert asyncio.get_running_loop().time() == seconds


@on_both_loops
def test_a_task_left_behind_fails_the_test_by_name_and_is_cancelled(loop_factory: LoopFactory) -> None:
    left: list[asyncio.Task[None]] = []

    async def leave_a_task() -> None:
        left.append(asyncio.create_task(asyncio.sleep(3600), name="forgotten"))

    with pytest.raises(pytest.fail.Exception, match=r"left tasks behind:\n  forgotten: sleep"):
        as_plain_function(leave_a_task, loop_factory)()
    assert left[0].cancelled()


@on_both_loops
def test_an_unretrieved_task_exception_fails_the_test(loop_factory: LoopFactory) -> None:
    async def forget_an_error() -> None:
        asyncio.get_running_loop().call_soon(int, "no number")
        await asyncio.sleep(0.001)

    with pytest.raises(pytest.fail.Exception, match=r"no code handled:\n.*no number"):
        as_plain_function(forget_an_error, loop_factory)()


@on_both_loops
def test_the_failure_of_the_test_itself_is_reported(loop_factory: LoopFactory) -> None:
    async def fail_and_leave_a_task() -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        assert task.done(), "it is not done"

    with pytest.raises(AssertionError, match="it is not done"):
        as_plain_function(fail_and_leave_a_task, loop_factory)()
