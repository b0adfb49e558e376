"""The chat wire against a fake server: the provider contract, connections and sessions."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

import retinue
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Reply, ToolCall, UserMessage
from retinue.core.ports import Provider, Request
from retinue.net.http import Http
from retinue.providers.openai_chat.request import encode
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.scripted import Line, calls, fails, says, streams, together
from retinue.testing.contracts.provider import PROMISES, DeltaListener, Promise, sample_request
from retinue.testing.fake_chat import DONE, EVENTS, JSON, ChatScript, FakeChat, Playable, event
from retinue.testing.fake_server import FakeResponse
from retinue.version import __version__
from tests.providers.chat_events import call_piece, calls_event, delta_event


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    async with FakeChat(line) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_of_single_bytes(line: Line) -> AsyncGenerator[Provider]:
    async with FakeChat(line, chunk=1) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_chat_wire_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_chat_wire_keeps_the_provider_contract_byte_by_byte(promise: Promise) -> None:
    await promise(stage_of_single_bytes)


HELLO = (event(delta_event(content="hello")), event(delta_event("stop")))
GREETED = Reply(AssistantMessage("hello"), usage=None, model="m1", response_id="r1")


async def answer_to(played: Playable, *, path: str = "/v1") -> Reply:
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.url + path) as provider:
        return await provider.answer(sample_request(), DeltaListener().publish)


async def test_a_name_that_comes_in_pieces_is_one_call() -> None:
    pieces = (
        calls_event(call_piece("get_", index=0, id="a")),
        calls_event(call_piece("weather", "", index=0)),
        calls_event(call_piece(None, '{"city":', index=0)),
        calls_event(call_piece(None, '"Rome"}', index=0)),
        calls_event(call_piece("ls", "{}", index=0, id="b")),
        delta_event("tool_calls"),
    )
    reply = await answer_to(FakeResponse(pieces=(*map(event, pieces), DONE)))

    assert reply.message.calls == (ToolCall("get_weather", '{"city":"Rome"}', "a"), ToolCall("ls", "{}", "b"))


@pytest.mark.parametrize("path", ["/v1", "/v1/", "", "/some/where", "/v1/chat/completions", "/v1?api-version=1"])
async def test_a_base_url_is_accepted_in_usual_forms(path: str) -> None:
    assert (await answer_to(says("hello"), path=path)).message.text == "hello"


@pytest.mark.parametrize(
    "answer",
    [
        FakeResponse(pieces=(*HELLO, DONE)),
        FakeResponse(headers={"Content-Type": "text/plain"}, pieces=(*HELLO, DONE)),
        FakeResponse(headers=JSON, pieces=(*HELLO, DONE)),
        FakeResponse(pieces=(b"\n", b" \n", *HELLO, DONE)),
        FakeResponse(pieces=HELLO),
        FakeResponse(pieces=HELLO, ending="cut"),
        FakeResponse(pieces=(*HELLO, b"data: {"), ending="cut"),
        FakeResponse(pieces=(*HELLO, DONE.rstrip())),
        FakeResponse(pieces=(*HELLO, DONE, b"data: nonsense\n\n")),
        FakeResponse(pieces=(*HELLO, DONE), ending="cut"),
        FakeResponse(status=201, pieces=(*HELLO, DONE)),
    ],
)
async def test_responses_with_unusual_framing_are_decoded(answer: FakeResponse) -> None:
    assert await answer_to(answer) == GREETED


async def test_a_response_as_one_json_object_is_accepted() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    body = msgspec.json.encode({"id": "r1", "model": "m1", "choices": [choice]})

    assert await answer_to(FakeResponse(headers=JSON, pieces=(b" \n", body[:20], body[20:]), chunk=7)) == GREETED


async def test_an_open_stream_after_its_end_mark_is_not_waited_for() -> None:
    began = asyncio.get_running_loop().time()

    assert await answer_to(FakeResponse(pieces=(*HELLO, DONE), ending="silence")) == GREETED
    assert asyncio.get_running_loop().time() - began < 0.05


async def test_connections_are_reused() -> None:
    async with FakeChat(says("hello")) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        for _ in range(3):
            await provider.answer(sample_request(), DeltaListener().publish)

        assert len({heard.port for heard in vendor.requests}) == 1


async def test_two_hundred_concurrent_requests_use_two_hundred_connections() -> None:
    loop = asyncio.get_running_loop()
    async with FakeChat(streams("he", "llo", every=60.0)) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        asked = (provider.answer(sample_request(), DeltaListener().publish) for _ in range(200))
        replies = await asyncio.gather(*asked)

        assert {reply.message.text for reply in replies} == {"hello"}
        assert len({heard.port for heard in vendor.requests}) == 200
        assert loop.time() < 6 * 60.0  # each of them takes five minutes, because every event waits a minute


async def test_requests_have_no_identifying_headers() -> None:
    async with (
        FakeChat(says("hello")) as vendor,
        OpenAIChatProvider(vendor.base_url, headers={"X-Title": "retinue"}) as provider,
    ):
        request = sample_request()
        await provider.answer(request, DeltaListener().publish)

        (heard,) = vendor.requests
        assert (heard.method, heard.path, heard.raw) == ("POST", "/v1/chat/completions", encode(request))
        assert heard.headers == {
            "host": vendor.url.removeprefix("http://"),
            "user-agent": f"retinue/{__version__}",
            "accept": "*/*",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "content-length": str(len(heard.raw)),
            "x-title": "retinue",
        }


async def test_a_long_conversation_arrives_whole() -> None:
    long = UserMessage("naïve 🦆 " * 300_000)
    async with FakeChat(says("I see.")) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        await provider.answer(Request(model="m", system="", messages=[long]), DeltaListener().publish)

        assert vendor.requests[0].body["messages"] == [{"role": "user", "content": long.text}]


async def test_a_shared_session_is_closed_by_its_owner_only() -> None:
    http = Http()
    async with FakeChat(says("hello")) as vendor:
        for _ in range(2):
            async with OpenAIChatProvider(vendor.base_url, http=http) as provider:
                await provider.answer(sample_request(), DeltaListener().publish)
        await http.close()

        assert len({heard.port for heard in vendor.requests}) == 1


async def test_a_run_works_over_the_wire_with_tools_and_retries() -> None:
    @retinue.tool(kind="pure")
    def search(query: str) -> str:
        """Search the logs."""
        return f"3 lines about {query}"

    busy = ProviderError("busy", fault="overloaded", status=503, retry_after=1.0)
    script = ChatScript().play(
        together(says("Let me look."), calls("search", query="pool"), calls("search", query="lock")),
        fails(busy, times=2, then=says("It was the pool.")),
    )
    async with FakeChat(script) as vendor:
        async with retinue.open(
            model="openai-chat:m",
            provider=OpenAIChatProvider(vendor.base_url),
            tools=[search],
            dialects=(),
            home=retinue.MEMORY,
        ) as r:
            outcome = await r.run("Why is it slow?")

        assert (outcome.result, outcome.text) == ("completed", "It was the pool.")
        assert [heard.attempt for heard in vendor.requests] == [1, 1, 2, 3]
        assert [message["content"] for message in vendor.requests[-1].body["messages"]][-2:] == [
            "3 lines about pool",
            "3 lines about lock",
        ]


def test_importing_retinue_does_not_import_an_http_client() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys, retinue, retinue.app.open; print('aiohttp' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout == "False\n"


@pytest.mark.parametrize("sign", [b"\n", b": at work\n\n", event(delta_event(content=""))])
async def test_blanks_comments_and_empty_events_report_alive(sign: bytes) -> None:
    signs: list[str] = []
    async with (
        FakeChat(FakeResponse(headers=EVENTS, pieces=(sign,), ending="cut")) as vendor,
        OpenAIChatProvider(vendor.base_url) as provider,
    ):
        with pytest.raises(ProviderError):
            await provider.answer(
                replace(sample_request(), alive=lambda: signs.append("alive")), DeltaListener().publish
            )

    assert signs == ["alive"]
