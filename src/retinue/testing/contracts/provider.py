"""The provider contract: checks that run against any implementation of `core.ports.Provider`.

A check is an async function that takes an `OpenProvider`: given a scripted line, it opens a provider whose model
replies with that line. For a wire, that is a local server that speaks the vendor's format. Run all checks like this::

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    async def test_my_wire_keeps_the_provider_contract(promise):
        await promise(open_my_provider)

Each check sends `sample_request()`, from the agent `AGENT` in its first turn. Checks raise `AssertionError` with a
message.
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

OpenProvider: TypeAlias = Callable[[Line], AbstractAsyncContextManager[Provider]]
Promise: TypeAlias = Callable[[OpenProvider], Awaitable[None]]

AGENT = "asker"
"""The agent of `sample_request`."""

PROMPTLY = 5.0
"""Seconds within which a cancelled call must end."""

_QUERY = '{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}}}'
TOOLS = (ToolSpec("search", "Search the logs.", _QUERY), ToolSpec("list_files", "List all files."))


NOTHING: dict[str, object] = {}


def sample_request() -> Request:
    """The request that every check sends."""
    message = UserMessage("Why is it slow?")
    return Request(
        model="model", system="Be brief.", messages=[message], tools=TOOLS, agent=AGENT, path=AGENT, run_id="r"
    )


class DeltaListener:
    """Collects the deltas that a provider publishes."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.received = asyncio.Event()

    def publish(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.received.set()

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def thinking(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ThinkingDelta))

    @property
    def calls(self) -> list[tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for delta in self.deltas:
            if isinstance(delta, CallDelta):
                name, arguments = calls.get(delta.index, ("", ""))
                calls[delta.index] = (name + delta.name, arguments + delta.arguments)
        return [calls[index] for index in sorted(calls)]


async def a_text_arrives_whole(open_provider: OpenProvider) -> None:
    """Any text is returned unchanged."""
    for text in (
        "Too few connections.",
        ' "quoted" \\ back\\slash\n\n```json\n{"a": 1}\n```\t',
        "naïve 日本語 🦆 \u2028 end ",
    ):
        reply, _ = await _reply_to(open_provider, says(text))
        _same("text", reply.message.text, text)
        _same("calls", reply.message.calls, ())
        _same("stop", reply.stop, "end")


async def a_call_arrives_with_its_name_and_arguments(open_provider: OpenProvider) -> None:
    """A tool call has its name, and its arguments as JSON text."""
    reply, _ = await _reply_to(open_provider, calls("search", query='the "pool" 🦆\n', limit=3))
    _same("calls", _decoded(reply.message.calls), [("search", {"query": 'the "pool" 🦆\n', "limit": 3})])
    _same("stop", reply.stop, "calls")


async def a_call_without_arguments_is_still_a_call(open_provider: OpenProvider) -> None:
    """Missing arguments are an empty object, or an empty text."""
    reply, _ = await _reply_to(open_provider, calls("list_files"))
    _same("calls", _decoded(reply.message.calls), [("list_files", NOTHING)])


async def several_calls_keep_their_order(open_provider: OpenProvider) -> None:
    """Several calls keep their order, also calls of the same tool and next to text."""
    line = together(says("Let me look."), calls("search", query="a"), calls("list_files"), calls("search", query="b"))
    reply, _ = await _reply_to(open_provider, line)
    expected = [("search", {"query": "a"}), ("list_files", NOTHING), ("search", {"query": "b"})]
    _same("text", reply.message.text, "Let me look.")
    _same("calls", _decoded(reply.message.calls), expected)
    _same("stop", reply.stop, "calls")


async def usage_is_what_the_model_reports(open_provider: OpenProvider) -> None:
    """Input and output tokens are as the model reports them."""
    for line in (says("yes", usage=Usage(input=1200, output=7)), streams("y", "es", usage=Usage(input=1200, output=7))):
        reply, _ = await _reply_to(open_provider, line)
        used = reply.usage and (reply.usage.input, reply.usage.output)
        _same("input and output tokens", used, (1200, 7))


async def an_empty_answer_stays_empty(open_provider: OpenProvider) -> None:
    """An empty answer is not an error."""
    reply, listener = await _reply_to(open_provider, says(""))
    _same("text", reply.message.text, "")
    _same("calls", reply.message.calls, ())
    _same("published text", listener.text, "")


async def a_cut_off_answer_says_so(open_provider: OpenProvider) -> None:
    """An answer that reached the output limit has `stop` "length"."""
    reply, _ = await _reply_to(open_provider, says("It is bec", stop="length"))
    _same("text and stop", (reply.message.text, reply.stop), ("It is bec", "length"))


async def a_failure_is_a_provider_error_with_its_fault(open_provider: OpenProvider) -> None:
    """A failed call raises `ProviderError` with fault and status."""
    faults: list[tuple[ProviderFault, int]] = [
        ("rate_limited", 429),
        ("overloaded", 503),
        ("auth", 401),
        ("bad_request", 400),
    ]
    for fault, status in faults:
        error = await _failed(open_provider, ProviderError("no", fault=fault, status=status), DeltaListener())
        _same("fault and status", (error.fault, error.status), (fault, status))


async def retry_after_is_passed_on(open_provider: OpenProvider) -> None:
    """The delay that the provider asks for is in `retry_after`."""
    limited = ProviderError("slow down", fault="rate_limited", status=429, retry_after=7.0)
    error = await _failed(open_provider, limited, DeltaListener())
    _same("retry_after", error.retry_after, 7.0)


async def a_broken_stream_keeps_the_partial_text(open_provider: OpenProvider) -> None:
    """A stream that breaks off raises an error with the text so far, which was also published."""
    listener = DeltaListener()
    error = await _failed(open_provider, ProviderError("cut", fault="cut", partial="It is because"), listener)
    _same("fault", error.fault, "cut")
    _same("partial and published text", (error.partial, listener.text), ("It is because", "It is because"))


async def deltas_add_up_to_the_reply(open_provider: OpenProvider) -> None:
    """The deltas in order are the reply: its text, and its reasoning and calls if they are published at all."""
    line = together(
        streams("It ", "is ", "", "because 🦆", "."), calls("search", query="a"), calls("search", query="b")
    )
    reply, listener = await _reply_to(open_provider, line)
    _same("published text", listener.text, reply.message.text)
    _same("text", reply.message.text, "It is because 🦆.")
    if listener.calls:
        _same("published calls", listener.calls, [(call.name, call.arguments) for call in reply.message.calls])
    if listener.thinking:
        _same("published thinking", listener.thinking, "".join(thought.text for thought in reply.message.thinking))


async def nothing_is_published_after_the_reply(open_provider: OpenProvider) -> None:
    """No delta is published after the reply was returned."""
    async with open_provider(streams("a", "b", "c")) as provider:
        listener = DeltaListener()
        await provider.answer(sample_request(), listener.publish)
        before = list(listener.deltas)
        await asyncio.sleep(0.05)
        _same("published deltas", listener.deltas, before)


async def cancellation_is_prompt(open_provider: OpenProvider) -> None:
    """A cancelled call ends promptly with `CancelledError` and publishes nothing more, also before the first delta."""
    for line in (hangs("It is"), hangs()):
        async with open_provider(line) as provider, _call_in_flight(provider) as (call, listener):
            if line.pieces:
                await _first_delta(listener.received, call)
            else:
                await asyncio.sleep(0.05)
            before = list(listener.deltas)
            call.cancel()
            done, _ = await asyncio.wait({call}, timeout=PROMPTLY)
            assert done, f"a cancelled call had not ended after {PROMPTLY:g} s"
            assert call.cancelled(), f"a cancelled call did not end with CancelledError: {call!r}"
            _same("published deltas", listener.deltas, before)


async def after_a_cancelled_call_the_next_is_answered(open_provider: OpenProvider) -> None:
    """A cancelled call does not affect later ones."""
    async with open_provider(streams("It ", "is ", "because.", every=0.01)) as provider:
        async with _call_in_flight(provider) as (call, listener):
            await _first_delta(listener.received, call)
            call.cancel()
            await asyncio.wait({call}, timeout=PROMPTLY)
        reply = await provider.answer(sample_request(), DeltaListener().publish)
        _same("text", reply.message.text, "It is because.")


async def concurrent_answers_do_not_mix(open_provider: OpenProvider) -> None:
    """One provider serves concurrent calls."""
    async with open_provider(streams("It ", "is ", "because.", every=0.01)) as provider:
        listeners = [DeltaListener() for _ in range(5)]
        replies = await asyncio.gather(*(provider.answer(sample_request(), listener.publish) for listener in listeners))
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
    retry_after_is_passed_on,
    a_broken_stream_keeps_the_partial_text,
    deltas_add_up_to_the_reply,
    nothing_is_published_after_the_reply,
    cancellation_is_prompt,
    after_a_cancelled_call_the_next_is_answered,
    concurrent_answers_do_not_mix,
)
"""The provider contract: each is an async function that checks one property of a provider.

It takes a function that opens a provider for a scripted line, as an async context manager: the model of that provider
replies with the line. It raises `AssertionError` if the provider does not have the property.
"""


async def _reply_to(open_provider: OpenProvider, line: Line) -> tuple[Reply, DeltaListener]:
    async with open_provider(line) as provider:
        listener = DeltaListener()
        return await provider.answer(sample_request(), listener.publish), listener


async def _failed(open_provider: OpenProvider, error: ProviderError, listener: DeltaListener) -> ProviderError:
    async with open_provider(fails(error)) as provider:
        try:
            reply = await provider.answer(sample_request(), listener.publish)
        except ProviderError as raised:
            return raised
    raise AssertionError(f"expected a ProviderError ({error.fault}), got {reply!r}")


@asynccontextmanager
async def _call_in_flight(provider: Provider):
    listener = DeltaListener()
    call = asyncio.ensure_future(provider.answer(sample_request(), listener.publish))
    try:
        yield call, listener
    finally:
        call.cancel()
        await asyncio.wait({call}, timeout=PROMPTLY)


async def _first_delta(received: asyncio.Event, call: asyncio.Future[Reply]) -> None:
    waiter = asyncio.ensure_future(received.wait())
    await asyncio.wait({waiter, call}, timeout=PROMPTLY, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    assert received.is_set(), f"nothing was published while the call was in flight: {call!r}"


def _decoded(calls: tuple[ToolCall, ...]) -> list[tuple[str, object]]:
    return [(call.name, msgspec.json.decode(call.arguments or "{}")) for call in calls]


def _same(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"
