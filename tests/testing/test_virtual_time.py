"""The event loop with virtual time."""

import asyncio
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import hypothesis
import hypothesis.strategies as some
import pytest

from retinue.testing import virtual_time
from retinue.testing.virtual_time import (
    NEW_YEAR,
    DeadlockError,
    VirtualClock,
    VirtualTimeLoop,
    run_in_virtual_time,
)

A_MOMENT = 0.03
"""Real seconds in which a held loop that did not listen would have jumped long ago."""


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def after_a_moment(answer: str) -> str:
    threading.Event().wait(A_MOMENT)
    return answer


def set_by_a_thread_after_a_moment() -> tuple[asyncio.Event, threading.Thread]:
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def speak() -> None:
        after_a_moment("now")
        loop.call_soon_threadsafe(event.set)

    thread = threading.Thread(target=speak)
    thread.start()
    return event, thread


# Timers


async def test_a_day_of_virtual_time_passes_at_once() -> None:
    began = time.monotonic()
    await asyncio.sleep(86400)
    assert loop_time() == 86400
    assert time.monotonic() - began < 60


async def test_a_timer_of_twenty_years_fires() -> None:
    await asyncio.sleep(20 * 365 * 86400)
    assert loop_time() == 20 * 365 * 86400


@hypothesis.given(steps=some.lists(some.integers(1, 10**6), min_size=1))
async def test_small_steps_add_up_without_a_rounding_error(steps: list[int]) -> None:
    for milliseconds in steps:
        await asyncio.sleep(milliseconds / 1000)
    assert loop_time() == sum(steps) / 1000


async def test_timers_fire_in_the_order_of_their_times_and_each_sees_its_own() -> None:
    seen: list[tuple[int, float]] = []

    async def note(seconds: int) -> None:
        await asyncio.sleep(seconds)
        seen.append((seconds, loop_time()))

    await asyncio.gather(*map(note, (30, 10, 20)))
    assert seen == [(10, 10.0), (20, 20.0), (30, 30.0)]


async def test_timers_due_together_fire_in_the_order_they_were_set() -> None:
    seen: list[int] = []
    for n in range(100):
        asyncio.get_running_loop().call_later(5, seen.append, n)
    await asyncio.sleep(5)
    assert (seen, loop_time()) == (list(range(100)), 5.0)


async def test_a_rounding_error_does_not_change_the_order_of_timers() -> None:
    seen: list[str] = []
    assert 0.1 + 0.2 > 0.3
    asyncio.get_running_loop().call_at(0.1 + 0.2, seen.append, "first")
    asyncio.get_running_loop().call_at(0.3, seen.append, "second")
    await asyncio.sleep(1)
    assert seen == ["first", "second"]


async def test_a_timeout_ends_at_its_time_and_not_at_that_of_the_work() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.sleep(3600)
    assert loop_time() == 30


async def test_a_cancelled_timer_does_not_take_time_with_it() -> None:
    sleeper = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(1)
    sleeper.cancel()
    await asyncio.wait([sleeper])
    await asyncio.sleep(1)
    assert (sleeper.cancelled(), loop_time()) == (True, 2.0)


async def test_a_cancelled_timer_leaves_no_trace_in_the_time_of_the_next() -> None:
    asyncio.get_running_loop().call_later(5, print).cancel()
    await asyncio.sleep(5)
    assert loop_time() == 5


async def test_ready_callbacks_run_before_time_moves() -> None:
    seen: list[float] = []

    async def take_many_small_steps() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        seen.append(loop_time())

    await asyncio.gather(take_many_small_steps(), asyncio.sleep(0.001))
    assert seen == [0.0]


# Deadlocks


def test_a_deadlock_error_names_the_tasks_and_their_lines() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(never(), name="left")
            tasks.create_task(never(), name="right")

    with pytest.raises(DeadlockError, match="can wake these tasks") as caught:
        run_in_virtual_time(main())
    line = f"never at {__file__}:{never.__code__.co_firstlineno + 1}"
    group, *members = caught.value.waiting
    assert ("main at" in group, members) == (True, [f"left: {line}", f"right: {line}"])


def test_two_tasks_that_wait_for_each_other_are_a_deadlock() -> None:
    async def main() -> None:
        fork, knife = asyncio.Lock(), asyncio.Lock()

        async def dine(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(1)
                async with second:
                    pass

        await asyncio.gather(dine(fork, knife), dine(knife, fork))

    with pytest.raises(DeadlockError) as caught:
        run_in_virtual_time(main())
    assert len(caught.value.waiting) == 3


def test_deadlocked_tasks_still_clean_up() -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(5)
            seen.append("cleaned up")

    with pytest.raises(DeadlockError):
        run_in_virtual_time(main())
    assert seen == ["cleaned up"]


# Threads


async def test_time_is_paused_while_a_thread_works() -> None:
    async with asyncio.timeout(0.001):
        answer = await asyncio.to_thread(after_a_moment, "done")
    assert (answer, loop_time()) == ("done", 0.0)


async def test_time_is_paused_for_a_custom_executor_too() -> None:
    with ThreadPoolExecutor(1) as pool:
        async with asyncio.timeout(0.001):
            answer = await asyncio.get_running_loop().run_in_executor(pool, after_a_moment, "done")
    assert (answer, loop_time()) == ("done", 0.0)


async def test_a_thread_without_a_timer_is_not_a_deadlock() -> None:
    assert await asyncio.to_thread(after_a_moment, "done") == "done"


async def test_an_error_in_a_thread_is_raised_and_time_moves_again() -> None:
    with pytest.raises(ValueError, match="no number"):
        await asyncio.to_thread(int, "no number")
    await asyncio.sleep(5)
    assert loop_time() == 5


async def test_a_pool_that_is_idle_costs_nothing() -> None:
    await asyncio.to_thread(after_a_moment, "done")
    began = time.monotonic()
    for _ in range(100):
        await asyncio.sleep(1)
    assert time.monotonic() - began < 100 * virtual_time.INPUT_WAIT / 2


async def test_a_thread_whose_waiter_was_cancelled_does_not_hold_time() -> None:
    release = threading.Event()
    waiter = asyncio.create_task(asyncio.to_thread(release.wait))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])
    await asyncio.sleep(3600)
    release.set()
    assert loop_time() == 3600


def test_a_thread_without_a_waiter_finishes_before_the_loop_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "INPUT_WAIT", 0.0)
    seen: list[str] = []

    async def main() -> asyncio.AbstractEventLoop:
        work = asyncio.create_task(asyncio.to_thread(lambda: seen.append(after_a_moment("finished"))))
        await asyncio.sleep(0)
        work.cancel()
        return asyncio.get_running_loop()

    loop = run_in_virtual_time(main())
    assert (seen, loop.time()) == (["finished"], 0.0)


async def test_a_thread_that_waits_for_virtual_time_gets_it_eventually(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MAX_WAIT", A_MOMENT)
    loop = asyncio.get_running_loop()

    def ask_the_loop() -> str:
        return asyncio.run_coroutine_threadsafe(asyncio.sleep(60, "woken"), loop).result()

    assert await asyncio.to_thread(ask_the_loop) == "woken"
    assert loop_time() == 60


async def test_input_of_a_foreign_thread_is_handled_before_time_jumps() -> None:
    heard, thread = set_by_a_thread_after_a_moment()
    async with asyncio.timeout(60):
        await heard.wait()
    thread.join()
    assert loop_time() == 0


async def test_time_is_paused_in_a_paused_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "INPUT_WAIT", 0.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    heard, thread = set_by_a_thread_after_a_moment()
    with loop.paused():
        async with asyncio.timeout(60):
            await heard.wait()
    thread.join()
    assert loop_time() == 0


# External input


async def test_a_child_process_is_waited_for_although_a_deadline_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "INPUT_WAIT", 0.0)
    async with asyncio.timeout(60):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('hello')", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await child.communicate()
    assert (output.split(), child.returncode, loop_time()) == ([b"hello"], 0, 0.0)


async def test_a_child_process_without_pipes_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "INPUT_WAIT", 0.0)
    async with asyncio.timeout(60):
        child = await asyncio.create_subprocess_shell("exit 3")
        code = await child.wait()
    assert (code, loop_time()) == (3, 0.0)


async def test_a_hanging_child_is_killed_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "CHILD_WAIT", A_MOMENT)
    child = await asyncio.create_subprocess_exec("sleep", "1000")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(900):
            await child.wait()
    assert loop_time() == 900
    child.kill()
    await child.wait()


async def test_a_child_that_floods_a_pipe_is_killed_at_its_deadline() -> None:
    child = await asyncio.create_subprocess_shell("while :; do echo word; sleep 0.01; done", stdout=-1)

    async def listen(words: asyncio.StreamReader | None) -> None:
        while words:
            await words.readline()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listen(child.stdout), 0.2)
    assert loop_time() == 0.2
    child.kill()
    await child.communicate()  # its pipe is closed only after it was read to the end


async def test_socket_data_arrives_before_time_jumps() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    answering = asyncio.create_task(asyncio.to_thread(theirs.send, b"hello\n"))
    async with asyncio.timeout(60):
        line = await reader.readline()
    assert (line, loop_time()) == (b"hello\n", 0.0)
    await answering
    writer.close()
    await writer.wait_closed()
    theirs.close()


def test_a_silent_socket_is_a_deadlock_eventually(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MAX_WAIT", A_MOMENT)
    ours, theirs = socket.socketpair()

    async def main() -> None:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            await reader.readline()
        finally:
            writer.close()

    with theirs, pytest.raises(DeadlockError) as caught:
        run_in_virtual_time(main())
    assert len(caught.value.waiting) == 1


# Clocks


async def test_the_clock_starts_with_the_year_2026_and_moves_with_the_loop() -> None:
    clock = VirtualClock()
    before = (clock.now(), clock.monotonic())
    await asyncio.sleep(90)
    assert (before, clock.now(), clock.monotonic()) == ((NEW_YEAR, 0.0), NEW_YEAR + 90, 90.0)
    assert time.gmtime(NEW_YEAR)[:6] == (2026, 1, 1, 0, 0, 0)


def test_a_clock_bound_to_a_loop_can_be_read_outside_of_it() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        clock = VirtualClock(runner.get_loop())
        runner.run(asyncio.sleep(7))
        assert clock.monotonic() == 7


def test_run_in_virtual_time_returns_the_result_and_raises_errors() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise LookupError("nothing there")

    assert run_in_virtual_time(asyncio.sleep(3600, "an answer")) == "an answer"
    with pytest.raises(LookupError, match="nothing there"):
        run_in_virtual_time(fail())
