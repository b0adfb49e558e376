"""Long runs compact their history: near the window of their model, or after a context-length error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

import retinue
from retinue.core.agent import Agent, RunSpec
from retinue.core.budget import Caps, Window
from retinue.core.commands import RunQuery
from retinue.core.compaction import MAX_COMPACTIONS_PER_TURN, total_tokens
from retinue.core.errors import ProviderError, ProviderFault, StoreError
from retinue.core.events import CallReturned, HistoryCompacted, ReplyReceived, TurnFailed
from retinue.core.messages import AssistantMessage, Message, Reply, ToolMessage, UserMessage
from retinue.core.ports import Publish, Request
from retinue.core.run import HistoryRef, Limits, Outcome
from retinue.core.usage import Usage
from retinue.engine import SpawnRequest
from retinue.engine.compaction import NOTHING_LEFT
from retinue.engine.model_call import MAX_ATTEMPTS
from retinue.providers.scripted import (
    Line,
    LineFunction,
    Script,
    ScriptedProvider,
    ScriptedReply,
    calls,
    fails,
    hangs,
    says,
    together,
)
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness

TASK = "Find the leak in the pool."
WINDOWS = {"small": 4000, "large": 100_000}
TOO_LONG = ProviderError("prompt is too long: 5000 tokens", fault="too_long", status=400)


@retinue.tool(kind="pure", polls=True)
async def read(size: int, name: str = "file") -> str:
    """Read something long."""
    return f"{name}: {'r' * size}"


def harness(*, model: str = "small", script: Script | None = None, **options: object) -> Harness:
    """A retinue whose models have context windows and a price."""
    mind = ScriptedProvider(script or Script(), windows=WINDOWS, prices={"small": (3, 5), "large": (3, 5)})
    return Harness(dialects=(), tools=[read], provider=mind, model=model, **options)  # pyright: ignore[reportArgumentType]


def reads(size: int, words: int = 0) -> ScriptedReply:
    return together(says("w" * words), calls("read", size=size))


def recording(heard: list[Sequence[Message]], line: Line, *, at_most: int | None = None) -> LineFunction:
    """A line that records its request, and fails above a number of characters."""

    def listen(request: Request) -> Line:
        heard.append(tuple(request.messages))
        too_much = at_most is not None and total_tokens(request.messages) > at_most
        return fails(TOO_LONG) if too_much else line

    return listen


def compactions(r: Harness, agent: str = "main") -> list[HistoryCompacted]:
    return [event for event in r.events(r.run_of(agent)) if isinstance(event, HistoryCompacted)]


def assert_whole(messages: Sequence[Message]) -> None:
    """Assert that the conversation begins with a user message, and each call is followed by its result."""
    assert isinstance(messages[0], UserMessage)
    waiting = 0
    for message in messages:
        if isinstance(message, ToolMessage):
            waiting -= 1
        else:
            assert waiting == 0
            waiting = len(message.calls) if isinstance(message, AssistantMessage) else 0
    assert waiting == 0


# ---- near the window ------------------------------------------------------------------------------------------------


async def test_near_the_window_old_results_are_dropped_before_the_model_call() -> None:
    heard: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", *[recording(heard, reads(2500)) for _ in range(7)], recording(heard, says("the valve")))
        outcome = await r.run(TASK)

        assert (outcome.text, outcome.turns) == ("the valve", 8)
        assert r.provider.summarised == []
        assert all(total_tokens(messages) < 3000 * 4 * 0.95 for messages in heard)
        first, *_ = done = compactions(r)
        assert {event.way for event in done} == {"shortened"}
        assert first.after < first.before
        assert {event.usage for event in done} == {Usage()}
        for messages in heard:
            assert_whole(messages)
        assert heard[-1][0] == UserMessage(TASK)
        assert heard[-1][2].text == "[result of read left out: 2506 characters]"
        assert heard[-1][-1].text == "file: " + "r" * 2500
        results = [event.text for event in r.events(r.run_of("main")) if isinstance(event, CallReturned)]
        assert results == ["file: " + "r" * 2500] * 7, "the originals stay in the store"


async def test_long_replies_are_summarised_by_the_same_model() -> None:
    heard: list[Sequence[Message]] = []
    async with harness() as r:
        r.script(
            "main", *[recording(heard, reads(10, words=2500)) for _ in range(6)], recording(heard, says("the valve"))
        )
        r.provider.script.sums_up("main", says("Six files were read.", usage=Usage(input=700, output=9)))
        outcome = await r.run(TASK)
        (done,) = compactions(r)
        (asked,) = r.provider.summarised

        assert (outcome.text, outcome.turns) == ("the valve", 7)
        assert (asked.model, asked.tools, asked.think, asked.max_output) == ("small", (), False, 1000)
        assert f"The task:\n{TASK}" in asked.messages[0].text
        assert (done.way, done.model, done.usage, done.cost) == ("summarised", "small", Usage(700, 9), 700 * 3 + 9 * 5)
        (summary,) = done.messages
        assert summary == UserMessage(
            f"[{done.replaced} earlier messages of this conversation were replaced by this summary, to make room.]\n"
            f"The task, in its own words:\n{TASK}\n\nSummary:\nSix files were read.",
            "engine",
        )
        assert heard[-1][0] == summary
        replies = [event.reply for event in r.events(r.run_of("main")) if isinstance(event, ReplyReceived)]
        assert outcome.usage == sum((reply.usage or Usage() for reply in replies), done.usage)
        assert outcome.cost == sum(reply.cost or 0 for reply in replies) + (done.cost or 0)


async def test_each_run_uses_the_window_of_its_own_model() -> None:
    agents = [
        Agent(name="here", model="custom:small", tools=("read",)),
        Agent(name="there", model="custom:large", tools=("read",)),
    ]
    async with harness(agents=agents) as r:
        for agent in ("here", "there"):
            r.script(agent, *[reads(2500)] * 6, says("done"))
            assert (await r.run(TASK, agent=agent)).text == "done"

        assert [len(compactions(r, agent)) > 0 for agent in ("here", "there")] == [True, False]


async def test_a_fallback_model_has_its_own_window() -> None:
    down = ProviderError("no", fault="auth")
    agents = [Agent(name="main", model="custom:large", fallback=("custom:small",), tools=("read",))]
    sizes: list[tuple[str, int]] = []

    def last(request: Request) -> Line:
        sizes.append((request.model, total_tokens(request.messages)))
        return says("done") if request.model == "small" else fails(down)

    async with harness(agents=agents) as r:
        r.script("main", *[reads(2500)] * 6, last)
        outcome = await r.run(TASK, agent="main")

        assert outcome.text == "done"
        assert [model for model, _ in sizes] == ["large", "large", "small"]
        assert sizes[0][1] > 15_000 > 9000 > sizes[-1][1]
        assert len(compactions(r)) == 1


async def test_a_history_that_cannot_be_compacted_is_sent_unchanged() -> None:
    async with harness() as r:
        r.script("main", reads(10), says("done"))
        outcome = await r.run(TASK, system="s" * 15_000)

        assert (outcome.text, compactions(r)) == ("done", [])


async def test_a_history_is_not_compacted_without_a_known_window() -> None:
    async with harness(model="unheard-of") as r:
        r.script("main", *[reads(50_000)] * 6, says("done"))

        assert ((await r.run(TASK)).text, compactions(r)) == ("done", [])


async def test_the_summary_of_a_keep_alive_run_repeats_its_latest_input() -> None:
    async with harness() as r:
        r.script("main", says("ready"), *[reads(10, words=2500) for _ in range(6)], says("the valve"))
        handle = await r.retinue.spawn(TASK, keep_alive=True)
        await handle.answer()
        await handle.ask("Now look at the valve.")
        await handle.close()
        (done,) = compactions(r)

        assert f"{TASK}\n\nThe latest input:\nNow look at the valve." in done.messages[0].text


# ---- context-length errors ------------------------------------------------------------------------------------------


async def test_a_context_length_error_compacts_the_history_and_retries() -> None:
    heard: list[Sequence[Message]] = []
    async with harness(model="unheard-of") as r:
        last = recording(heard, says("the valve"), at_most=9000)
        r.script("main", *[reads(2500)] * 6, last)
        outcome = await r.run(TASK)

        assert (outcome.result, outcome.text, outcome.turns) == ("completed", "the valve", 7)
        assert [total_tokens(messages) > 9000 for messages in heard] == [True, False]
        assert [event.way for event in compactions(r)] == ["shortened"]


async def test_a_too_long_first_message_is_truncated_in_the_middle() -> None:
    heard: list[Sequence[Message]] = []
    async with harness(model="unheard-of") as r:
        r.script("main", recording(heard, says("read"), at_most=3000))
        outcome = await r.run("Read this: " + "x" * 100_000 + " and say what you think.")

        assert outcome.text == "read"
        (told,) = heard[-1]
        assert told.text.startswith("Read this: xxx")
        assert told.text.endswith("and say what you think.")


async def test_repeated_context_length_errors_end_the_run() -> None:
    async with harness(model="unheard-of") as r:
        r.script("main", *[reads(25_000)] * 6, fails(TOO_LONG))
        outcome = await r.run(TASK)
        (failed,) = [event for event in r.events(r.run_of("main")) if isinstance(event, TurnFailed)]

        assert (outcome.result, outcome.reason) == ("failed", "model_error")
        assert outcome.error == failed.error == NOTHING_LEFT.format(error=TOO_LONG)
        assert failed.fault == "too_long"
        assert 1 <= len(compactions(r)) <= MAX_COMPACTIONS_PER_TURN
        assert len(r.provider.asked) == 6 + 1 + len(compactions(r))


class Uncounted(ScriptedProvider):
    """A provider whose server counts nothing."""

    counts_are_exact = False

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The reply without its counts."""
        return replace(await super().answer(request, publish), usage=None, cost=None)


async def test_a_summary_that_no_server_counted_is_estimated() -> None:
    mind = Uncounted(Script(), windows=WINDOWS, prices={"small": (3, 5)})
    async with Harness(dialects=(), tools=[read], provider=mind, model="small") as r:
        r.script("main", *[reads(10, words=2500)] * 6, says("the valve"))
        r.provider.script.sums_up("main", says("Six files were read."))
        outcome = await r.run(TASK)
        (done,) = compactions(r)
        replies = [event for event in r.events(r.run_of("main")) if isinstance(event, ReplyReceived)]

    assert (done.usage, done.estimated.output) == (Usage(), len("Six files were read.") // 4)
    assert done.estimated_cost == done.estimated.input * 3 + done.estimated.output * 5
    assert outcome.estimated == sum((each.estimated or Usage() for each in replies), done.estimated)
    assert outcome.estimated_cost == sum(each.estimated_cost or 0 for each in replies) + done.estimated_cost
    assert outcome.usage == Usage()


async def test_a_summary_request_that_was_refused_is_charged_as_counted() -> None:
    refusal = ProviderError("no", fault="refused", usage=Usage(input=700), cost=2_100)
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 6, says("the valve"))
        r.provider.script.sums_up("main", fails(refusal))
        await r.run(TASK)
        (done,) = compactions(r)

    assert (done.way, done.usage, done.cost) == ("left_out", Usage(input=700), 2_100)


async def test_a_too_long_summary_request_is_repeated_with_a_shorter_transcript() -> None:
    async with harness(model="unheard-of") as r:
        r.script("main", *[reads(10, words=25_000)] * 6, recording([], says("the valve"), at_most=80_000))
        sizes: list[int] = []

        def sum_up(request: Request) -> Line:
            sizes.append(len(request.messages[0].text))
            return fails(TOO_LONG) if sizes[-1] > 30_000 else says("Six files were read.")

        r.provider.script.sums_up("main", sum_up)
        outcome = await r.run(TASK)

        assert outcome.text == "the valve"
        assert len(sizes) == 2
        assert sizes[1] < 30_000 < sizes[0]


# ---- no summary -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [says(" "), says("I would rather not", stop="refusal")], ids=["empty", "refusal"])
async def test_without_a_summary_the_older_turns_are_dropped_and_the_run_continues(line: Line) -> None:
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 6, says("the valve"))
        r.provider.script.sums_up("main", line)
        outcome = await r.run(TASK)
        (done,) = compactions(r)

        assert (outcome.text, done.way) == ("the valve", "left_out")
        assert done.usage.input > 0, "what it took is counted"
        assert TASK in done.messages[0].text


@pytest.mark.parametrize(("fault", "attempts"), [("auth", 1), ("cut", MAX_ATTEMPTS)])
async def test_an_unavailable_model_for_the_summary_fails_the_turn(fault: ProviderFault, attempts: int) -> None:
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 5)
        r.provider.script.sums_up("main", fails(ProviderError("no", fault=fault)))
        outcome = await r.run(TASK)

        assert (outcome.result, outcome.reason, compactions(r)) == ("failed", "model_error", [])
        assert outcome.error.startswith("while its history was summarised: no")
        assert len(r.provider.summarised) == attempts


async def test_a_cancel_during_a_summary_discards_the_summary() -> None:
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 5)
        r.provider.script.sums_up("main", hangs("Six files"))
        handle = await r.retinue.spawn(TASK)
        await asyncio.sleep(1)
        assert len(r.provider.summarised) == 1
        await handle.cancel()
        outcome = await handle.wait()

        assert (outcome.result, outcome.text, outcome.unstopped) == ("cancelled", "w" * 2500, ())


# ---- budgets --------------------------------------------------------------------------------------------------------


async def test_a_summary_without_budget_ends_the_run_as_exhausted() -> None:
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 5)
        outcome = await r.run(TASK, limits=Limits(max_input_tokens=6600))

        assert (outcome.result, outcome.reason) == ("exhausted", "max_tokens")
        assert (r.provider.summarised, compactions(r)) == ([], [])


async def test_a_wrap_up_turn_spends_nothing_on_a_summary() -> None:
    heard: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 5, recording(heard, says("what I have")))
        outcome = await r.run(TASK, limits=Limits(max_input_tokens=8600, wrap_up=True))
        (done,) = compactions(r)

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_tokens", "what I have")
        assert (done.way, done.usage, r.provider.summarised) == ("left_out", Usage(), [])
        assert heard[-1][-1].text.startswith("You have reached the limit")


async def test_a_summary_is_charged_to_the_windows_of_its_run() -> None:
    windows = (Window("hour", 3600.0, Caps(tokens=1_000_000)),)
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 6, says("the valve"))
        run_spec = RunSpec(agent="main", offered=("read",), provider="custom", model="small")
        spawn_request = SpawnRequest(agent="main", run_spec=run_spec, task=TASK, windows=windows)
        started = await r.retinue.supervisor.spawn(spawn_request, session_id="session")
        outcome = await r.retinue.handle(started.run_id).wait()
        charges = r.store.charges("hour", 0.0)

        assert len(compactions(r)) == 1
        assert sum(charge.input for charge in charges) == outcome.usage.input
        assert sum(charge.cost for charge in charges) == outcome.cost


# ---- forks and crashes ----------------------------------------------------------------------------------------------


async def test_a_fork_of_a_compacted_run_begins_with_its_compacted_history() -> None:
    heard: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", *[reads(10, words=2500)] * 6, says("the valve"))
        r.script("main", recording(heard, says("forked")), task="and then?")
        handle = await r.retinue.spawn(TASK)
        await handle.wait()
        fork = await r.retinue.fork(handle.run_id, "and then?")

        assert (await fork.wait()).text == "forked"
        assert heard[0][0].text.startswith("[")
        assert "were replaced by this summary" in heard[0][0].text
        assert heard[0][-1].text == "and then?"
        assert_whole(heard[0])


async def test_a_fork_may_inherit_more_than_the_window_of_its_model() -> None:
    heard: list[Sequence[Message]] = []
    async with harness(model="large") as r:
        r.script("there", *[reads(2500)] * 8, says("the valve"))
        r.script("here", recording(heard, says("forked")))
        run_spec = RunSpec(agent="there", offered=("read",), provider="custom", model="large")
        supervisor = r.retinue.supervisor
        origin = await supervisor.spawn(SpawnRequest(agent="there", run_spec=run_spec, task=TASK), session_id="session")
        await r.retinue.handle(origin.run_id).wait()
        point = HistoryRef(origin.run_id, (await supervisor.replay(origin.run_id)).seq)
        own = RunSpec(agent="here", offered=("read",), provider="custom", model="small")
        spawn_request = SpawnRequest(agent="here", run_spec=own, task="Check that.", inherits=point)
        fork = await supervisor.spawn(spawn_request, session_id="session")

        assert (await r.retinue.handle(fork.run_id).wait()).text == "forked"
        assert total_tokens(heard[0]) < 12_000
        assert heard[0][-1] == UserMessage("Check that.")
        assert (len(compactions(r, "here")), compactions(r, "there")) == (1, [])


async def tell(r: Harness) -> Outcome:
    return await r.run(TASK, agent="main", key="the-story")


def story() -> Script:
    script = Script().play("main", *[reads(2500)] * 5, *[reads(10, words=2600)] * 8, says("the valve"))
    return script.sums_up("main", says("Files were read."))


async def test_a_compacting_run_gives_the_same_answer_after_a_crash_at_any_write() -> None:
    agents = [Agent(name="main", model="custom:small", tools=("read",))]
    calm = harness(agents=agents, script=story())
    async with calm as r:
        assert (await tell(r)).text == "the valve"
        ways = [event.way for event in compactions(r)]
        assert set(ways) == {"shortened", "summarised"}
        histories = await remembered(r)
    after, crashed = 0, True
    while crashed:
        after += 1
        r = harness(agents=agents, script=story(), store=MemoryStore())
        answer = ""
        with suppress(StoreError):
            await r.open(killed_after=after)
            answer = (await tell(r)).text
            crashed = False
        if crashed:
            await r.kill()
            await r.open(adopt=True)
            answer = (await tell(r)).text
        where = f"stopped after write {after}"
        assert answer == "the valve", where
        assert [event.way for event in compactions(r)] == ways, where
        assert await remembered(r) == histories, where
        with suppress(StoreError):
            await r.close()
    assert after > 25


async def remembered(r: Harness) -> list[Message]:
    """The history that an adopting process would read."""
    (row,) = r.store.runs(RunQuery())
    return list((await r.retinue.supervisor.replay(row.run_id)).history)


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
@hypothesis.given(
    turns=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 6000)), max_size=8),
    model=st.sampled_from(["small", "unheard-of"]),
    at_most=st.integers(2000, 20_000),
)
async def test_any_run_sends_valid_conversations_and_ends(
    turns: list[tuple[int, int]], model: str, at_most: int
) -> None:
    heard: list[Sequence[Message]] = []
    async with harness(model=model) as r:
        lines = [recording(heard, reads(size, words), at_most=at_most) for size, words in turns]
        r.script("main", *lines, recording(heard, says("done"), at_most=at_most))
        outcome = await r.run(TASK)
        if outcome.result == "failed":  # the latest message cannot be truncated to the limit of the provider
            r.provider.script = Script()

        assert (outcome.result, outcome.text) == ("completed", "done") or outcome.error.endswith("a shorter task)")
        for messages in heard:
            assert_whole(messages)
            assert TASK in messages[0].text
        assert len(heard) <= (len(turns) + 1) * (1 + MAX_COMPACTIONS_PER_TURN)


# ---- a custom provider ----------------------------------------------------------------------------------------------


class LengthLimitedProvider:
    """A provider that reports no usage and rejects long requests."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Answer, if it is short enough."""
        self.sizes.append(total_tokens(request.messages))
        if self.sizes[-1] > 1800:
            raise TOO_LONG
        return Reply(AssistantMessage("short enough"), usage=None)


async def test_a_far_too_long_history_fits_after_a_few_compactions() -> None:
    mind = LengthLimitedProvider()
    async with Harness(dialects=(), providers={"own": mind}, model="own:m") as r:
        outcome = await r.run("Read: " + "x" * 900_000, model="own:m")

        assert (outcome.result, outcome.text) == ("completed", "short enough")
        assert len(mind.sizes) <= 1 + MAX_COMPACTIONS_PER_TURN
