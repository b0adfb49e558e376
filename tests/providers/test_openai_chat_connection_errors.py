"""Connection errors and unusable responses carry a fault and advice."""

import asyncio
import re
import socket

import pytest

from retinue.core.errors import BadInput, ProviderError, ProviderFault
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import DeltaListener
from retinue.testing.fake_chat import DONE, JSON, FakeChat, error_response, event
from retinue.testing.fake_server import FakeResponse
from tests.providers.chat_errors import KEY, VARIABLE, facts, failure, failure_of
from tests.providers.chat_events import delta_event


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_a_refused_connection_is_unreachable() -> None:
    address = f"127.0.0.1:{unused_port()}"
    async with OpenAIChatProvider(f"http://{address}/v1") as provider:
        assert facts(await failure_of(provider)) == (
            f"cannot reach {address} (base URL http://{address}/v1): Connection refused. "
            "Check that the server runs and the base URL is right",
            "unreachable",
            None,
        )


async def test_an_unknown_host_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    async with OpenAIChatProvider("https://nowhere.invalid/v1") as provider:
        assert facts(await failure_of(provider)) == (
            "cannot find the host of nowhere.invalid:443 (base URL https://nowhere.invalid/v1). "
            "Check the base URL and the network",
            "unreachable",
            None,
        )


async def test_a_connect_timeout_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    async def wait(*_: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(loop, "sock_connect", wait)
    async with OpenAIChatProvider("http://127.0.0.1:9/v1") as provider:
        error = await failure_of(provider)

    assert loop.time() == pytest.approx(15, abs=1)  # pyright: ignore[reportUnknownMemberType]
    assert facts(error) == (
        "cannot reach 127.0.0.1:9 (base URL http://127.0.0.1:9/v1): no connection within 15 s. "
        "Check the base URL and the network",
        "unreachable",
        None,
    )


async def test_https_to_a_plain_http_server_is_unreachable() -> None:
    async with FakeChat(says("hi")) as vendor:
        address = vendor.url.removeprefix("http://")
        async with OpenAIChatProvider(f"https://{address}/v1") as provider:
            error = await failure_of(provider)

    assert (error.fault, error.status) == ("unreachable", None)
    assert re.fullmatch(
        rf"cannot make a secure connection to {address} \(base URL https://{address}/v1\): .+\. "
        "Check the server's certificate, and whether it speaks https at all",
        str(error),
    )


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:PORT", "http://nowhere.invalid:1", "https://127.0.0.1:PORT"])
async def test_an_unreachable_proxy_is_named_in_the_error(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.replace("PORT", str(unused_port())))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    async with OpenAIChatProvider("http://api.example/v1") as provider:
        assert facts(await failure_of(provider)) == (
            "cannot reach api.example:80 (base URL http://api.example/v1) through the proxy that the environment names"
            ". Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY",
            "unreachable",
            None,
        )


async def test_an_unsupported_proxy_scheme_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    async with OpenAIChatProvider("http://api.example/v1") as provider:
        error = await failure_of(provider)

    assert (str(error), error.transient) == (
        "cannot reach http://api.example/v1: HTTP_PROXY names a proxy of the kind socks5://, and only http:// and "
        "https:// are known; set another, or add api.example to NO_PROXY",
        False,
    )


async def test_a_closed_connection_is_a_cut_error() -> None:
    assert facts(await failure(FakeResponse(status=0, ending="cut"))) == (
        "VENDOR:PORT (base URL VENDOR/v1) closed the connection before it had answered",
        "cut",
        None,
    )


async def test_a_response_that_is_not_http_is_a_cut_error() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with OpenAIChatProvider(f"http://127.0.0.1:{port}/v1") as provider:
            error = await failure_of(provider)

    assert error.fault == "cut"
    assert str(error).startswith(f"127.0.0.1:{port} (base URL http://127.0.0.1:{port}/v1) did not answer in HTTP: ")


# ---- streams --------------------------------------------------------------------------------------------------------

WORDS = event(delta_event(content="It is bec"))


@pytest.mark.parametrize(
    ("answer", "message", "fault", "partial"),
    [
        (
            FakeResponse(pieces=(WORDS,), ending="cut"),
            "the stream ended in the middle of the answer",
            "cut",
            "It is bec",
        ),
        (FakeResponse(pieces=(WORDS,)), "the stream ended in the middle of the answer", "cut", "It is bec"),
        (
            FakeResponse(pieces=(WORDS, b'data: {"cho')),
            'an event of the stream cannot be read: {"cho',
            "cut",
            "It is bec",
        ),
        (
            FakeResponse(pieces=(WORDS, b"data: nonsense\n\n")),
            "an event of the stream cannot be read: nonsense",
            "cut",
            "It is bec",
        ),
        (
            FakeResponse(pieces=(WORDS, event({"error": {"message": "Overloaded", "type": "overloaded_error"}}))),
            "Overloaded",
            "overloaded",
            "It is bec",
        ),
        (
            FakeResponse(pieces=(WORDS, event({"error": {"message": "Bad tool", "type": "invalid_request_error"}}))),
            "Bad tool",
            "bad_request",
            "It is bec",
        ),
        (FakeResponse(), "the answer is empty", "cut", ""),
        (FakeResponse(pieces=(DONE,)), "the stream ended without an answer", "cut", ""),
        (
            FakeResponse(headers={"Content-Type": "text/html"}, pieces=(b"<html>Welcome</html>" * 50,)),
            f"the answer (text/html) is not an event stream: {'<html>Welcome</html>' * 10}. Check the base URL",
            "cut",
            "",
        ),
        (FakeResponse(headers=JSON, pieces=(b'{"error":{"message":"no","code":503}}',)), "no", "overloaded", ""),
        (FakeResponse(headers=JSON, pieces=(b'{"hello":"there"}',)), "the stream ended without an answer", "cut", ""),
        (FakeResponse(headers=JSON, pieces=(b'{"hel',)), 'an event of the stream cannot be read: {"hel', "cut", ""),
    ],
)
async def test_unusable_answers_are_errors_with_advice(
    answer: FakeResponse, message: str, fault: ProviderFault, partial: str
) -> None:
    listener = DeltaListener()
    error = await failure(answer, listener)

    assert (str(error), error.fault) == (f"VENDOR/v1: {message}", fault)
    assert (error.partial, listener.text) == (partial, partial)


@pytest.mark.parametrize("pieces", [(b'{"choices":[',), ()])
async def test_a_body_cut_before_its_first_event_is_a_cut_error(pieces: tuple[bytes, ...]) -> None:
    assert facts(await failure(FakeResponse(pieces=pieces, ending="cut"))) == (
        "VENDOR:PORT (base URL VENDOR/v1) closed the connection before it had answered",
        "cut",
        None,
    )


@pytest.mark.parametrize("body", [b"\x00" * 1000, b"data: {}\n\n" * 1000, b"\r" * 1000, b"{" * 1000, b"data", b"[1]"])
@pytest.mark.parametrize("status", [200, 204, 500])
async def test_any_response_body_is_a_provider_error(body: bytes, status: int) -> None:
    assert str(await failure(FakeResponse(status=status, pieces=(body,) if status != 204 else ())))


# ---- invalid endpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "complaint"),
    [
        ("api.example/v1", "base URL 'api.example/v1' is not an address; expected something like https://host/v1"),
        (
            "ftp://api.example",
            "base URL 'ftp://api.example' is not an address; expected something like https://host/v1",
        ),
        ("", "base URL '' is not an address; expected something like https://host/v1"),
        (
            f"https://me:{KEY}@api.example/v1",
            "the base URL for api.example has a name or password in it; name the key's variable instead",
        ),
    ],
)
def test_an_invalid_base_url_is_rejected(base_url: str, complaint: str) -> None:
    with pytest.raises(BadInput) as refused:
        OpenAIChatProvider(base_url)

    assert str(refused.value) == complaint


def test_invalid_headers_are_rejected() -> None:
    with pytest.raises(BadInput, match="header 'X-Mine' cannot be sent"):
        OpenAIChatProvider("http://api.example/v1", headers={"X-Mine": "a\r\nX-Other: b"})
    with pytest.raises(BadInput, match=f"the header Authorization and the key in {VARIABLE} exclude each other"):
        OpenAIChatProvider("https://api.example/v1", VARIABLE, {"authorization": "Bearer x"})


async def test_a_query_in_the_base_url_is_sent_but_not_shown() -> None:
    async with FakeChat(error_response(404, "gone")) as vendor:
        async with OpenAIChatProvider(f"{vendor.base_url}/?api-version=1&key={KEY}") as provider:
            request = Request(model="m", system="", messages=[UserMessage("hi")])
            with pytest.raises(ProviderError) as failure:
                await provider.answer(request, print)

        assert str(failure.value) == (
            f"{vendor.base_url} answered 404: gone. Check the model name 'm' and the base URL "
            f"(asked: {vendor.base_url}/chat/completions)"
        )
        assert vendor.requests[0].path == "/v1/chat/completions"
