"""Cancel: reaches the whole subtree at once, no run is created under it, and calls that did not stop are named."""

import asyncio
import json
import threading

import pytest

import retinue
from retinue.core.errors import TreeCancelled
from retinue.core.events import RunEnded
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import CallContext, Publish, Request
from retinue.core.run import Lifecycle, Outcome
from retinue.core.usage import Usage
from retinue.engine import RunView, SpawnRequest
from retinue.providers.scripted import Line, ScriptedHang, calls, hangs, says, streams, together
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory, SlowMemory
from tests.engine.script_lines import in_sequence
from tests.internals import live_run


@retinue.tool(kind="pure")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


def how(views: list[RunView]) -> dict[str, tuple[str, str]]:
    """The outcome of each run of a tree."""
    return {view.path: (view.outcome.result, view.outcome.reason) for view in views if view.outcome is not None}


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- at once --------------------------------------------------------------------------------------------------------


async def test_a_child_waiting_for_a_silent_model_is_cancelled_at_once() -> None:
    r, _ = with_delegation()
    asked = asyncio.Event()

    def never(_: Request) -> ScriptedHang:
        asked.set()
        return hangs("I was about to")

    async with r:
        r.script("main", delegates("dig"))
        r.script("dig", never)
        handle = await r.retinue.spawn("go")
        await asked.wait()
        await asyncio.sleep(0)
        child = r.retinue.handle(r.run_of("dig"))

        began = now()
        await handle.cancel()
        outcomes = await asyncio.gather(handle.wait(), child.wait())

        assert [outcome.result for outcome in outcomes] == ["cancelled", "cancelled"]
        assert now() == began


async def test_a_cancelled_run_keeps_its_partial_text() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", hangs("It was ", "the pool"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        concerned = await handle.cancel("enough")
        outcome = await handle.wait()

        assert concerned == (handle.run_id,)
        assert outcome == Outcome(
            result="cancelled", reason="cancelled", text="It was the pool", error="enough", exchanges=1
        )
        assert now() == 1


async def test_a_run_can_be_cancelled_before_it_begins() -> None:
    async with Harness(dialects=()) as r:
        handle = await r.retinue.spawn("go")
        await r.retinue.cancel(handle)
        outcome = await handle.wait()

        assert (outcome.result, outcome.error, outcome.turns) == ("cancelled", "cancelled", 0)
        assert r.provider.asked == []


async def test_a_cancel_reaches_exactly_the_subtree() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", together(delegates("mid"), delegates("aside")), says("done"))
        r.script("mid", delegates("leaf", times=3))
        r.script("leaf", hangs())
        r.script("aside", streams("fi", "ne", every=100))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        written = r.written
        concerned = await r.retinue.cancel(r.run_of("mid"), "not needed")
        await asyncio.sleep(1)
        written = r.written - written
        tree = await r.retinue.tree(handle)
        outcome = await handle.wait()

        assert written == 6  # one cancel for all, four ends, and the result of the call that waited
        assert len(concerned) == 4
        assert concerned[0] == r.run_of("mid")
        assert how(tree) == {
            "root/mid/1": ("cancelled", "cancelled"),
            "root/mid/1/leaf/1": ("cancelled", "cancelled"),
            "root/mid/1/leaf/2": ("cancelled", "cancelled"),
            "root/mid/1/leaf/3": ("cancelled", "cancelled"),
        }
        assert r.results("main") == ["cancelled: not needed", "completed: fine"]
        assert outcome.text == "done"


@pytest.mark.parametrize("store", [None, SlowMemory()])
async def test_no_child_is_created_after_a_cancel(store: SlowMemory | None) -> None:
    """A tool that ignores its cancellation continues to spawn; every child is refused."""
    refused: list[str] = []

    @retinue.tool(kind="keyed")
    async def breed(context: CallContext) -> str:
        """SpawnRequest, be cancelled, and spawn again."""
        supervisor = r.retinue.supervisor
        run_spec = live_run(r.retinue, context.run_id).run_spec
        spawn_request = SpawnRequest(
            agent="child", run_spec=run_spec, task="live", lifecycle=Lifecycle(on_parent_end="keep")
        )

        async def spawn(number: int) -> None:
            key = f"{context.key}/{number}"
            await supervisor.spawn(spawn_request, session_id=context.session_id, caller=context, key=key)

        await spawn(1)
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            for number in (2, 3):
                try:
                    await spawn(number)
                except TreeCancelled as refusal:
                    refused.append(refusal.run_id)
                await asyncio.sleep(0.2)  # finally the run itself has ended
        return "bred"

    r = Harness(dialects=(), tools=[breed], store=store)
    async with r:
        r.script("main", calls("breed"))
        r.script("child", hangs())
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        concerned = await handle.cancel()
        outcome = await handle.wait()
        await asyncio.sleep(1)
        views = await r.retinue.list(everyone=True)

        assert refused == [handle.run_id, handle.run_id]
        assert {view.run_id for view in views} == set(concerned)
        assert {view.state for view in views} == {"ended"}
        assert outcome.unstopped == ("breed",)


@pytest.mark.parametrize("space", [None, "s"])
async def test_no_child_is_created_after_a_cancel_by_another_process(space: str | None) -> None:
    store = SharedMemory()
    second = Harness(store=store, dialects=())

    @retinue.tool(kind="pure")
    async def be_cancelled(context: CallContext) -> str:
        """Spawn a child just after a cancel by another process."""
        await second.retinue.cancel(context.root_id)
        result = await delegate.call(json.dumps({"agent": "dig", "space": space}), context)
        told.append(result.text)
        return result.text

    told: list[str] = []
    first, delegate = with_delegation(store=store, tools=(be_cancelled,))
    async with first, second:
        first.script("main", calls("be_cancelled"), hangs())
        handle = await first.retinue.spawn("go")
        outcome = await handle.wait()

        assert outcome.result == "cancelled"
        assert [view.agent for view in await second.retinue.list(everyone=True)] == ["main"]
        assert {asked.agent for asked in first.provider.asked} == {"main"}
        assert told == ([] if space else ["cancelled: cancelled before it could begin"])


@pytest.mark.stress
async def test_a_very_deep_tree_can_be_cancelled() -> None:
    deep = 1100  # deeper than the recursion limit

    def down(request: Request) -> Line:
        return delegates("nest") if request.path.count("/") < 2 * deep else hangs()

    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("nest"))
        r.script("nest", down)
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        concerned = await handle.cancel()
        await asyncio.sleep(1)
        states = {view.state for view in await r.retinue.list(everyone=True)}

        assert len(concerned) == deep + 1
        assert states == {"ended"}


async def test_a_cancel_reaches_children_that_outlived_their_parent() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("mid"), hangs())
        r.script("mid", delegates("leaf", wait=False, lifecycle={"on_parent_end": "keep"}), says("left one behind"))
        r.script("leaf", hangs())
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        concerned = await handle.cancel()
        async with asyncio.timeout(10):
            leaf = await r.retinue.handle(r.run_of("leaf")).wait()

        assert set(concerned) == {handle.run_id, r.run_of("leaf")}
        assert leaf.result == "cancelled"


async def test_a_cancel_of_an_ended_run_reaches_its_remaining_children() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("leaf", wait=False, lifecycle={"on_parent_end": "keep"}), says("done"))
        r.script("leaf", hangs())
        handle = await r.retinue.spawn("go")
        outcome = await handle.wait()
        concerned = await handle.cancel()
        async with asyncio.timeout(10):
            leaf = await r.retinue.handle(r.run_of("leaf")).wait()

        assert concerned == (r.run_of("leaf"),)
        assert (outcome.result, leaf.result) == ("completed", "cancelled")


# ---- children -------------------------------------------------------------------------------------------------------


async def test_children_end_or_continue_after_their_parent_as_configured() -> None:
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script(
            "main",
            together(
                delegates("goes", wait=False, task="a"),
                delegates("stays", wait=False, task="b", lifecycle={"on_parent_end": "keep"}),
            ),
            calls("nap", seconds=1),
            says("done"),
        )
        r.script("goes", delegates("below"))
        r.script("below", hangs())
        r.script("stays", streams("4", "2", every=50))
        handle = await r.retinue.spawn("go")
        await handle.wait()
        keep_alive = await r.retinue.handle(r.run_of("stays")).wait()
        goes = await r.retinue.handle(r.run_of("goes")).wait()

        assert keep_alive.text == "42"
        assert (goes.result, goes.reason, goes.error) == ("cancelled", "parent_ended", "its parent has ended")
        assert how(await r.retinue.tree(handle)) == {
            "root": ("completed", "answered"),
            "root/goes/1": ("cancelled", "parent_ended"),
            "root/goes/1/below/1": ("cancelled", "parent_ended"),
            "root/stays/2": ("completed", "answered"),
        }


async def test_the_end_of_a_run_reaches_below_children_that_have_ended() -> None:
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script("main", delegates("mid", wait=False), calls("nap", seconds=1), says("done"))
        r.script("mid", delegates("low"), hangs())
        r.script("low", delegates("leaf", wait=False, lifecycle={"on_parent_end": "keep"}), says("left one behind"))
        r.script("leaf", hangs())
        handle = await r.retinue.spawn("go")
        await handle.wait()
        await asyncio.sleep(1)

        assert how(await r.retinue.tree(handle)) == {
            "root": ("completed", "answered"),
            "root/mid/1": ("cancelled", "parent_ended"),
            "root/mid/1/low/1": ("completed", "answered"),
            "root/mid/1/low/1/leaf/1": ("cancelled", "parent_ended"),
        }


# ---- late and repeated cancels --------------------------------------------------------------------------------------


class UncancellableProvider:
    """A provider that answers although it is cancelled."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Too late, unless it is a simple question."""
        if request.messages[0].text == "simple":
            return Reply(AssistantMessage("in time"))
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            self.answered.set()
        return Reply(AssistantMessage("too late"), usage=Usage(10, 2))


async def test_a_reply_after_the_cancel_changes_nothing() -> None:
    model = UncancellableProvider()
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        handle = await r.spawn("go")
        await asyncio.sleep(1)
        await handle.cancel()
        outcome = await handle.wait()
        told = now()
        before = [event async for event in handle.events()]
        await model.answered.wait()
        await asyncio.sleep(1)

        assert outcome == Outcome(result="cancelled", reason="cancelled", error="cancelled", unstopped=("model",))
        assert told < 1.1
        assert [event async for event in handle.events()] == before
        assert await handle.wait() == outcome
        assert (await r.run("simple")).text == "in time"


async def test_a_tool_that_ignores_its_cancellation_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    finished = asyncio.Event()

    @retinue.tool(kind="pure")
    async def deaf() -> str:
        """Never listen."""
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        finished.set()
        return "did it anyway"

    async with Harness(dialects=(), tools=[deaf, nap]) as r:
        r.script("main", together(calls("deaf"), calls("nap", seconds=100), calls("deaf")), task="go")
        r.script("main", says("fine"), task="something else")
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await handle.cancel()
        outcome = await handle.wait()
        await finished.wait()
        await asyncio.sleep(1)

        assert outcome.unstopped == ("deaf",)
        assert isinstance(r.events(handle.run_id)[-1], RunEnded)
        assert (await r.run("something else")).text == "fine"
        assert caplog.records == []


async def test_a_tool_that_raises_while_it_is_stopped_has_no_effect() -> None:
    @retinue.tool(kind="pure")
    async def brittle() -> str:
        """Break when touched."""
        try:
            await asyncio.sleep(1000)
        finally:
            raise ValueError("do not touch")

    async with Harness(dialects=(), tools=[brittle]) as r:
        r.script("main", calls("brittle"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await handle.cancel()
        outcome = await handle.wait()

        assert (outcome.result, outcome.unstopped) == ("cancelled", ())


async def test_a_thread_cannot_be_stopped_and_is_reported() -> None:
    go_on = threading.Event()
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    @retinue.tool(kind="pure")
    def thread() -> str:
        """Work where no cancellation arrives."""
        loop.call_soon_threadsafe(entered.set)
        go_on.wait(10)
        return "worked"

    async with Harness(dialects=(), tools=[thread]) as r:
        r.script("main", calls("thread"))
        handle = await r.retinue.spawn("go")
        await entered.wait()
        await handle.cancel()
        outcome = await handle.wait()
        go_on.set()

        assert (outcome.result, outcome.unstopped) == ("cancelled", ("thread",))
        assert r.results("main") == []


async def test_a_second_cancel_has_no_effect() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        first = await handle.cancel("one")
        second = await handle.cancel("two")
        outcome = await handle.wait()
        third = await handle.cancel("three")

        assert (first, second, third) == ((handle.run_id,), (), ())
        assert outcome.error == "one"
        assert await handle.wait() == outcome


async def test_a_run_that_has_ended_cannot_be_cancelled_any_more() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", says("done"))
        outcome = await r.run("go")
        run_id = r.run_of("main")
        before = r.events(run_id)

        assert await r.retinue.cancel(run_id) == ()
        await r.restart()
        assert await r.retinue.cancel(run_id) == ()
        assert r.events(run_id) == before
        assert await r.retinue.handle(run_id).wait() == outcome


# ---- from another process -------------------------------------------------------------------------------------------


async def test_another_process_can_cancel_a_run_without_a_driver() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig"))
        r.script("dig", hangs())
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.kill()
        later = await r.open()
        concerned = await later.cancel(handle.run_id, "not needed any more")
        outcome = await later.handle(handle.run_id).wait()

        assert concerned == (handle.run_id, r.run_of("dig"))
        assert (outcome.result, outcome.error, outcome.turns) == ("cancelled", "not needed any more", 1)
        await r.restart()
        assert how(await r.retinue.tree(handle.run_id)) == {
            "root": ("cancelled", "cancelled"),
            "root/dig/1": ("cancelled", "cancelled"),
        }
        assert len(r.provider.asked) == 2


async def test_another_process_can_cancel_a_run_that_this_one_drives() -> None:
    store = SharedMemory()
    first, _ = with_delegation(store=store)
    async with first, Harness(store=store, dialects=()) as second:
        first.script("main", delegates("dig"))
        first.script("dig", hangs())
        handle = await first.retinue.spawn("go")
        await asyncio.sleep(1)
        concerned = await second.retinue.cancel(handle.run_id, "stop")
        outcome = await handle.wait()
        below = await first.retinue.handle(first.run_of("dig")).wait()

        assert concerned == (handle.run_id, first.run_of("dig"))
        assert (outcome.result, outcome.error, below.result) == ("cancelled", "stop", "cancelled")
        assert now() < 2


async def test_a_cancel_interrupted_by_a_kill_still_takes_effect() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", in_sequence(hangs(), says("never")))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.retinue.cancel(handle)  # stored; the end of the run itself is not written any more
        await r.restart()
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert outcome.result == "cancelled"
        assert len(r.provider.asked) == 1
