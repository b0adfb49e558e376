"""The scripted provider plays the line of the requesting agent, task and turn, and reports unplayed lines."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Delta,
    Message,
    Reply,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from retinue.core.ports import Provider, Request, price_of
from retinue.core.state import History, forked
from retinue.core.usage import Usage
from retinue.providers.scripted import (
    AskedTurn,
    Line,
    Script,
    ScriptedProvider,
    calls,
    calls_verbatim,
    fails,
    hangs,
    logged_turns,
    says,
    streams,
    together,
)
from retinue.testing.contracts.provider import AGENT, PROMISES, Promise

BUSY = ProviderError("busy", fault="overloaded", status=503)


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    yield ScriptedProvider(Script().play(AGENT, line))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_scripted_provider_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


def request_for(
    agent: str, turn: int = 1, *messages: Message, path: str = "", max_output: int | None = None
) -> Request:
    heard = messages or (UserMessage("go"),)
    return Request(
        model="m", system="", messages=heard, agent=agent, path=path or agent, turn=turn, max_output=max_output
    )


async def answer(provider: ScriptedProvider, request: Request) -> Reply:
    return await provider.answer(request, lambda _: None)


async def text(provider: ScriptedProvider, request: Request) -> str:
    return (await answer(provider, request)).message.text


# ---- choice of lines ------------------------------------------------------------------------------------------------


async def test_lines_are_chosen_by_agent_and_turn_not_by_request_order() -> None:
    script = Script().play("lead", says("one"), says("two")).play("dig", says("found"))

    assert await text(ScriptedProvider(script), request_for("lead", 2)) == "two"
    assert await text(ScriptedProvider(script), request_for("dig", 1)) == "found"
    assert await text(ScriptedProvider(script), request_for("lead", 1)) == "one"


async def test_further_lines_for_an_agent_are_appended() -> None:
    provider = ScriptedProvider(Script().play("lead", says("one")).play("lead", says("two")))

    assert await text(provider, request_for("lead", 2)) == "two"


async def test_the_longest_matching_task_chooses_the_lines() -> None:
    script = Script().play("dig", says("anything"))
    script.play("dig", says("a leak"), task="find it").play("dig", says("all leaks"), task="find it all")
    provider = ScriptedProvider(script)

    assert await text(provider, request_for("dig", 1, UserMessage("Please find it."))) == "a leak"
    assert await text(provider, request_for("dig", 1, UserMessage("Please find it all."))) == "all leaks"
    assert await text(provider, request_for("dig", 1, UserMessage("Please stop."))) == "anything"


async def test_later_input_does_not_change_the_matched_task() -> None:
    script = Script().play("dig", says("a leak"), says("two"), says("three"), task="find it")
    provider = ScriptedProvider(script.play("dig", says("x"), says("y"), says("z"), task="count it"))

    heard: list[Message] = [UserMessage("find it"), AssistantMessage("a leak"), UserMessage("now count it")]
    assert await text(provider, request_for("dig", 2, *heard)) == "two"

    heard += [AssistantMessage("", (ToolCall("ls"),)), ToolMessage("ls", "find it, count it")]
    assert await text(provider, request_for("dig", 3, *heard)) == "three"


async def test_a_fork_plays_the_lines_of_its_own_task() -> None:
    parent = History()
    parent.append(UserMessage("find it"))
    parent.append(AssistantMessage("", (ToolCall("fork"),)))
    fork = forked(parent)
    fork.append(UserMessage("count it"))
    provider = ScriptedProvider(
        Script().play("dig", says("a leak"), task="find it").play("dig", says("3"), task="count")
    )

    assert await text(provider, request_for("dig", 1, *fork)) == "3"


async def test_a_line_may_be_a_function_of_the_request() -> None:
    provider = ScriptedProvider(Script().play("echo", lambda request: says(f"heard {len(request.messages)}")))

    assert await text(provider, request_for("echo", 1, UserMessage("a"), UserMessage("b"))) == "heard 2"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (request_for("other"), "agent 'other' has no script; agents with one: lead, dig"),
        (request_for("lead", 2), "agent 'lead' was asked for line 2; its script has 1 line"),
        (request_for("lead", 0), "agent 'lead' was asked for line 0; its script has 1 line"),
        (request_for("dig"), "agent 'dig' has no script for this task; it has some for: 'find it', 'lose it'"),
        (
            request_for(
                "dig", 3, UserMessage("find it"), AssistantMessage("a"), UserMessage("b"), AssistantMessage("c")
            ),
            "agent 'dig' with task 'find it' was asked for line 3; its script has 0 lines",
        ),
    ],
    ids=["no script", "beyond", "before", "no such task", "beyond in a task"],
)
async def test_a_request_without_a_line_is_a_bad_request_naming_what_is_missing(
    request_: Request, message: str
) -> None:
    script = Script().play("lead", says("hello")).play("dig", task="find it").play("dig", says("gone"), task="lose it")

    with pytest.raises(ProviderError) as raised:
        await answer(ScriptedProvider(script), request_)

    assert (str(raised.value), raised.value.fault) == (f"scripted model: {message}", "bad_request")


# ---- unplayed lines -------------------------------------------------------------------------------------------------


async def test_unplayed_lines_are_listed() -> None:
    def from_request(request: Request) -> Line:
        return says(request.agent)

    script = Script().play("lead", says("one"), together(says("Look."), calls("ls", path="/")), from_request)
    script.play("dig", hangs(), hangs("so"), fails(BUSY), task="find it")

    await answer(ScriptedProvider(script), request_for("lead"))

    left = [
        "'lead', line 2: says 'Look.' and calls ls '{\"path\":\"/\"}'",
        f"'lead', line 3: whatever {from_request.__qualname__} returns",
        "'dig' with task 'find it', line 1: hangs",
        "'dig' with task 'find it', line 2: hangs after 'so'",
        "'dig' with task 'find it', line 3: fails with 'busy'",
    ]
    assert script.unplayed() == left
    with pytest.raises(AssertionError, match=re.escape("\n  ".join(["lines that were never requested:", *left]))):
        script.verify()


async def test_a_fully_played_script_verifies() -> None:
    script = Script().play("lead", says("one"), fails(BUSY, then=says("two")))
    provider = ScriptedProvider(script)

    await answer(provider, request_for("lead"))
    with pytest.raises(ProviderError):
        await answer(provider, request_for("lead", 2))
    assert script.unplayed() == ["'lead', line 2, after its failures: says 'two'"]
    await answer(provider, request_for("lead", 2))

    script.verify()


# ---- failures -------------------------------------------------------------------------------------------------------


async def test_a_turn_fails_the_given_number_of_times_and_then_succeeds() -> None:
    down = ProviderError("down", fault="unreachable")
    provider = ScriptedProvider(Script().play("lead", fails(BUSY, times=2, then=fails(down, then=says("ok")))))

    heard: list[str] = []
    for _ in range(4):
        try:
            heard.append(await text(provider, request_for("lead")))
        except ProviderError as error:
            heard.append(f"{error.fault}: {error}")

    assert heard == ["overloaded: busy", "overloaded: busy", "unreachable: down", "ok"]
    assert provider.asked == [AskedTurn("lead", "lead", 1)] * 4


async def test_attempts_are_counted_per_run() -> None:
    provider = ScriptedProvider(Script().play("dig", fails(BUSY, then=says("ok"))))

    for path in ("lead/dig-1", "lead/dig-2"):
        with pytest.raises(ProviderError, match="busy"):
            await answer(provider, request_for("dig", path=path))
        assert await text(provider, request_for("dig", path=path)) == "ok"


async def test_a_failure_without_then_repeats_as_a_new_error_each_time() -> None:
    provider = ScriptedProvider(Script().play("lead", fails(BUSY)))

    errors: list[ProviderError] = []
    for _ in range(3):
        with pytest.raises(ProviderError) as raised:
            await answer(provider, request_for("lead"))
        errors.append(raised.value)

    assert [(str(error), error.fault, error.status) for error in errors] == [("busy", "overloaded", 503)] * 3
    assert len({id(error) for error in [BUSY, *errors]}) == 4


@pytest.mark.parametrize("make_line", [lambda: fails(BUSY, times=0), lambda: together()])
def test_meaningless_lines_are_rejected(make_line: object) -> None:
    assert callable(make_line)
    with pytest.raises(BadInput):
        make_line()


# ---- replies --------------------------------------------------------------------------------------------------------


async def test_a_reply_publishes_thinking_text_and_calls_in_order() -> None:
    line = together(says("Look.", thinking="hm"), calls("ls", path="/"), calls_verbatim("ls", "{not json"))
    published: list[Delta] = []

    provider = ScriptedProvider(Script().play("lead", line))
    reply = await provider.answer(request_for("lead"), published.append)

    made = (ToolCall("ls", '{"path":"/"}'), ToolCall("ls", "{not json"))
    assert reply.message == AssistantMessage("Look.", made, (Thinking("hm"),))
    assert (reply.stop, reply.model) == ("calls", "m")
    assert published == [
        ThinkingDelta("hm"),
        TextDelta("Look."),
        CallDelta(0, "ls", '{"path":"/"}'),
        CallDelta(1, "ls", "{not json"),
    ]


async def test_latency_precedes_the_delays_of_a_stream() -> None:
    loop = asyncio.get_running_loop()
    arrived: list[tuple[float, Delta]] = []

    provider = ScriptedProvider(Script().play("lead", streams("a", "b", "c", every=10.0)), latency=2.0)
    await provider.answer(request_for("lead"), lambda delta: arrived.append((round(loop.time(), 3), delta)))

    assert arrived == [(2.0, TextDelta("a")), (12.0, TextDelta("b")), (22.0, TextDelta("c"))]


async def test_usage_is_computed_from_lengths_unless_given() -> None:
    script = Script().play("lead", says("x" * 40), says("y", usage=Usage(7, 8)), says("z", usage=None))
    provider = ScriptedProvider(script)
    heard = [
        UserMessage("u" * 20),
        AssistantMessage("a" * 8, (ToolCall("tool", "{" + " " * 6 + "}"),), (Thinking("t" * 4),)),
        ToolMessage("tool", "r" * 16),
    ]

    def request(turn: int) -> Request:
        return Request(model="m", system="s" * 12, messages=heard, agent="lead", turn=turn)

    assert (await answer(provider, request(1))).usage == Usage(input=(12 + 20 + 8 + 4 + 8 + 4 + 16) // 4, output=10)
    assert (await answer(provider, request(2))).usage == Usage(7, 8)
    assert (await answer(provider, request(3))).usage is None


async def test_incremental_usage_equals_a_full_count() -> None:
    """The memo holds the count so far; a crash loses it and a summary invalidates it, and neither changes the usage."""
    provider = ScriptedProvider(Script().play("lead", *[says("ok")] * 4))
    history = History()
    memo: dict[str, object] = {}

    async def counted(turn: int) -> tuple[int, int]:
        inputs: list[int] = []
        for kept in (memo, {}):
            request = Request(model="m", system="", messages=history, agent="lead", turn=turn, memo=kept)
            usage = (await answer(provider, request)).usage
            assert usage is not None
            inputs.append(usage.input)
        return inputs[0], inputs[1]

    history.append(UserMessage("u" * 400))
    assert await counted(1) == (100, 100)
    history.append(AssistantMessage("a" * 40))
    history.append(UserMessage("u" * 40))
    assert await counted(2) == (120, 120)
    history.replace_first(2, [UserMessage("s" * 40), UserMessage("s" * 40)])
    assert await counted(3) == (30, 30)
    history.replace_first(3, [UserMessage("s" * 4)])
    assert await counted(4) == (1, 1)


async def test_text_beyond_max_output_is_cut_in_reply_and_stream() -> None:
    provider = ScriptedProvider(Script().play("lead", streams("aaaa", "bbbb", "cccc")))
    published: list[Delta] = []

    reply = await provider.answer(request_for("lead", max_output=1), published.append)
    exact = await answer(provider, request_for("lead", max_output=3))

    assert (reply.message.text, reply.stop, reply.usage) == ("aaaa", "length", Usage(input=0, output=1))
    assert published == [TextDelta("aaaa")]
    assert (exact.message.text, exact.stop) == ("aaaabbbbcccc", "end")


async def test_replies_have_a_cost_only_for_priced_models() -> None:
    script = Script().play("lead", says("x", usage=Usage(10, 3)), says("y", usage=None))
    provider = ScriptedProvider(script, prices={"m": (3_000, 15_000)})

    assert (price_of(provider, "m"), price_of(provider, "other")) == ((3_000, 15_000), None)
    assert (await answer(provider, request_for("lead"))).cost == 10 * 3_000 + 3 * 15_000
    assert (await answer(provider, request_for("lead", 2))).cost is None
    assert (await answer(ScriptedProvider(script), request_for("lead"))).cost is None


# ---- records of requests --------------------------------------------------------------------------------------------


async def test_all_requests_are_recorded_and_only_finished_answers_logged(tmp_path: Path) -> None:
    log = tmp_path / "played"
    script = Script().play("lead", says("one"), fails(BUSY), hangs("so"))
    provider = ScriptedProvider(script, log=log)
    assert logged_turns(log) == []

    await answer(provider, request_for("lead", 1, path="lead"))
    with pytest.raises(ProviderError):
        await answer(provider, request_for("lead", 2))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await answer(provider, request_for("lead", 3))
    await answer(ScriptedProvider(script, log=log), request_for("lead", 1, path="lead/a b\tc"))

    assert provider.asked == [AskedTurn("lead", "lead", turn) for turn in (1, 2, 3)]
    assert logged_turns(log) == [("lead", 1), ("lead/a b\tc", 1)]


PLAY = """
import asyncio, sys
from pathlib import Path
from retinue.core.ports import Request
from retinue.providers.scripted import Script, ScriptedProvider, says

async def main(path, log):
    provider = ScriptedProvider(Script().play("dig", *[says("x")] * 50), log=Path(log))
    for turn in range(1, 51):
        await provider.answer(Request(model="m", system="", messages=(), agent="dig", path=path, turn=turn), print)

asyncio.run(main(*sys.argv[1:]))
"""


def test_several_processes_can_share_one_log(tmp_path: Path) -> None:
    log = tmp_path / "played"
    paths = [f"lead/{'dig' * 50}-{number}" for number in range(3)]

    processes = [
        subprocess.Popen([sys.executable, "-c", PLAY, path, str(log)], stdout=subprocess.DEVNULL) for path in paths
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]

    rows = logged_turns(log)
    assert len(rows) == 150
    assert [[turn for path, turn in rows if path == one] for one in paths] == [list(range(1, 51))] * 3
