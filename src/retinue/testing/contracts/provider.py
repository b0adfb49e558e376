"""What every provider promises, as checks that run against any of them.

A check is an async function that takes a *stage*: given a line, the stage opens a provider whose model does just that.
For a wire, that is a little server on this machine which speaks the vendor's format. Run them all like this::

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    async def test_my_wire_keeps_the_promises_of_a_provider(promise):
        await promise(my_stage)

Each check asks `question()`, so a provider that needs to know who asks finds the agent `ASKER` at its first turn.
Checks fail with an `AssertionError` in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import msgspec

from retinue.core.agent import ToolSpec
from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.messages import CallDelta, Delta, Reply, TextDelta, ThinkingDelta, ToolCall, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.usage import Usage
from retinue.providers.scripted import Line, calls, fails, hangs, says, streams, together

Stage: TypeAlias = Callable[[Line], AbstractAsyncContextManager[Provider]]
Promise: TypeAlias = Callable[[Stage], Awaitable[None]]

ASKER = "asker"
"""The agent in whose name every check asks."""

PROMPTLY = 5.0
"""Seconds within which a cancelled call must have let go."""

_QUERY = '{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}}}'
TOOLS = (ToolSpec("search", "Search the logs.", _QUERY), ToolSpec("list_files", "List all files."))


NOTHING: dict[str, object] = {}


def question() -> Request:
    """What every check asks."""
    said = UserMessage("Why is it slow?")
    return Request(model="model", system="Be brief.", messages=[said], tools=TOOLS, agent=ASKER, path=ASKER, run_id="r")


class Listener:
    """Keeps what a provider publishes."""

    def __init__(self) -> None:
        self.heard: list[Delta] = []
        self.something = asyncio.Event()

    def publish(self, delta: Delta) -> None:
        """Hear a delta."""
        self.heard.append(delta)
        self.something.set()

    @property
    def text(self) -> str:
        """All words so far."""
        return "".join(delta.text for delta in self.heard if isinstance(delta, TextDelta))

    @property
    def thinking(self) -> str:
        """All thoughts so far."""
        return "".join(delta.text for delta in self.heard if isinstance(delta, ThinkingDelta))

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of all calls so far."""
        calls: dict[int, tuple[str, str]] = {}
        for delta in self.heard:
            if isinstance(delta, CallDelta):
                name, arguments = calls.get(delta.index, ("", ""))
                calls[delta.index] = (name + delta.name, arguments + delta.arguments)
        return [calls[index] for index in sorted(calls)]


async def a_text_arrives_whole(stage: Stage) -> None:
    """Words come back letter by letter, whatever letters they are."""
    for text in (
        "Too few connections.",
        ' "quoted" \\ back\\slash\n\n```json\n{"a": 1}\n```\t',
        "naïve 日本語 🦆 \u2028 end ",
    ):
        reply, _ = await _asked(stage, says(text))
        _same("text", reply.message.text, text)
        _same("calls", reply.message.calls, ())
        _same("stop", reply.stop, "end")


async def a_call_arrives_with_its_name_and_arguments(stage: Stage) -> None:
    """A call is a call, with its arguments as JSON text."""
    reply, _ = await _asked(stage, calls("search", query='the "pool" 🦆\n', limit=3))
    _same("calls", _decoded(reply.message.calls), [("search", {"query": 'the "pool" 🦆\n', "limit": 3})])
    _same("stop", reply.stop, "calls")


async def a_call_without_arguments_is_still_a_call(stage: Stage) -> None:
    """Nothing to say is an empty object, or nothing at all."""
    reply, _ = await _asked(stage, calls("list_files"))
    _same("calls", _decoded(reply.message.calls), [("list_files", NOTHING)])


async def several_calls_keep_their_order(stage: Stage) -> None:
    """Also when the same tool is called twice, and beside words."""
    line = together(says("Let me look."), calls("search", query="a"), calls("list_files"), calls("search", query="b"))
    reply, _ = await _asked(stage, line)
    expected = [("search", {"query": "a"}), ("list_files", NOTHING), ("search", {"query": "b"})]
    _same("text", reply.message.text, "Let me look.")
    _same("calls", _decoded(reply.message.calls), expected)
    _same("stop", reply.stop, "calls")


async def usage_is_what_the_model_reports(stage: Stage) -> None:
    """Tokens in and out are neither guessed nor lost."""
    for line in (says("yes", usage=Usage(input=1200, output=7)), streams("y", "es", usage=Usage(input=1200, output=7))):
        reply, _ = await _asked(stage, line)
        used = reply.usage and (reply.usage.input, reply.usage.output)
        _same("input and output tokens", used, (1200, 7))


async def an_empty_answer_stays_empty(stage: Stage) -> None:
    """Saying nothing is an answer, and no error."""
    reply, listener = await _asked(stage, says(""))
    _same("text", reply.message.text, "")
    _same("calls", reply.message.calls, ())
    _same("published text", listener.text, "")


async def a_cut_off_answer_says_so(stage: Stage) -> None:
    """An answer that ran into the output limit has `stop` "length"."""
    reply, _ = await _asked(stage, says("It is bec", stop="length"))
    _same("text and stop", (reply.message.text, reply.stop), ("It is bec", "length"))


async def a_failure_is_a_provider_error_with_its_fault(stage: Stage) -> None:
    """No reply is a `ProviderError` that says why, so that others know whether to try again."""
    faults: list[tuple[ProviderFault, int]] = [
        ("rate_limited", 429),
        ("overloaded", 503),
        ("auth", 401),
        ("bad_request", 400),
    ]
    for fault, status in faults:
        error = await _failed(stage, ProviderError("no", fault=fault, status=status), Listener())
        _same("fault and status", (error.fault, error.status), (fault, status))


async def a_wish_to_wait_is_passed_on(stage: Stage) -> None:
    """What the provider says about when to come back is in `retry_after`."""
    spawn_request = ProviderError("slow down", fault="rate_limited", status=429, retry_after=7.0)
    error = await _failed(stage, spawn_request, Listener())
    _same("retry_after", error.retry_after, 7.0)


async def a_broken_answer_leaves_what_had_arrived(stage: Stage) -> None:
    """A stream that ends in the middle is an error with the words so far, which were published."""
    listener = Listener()
    error = await _failed(stage, ProviderError("cut", fault="cut", partial="It is because"), listener)
    _same("fault", error.fault, "cut")
    _same("partial and published text", (error.partial, listener.text), ("It is because", "It is because"))


async def what_is_published_adds_up_to_the_reply(stage: Stage) -> None:
    """Deltas in order are the reply: its words, and its thoughts and calls where they are published at all."""
    line = together(
        streams("It ", "is ", "", "because 🦆", "."), calls("search", query="a"), calls("search", query="b")
    )
    reply, listener = await _asked(stage, line)
    _same("published text", listener.text, reply.message.text)
    _same("text", reply.message.text, "It is because 🦆.")
    if listener.calls:
        _same("published calls", listener.calls, [(call.name, call.arguments) for call in reply.message.calls])
    if listener.thinking:
        _same("published thinking", listener.thinking, "".join(thought.text for thought in reply.message.thinking))


async def nothing_is_published_after_the_reply(stage: Stage) -> None:
    """Whoever has the reply has heard everything."""
    async with stage(streams("a", "b", "c")) as provider:
        listener = Listener()
        await provider.answer(question(), listener.publish)
        heard = list(listener.heard)
        await asyncio.sleep(0.05)
        _same("what was published", listener.heard, heard)


async def cancelling_lets_go_at_once(stage: Stage) -> None:
    """Amid words or before the first, a cancelled call ends promptly, with CancelledError, and in silence."""
    for line in (hangs("It is"), hangs()):
        async with stage(line) as provider, _asking(provider) as (call, listener):
            if line.pieces:
                await _first_of(listener.something, call)
            else:
                await asyncio.sleep(0.05)
            heard = list(listener.heard)
            call.cancel()
            done, _ = await asyncio.wait({call}, timeout=PROMPTLY)
            assert done, f"a cancelled call had not let go after {PROMPTLY:g} s"
            assert call.cancelled(), f"a cancelled call ended otherwise: {call!r}"
            _same("what was published", listener.heard, heard)


async def after_a_cancelled_call_the_next_is_answered(stage: Stage) -> None:
    """A call that was given up leaves nothing behind that spoils another."""
    async with stage(streams("It ", "is ", "because.", every=0.01)) as provider:
        async with _asking(provider) as (call, listener):
            await _first_of(listener.something, call)
            call.cancel()
            await asyncio.wait({call}, timeout=PROMPTLY)
        reply = await provider.answer(question(), Listener().publish)
        _same("text", reply.message.text, "It is because.")


async def answers_at_the_same_time_do_not_mix(stage: Stage) -> None:
    """One provider serves many runs at once."""
    async with stage(streams("It ", "is ", "because.", every=0.01)) as provider:
        listeners = [Listener() for _ in range(5)]
        replies = await asyncio.gather(*(provider.answer(question(), listener.publish) for listener in listeners))
        texts = [(reply.message.text, listener.text) for reply, listener in zip(replies, listeners, strict=True)]
        _same("texts and published texts", texts, [("It is because.", "It is because.")] * 5)


PROMISES: tuple[Promise, ...] = (
    a_text_arrives_whole,
    a_call_arrives_with_its_name_and_arguments,
    a_call_without_arguments_is_still_a_call,
    several_calls_keep_their_order,
    usage_is_what_the_model_reports,
    an_empty_answer_stays_empty,
    a_cut_off_answer_says_so,
    a_failure_is_a_provider_error_with_its_fault,
    a_wish_to_wait_is_passed_on,
    a_broken_answer_leaves_what_had_arrived,
    what_is_published_adds_up_to_the_reply,
    nothing_is_published_after_the_reply,
    cancelling_lets_go_at_once,
    after_a_cancelled_call_the_next_is_answered,
    answers_at_the_same_time_do_not_mix,
)
"""The provider contract: each is an async function that checks one property of a provider.

It takes a function that opens a provider for a scripted line, as an async context manager: the model of that provider
replies with the line. It raises `AssertionError` if the provider does not have the property.
"""


async def _asked(stage: Stage, line: Line) -> tuple[Reply, Listener]:
    async with stage(line) as provider:
        listener = Listener()
        return await provider.answer(question(), listener.publish), listener


async def _failed(stage: Stage, error: ProviderError, listener: Listener) -> ProviderError:
    async with stage(fails(error)) as provider:
        try:
            reply = await provider.answer(question(), listener.publish)
        except ProviderError as raised:
            return raised
    raise AssertionError(f"expected a ProviderError ({error.fault}), got {reply!r}")


@asynccontextmanager
async def _asking(provider: Provider):
    """A call under way; leaving the block means it is over."""
    listener = Listener()
    call = asyncio.ensure_future(provider.answer(question(), listener.publish))
    try:
        yield call, listener
    finally:
        call.cancel()
        await asyncio.wait({call}, timeout=PROMPTLY)


async def _first_of(something: asyncio.Event, call: asyncio.Future[Reply]) -> None:
    """Wait for the first delta, but not for ever."""
    heard = asyncio.ensure_future(something.wait())
    await asyncio.wait({heard, call}, timeout=PROMPTLY, return_when=asyncio.FIRST_COMPLETED)
    heard.cancel()
    assert something.is_set(), f"nothing was published while the call was under way: {call!r}"


def _decoded(made: tuple[ToolCall, ...]) -> list[tuple[str, object]]:
    return [(call.name, msgspec.json.decode(call.arguments or "{}")) for call in made]


def _same(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"
