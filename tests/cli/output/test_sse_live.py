"""`retinue run --sse` while a reply streams: text is written as it arrives, and a discarded attempt taken back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cli.output.reply import HeldReply, LiveReply, Piece, ReplyWriter
from retinue.core.errors import ProviderError
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Delta,
    DiscardDelta,
    Reply,
    StartDelta,
    TextDelta,
    Thinking,
    ToolCall,
)
from retinue.providers.scripted import Line, calls, fails, hangs, says, streams, together
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.output.test_sse import PARIS, SseEvent, events, joined
from tests.cli.stage import Command, open_in_a_thread, retinue
from tests.internals import tune
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    tune(monkeypatch, first_pause=0.0)


AnyVendor = FakeChat | FakeResponses | FakeAnthropic | FakeGemini


class Wire(NamedTuple):
    """A fake vendor, its provider, and the form of its calls."""

    name: str
    vendor: Callable[[Playable], AnyVendor]
    opening: str = "\nFunction: {} "
    has_call_ids: bool = True
    address: str = "base_url"


WIRES = [
    Wire("openai-chat", FakeChat),
    Wire("openai-responses", FakeResponses),
    Wire("anthropic", FakeAnthropic, "Function: {}\n"),
    Wire("vertexai-anthropic", FakeAnthropic, "Function: {}\n", address="google_url"),
    Wire("gemini", FakeGemini, has_call_ids=False),
]
over_every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def asking(wire: Wire, vendor: AnyVendor, *flags: str) -> tuple[str, ...]:
    address = str(getattr(vendor, wire.address))
    return ("run", "--provider", wire.name, "--base-url", address, "--model", "fake-1", "--sse", *flags, "hi")


def one_by_one(*lines: Line) -> Callable[[ReceivedRequest], Line]:
    """One line of the script for each request."""
    left = iter(lines)
    return lambda _: next(left)


def words(streamed: list[SseEvent], kind: str = "output_text") -> str:
    return "".join(each.delta for each in streamed if each.type == kind)


@over_every_wire
def test_replies_calls_and_results_are_streamed_in_order(cli: Cli, wire: Wire) -> None:
    asks = together(streams("Let me ", "look."), calls("shared_context", action="list_keys"))
    with open_in_a_thread(wire.vendor(one_by_one(asks, streams("Nothing ", "there.")))) as vendor:
        ended = cli(*asking(wire, vendor, "--dialect", "spec"))

    streamed = joined(events(ended.stdout))
    first, second = (each for each in streamed if each.type == "response_start")
    assert (ended.code, first.id != "", second.id != "") == (0, True, True)
    call = next(each for each in streamed if each.type == "tool_call")
    result = next(each for each in streamed if each.type == "tool_result")
    assert streamed == [
        first,
        SseEvent("output_text", "Let me look."),
        SseEvent("tool_call", wire.opening.format("shared_context") + '{"action":"list_keys"}', call.id),
        SseEvent("block_end"),
        SseEvent("tool_result", result.delta, call.id),
        second,
        SseEvent("output_text", "Nothing there."),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]
    assert (call.id != "") == wire.has_call_ids
    assert result.delta.startswith("\n\nTool Result (shared_context):\n{")
    assert result.delta.endswith("}\n")


@over_every_wire
@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_text_is_streamed_while_the_model_continues(wire: Wire) -> None:
    async with wire.vendor(hangs("One moment", ", please")) as vendor:
        command = await Command.start(*asking(wire, vendor, "--dialect", "none"))
        printed = await command.expect_stdout('"delta":", please"')
        command.signal(signal.SIGINT)
        ended = await command.ended()

    start, *streamed = events((printed + ended.stdout).strip("\n") + "\n\n")
    assert (ended.code, start.type, start.id != "") == (130, "response_start", True)
    assert streamed == [
        SseEvent("output_text", "One moment"),
        SseEvent("output_text", ", please"),
        SseEvent("block_end", "Error: interrupted"),
        SseEvent("response_end"),
    ]


BROKEN = ProviderError("cut", fault="cut", partial="The first attempt says m")
"""A stream that breaks in the middle; the model is called again."""


@over_every_wire
@pytest.mark.parametrize("answer", ["Second attempt answer", "The first answer"], ids=["other", "similar"])
def test_a_discarded_attempt_is_taken_back_by_an_event(cli: Cli, wire: Wire, answer: str) -> None:
    with open_in_a_thread(wire.vendor(fails(BROKEN, then=streams(*answer)))) as vendor:
        ended = cli(*asking(wire, vendor, "--dialect", "none"))
        stored = cli("runs", "--json").json

    assert (ended.code, len(vendor.requests)) == (0, 2)
    assert 'event: restarted\ndata: {"id":"","delta":"","type":"restarted"}\n\nevent: response_start\n' in ended.stdout
    streamed = joined(events(ended.stdout))
    starts = [each for each in streamed if each.type == "response_start"]
    assert [each.id != "" for each in starts] == [True, True]
    assert streamed == [
        starts[0],
        SseEvent("output_text", "The first attempt says m"),
        SseEvent("restarted"),
        starts[1],
        SseEvent("output_text", answer),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]
    assert cli("runs", "show", stored[0]["run_id"], "--json").json["text"] == answer


@over_every_wire
def test_a_second_attempt_that_says_the_same_repeats_no_text(cli: Cli, wire: Wire) -> None:
    cut = ProviderError("cut", fault="cut", partial="It is ")
    with open_in_a_thread(wire.vendor(fails(cut, then=streams("It ", "is here", ".")))) as vendor:
        ended = cli(*asking(wire, vendor, "--dialect", "none"))

    start, *streamed = joined(events(ended.stdout))
    assert (ended.code, start.type, len(vendor.requests)) == (0, "response_start", 2)
    assert streamed == [
        SseEvent("output_text", "It is here."),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]


@over_every_wire
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_the_printed_answer_is_the_text_of_the_last_attempt_alone(cli: Cli, wire: Wire, flags: tuple[str, ...]) -> None:
    with open_in_a_thread(wire.vendor(fails(BROKEN, then=streams("Second attempt answer")))) as vendor:
        asked = [flag for flag in asking(wire, vendor, "--dialect", "none", *flags) if flag != "--sse"]
        ended = cli(*asked)

    assert ended.code == 0
    assert (ended.json["text"] if flags else ended.stdout.rstrip("\n")) == "Second attempt answer"


def test_calls_and_reasoning_of_a_discarded_attempt_are_taken_back(cli: Cli) -> None:
    chunks = (
        b'data: {"id":"r1","choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n',
        b'data: {"id":"r1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":'
        b'{"name":"shared_context","arguments":"{\\"act"}}]}}]}\n\n',
    )
    cut = FakeResponse(headers={"Content-Type": "text/event-stream"}, pieces=chunks, ending="cut")
    answers = iter((cut, says("Done.")))
    with open_in_a_thread(FakeChat(lambda _: next(answers))) as vendor:
        ended = cli(*asking(WIRES[0], vendor))

    streamed = joined(events(ended.stdout))
    assert (ended.code, [each.type for each in streamed]) == (
        0,
        [
            *("response_start", "reasoning_content", "tool_call", "restarted"),
            *("response_start", "output_text", "block_end", "response_end"),
        ],
    )


def test_every_discarded_attempt_is_taken_back_and_the_last_one_stays_with_its_error(cli: Cli) -> None:
    attempts = iter("1234")

    def broken(_: ReceivedRequest) -> Line:
        return fails(ProviderError("cut", fault="cut", partial=f"Attempt {next(attempts)}"))

    with open_in_a_thread(FakeChat(broken)) as vendor:
        ended = cli(*asking(WIRES[0], vendor, "--dialect", "none"))
        stored = cli("runs", "--json").json

    streamed = joined(events(ended.stdout))
    texts = [SseEvent("output_text", f"Attempt {number}") for number in "1234"]
    assert ended.code == 1
    written = [each for each in streamed[:-2] if each.type != "response_start"]
    assert written == [*chain.from_iterable((text, SseEvent("restarted")) for text in texts[:3]), texts[3]]
    assert streamed[-2].delta.startswith("Error: ")
    assert cli("runs", "show", stored[0]["run_id"], "--json").json["text"] == "Attempt 4"


@pytest.mark.parametrize("left", ["", "The "], ids=["nothing", "less"])
def test_text_that_the_last_attempt_did_not_repeat_is_taken_back_before_the_error(cli: Cli, left: str) -> None:
    broken = fails(BROKEN, times=1, then=fails(ProviderError("cut", fault="cut", partial=left)))
    with open_in_a_thread(FakeChat(broken)) as vendor:
        ended = cli(*asking(WIRES[0], vendor, "--dialect", "none"))
        stored = cli("runs", "--json").json

    streamed = joined(events(ended.stdout))
    taken_back = streamed.index(SseEvent("restarted"))
    assert (ended.code, words(streamed[:taken_back]), words(streamed[taken_back:])) == (1, BROKEN.partial, left)
    assert [each.type for each in streamed[taken_back:] if each.type not in ("response_start", "output_text")] == [
        *("restarted", "block_end", "response_end")
    ]
    assert cli("runs", "show", stored[0]["run_id"], "--json").json["text"] == left


def test_an_attempt_without_output_is_not_taken_back(cli: Cli) -> None:
    overloaded = ProviderError("busy", fault="overloaded", status=503)
    with open_in_a_thread(FakeChat(fails(overloaded, then=says("Here.")))) as vendor:
        ended = cli(*asking(WIRES[0], vendor, "--dialect", "none"))

    assert (ended.code, len(vendor.requests)) == (0, 2)
    assert [each.type for each in events(ended.stdout)] == [
        *("response_start", "output_text", "block_end", "response_end")
    ]


def test_a_partial_reply_is_followed_by_its_error(cli: Cli) -> None:
    refused = ProviderError("no more", fault="refused", partial="It is ")
    with open_in_a_thread(FakeChat(fails(refused))) as vendor:
        ended = cli(*asking(WIRES[0], vendor, "--dialect", "none"))

    start, said, error, end = events(ended.stdout)
    assert (ended.code, start.type, said, end) == (
        1,
        "response_start",
        SseEvent("output_text", "It is "),
        SseEvent("response_end"),
    )
    assert (error.type, error.delta.startswith("Error: "), "no more" in error.delta) == ("block_end", True, True)


@pytest.mark.parametrize("flag", ["--brief", "-b"])
def test_brief_streams_neither_calls_nor_results(cli: Cli, flag: str) -> None:
    asks = together(says("Let me look."), calls("shared_context", action="list_keys"))
    with open_in_a_thread(FakeChat(one_by_one(asks, says("Nothing there.")))) as vendor:
        ended = cli(*asking(WIRES[0], vendor, flag))

    streamed = list(events(ended.stdout))
    assert [each.type for each in streamed] == [*["response_start", "output_text", "block_end"] * 2, "response_end"]
    assert words(streamed) == "Let me look.Nothing there."


def test_a_structured_answer_is_held_back_until_the_end(cli: Cli) -> None:
    asks = together(says("Let me look.", thinking="hm"), calls("shared_context", action="list_keys"))
    with open_in_a_thread(FakeChat(one_by_one(asks, says(PARIS, thinking="well")))) as vendor:
        ended = cli(*asking(WIRES[0], vendor, "--output-json"))

    streamed = joined(events(ended.stdout))
    assert [each.type for each in streamed] == [
        "response_start",
        "reasoning_content",
        "tool_call",
        "tool_result",
        "response_start",
        "reasoning_content",
        "output_structured",
        "response_end",
    ]
    assert (words(streamed, "reasoning_content"), streamed[-2]) == ("hmwell", SseEvent("output_structured", PARIS))


@pytest.mark.real_time
async def test_a_closed_reader_ends_the_run_silently(folder: Path) -> None:
    async with FakeChat(streams(*["word "] * 400, every=0.02)) as vendor:
        command = [sys.executable, "-m", "retinue", *asking(WIRES[0], vendor, "--dialect", "none")]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=os.environ
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.stdout.readline() == b"event: response_start\n"
        hang_up(process)
        said = (await process.stderr.read()).decode()
        async with asyncio.timeout(5):  # the model would stream for eight seconds
            code = await process.wait()

    assert code == 1
    assert [line for line in said.splitlines() if not line.startswith(("model ", "main: "))] == []


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_a_paused_reader_does_not_block_the_run() -> None:
    long = ["many words " * 100] * 300  # more than a pipe buffers
    async with FakeChat(streams(*long)) as vendor, asyncio.timeout(30):
        command = await Command.start(*asking(WIRES[0], vendor, "--dialect", "none"))
        while [row["outcome"] for row in (await retinue("runs", "--json")).json] != ["completed"]:
            pass
        ended = await command.ended()

    assert (ended.code, words(list(events(ended.stdout)))) == (0, "".join(long))


def hang_up(process: asyncio.subprocess.Process) -> None:
    """Close the read end of the process's stdout."""
    transport: Any = getattr(process, "_transport")  # noqa: B009 there is no other way to it
    transport.get_pipe_transport(1).close()


# ---- one reply ------------------------------------------------------------------------------------------------------


class Consumer:
    """Collects replies: each that began, with its pieces."""

    def __init__(self) -> None:
        self.replies: list[tuple[str, list[Piece]]] = []
        self.closed = 0
        self.live = LiveReply(ReplyWriter(self._begin, self._say, self._close, self._close), opening="{name} ")

    def _begin(self, response_id: str) -> None:
        assert self.closed == len(self.replies)
        self.replies.append((response_id, []))

    def _say(self, piece: Piece) -> None:
        self.replies[-1][1].append(piece)

    def _close(self) -> None:
        self.closed += 1
        assert self.closed == len(self.replies)

    def said(self, number: int = -1) -> dict[tuple[str, int], str]:
        """The text of a reply by part."""
        engine: dict[tuple[str, int], str] = {}
        for piece in self.replies[number][1]:
            engine[piece.part] = engine.get(piece.part, "") + piece.text
        return engine


short_texts = st.text("ab", max_size=4)
call_deltas = st.builds(CallDelta, index=st.integers(0, 1), name=st.just(""), arguments=short_texts, id=st.just(""))
deltas = st.lists(st.one_of(st.builds(TextDelta, short_texts), call_deltas), max_size=4)


def call_of(said: list[Delta], index: int) -> str:
    return "".join(delta.arguments for delta in said if isinstance(delta, CallDelta) and delta.index == index)


@given(st.lists(deltas, max_size=3), deltas, st.integers(0, 4))
def test_the_last_reply_is_complete_after_any_broken_attempts(
    broken: list[list[Delta]], last: list[Delta], lost: int
) -> None:
    named: list[Delta] = [CallDelta(0, "f", "", "x"), CallDelta(1, "g", "", "y")]
    text = "".join(delta.text for delta in last if isinstance(delta, TextDelta))
    made = tuple(ToolCall(name, call_of(last, index), id) for index, (name, id) in enumerate([("f", "x"), ("g", "y")]))
    consumer = Consumer()

    for attempt in broken:
        for delta in chain([StartDelta("broken")], named, attempt):
            consumer.live.receive(delta)
    for delta in chain([StartDelta("whole")], named, last[: len(last) - lost]):
        consumer.live.receive(delta)
    consumer.live.finish(Reply(AssistantMessage(text, made), response_id="whole"))

    expected = {("text", 0): text, ("call", 0): f"f {made[0].arguments}", ("call", 1): f"g {made[1].arguments}"}
    assert consumer.said() == {part: said for part, said in expected.items() if said}
    assert consumer.closed == len(consumer.replies)


@given(st.text("ab"), st.lists(st.integers(0, 10), max_size=4))
def test_equal_attempts_are_one_reply(text: str, breaks: list[int]) -> None:
    consumer = Consumer()
    for end in [*breaks, len(text)]:
        consumer.live.receive(StartDelta("r"))
        for letter in text[:end]:
            consumer.live.receive(TextDelta(letter))
        consumer.live.receive(DiscardDelta())
    consumer.live.finish(Reply(AssistantMessage(text), response_id="r"))

    assert [(id, "".join(piece.text for piece in said)) for id, said in consumer.replies] == [("r", text)]


@given(st.lists(deltas, max_size=3), deltas)
def test_what_stays_of_an_abandoned_reply_is_its_last_attempt(broken: list[list[Delta]], last: list[Delta]) -> None:
    consumer = Consumer()
    for attempt in [*broken, last]:
        consumer.live.receive(DiscardDelta())
        consumer.live.receive(StartDelta("r"))
        for delta in attempt:
            consumer.live.receive(delta)

    consumer.live.release()
    consumer.live.release()

    text = "".join(delta.text for delta in last if isinstance(delta, TextDelta))
    expected = {("text", 0): text, ("call", 0): call_of(last, 0), ("call", 1): call_of(last, 1)}
    left = consumer.said() if consumer.closed < len(consumer.replies) else {}
    assert left == {part: said for part, said in expected.items() if said}


@given(st.lists(deltas, max_size=3), deltas, st.booleans())
def test_a_held_reply_writes_the_last_attempt_alone(
    broken: list[list[Delta]], last: list[Delta], announced: bool
) -> None:
    text = "".join(delta.text for delta in last if isinstance(delta, TextDelta))
    last = [delta for delta in last if isinstance(delta, TextDelta)]
    consumer = Consumer()
    held = HeldReply(consumer.live)

    for attempt in broken:
        for delta in chain([StartDelta("broken")], attempt, [DiscardDelta()] * announced):
            held.receive(delta)
    for delta in chain([StartDelta("whole")], last):
        held.receive(delta)
    assert consumer.replies == []
    held.finish(Reply(AssistantMessage(text), response_id="whole"))

    assert [(id, "".join(piece.text for piece in said)) for id, said in consumer.replies] == [("whole", text)]


def test_a_held_reply_that_will_not_be_completed_is_written_as_far_as_it_has_come() -> None:
    consumer = Consumer()
    held = HeldReply(consumer.live)
    for delta in (StartDelta("a"), TextDelta("lost"), DiscardDelta(), StartDelta("b"), TextDelta("so far")):
        held.receive(delta)

    held.release()
    held.release()

    assert consumer.replies == [("b", [Piece(("text", 0), "so far")])]


def test_without_a_start_delta_only_the_whole_reply_is_written() -> None:
    consumer = Consumer()
    consumer.live.receive(TextDelta("from the mid"))
    assert consumer.replies == []

    reply = AssistantMessage("not from the middle", (ToolCall("ls", "{}", "a"),), (Thinking("hm"),))
    consumer.live.finish(Reply(reply, response_id="r"))

    assert [piece.text for piece in consumer.replies[0][1]] == ["hm", "not from the middle", "ls ", "{}"]


def test_a_call_with_another_id_is_another_call() -> None:
    consumer = Consumer()
    for call_id in ("a", "b"):
        consumer.live.receive(StartDelta(f"r_{call_id}"))
        consumer.live.receive(CallDelta(0, "ls", "{}", call_id))
    consumer.live.finish(Reply(AssistantMessage("", (ToolCall("ls", "{}", "b"),)), response_id="r_b"))

    assert [(id, {piece.id for piece in said}) for id, said in consumer.replies] == [("r_a", {"a"}), ("r_b", {"b"})]
