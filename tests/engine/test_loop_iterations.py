"""`LoopTicks`: a task that never blocks yields between turns."""

import asyncio
from itertools import pairwise

import retinue
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.core.run import Lifecycle
from retinue.engine.timeouts import LoopTicks
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from tests.engine.delegation import delegates, with_delegation


class NonblockingProvider(ScriptedProvider):
    """Answers without yielding to the event loop."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The line, as a reply."""
        answer = super().answer(request, publish)
        while True:
            try:
                answer.send(None)
            except StopIteration as done:
                return done.value


async def test_a_tick_lasts_until_other_tasks_have_run() -> None:
    ticks = LoopTicks()
    first = ticks.current()

    assert ticks.current() == first
    await asyncio.sleep(0)
    assert ticks.current() != first


async def test_awaiting_a_completed_future_is_no_tick() -> None:
    ticks, ready = LoopTicks(), asyncio.get_running_loop().create_future()
    ready.set_result(None)
    first = ticks.current()

    await ready

    assert ticks.current() == first


async def test_a_child_whose_model_never_blocks_yields_between_turns() -> None:
    turns_of_others = 0
    seen: list[int] = []

    @retinue.tool(kind="pure", polls=True)
    async def look() -> str:
        """Look."""
        seen.append(turns_of_others)
        return "nothing"

    async def others() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    harness, _ = with_delegation(tools=(look,), provider=NonblockingProvider(Script()))
    async with harness:
        harness.script("main", delegates("dig", lifecycle=Lifecycle(awaited=True)), says("done"))
        harness.script("dig", *(calls("look") for _ in range(5)), says("42"))
        busy = asyncio.create_task(others())
        await harness.run("go")
        busy.cancel()

    assert len(seen) == 5
    assert all(later > earlier for earlier, later in pairwise(seen))
