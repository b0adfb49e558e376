"""Runs through the public API: start, view, list, events, keys, forks, and failures."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.commands import CloseSession
from retinue.core.errors import NotAdoptable, SessionClosed, StoreError, UnknownName
from retinue.core.events import (
    CallParked,
    Event,
    RunAccepted,
)
from retinue.core.messages import Delta, Stop, TextDelta, UserMessage
from retinue.core.ports import Request
from retinue.core.run import HistoryRef, Limits, Outcome
from retinue.core.usage import Usage
from retinue.engine import RunView
from retinue.providers.scripted import (
    Line,
    Script,
    ScriptedProvider,
    ScriptedReply,
    calls,
    hangs,
    says,
    streams,
    together,
)
from retinue.testing.harness import Harness
from retinue.testing.virtual_time import NEW_YEAR
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory, SlowMemory
from tests.engine.script_lines import in_sequence
from tests.internals import tune

TWO = Usage(input=10, output=2)


def kinds(events: list[Event] | list[Event | Delta]) -> list[str]:
    return [type(event).__name__ for event in events]


async def all_of(events: AsyncIterator[Event | Delta]) -> list[Event | Delta]:
    return [event async for event in events]


@retinue.tool(kind="pure")
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: found"


# ---- answers --------------------------------------------------------------------------------------------------------


async def test_a_run_ends_with_the_answer_of_its_model() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", says("Four.", usage=TWO))

        outcome = await r.run("two and two?")

    assert outcome == Outcome(result="completed", reason="answered", text="Four.", usage=TWO, cost=None, turns=1)
    assert outcome.ok


async def test_usage_and_cost_are_sums_over_all_turns() -> None:
    provider = ScriptedProvider(Script(), prices={"m": (3, 5)})
    async with Harness(dialects=(), tools=[look_up], provider=provider, model="m") as r:
        r.script("main", together(calls("look_up", word="a"), says("", usage=TWO)), says("done", usage=TWO))

        outcome = await r.run("look")

    assert outcome == Outcome(
        result="completed", reason="answered", text="done", usage=Usage(20, 4), cost=2 * (30 + 10), turns=2
    )


async def test_an_empty_answer_is_never_ok() -> None:
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script("main", together(says("I will look."), calls("look_up", word="a")), says("", usage=TWO))

        outcome = await r.run("look")

    assert (outcome.result, outcome.reason, outcome.text, outcome.ok) == ("completed", "empty", "", False)


@pytest.mark.parametrize(
    ("stop", "result", "error"),
    [("length", "completed", ""), ("refusal", "failed", "the model declined to answer")],
)
async def test_a_truncated_or_refused_answer_has_its_reason(stop: Stop, result: str, error: str) -> None:
    async with Harness(dialects=()) as r:
        r.script("main", says("I think", usage=TWO, stop=stop))

        outcome = await r.run("think")

    assert (outcome.result, outcome.reason, outcome.text, outcome.error) == (result, stop, "I think", error)


async def test_the_model_reads_system_text_task_and_tools_of_its_agent() -> None:
    heard: list[Request] = []

    def listen(request: Request) -> ScriptedReply:
        heard.append(request)
        return says("yes")

    agent = Agent(name="clerk", system_prompt="You are a clerk.", tools=("look_up",), model="small")
    async with Harness(dialects=(), tools=[look_up], agents=[agent]) as r:
        r.script("clerk", listen)

        await r.run("Find it.", agent="clerk", system="Be quick.")

    (request,) = heard
    assert (request.system, request.model, request.agent, request.path, request.turn) == (
        "You are a clerk.\n\nBe quick.",
        "small",
        "clerk",
        "root",
        1,
    )
    assert request.messages[0] == UserMessage("Find it.")
    assert request.tools == (look_up.spec,)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"agent": "unknown"}, "agent"),
        ({"tools": ["nothing"]}, "tool"),
        ({"dialects": ["x"]}, "dialect"),
    ],
)
async def test_an_unknown_name_is_rejected_before_the_start(how: dict[str, object], kind: str) -> None:
    async with Harness(dialects=()) as r:
        with pytest.raises(UnknownName) as refusal:
            await r.run("go", **how)

        assert refusal.value.kind == kind
        assert await r.retinue.list() == []


async def test_an_unknown_run_raises_unknown_name_for_every_verb() -> None:
    async with Harness(dialects=()) as r:
        unknown = r.retinue.handle("unknown")
        with pytest.raises(UnknownName):
            await unknown.look()
        with pytest.raises(UnknownName):
            await unknown.wait()
        with pytest.raises(UnknownName):
            await unknown.send("hello?")
        with pytest.raises(UnknownName):
            await unknown.cancel()
        with pytest.raises(UnknownName):
            await r.retinue.resume("unknown")
        with pytest.raises(UnknownName):
            await r.retinue.fork("unknown", "go on")
        with pytest.raises(UnknownName):
            r.retinue.supervisor.fork_point("unknown")
        with pytest.raises(UnknownName):
            await all_of(unknown.events())

        assert await r.retinue.tree("unknown") == []
        assert repr(unknown) == "RunHandle('unknown')"


async def test_no_run_is_started_in_a_deleted_session() -> None:
    async with Harness(dialects=()) as r:
        await r.retinue.sessions.delete("session")

        with pytest.raises(SessionClosed) as refusal:
            await r.run("go")

        assert (refusal.value.session_id, refusal.value.state) == ("session", "deleted")
        assert await r.retinue.list() == []
        assert list(r.retinue.supervisor.recent_ends()) == []


@pytest.mark.parametrize("space", [None, "tasks"])
async def test_an_archived_session_has_root_runs_that_start_no_others(space: str | None) -> None:
    r, tool = with_delegation()
    async with r:
        await r.retinue.sessions.archive("session")
        r.script("main", delegates("dig", space=space), says("read it"))
        outcome = await r.run("go")

        assert (outcome.text, tool.started) == ("read it", [])
        assert r.results("main") == ["SessionClosed: session 'session' is archived"]
        assert [view.agent for view in await r.retinue.list(everyone=True)] == ["main"]
        assert [view.agent for view in r.retinue.supervisor.recent_ends()] == ["main"]


async def test_a_session_that_another_process_archives_leaves_nothing_of_a_refused_run() -> None:
    store = SharedMemory()
    r, _ = with_delegation(store=store)
    async with r:
        r.script("main", delegates("dig"), delegates("late", space="tasks"), says("done"))
        r.script("dig", lambda request: _archived(store))
        await r.run("go")

        assert r.results("main") == ["completed: dug", "SessionClosed: session 'session' is archived"]
        assert [view.agent for view in r.retinue.supervisor.recent_ends()] == ["main", "dig"]


def _archived(store: SharedMemory) -> Line:
    """An answer before which another process archives the session."""
    store.commit(None, (CloseSession(session_id="session", how="archive"),))
    return says("dug")


# ---- views ----------------------------------------------------------------------------------------------------------


async def test_a_view_shows_the_state_from_acceptance_to_end() -> None:
    provider = ScriptedProvider(Script(), latency=5.0)
    async with Harness(dialects=(), provider=provider) as r:
        r.script("main", says("done", usage=TWO))

        handle = await r.retinue.spawn("go")
        accepted = await handle.look()
        await asyncio.sleep(1)
        working = await handle.look()
        outcome = await handle.wait()
        ended = await handle.look()

    assert accepted == RunView(
        run_id=handle.run_id,
        session_id="session",
        root_id=handle.run_id,
        parent_id=None,
        depth=0,
        path="root",
        agent="main",
        label="",
        dialect="",
        handle=None,
        state="queued",
        usage=Usage(),
        started_at=NEW_YEAR,
        task="go",
    )
    assert (working.state, working.waiting_for, working.turns) == ("working", None, 0)
    assert (ended.state, ended.outcome, ended.turns, ended.usage) == ("ended", outcome, 1, TWO)
    assert (ended.started_at, ended.ended_at) == (NEW_YEAR, NEW_YEAR + 5)


async def test_an_ended_run_has_the_same_view_in_a_later_process() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig", space="s"), says("done"))
        r.script("dig", says("42"))
        await r.run("go")
        before = await r.retinue.list(everyone=True)
        looked = [await r.retinue.handle(view.run_id).look() for view in before]
        await r.restart()
        after = await r.retinue.list(everyone=True)

        assert before == looked == after
        assert [(view.path, view.handle and view.handle.name) for view in after] == [
            ("root/dig/1", "t_01"),
            ("root", None),
        ]


async def test_the_list_has_roots_newest_first_and_all_runs_on_demand() -> None:
    r, _ = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        r.script("main", says("one"), task="first")
        r.script("main", delegates("dig"), says("two"), task="second")
        r.script("dig", says("42"))
        await r.run("first")
        await r.run("second")

        roots = await r.retinue.list()
        all_runs = await r.retinue.list(everyone=True)
        newest = await r.retinue.list(limit=1)
        tree = await r.retinue.tree(roots[0].run_id)

        assert [view.outcome and view.outcome.text for view in roots] == ["two", "one"]
        assert [view.path for view in all_runs] == ["root/dig/1", "root", "root"]
        assert newest == roots[:1]
        assert tree == all_runs[:2]
        assert await r.retinue.list(session="elsewhere") == []
        assert await r.retinue.list(session="session") == roots


async def test_a_run_without_a_driver_is_interrupted_and_a_view_does_not_start_it() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.kill()
        later = await r.open()

        view = await later.handle(handle.run_id).look()
        (listed,) = await later.list()

        assert view == listed
        assert (view.state, view.waiting_for, view.turns) == ("interrupted", None, 0)
        assert len(r.provider.asked) == 1


async def test_another_process_sees_the_state_of_a_run() -> None:
    store = SharedMemory()
    provider = ScriptedProvider(Script(), latency=1.0)
    first, _ = with_delegation(store=store, provider=provider)
    async with first, Harness(store=store, dialects=()) as second:
        provider.script.play("main", delegates("dig", lifecycle={"awaited": True}), says("done"))
        provider.script.play("dig", says("42"))
        handle = await first.retinue.spawn("go")
        begun = await second.retinue.handle(handle.run_id).look()
        await asyncio.sleep(1.5)
        here = {view.path: (view.state, view.waiting_for) for view in await first.retinue.tree(handle)}
        there = {view.path: (view.state, view.waiting_for) for view in await second.retinue.tree(handle.run_id)}
        outcome = await second.retinue.handle(handle.run_id).wait()

        assert begun.state == "working"
        assert here == {"root": ("waiting", "child"), "root/dig/1": ("working", None)}
        assert there == {"root": ("waiting", "child"), "root/dig/1": ("working", None)}
        assert outcome == await handle.wait()


async def test_forgotten_ended_runs_are_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune(monkeypatch, remembered_runs=1)
    async with Harness(dialects=()) as r:
        r.script("main", says("one"), task="first")
        r.script("main", says("two"), task="second")
        first = await r.retinue.spawn("first")
        remembered = await first.wait()
        view = await first.look()
        await r.run("second")

        assert r.retinue.supervisor.ended(first.run_id) is None
        assert await first.wait() == remembered
        assert await first.look() == view


# ---- events ---------------------------------------------------------------------------------------------------------


async def test_events_range_from_acceptance_to_end_with_deltas() -> None:
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script("main", calls("look_up", word="a"), streams("Hel", "lo", every=1.0))
        handle = await r.retinue.spawn("go")

        told = await all_of(handle.events())

        assert kinds(told) == [
            "RunAccepted",
            "CallDelta",
            "ReplyReceived",
            "CallReturned",
            "TextDelta",
            "TextDelta",
            "ReplyReceived",
            "RunEnded",
        ]
        assert [what for what in told if isinstance(what, Event)] == r.events(handle.run_id)
        assert await all_of(r.retinue.events(handle)) == r.events(handle.run_id)


async def test_a_late_reader_catches_up_and_reads_each_event_once() -> None:
    provider = ScriptedProvider(Script(), latency=1.0)
    async with Harness(dialects=(), tools=[look_up], provider=provider) as r:
        r.script("main", *(calls("look_up", word=str(n)) for n in range(3)), says("done"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(2.5)

        told = await all_of(handle.events())

        assert [what for what in told if isinstance(what, Event)] == r.events(handle.run_id)


async def test_a_lagging_reader_loses_deltas_but_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, reader_capacity=4)
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script(
            "main",
            together(streams(*"0123456789"), calls("look_up", word="a")),
            *(calls("look_up", word=str(n)) for n in range(6)),
            says("done"),
        )
        handle = await r.retinue.spawn("go")
        events = handle.events()
        told: list[Event | Delta] = [await anext(events)]
        await handle.wait()

        told += await all_of(events)

        assert [what for what in told if isinstance(what, Event)] == r.events(handle.run_id)
        assert not [what for what in told if isinstance(what, TextDelta)]


async def test_a_slow_reader_misses_no_event_while_it_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune(monkeypatch, reader_capacity=2)
    provider = ScriptedProvider(Script(), latency=1.0)
    async with Harness(dialects=(), tools=[look_up], provider=provider) as r:
        r.script("main", *(calls("look_up", word=str(n)) for n in range(8)), says("done"))
        handle = await r.retinue.spawn("go")

        told: list[Event] = []
        async with asyncio.timeout(3600):
            async for what in handle.events():
                if isinstance(what, Event):
                    told.append(what)
                    await asyncio.sleep(1.7)  # slower than the run, which ends while the reader catches up

        assert told == r.events(handle.run_id)


async def test_readers_join_and_leave_independently() -> None:
    provider = ScriptedProvider(Script(), latency=1.0)
    async with Harness(dialects=(), tools=[look_up], provider=provider) as r:
        r.script("main", calls("look_up", word="a"), says("done"))
        handle = await r.retinue.spawn("go")
        one = asyncio.create_task(all_of(handle.events()))
        two = handle.events()
        first = await anext(two)
        assert isinstance(two, AsyncGenerator)
        await two.aclose()

        assert isinstance(first, RunAccepted)
        assert kinds(await one)[-1] == "RunEnded"
        assert await handle.wait() == (await handle.look()).outcome


# ---- keys -----------------------------------------------------------------------------------------------------------


async def test_the_same_key_gives_the_same_run() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", says("done"))

        one, other = await asyncio.gather(r.retinue.spawn("go", key="k"), r.retinue.spawn("go", key="k"))
        third = await r.retinue.spawn("go", key="k")
        outcome = await r.run("something else", key="k")

        assert one.run_id == other.run_id == third.run_id
        assert outcome == await one.wait()
        assert len(r.provider.asked) == 1
        assert [view.run_id for view in await r.retinue.list()] == [one.run_id]


async def test_two_concurrent_spawns_with_one_key_are_one_run() -> None:
    async with Harness(dialects=(), store=SlowMemory()) as r:
        r.script("main", says("done"))

        handles = await asyncio.gather(*(r.retinue.spawn("go", key="k") for _ in range(5)))
        outcomes = [await handle.wait() for handle in handles]

        assert len({handle.run_id for handle in handles}) == 1
        assert {outcome.text for outcome in outcomes} == {"done"}
        assert len(r.provider.asked) == 1


async def test_the_same_key_in_a_later_process_resumes_the_interrupted_run() -> None:
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script("main", calls("look_up", word="a"), in_sequence(hangs(), says("done")))
        first = await r.retinue.spawn("go", key="k")
        await asyncio.sleep(1)
        await r.kill()
        later = await r.open()

        outcome = await later.run("go", key="k")

        assert (outcome.text, outcome.turns) == ("done", 2)
        assert [asked.turn for asked in r.provider.asked] == [1, 2, 2]
        assert kinds(r.events(first.run_id)) == [
            "RunAccepted",
            "ReplyReceived",
            "CallReturned",
            "RunAdopted",
            "ReplyReceived",
            "RunEnded",
        ]


async def test_the_same_key_in_a_later_process_returns_the_outcome() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", says("done"))
        before = await r.run("go", key="k")
        await r.restart()

        assert await r.run("go", key="k") == before
        assert len(r.provider.asked) == 1


async def test_a_key_inside_a_call_gives_the_same_child_even_after_it_has_ended() -> None:
    @retinue.tool(kind="keyed")
    async def twice(context: retinue.CallContext) -> str:
        """Delegate twice with one key."""
        arguments = '{"agent": "dig"}'
        one = await delegate.call(arguments, context)
        other = await delegate.call(arguments, context)
        return f"{one.text}, {other.text}"

    r, delegate = with_delegation(tools=(twice,))
    async with r:
        r.script("main", calls("twice"), says("done"))
        r.script("dig", says("42"))

        await r.run("go")

        assert r.results("main") == ["completed: 42, completed: 42"]
        assert [view.agent for view in await r.retinue.list(everyone=True)] == ["dig", "main"]


async def test_a_run_that_another_process_drives_cannot_be_resumed_here() -> None:
    store = SharedMemory()
    async with Harness(store=store, dialects=()) as first, Harness(store=store, dialects=()) as second:
        first.script("main", hangs())
        handle = await first.retinue.spawn("go", key="k")
        await asyncio.sleep(1)

        with pytest.raises(NotAdoptable) as refusal:
            await second.retinue.resume(handle.run_id)

        assert (refusal.value.run_id, refusal.value.reason) == (handle.run_id, "another process is driving it")
        assert (await first.retinue.resume(handle)).run_id == handle.run_id
        await handle.cancel()


# ---- forks ----------------------------------------------------------------------------------------------------------


async def test_a_fork_begins_with_the_history_of_another_run() -> None:
    heard: list[list[str]] = []

    def listen(request: Request) -> ScriptedReply:
        heard.append([message.text for message in request.messages])
        return says("forked", usage=TWO)

    async with Harness(dialects=()) as r:
        r.script("main", says("one"), task="first")
        r.script("main", listen, task="and then?")
        origin = await r.retinue.spawn("first")
        await origin.wait()

        fork = await r.retinue.fork(origin, "and then?")
        outcome = await fork.wait()
        await r.restart()
        again = await (await r.retinue.fork(fork.run_id, "and then? (again)", last_turns=1)).wait()

        assert (outcome.text, again.text) == ("forked", "forked")
        assert heard == [["first", "one", "and then?"], ["and then?", "forked", "and then? (again)"]]
        assert (await r.retinue.handle(fork.run_id).look()).parent_id is None


async def test_a_fork_of_a_live_run_begins_with_its_current_history() -> None:
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script("main", calls("look_up", word="a"), hangs(), task="first")
        r.script("main", says("forked"), task="and then?")
        origin = await r.retinue.spawn("first")
        await asyncio.sleep(1)

        fork = await r.retinue.fork(origin, "and then?")
        outcome = await fork.wait()
        accepted = r.events(fork.run_id)[0]
        here = r.retinue.supervisor.fork_point(origin.run_id, last_turns=1)
        await origin.cancel()

        assert outcome.text == "forked"
        assert isinstance(accepted, RunAccepted)
        assert accepted.inherits == HistoryRef(origin.run_id, 3)
        assert here == HistoryRef(origin.run_id, 3, 1)


# ---- bugs and store errors ------------------------------------------------------------------------------------------


class _Priced(ScriptedProvider):
    """A provider with a bug, for one model."""

    def price(self, model: str) -> tuple[int, int] | None:
        if model == "buggy":
            raise ZeroDivisionError("division by zero")
        return None


async def test_a_bug_ends_only_its_own_run() -> None:
    async with Harness(dialects=(), provider=_Priced(Script(), latency=1.0)) as r:
        r.script("main", says("done"), task="fine")
        fine = await r.retinue.spawn("fine")

        outcome = await r.run("broken", model="buggy", limits=Limits(max_nanodollars=1))

        assert (outcome.result, outcome.reason) == ("failed", "bug")
        assert outcome.error == "internal error: ZeroDivisionError('division by zero')"
        assert (await fine.wait()).text == "done"


async def test_a_run_whose_provider_was_removed_fails_with_a_reason() -> None:
    async with Harness(dialects=()) as r:
        handle = await r.retinue.spawn("go")
        r.retinue.providers._reached.clear()

        outcome = await handle.wait()

    assert (outcome.result, outcome.reason, outcome.error) == (
        "failed",
        "model_error",
        "no provider named 'custom' here",
    )


async def test_a_store_refusal_stops_runs_and_raises_in_waiters() -> None:
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script("main", calls("look_up", word="a"), says("done"))
        await r.close()
        await r.open(killed_after=5)  # session, driver, acceptance, reply, return: the last reply is refused

        with pytest.raises(StoreError, match="killed after write 5"):
            await r.run("go")
        with pytest.raises(StoreError, match="killed after write 5"):
            await r.run("go again")
        (view,) = await r.retinue.list()
        with pytest.raises(StoreError, match="killed after write 5"):
            await r.retinue.send(view.run_id, "hello?")
        with pytest.raises(StoreError, match="killed after write 5"):
            await r.retinue.cancel(view.run_id)
        await r.restart()

        assert (await r.retinue.handle(view.run_id).wait()).text == "done"
        assert kinds(r.events(view.run_id)) == [
            "RunAccepted",
            "ReplyReceived",
            "CallReturned",
            "RunAdopted",
            "ReplyReceived",
            "RunEnded",
        ]


async def test_a_turn_with_calls_stores_one_event_for_the_reply_and_one_for_each_call() -> None:
    async with Harness(dialects=(), tools=[look_up]) as r:
        r.script("main", together(*(calls("look_up", word=str(n)) for n in range(3))), says("done"))

        await r.run("go")

        assert kinds(r.events(r.run_of("main"))) == [
            "RunAccepted",
            "ReplyReceived",
            *["CallReturned"] * 3,
            "ReplyReceived",
            "RunEnded",
        ]


# ---- sync wrapper ---------------------------------------------------------------------------------------------------


def test_the_sync_wrapper_has_the_same_verbs_without_await() -> None:
    @retinue.tool(kind="pure", risk="medium")
    def careful() -> str:
        """Do something that needs an approval."""
        return "was allowed"

    script = (
        Script()
        .play("main", says("one"), task="first")
        .play("main", says("hello"), says("again"), task="stay")
        .play("main", says("forked"), task="fork")
        .play("main", hangs(), task="hang")
        .play("main", calls("careful"), says("thanks"), task="careful")
    )
    model = ScriptedProvider(script)
    with retinue.open_sync(provider=model, home=retinue.MEMORY, dialects=(), tools=[careful], approvals="wait") as r:
        assert r.run("first").text == "one"

        keep_alive = r.spawn("stay", keep_alive=True)
        assert keep_alive.ask("more").text == "again"
        assert keep_alive.look().state == "idle"
        assert keep_alive.close().exchanges == 2
        assert kinds(list(keep_alive.events()))[0] == "RunAccepted"

        fork = r.fork(keep_alive, "fork")
        assert r.wait(fork, mode="any")[fork.run_id].text == "forked"
        assert r.resume(fork).wait(timeout=10).text == "forked"

        hanging = r.spawn("hang")
        r.send(hanging, "hello?")
        hanging.send("still there?")
        assert hanging.cancel("enough") == (hanging.run_id,)
        assert hanging.wait().error == "enough"
        assert r.cancel(hanging) == ()

        asking = r.spawn("careful")
        told = asking.events()
        while not isinstance(next(told), CallParked):
            pass
        (question,) = r.approvals()
        r.approve(question)
        assert asking.wait().text == "thanks"
        assert [view.state for view in r.list(everyone=True)] == ["ended"] * 5


def test_the_sync_wrapper_reports_when_it_is_not_open_and_closes_on_failure() -> None:
    closed = retinue.open_sync(provider=ScriptedProvider(Script()), home=retinue.MEMORY)
    with pytest.raises(RuntimeError, match="not open"):
        closed.list()
    closed._loop.close()

    with pytest.raises(retinue.RetinueError, match="no model is configured"), retinue.open_sync(home=retinue.MEMORY):
        pass
