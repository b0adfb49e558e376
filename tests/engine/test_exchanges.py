"""Keep-alive runs: one exchange per input, and messages that are read at the next turn."""

import asyncio
from collections.abc import Sequence

import pytest

import retinue
from retinue.core.errors import BadInput, RunIsOver
from retinue.core.events import MailTaken
from retinue.core.messages import Message, UserMessage
from retinue.core.ports import Request, Store
from retinue.core.run import Exchange, LimitMet, Limits, Outcome
from retinue.core.usage import Usage
from retinue.providers.scripted import (
    Line,
    LineFunction,
    Script,
    ScriptedProvider,
    ScriptedReply,
    calls,
    hangs,
    says,
    together,
)
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory
from tests.engine.script_lines import recording

FREE = Usage()


@retinue.tool(kind="pure")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


def answered(text: str, *, turns: int = 1) -> Exchange:
    return Exchange(result="completed", reason="answered", text=text, turns=turns)


def slow(store: Store | None = None) -> Harness:
    """A retinue whose model takes a second to answer."""
    return Harness(dialects=(), tools=[nap], provider=ScriptedProvider(Script(), latency=1.0), store=store)


def words(heard: Sequence[Message]) -> list[str]:
    return [message.text for message in heard if isinstance(message, UserMessage)]


# ---- exchanges ------------------------------------------------------------------------------------------------------


async def test_a_keep_alive_run_is_idle_after_its_answer_and_takes_input() -> None:
    async with slow() as r:
        r.script("main", says("one", usage=FREE), says("two", usage=FREE), says("three", usage=FREE))
        handle = await r.retinue.spawn("first", keep_alive=True)
        first = await handle.answer()
        idle = await handle.look()
        second = await handle.ask("second")
        third = await handle.ask("third")
        outcome = await handle.close()

        assert [first, second, third] == [answered("one"), answered("two"), answered("three")]
        assert (idle.state, idle.waiting_for, idle.outcome, idle.turns) == ("idle", "mail", None, 1)
        assert outcome == Outcome(
            result="completed", reason="answered", text="three", cost=None, turns=3, exchanges=3, usage=FREE
        )
        assert [await handle.answer(number) for number in (1, 2, 3)] == [first, second, third]
        assert (await handle.look()).state == "ended"


async def test_every_exchange_reads_the_earlier_ones() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", calls("nap", seconds=1), says("one"), recording(heard, says("two")))
        handle = await r.retinue.spawn("first", keep_alive=True)
        first = await handle.answer()
        await handle.ask("second")
        await handle.close()

        assert first == answered("one", turns=2)
        assert [message.text for message in heard[0]] == ["first", "", "slept", "one", "second"]


async def test_inputs_posted_while_the_run_works_are_answered_in_order() -> None:
    async with slow() as r:
        r.script("main", says("one"), says("two"), says("three"))
        handle = await r.retinue.spawn("first", keep_alive=True)
        second, third = await asyncio.gather(handle.ask("second"), handle.ask("third"))
        await handle.close()

        assert (second, third) == (answered("two"), answered("three"))


async def test_close_lets_the_current_exchange_finish() -> None:
    async with slow() as r:
        r.script("main", says("one"), says("two"))
        handle = await r.retinue.spawn("first", keep_alive=True)
        second = asyncio.create_task(handle.ask("second"))
        await asyncio.sleep(0)
        outcome = await handle.close()

        assert (outcome.text, outcome.exchanges) == ("two", 2)
        assert await second == answered("two")


async def test_an_exchange_with_tools_off_offers_none_and_makes_no_call() -> None:
    offered: list[tuple[str, ...]] = []

    def listening(line: Line) -> LineFunction:
        def listen(request: Request) -> Line:
            offered.append(tuple(tool.name for tool in request.tools))
            return line

        return listen

    stubborn = together(says("I would sleep."), calls("nap", seconds=1))
    async with slow() as r:
        r.script("main", listening(says("one")), listening(stubborn), listening(calls("nap", seconds=1)), says("three"))
        handle = await r.retinue.spawn("first", keep_alive=True)
        second = await handle.ask("second", tools=False)
        third = await handle.ask("third")
        await handle.close()

        assert offered == [("nap",), (), ("nap",)]
        assert second == answered("I would sleep.")
        assert third == answered("three", turns=2)
        assert r.results("main") == ["slept"]


async def test_an_exchange_out_of_turns_is_exhausted_and_the_run_stays_idle() -> None:
    async with slow() as r:
        r.script(
            "main",
            together(says("looking"), calls("nap", seconds=1)),
            calls("nap", seconds=1),
            says("two"),
        )
        handle = await r.retinue.spawn("first", keep_alive=True, limits=Limits(exchange_turns=2))
        first = await handle.answer()
        idle = await handle.look()
        second = await handle.ask("second")
        outcome = await handle.close()

        assert first == Exchange(
            result="exhausted",
            reason="max_turns",
            text="looking",
            error="the turn limit was reached without a final answer: used 2, limit 2",
            turns=2,
            limit=LimitMet("max_turns", 2, 2),
        )
        assert idle.state == "idle"
        assert second == answered("two")
        assert (outcome.result, outcome.exchanges, outcome.turns) == ("completed", 2, 3)


async def test_a_wrapped_up_exchange_does_not_affect_the_next() -> None:
    async with slow() as r:
        r.script("main", calls("nap", seconds=1), says("half of it"), calls("nap", seconds=1), says("the rest"))
        limits = Limits(exchange_turns=2, wrap_up=True)
        handle = await r.retinue.spawn("first", keep_alive=True, limits=limits)
        first = await handle.answer()
        second = await handle.ask("second")
        await handle.close()

        assert [(one.result, one.text, one.turns) for one in (first, second)] == [
            ("exhausted", "half of it", 2),
            ("exhausted", "the rest", 2),
        ]
        assert r.results("main") == ["slept", "slept"]


async def test_the_turn_limit_of_the_run_ends_it_with_the_exchange() -> None:
    async with slow() as r:
        r.script("main", says("one"), calls("nap", seconds=1))
        handle = await r.retinue.spawn("first", keep_alive=True, limits=Limits(max_turns=2))
        await handle.answer()
        second = await handle.ask("second")

        assert (second.result, second.limit) == ("exhausted", LimitMet("max_turns", 2, 2))
        assert (await handle.wait()).reason == "max_turns"


async def test_a_failed_run_answers_pending_inputs() -> None:
    async with slow() as r:
        r.script("main", says("one"), hangs())
        handle = await r.retinue.spawn("first", keep_alive=True)
        await handle.answer()
        second = asyncio.create_task(handle.ask("second"))
        third = asyncio.create_task(handle.ask("third"))
        await asyncio.sleep(5)
        await handle.cancel("enough")

        cancelled = Exchange(result="cancelled", reason="cancelled", error="enough")
        assert await second == await third == cancelled


async def test_an_idle_run_survives_a_kill_and_takes_the_next_input() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", says("one"), recording(heard, says("two")))
        first = await r.retinue.spawn("first", keep_alive=True)
        await first.answer()
        await r.restart()
        handle = r.retinue.handle(first.run_id)
        idle = await handle.look()

        assert idle.state == "idle"
        assert await handle.ask("second") == answered("two")
        assert [message.text for message in heard[0]] == ["first", "one", "second"]
        await handle.close()
        await r.restart()
        handle = r.retinue.handle(first.run_id)
        assert [await handle.answer(1), await handle.answer(2)] == [answered("one"), answered("two")]


async def test_another_process_can_send_input() -> None:
    store = SharedMemory()
    async with slow(store=store) as first, Harness(store=store, dialects=()) as second:
        first.script("main", says("one"), says("two"), says("three"))
        handle = await first.retinue.spawn("first", keep_alive=True)
        await handle.answer()
        elsewhere = second.retinue.handle(handle.run_id)

        async with asyncio.timeout(3600):
            assert (await elsewhere.look()).state == "idle"
            assert await elsewhere.answer(1) == answered("one")
            asked = asyncio.gather(elsewhere.ask("second"), elsewhere.ask("third"))
            assert await asked == [answered("two"), answered("three")]
            outcome = await elsewhere.close()

        assert outcome == await handle.wait()
        assert outcome.exchanges == 3


# ---- messages -------------------------------------------------------------------------------------------------------


async def test_a_message_to_a_working_run_is_read_at_its_next_turn() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", calls("nap", seconds=10), recording(heard, says("done")))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(5)
        await handle.send("hurry")
        await r.retinue.send(handle, "please")
        outcome = await handle.wait()

        assert [message.text for message in heard[0]] == ["go", "", "slept", "hurry", "please"]
        assert (outcome.text, outcome.exchanges) == ("done", 1)
        assert len([event for event in r.events(handle.run_id) if isinstance(event, MailTaken)]) == 1


async def test_a_message_during_the_final_answer_is_not_lost() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", says("done"), recording(heard, says("and now really")))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(0.5)
        await handle.send("one more thing")
        outcome = await handle.wait()

        assert words(heard[0]) == ["go", "one more thing"]
        assert (outcome.text, outcome.turns, outcome.exchanges) == ("and now really", 2, 1)


@pytest.mark.parametrize("steps", range(12))
async def test_a_message_at_the_moment_of_the_answer_is_read_or_refused(steps: int) -> None:
    model = ScriptedProvider(Script().play("main", says("done"), says("again")))
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        handle = await r.spawn("go")
        for _ in range(steps):
            await asyncio.sleep(0)
        try:
            await handle.send("wait")
            expected = ["go", "wait"]
        except RunIsOver:
            expected = ["go"]
        await handle.wait()

        assert words((await r.supervisor.replay(handle.run_id)).history) == expected


async def test_a_message_to_an_idle_run_begins_a_new_exchange() -> None:
    async with slow() as r:
        r.script("main", says("one"), says("two"))
        handle = await r.retinue.spawn("first", keep_alive=True)
        await handle.answer()
        await handle.send("second")

        assert await handle.answer(2) == answered("two")
        await handle.close()


async def test_an_answer_belongs_to_its_input_even_after_a_message() -> None:
    async with slow() as r:
        r.script("main", says("one"), says("to the words"), says("to the question"))
        handle = await r.retinue.spawn("first", keep_alive=True)
        await handle.answer()
        await handle.send("by the way")
        exchange = await handle.ask("a question")
        await handle.close()

        assert exchange == answered("to the question")


async def test_a_message_right_after_an_input_belongs_to_its_exchange() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", says("one"), recording(heard, says("to both")))
        handle = await r.retinue.spawn("first", keep_alive=True)
        await handle.answer()
        question = asyncio.create_task(handle.ask("a question"))
        await asyncio.sleep(0)
        await handle.send("and one more")
        exchange = await question
        await handle.close()

        assert exchange == answered("to both")
        assert words(heard[0]) == ["first", "a question", "and one more"]


async def test_a_message_with_a_repeated_key_is_read_once() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", calls("nap", seconds=10), calls("nap", seconds=10), recording(heard, says("done")))
        handle = await r.retinue.spawn("go")
        await handle.send("hurry", key="k")
        await handle.send("hurry", key="k")
        await asyncio.sleep(15)
        await handle.send("hurry", key="k")
        await handle.wait()

        assert words(heard[0]) == ["go", "hurry"]


async def test_an_ended_run_takes_no_message_in_this_process_and_the_next() -> None:
    async with slow() as r:
        r.script("main", says("done"))
        handle = await r.retinue.spawn("go")
        await handle.wait()
        for _ in range(2):
            with pytest.raises(RunIsOver) as refusal:
                await r.retinue.handle(handle.run_id).send("hello?")
            assert (refusal.value.run_id, refusal.value.result) == (handle.run_id, "completed")
            assert (await r.retinue.handle(handle.run_id).close()).text == "done"
            await r.restart()


async def test_a_message_to_an_interrupted_run_is_read_after_it_resumes() -> None:
    heard: list[Sequence[Message]] = []
    async with slow() as r:
        r.script("main", calls("nap", seconds=10), recording(heard, says("done")))
        first = await r.retinue.spawn("go")
        await asyncio.sleep(5)
        await r.kill()
        later = await r.open()
        handle = later.handle(first.run_id)
        await handle.send("are you there?", key="k")
        await handle.send("are you there?", key="k")
        outcome = await (await later.resume(handle)).wait()

        assert outcome.text == "done"
        assert words(heard[0]) == ["go", "are you there?"]


# ---- children -------------------------------------------------------------------------------------------------------


async def test_a_parent_reads_the_announced_end_of_a_child() -> None:
    heard: list[Sequence[Message]] = []
    r, _ = with_delegation(tools=(nap,), provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        r.script(
            "main",
            delegates("dig", wait=False, lifecycle={"announce": True}),
            calls("nap", seconds=10),
            recording(heard, says("done")),
        )
        r.script("dig", says("42"))
        await r.run("go")

        assert heard[0][-1] == UserMessage("[root/dig/1 completed] Task: dig\n42", origin="notice")


async def test_the_end_of_a_child_wakes_an_idle_parent() -> None:
    r, _ = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        r.script(
            "main",
            delegates("dig", wait=False, lifecycle={"announce": True, "on_parent_end": "keep"}),
            says("started"),
            says("I have read it"),
        )
        r.script("dig", streams_slowly("4", "2"))
        handle = await r.retinue.spawn("go", keep_alive=True)
        first = await handle.answer(1)
        second = await handle.answer(2)
        await handle.close()

        assert (first, second) == (answered("started", turns=2), answered("I have read it"))


async def test_a_run_waits_for_awaited_children_before_it_ends() -> None:
    r, _ = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        r.script("main", delegates("dig", wait=False, lifecycle={"on_parent_end": "wait"}), says("done"))
        r.script("dig", streams_slowly("4", "2"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(5)
        view = await handle.look()
        await handle.wait()
        child = await r.retinue.handle(r.run_of("dig")).look()

        assert (view.state, view.waiting_for) == ("waiting", "child")
        assert child.outcome is not None
        assert (child.outcome.text, child.ended_at) == ("42", (await handle.look()).ended_at)


def streams_slowly(*pieces: str) -> ScriptedReply:
    """Words that take a while."""
    return ScriptedReply(pieces=pieces, every=60.0)


async def test_concurrent_inputs_get_their_own_answers_and_repeated_keys_the_same() -> None:
    async with slow() as r:
        r.script("main", says("hello"), says("one"), says("two"))
        handle = await r.retinue.spawn("first", keep_alive=True)
        one, two = await asyncio.gather(handle.ask("1?", key="a"), handle.ask("2?", key="b"))
        again = await handle.ask("1?", key="a")

        assert (one.text, two.text, again.text) == ("one", "two", "one")
        await handle.close()


async def test_a_run_without_keep_alive_takes_no_input() -> None:
    async with slow() as r:
        r.script("main", says("done"))
        handle = await r.retinue.spawn("go")
        with pytest.raises(BadInput, match="takes no more input: start it with keep_alive=True"):
            await handle.ask("and now?")
        await handle.wait()
