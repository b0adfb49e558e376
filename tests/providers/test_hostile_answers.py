"""What a hostile server sends is bounded: the bytes of an answer, the calls of a reply, the numbers of its usage."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import MAX_CALLS, Reply
from retinue.core.usage import MAX_TOKENS, Usage
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.anthropic.response import Decoder as AnthropicDecoder
from retinue.providers.gemini.response import Decoder as GeminiDecoder
from retinue.providers.gemini.response import GeminiProvider
from retinue.providers.http import HttpProvider, max_bytes
from retinue.providers.openai_chat.response import Decoder as ChatDecoder
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses.response import Decoder as ResponsesDecoder
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.providers.stream_decoder import StreamDecoder
from retinue.testing.contracts.provider import DeltaListener, sample_request

Event = dict[str, Any]

WIRES: dict[str, Callable[[str], HttpProvider]] = {
    "chat": OpenAIChatProvider,
    "responses": OpenAIResponsesProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
}
DECODERS: dict[str, Callable[[], StreamDecoder]] = {
    "chat": ChatDecoder,
    "responses": ResponsesDecoder,
    "anthropic": AnthropicDecoder,
    "gemini": GeminiDecoder,
}


def chat(**delta: Any) -> Event:
    return {"choices": [{"delta": delta}]}


def block(kind: str, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


def parts(**part: Any) -> Event:
    return {"candidates": [{"content": {"parts": [part]}}]}


BULK = "x" * 60_000
ENDLESS: dict[tuple[str, str], list[Event]] = {
    ("chat", "text"): [chat(content=BULK)],
    ("chat", "thoughts"): [chat(reasoning_content=BULK)],
    ("chat", "arguments"): [chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": BULK}}])],
    ("chat", "nothing"): [{"choices": [], "padding": BULK}],
    ("responses", "text"): [{"type": "response.output_text.delta", "delta": BULK}],
    ("responses", "thoughts"): [{"type": "response.reasoning_text.delta", "delta": BULK}],
    ("responses", "arguments"): [{"type": "response.function_call_arguments.delta", "delta": BULK}],
    ("anthropic", "text"): [block("text_delta", text=BULK)],
    ("anthropic", "thoughts"): [block("thinking_delta", thinking=BULK)],
    ("anthropic", "arguments"): [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f"}},
        block("input_json_delta", partial_json=BULK),
    ],
    ("gemini", "text"): [parts(text=BULK)],
    ("gemini", "thoughts"): [parts(text=BULK, thought=True)],
    ("gemini", "arguments"): [parts(functionCall={"name": "f", "args": {"a": BULK}})],
}


class EndlessServer:
    """Sends `first`, then `again` without end unless it is empty; `sent` counts the bytes that a client has taken."""

    def __init__(self, first: bytes, again: bytes) -> None:
        self.first, self.again, self.sent = first, again, 0
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> EndlessServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        await asyncio.gather(*self._serving)  # they end when the client closes its connection
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + self.first)
            while self.again:
                writer.write(self.again)
                await writer.drain()
                self.sent += len(self.again)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def as_events(events: list[Event]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


async def refusal_of(wire: str, server: EndlessServer, *, max_output: int | None) -> str:
    async with WIRES[wire](server.url) as provider:
        with pytest.raises(ProviderError) as refused:
            await provider.answer(replace(sample_request(), max_output=max_output), DeltaListener().publish)
    assert refused.value.fault == "internal"
    assert not refused.value.transient
    return str(refused.value)


@pytest.mark.real_time
@pytest.mark.parametrize(("wire", "what"), ENDLESS)
async def test_an_endless_answer_is_stopped_a_few_megabytes_beyond_what_was_asked_for(wire: str, what: str) -> None:
    *first, again = ENDLESS[wire, what]
    async with EndlessServer(as_events(first), as_events([again])) as server:
        text = await refusal_of(wire, server, max_output=1000)

        limit = 8 * 1024 * 1024 + 1000 * 1024
        assert f"the answer was stopped: it has more than {limit} bytes" in text or "more than 1000 tool calls" in text
        assert server.sent < limit + 16 * 1024 * 1024  # the rest is in buffers of the system


@pytest.mark.real_time
async def test_a_body_without_end_that_is_no_stream_is_stopped_too() -> None:
    async with EndlessServer(b'{"choices": "', b"x" * 60_000) as server:
        assert "the answer was stopped" in await refusal_of("chat", server, max_output=10)
    async with EndlessServer(b"", b"     \n" * 10_000) as server:
        assert "the answer was stopped" in await refusal_of("chat", server, max_output=10)
    async with EndlessServer(b"", b": comment\n\n" * 10_000) as server:
        assert "the answer was stopped" in await refusal_of("gemini", server, max_output=10)


@pytest.mark.real_time
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("beginning", "end"), [(b"data: {", b"}\n\n"), (b"{", b"}")], ids=["event", "body"])
async def test_json_of_very_many_values_is_not_decoded(wire: str, beginning: bytes, end: bytes) -> None:
    many = beginning + b'"error":[' + b"[]," * 500_000 + b"1]" + end

    async with EndlessServer(many, b"") as server:
        text = await refusal_of(wire, server, max_output=10_000)

    assert "a part of the answer has more than 1000000 values" in text


def test_the_longest_answers_of_vendors_fit() -> None:
    event = len(as_events([chat(content="token")])) + 400  # ids, fingerprints and what else vendors repeat
    assert max_bytes(128_000) > 128_000 * event
    assert max_bytes(None) > 64_000 * event


MANY: dict[str, Callable[[int], Event]] = {
    "chat": lambda n: chat(tool_calls=[{"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": "{}"}}]),
    "responses": lambda n: {
        "type": "response.output_item.done",
        "output_index": n,
        "item": {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"},
    },
    "anthropic": lambda n: {
        "type": "content_block_start",
        "index": n,
        "content_block": {"type": "tool_use", "id": f"c{n}", "name": "f"},
    },
    "gemini": lambda _: parts(functionCall={"name": "f", "args": {}}),
}
ENDS: dict[str, list[Event]] = {
    "chat": [{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}],
    "responses": [{"type": "response.completed", "response": {}}],
    "anthropic": [{"type": "message_stop"}],
    "gemini": [{"candidates": [{"finishReason": "STOP"}]}],
}


def fed(decoder: StreamDecoder, events: list[Event]) -> StreamDecoder:
    for event in events:
        decoder.feed(json.dumps(event).encode())
    return decoder


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_has_at_most_a_thousand_calls(wire: str) -> None:
    calls = [MANY[wire](number) for number in range(MAX_CALLS)]
    reply = fed(DECODERS[wire](), [*calls, *ENDS[wire]]).finish()
    assert len(reply.message.calls) == MAX_CALLS

    with pytest.raises(ProviderError) as refused:
        fed(DECODERS[wire](), [*calls, MANY[wire](MAX_CALLS)])
    assert (str(refused.value), refused.value.fault) == ("the reply has more than 1000 tool calls", "internal")


def test_all_calls_of_one_event_count() -> None:
    calls = [{"index": n, "function": {"name": "f"}} for n in range(50_000)]
    with pytest.raises(ProviderError, match="more than 1000 tool calls"):
        fed(ChatDecoder(), [chat(tool_calls=calls)])
    output = [{"type": "function_call", "call_id": f"c{n}", "name": "f"} for n in range(50_000)]
    with pytest.raises(ProviderError, match="more than 1000 tool calls"):
        ResponsesDecoder().feed_whole(json.dumps({"output": output}).encode())
    content = [{"type": "tool_use", "name": "f"} for _ in range(50_000)]
    with pytest.raises(ProviderError, match="more than 1000 tool calls"):
        AnthropicDecoder().feed_whole(json.dumps({"content": content}).encode())


def chat_usage(counts: Any) -> list[Event]:
    return [chat(content="hi"), {"choices": [{"finish_reason": "stop"}], "usage": counts}]


def responses_usage(counts: Any) -> list[Event]:
    text = {"type": "response.output_text.delta", "delta": "hi"}
    return [text, {"type": "response.completed", "response": {"usage": counts}}]


def anthropic_usage(counts: Any) -> list[Event]:
    return [
        {"type": "message_start", "message": {"usage": counts}},
        block("text_delta", text="hi"),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts},
        {"type": "message_stop"},
    ]


def gemini_usage(counts: Any) -> list[Event]:
    return [parts(text="hi"), {"candidates": [{"finishReason": "STOP"}], "usageMetadata": counts}]


USAGE: dict[str, tuple[str, str, Callable[[Any], list[Event]]]] = {
    "chat": ("prompt_tokens", "completion_tokens", chat_usage),
    "responses": ("input_tokens", "output_tokens", responses_usage),
    "anthropic": ("input_tokens", "output_tokens", anthropic_usage),
    "gemini": ("promptTokenCount", "candidatesTokenCount", gemini_usage),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("input", "output", "expected"),
    [
        (10**30, 5, Usage(input=MAX_TOKENS, output=5)),
        (-(10**30), -1, Usage()),
        (12.0, 3.9, Usage(input=12, output=3)),
        (1e300, 1, Usage(input=MAX_TOKENS, output=1)),
        ("12", 3, Usage(output=3)),
        ({"a": [1]}, 3, Usage(output=3)),
        (True, 3, Usage(output=3)),
        ([], {}, None),
    ],
)
def test_usage_is_a_number_within_bounds_whatever_a_server_counts(
    wire: str, input: object, output: object, expected: Usage | None
) -> None:
    input_name, output_name, events = USAGE[wire]
    reply = fed(DECODERS[wire](), events({input_name: input, output_name: output})).finish()

    assert (reply.message.text, reply.usage) == ("hi", expected)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("counts", ["nonsense", 7, [1, 2], None, {}, {"a": {"b": {"c": {"d": {}}}}}])
def test_usage_that_is_no_usage_is_none(wire: str, counts: object) -> None:
    assert fed(DECODERS[wire](), USAGE[wire][2](counts)).finish().usage is None


def test_details_of_usage_are_numbers_within_bounds() -> None:
    counts = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 10**40, "audio_tokens": "x"},
        "completion_tokens_details": {"reasoning_tokens": -(10**40)},
    }
    assert fed(ChatDecoder(), chat_usage(counts)).finish().usage == Usage(input=100, output=50, cached=100)
    assert fed(
        AnthropicDecoder(), anthropic_usage({"input_tokens": 2**53, "cache_read_input_tokens": 2**53})
    ).finish().usage == Usage(input=MAX_TOKENS, cached=MAX_TOKENS)


def seconds_for(events: Iterator[Event], decoder: StreamDecoder) -> float:
    payloads = [json.dumps(event).encode() for event in events]
    before = time.process_time()
    for payload in payloads:
        decoder.feed(payload)
    return time.process_time() - before


def incomplete_pieces(count: int) -> Iterator[Event]:
    """Pieces of one call that each look like the end of its arguments, and never are."""
    yield chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "x{}" + " " * 2000 + "}"}}])
    for _ in range(count):
        yield chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{" + " " * 2000 + "}"}}])


def items_without_ids(count: int) -> Iterator[Event]:
    for number in range(count):
        yield {"type": "response.output_item.done", "item": {"type": "reasoning", "id": f"r{number}"}}
        yield {"type": "response.output_item.done", "item": {"type": "message", "content": "a"}}


def empty_arguments(count: int) -> Iterator[Event]:
    for _ in range(count):
        yield {"type": "response.function_call_arguments.delta", "item_id": "i", "delta": "x" * 500}
        yield {"type": "response.function_call_arguments.done", "item_id": "i"}


def unknown_parts(count: int) -> Iterator[Event]:
    yield {"candidates": [{"content": {"parts": [{"executableCode": {}}] * count}}]}


@pytest.mark.parametrize(
    ("events", "decoder"),
    [
        (unknown_parts, GeminiDecoder),
        (incomplete_pieces, ChatDecoder),
        (items_without_ids, ResponsesDecoder),
        (empty_arguments, ResponsesDecoder),
    ],
)
def test_the_time_of_a_decoder_grows_with_the_length_of_the_answer_and_not_with_its_square(
    events: Callable[[int], Iterator[Event]], decoder: Callable[[], StreamDecoder]
) -> None:
    few, many = 1000, 16_000
    # The least of three: other work of the machine makes some of them longer.
    least = [min(seconds_for(events(count), decoder()) for _ in range(3)) for count in (few, many)]
    ratio = least[1] / least[0]

    assert ratio < 80  # 16 if it grows with the length, 256 with the square


def test_supports_of_citations_beyond_a_thousand_are_not_looked_at() -> None:
    """Each place was found by decoding the whole text up to it."""
    supports = [{"segment": {"startIndex": at, "endIndex": at + 3}, "groundingChunkIndices": [0]} for at in range(500)]
    web = {"groundingChunks": [{"web": {"uri": "https://a.example"}}], "groundingSupports": supports}
    other = web | {"groundingChunks": [{"web": {"uri": "https://b.example"}}]}
    found = [{"candidates": [{"groundingMetadata": each, "finishReason": "STOP"}]} for each in (web, web, other)]
    citations = fed(GeminiDecoder(), [parts(text="é" * 5000), *found]).finish().message.citations

    assert {each.url for each in citations} == {"https://a.example"}
    assert len(citations) == 1000
    assert [(each.start, each.end) for each in citations[:4]] == [(0, 1), (0, 2), (1, 2), (1, 3)]


def test_a_damaged_event_is_repaired_only_up_to_a_size() -> None:
    damaged = b'{"choices": [{"delta": {"content": "a\\ud83d"}}], "padding": [%s]}'
    assert ChatDecoder().feed(damaged % b"{},{}") != ()
    with pytest.raises(ProviderError, match="cannot be read"):
        ChatDecoder().feed(damaged % b",".join([b"{}"] * 400_000))


def test_names_that_a_server_gives_are_cut() -> None:
    event = {"id": "i" * 10_000, "model": "m" * 10_000} | chat(content="hi")
    reply: Reply = fed(ChatDecoder(), [event, *ENDS["chat"]]).finish()

    assert (len(reply.response_id), len(reply.model)) == (500, 500)
