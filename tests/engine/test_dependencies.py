"""Runs with dependencies, and keep-alive children that are waited for only while they work."""

import asyncio
from contextlib import suppress
from typing import Any

from retinue.core.errors import StoreError
from retinue.core.inbox import TextMessage
from retinue.core.messages import Origin, UserMessage
from retinue.core.ports import Request
from retinue.providers.scripted import Script, ScriptedProvider, ScriptedReply, says, streams
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from tests.engine.delegation import Delegate, delegates, with_delegation

WAITED_FOR = {"on_parent_end": "wait"}


def heard_in_system(request: Request) -> ScriptedReply:
    return says(f"I was told: {request.system}")


def slowly(**options: Any) -> tuple[Harness, Delegate]:
    return with_delegation(provider=ScriptedProvider(Script(), latency=1.0), **options)


async def test_a_run_begins_after_its_dependencies_and_reads_their_results() -> None:
    harness, delegate = slowly()
    async with harness as r:
        r.script(
            "main",
            delegates("first", wait=False, lifecycle=WAITED_FOR),
            delegates("second", after=["first"], wait=False, lifecycle=WAITED_FOR),
            says("done"),
        )
        r.script("first", streams("the pool", " is 10", every=5))
        r.script("second", heard_in_system)
        outcome = await r.run("go")
        first, second = [await r.retinue.handle(each.run_id).look() for each in delegate.started]

        assert outcome.text == "done"
        assert first.outcome is not None
        assert second.outcome is not None
        assert second.outcome.text == "I was told: You work with:\n[first]\nthe pool is 10"
        assert second.started_at < (first.ended_at or 0)


async def test_a_pending_run_is_shown_as_waiting_and_does_not_count_as_running() -> None:
    harness, delegate = slowly()
    async with harness as r:
        r.script(
            "main",
            delegates("first", wait=False, space="t", max_running=1, lifecycle=WAITED_FOR),
            delegates("second", after=["first"], wait=False, space="t", max_running=2, lifecycle=WAITED_FOR),
            delegates("third", wait=False, space="t", max_running=2, lifecycle=WAITED_FOR),
            says("done"),
        )
        r.script("first", streams("slow", "ly", every=10))
        r.script("second", says("ok"))
        r.script("third", says("ok"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(3.5)
        shown = [await r.retinue.handle(each.run_id).look() for each in delegate.started]
        outcome = await handle.wait()

        assert [(view.state, view.waiting_for) for view in shown] == [
            ("working", None),
            ("waiting", "dependency"),
            ("working", None),
        ], "with one that runs and one that waits, a second may run and a third could not"
        assert outcome.text == "done"


async def test_a_failed_dependency_fails_the_dependent_run_with_the_reason() -> None:
    harness, delegate = slowly()
    async with harness as r:
        r.script(
            "main",
            delegates("first", wait=False, limits={"max_calls": 0}, lifecycle=WAITED_FOR),
            delegates("second", after=["first"], wait=False, lifecycle=WAITED_FOR),
            says("done"),
        )
        r.script("first", delegates("unknown"))
        await r.run("go")
        second = await r.retinue.handle(delegate.started[1].run_id).look()

        assert second.outcome is not None
        assert (second.outcome.result, second.outcome.reason) == ("failed", "dependency")
        assert second.outcome.error == "Dependency first failed: the tool call budget is spent: used 1, limit 0"


async def test_a_dependency_may_have_ended_before() -> None:
    harness, delegate = slowly()
    async with harness as r:
        r.script("main", delegates("first"), delegates("second", after=["first"]), says("done"))
        r.script("first", says("early"))
        r.script("second", heard_in_system)
        await r.run("go")
        second = await r.retinue.handle(delegate.started[1].run_id).look()

        assert second.outcome is not None
        assert second.outcome.text == "I was told: You work with:\n[first]\nearly"


async def test_a_pending_run_begins_once_with_its_results_after_a_crash_at_any_write() -> None:
    for writes in range(1, 40):
        store = MemoryStore()
        harness, _ = slowly(store=store)
        harness.script(
            "main",
            delegates("first", wait=False, lifecycle=WAITED_FOR),
            delegates("second", after=["first"], wait=True, lifecycle=WAITED_FOR),
            says("done"),
        )
        harness.script("first", says("the pool is 10"))
        harness.script("second", heard_in_system)
        finished = False
        with suppress(StoreError):
            await harness.open(killed_after=writes)
            await harness.run("go", key="the story")
            finished = True
        await harness.restart()
        outcome = await harness.run("go", key="the story")
        views = await harness.retinue.list()
        tree = await harness.retinue.tree(views[0].run_id)
        told = [view.outcome.text for view in tree if view.agent == "second" and view.outcome is not None]
        await harness.close()

        assert (writes, outcome.text) == (writes, "done")
        assert (writes, told) == (writes, ["I was told: You work with:\n[first]\nthe pool is 10"])
        if finished:
            break


async def test_successive_peer_messages_are_joined_and_no_others() -> None:
    heard: list[list[str]] = []

    def listening(request: Request) -> ScriptedReply:
        heard.append([message.text for message in request.messages if isinstance(message, UserMessage)])
        return says("ok")

    async with Harness(dialects=(), provider=ScriptedProvider(Script(), latency=1.0)) as r:
        r.script("main", listening)
        handle = await r.retinue.spawn("go")
        said: list[tuple[str, Origin]] = [("a", "peer"), ("b", "peer"), ("c", "notice"), ("d", "peer")]
        for text, origin in said:
            await r.retinue.supervisor.post(handle.run_id, TextMessage(key=text, text=text, origin=origin))
        await handle.wait()

        assert heard == [["go", "a\n\nb", "c", "d"]]


async def test_a_parent_waits_for_a_working_keep_alive_child_and_ends_it() -> None:
    harness, delegate = slowly()
    async with harness as r:
        r.script(
            "main", delegates("host", wait=False, lifecycle={"stays": True, "on_parent_end": "wait"}), says("done")
        )
        r.script("host", delegates("slow"), says("at your service"))
        r.script("slow", says("slept"))
        outcome = await r.run("go")
        host = await r.retinue.handle(delegate.started[0].run_id).look()

        assert outcome.text == "done"
        assert host.outcome is not None
        assert (host.outcome.reason, host.outcome.exchanges, host.turns) == ("parent_ended", 1, 2)
