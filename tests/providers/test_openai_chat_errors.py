"""Whatever goes wrong on the way to a vendor is told with its fault, its facts and what to do, and never with the key."""

import asyncio
import logging
import re
import socket
import time
import traceback
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from retinue.core.errors import BadInput, ProviderError, ProviderFault
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.openai_chat import OpenAIChatProvider
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import Listener, question
from retinue.testing.fake_chat import DONE, EVENTS, JSON, FakeChat, Played, event, failed
from retinue.testing.fake_server import Answer, Heard
from tests.providers.chat_events import saying

KEY = "s3cret-and-long-enough"
VARIABLE = "FAKE_VENDOR_KEY"


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv(VARIABLE, KEY)


async def failure_of(provider: OpenAIChatProvider, listener: Listener | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as failure:
        await provider.answer(question(), (listener or Listener()).publish)
    return failure.value


async def failure(played: Played, listener: Listener | None = None) -> ProviderError:
    """What asking a vendor comes to that answers so; its address reads `VENDOR`, whatever its port."""
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        error = await failure_of(provider, listener)
        error.args = (str(error).replace(vendor.url, "VENDOR").replace(vendor.url[7:], "VENDOR:PORT"),)
        return error


Facts = tuple[str, ProviderFault, int | None]


def facts(error: ProviderError) -> Facts:
    return str(error), error.fault, error.status


# ---- statuses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said", "expected", "fault"),
    [
        (400, "Bad temperature", "VENDOR/v1 answered 400: Bad temperature", "bad_request"),
        (401, "Who are you?", f"VENDOR/v1 answered 401: Who are you?. Check the key in {VARIABLE}", "auth"),
        (403, "Not you", f"VENDOR/v1 answered 403: Not you. Check the key in {VARIABLE}", "auth"),
        (
            402,
            "Insufficient Balance",
            f"VENDOR/v1 answered 402: Insufficient Balance. Check the plan and the balance of the key in {VARIABLE}",
            "auth",
        ),
        (
            404,
            "The model does not exist",
            "VENDOR/v1 answered 404: The model does not exist. Check the model name 'model' and the base URL "
            "(asked: VENDOR/v1/chat/completions)",
            "bad_request",
        ),
        (408, "Too slow", "VENDOR/v1 answered 408: Too slow", "timeout"),
        (409, "Busy", "VENDOR/v1 answered 409: Busy", "overloaded"),
        (
            413,
            "Too large",
            "VENDOR/v1 answered 413: Too large. The conversation is longer than model 'model' takes",
            "too_long",
        ),
        (422, "Unknown field", "VENDOR/v1 answered 422: Unknown field", "bad_request"),
        (429, "Slow down", "VENDOR/v1 answered 429: Slow down", "rate_limited"),
        (
            429,
            "You exceeded your current quota",
            "VENDOR/v1 answered 429: You exceeded your current quota. "
            f"Check the plan and the balance of the key in {VARIABLE}",
            "auth",
        ),
        (451, "Not here", "VENDOR/v1 answered 451: Not here", "refused"),
        (500, "Oops", "VENDOR/v1 answered 500: Oops", "overloaded"),
        (502, "Oops", "VENDOR/v1 answered 502: Oops", "overloaded"),
        (503, "Oops", "VENDOR/v1 answered 503: Oops", "overloaded"),
        (504, "Oops", "VENDOR/v1 answered 504: Oops", "timeout"),
        (529, "Oops", "VENDOR/v1 answered 529: Oops", "overloaded"),
    ],
)
async def test_a_status_is_told_with_its_fault(status: int, said: str, expected: str, fault: ProviderFault) -> None:
    assert facts(await failure(failed(status, said))) == (expected, fault, status)


@pytest.mark.parametrize(
    "said",
    [
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000.", "code": None},
        {"message": "m", "code": "context_length_exceeded"},
        {"message": "the request exceeds the available context size, try increasing it", "type": "exceed_context"},
        {"message": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
)
async def test_a_conversation_that_is_too_long_is_told_as_such(said: dict[str, object]) -> None:
    error = await failure(Answer(status=400, headers=JSON, pieces=(msgspec.json.encode({"error": said}),)))

    assert (error.fault, error.transient) == ("too_long", False)


async def test_a_filtered_request_is_refused() -> None:
    body = msgspec.json.encode({"error": {"message": "flagged", "code": "content_filter"}})

    assert (await failure(Answer(status=400, headers=JSON, pieces=(body,)))).fault == "refused"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"the message"}}', "the message"),
        (b'{"error":"the error"}', "the error"),
        (b'{"message":"the message"}', "the message"),
        (b'{"detail":"the detail"}', "the detail"),
        (b'{"detail":[{"loc":["body"],"msg":"field required"}]}', '[{"loc":["body"],"msg":"field required"}]'),
        (b'[{"error":{"message":"in a list","status":"INVALID"}}]', "in a list"),
        (b'{"error":{"what":"else"}}', '{"what":"else"}'),
        (b'{"ok":false}', '{"ok":false}'),
        (b"<html>\n <h1>Bad Request</h1>\n</html>", "<html> <h1>Bad Request</h1> </html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "Bad Request"),
        (b"null", "null"),
        (b"x" * 100_000, "x" * 500 + "…"),
    ],
)
async def test_a_vendors_words_are_found_wherever_they_are_and_not_too_many(body: bytes, said: str) -> None:
    assert str(await failure(Answer(status=400, pieces=(body,)))) == f"VENDOR/v1 answered 400: {said}"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": formatdate(0, usegmt=True)}, 0.0),
        ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
        ({}, None),
    ],
)
async def test_a_wish_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert (await failure(Answer(status=429, headers=headers))).retry_after == seconds


async def test_a_wish_to_wait_may_be_a_date() -> None:
    error = await failure(Answer(status=503, headers={"Retry-After": formatdate(time.time() + 100, usegmt=True)}))

    assert error.retry_after is not None
    assert 90 < error.retry_after <= 100


async def test_a_redirect_is_not_followed() -> None:
    target = f"https://someone:{KEY}@elsewhere.example/v1?key={KEY}#{KEY}"

    assert facts(await failure(Answer(status=307, headers={"Location": target}))) == (
        "VENDOR/v1 answered 307 and points to https://elsewhere.example/v1; redirects are not followed: "
        "set the base URL to where the API is",
        "bad_request",
        307,
    )


async def test_an_error_that_never_ends_is_told_as_far_as_it_came() -> None:
    error = await failure(Answer(status=500, pieces=(b"still thinking",), ending="silence"))

    assert facts(error) == ("VENDOR/v1 answered 500: still thinking", "overloaded", 500)


# ---- keys -----------------------------------------------------------------------------------------------------------


async def test_the_key_is_read_at_each_request_and_sent_as_a_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeChat(says("hi")) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        await provider.answer(question(), print)
        monkeypatch.setenv(VARIABLE, " another \n")
        await provider.answer(question(), print)

        assert [heard.headers["authorization"] for heard in vendor.heard] == [f"Bearer {KEY}", "Bearer another"]


async def test_without_a_variable_no_key_is_sent_and_a_refusal_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with FakeChat(failed(401, "no")) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        error = await failure_of(provider)

        assert "authorization" not in vendor.heard[0].headers
        assert str(error) == (
            f"{vendor.base_url} answered 401: no. No key was sent: name the variable that holds it (api_key_env)"
        )


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "is not set; set it to the key for {}"),
        (" ", "is not set; set it to the key for {}"),
        ("a\nb", "holds characters that no key has; set it to the key for {} and nothing else"),
        ("schlüssel", "holds characters that no key has; set it to the key for {} and nothing else"),
    ],
)
async def test_a_key_that_is_missing_or_cannot_be_one_is_told_before_anything_is_sent(
    value: str | None, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    async with FakeChat(says("hi")) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        error = await failure_of(provider)

        told = f"the environment variable {VARIABLE} {complaint.format(vendor.base_url)}"
        assert (facts(error), vendor.heard) == ((told, "auth", None), [])


def echo_in_an_error(heard: Heard) -> Answer:
    return failed(401, f"Wrong key: {heard.headers['authorization']}, {heard.headers['x-api-key']}, sk-abcdefgh")


def echo_in_a_long_error(heard: Heard) -> Answer:
    return failed(400, "x" * 490 + heard.headers["authorization"])


def echo_in_a_stream(heard: Heard) -> Answer:
    return Answer(headers=EVENTS, pieces=(event({"error": {"message": heard.headers["authorization"]}}),))


def echo_nonsense(heard: Heard) -> Answer:
    return Answer(headers=EVENTS, pieces=(b"data: " + heard.headers["authorization"].encode() + b"\n\n",))


def echo_something_else(heard: Heard) -> Answer:
    return Answer(headers={"Content-Type": "text/html"}, pieces=(heard.headers["authorization"].encode(),))


def echo_elsewhere(heard: Heard) -> Answer:
    return Answer(status=302, headers={"Location": f"http://x/{heard.headers['x-api-key']}/{KEY}"})


def hang_up(_: Heard) -> Answer:
    return Answer(status=0, ending="cut")


@pytest.mark.parametrize(
    "indiscreet",
    [
        echo_in_an_error,
        echo_in_a_long_error,
        echo_in_a_stream,
        echo_nonsense,
        echo_something_else,
        echo_elsewhere,
        hang_up,
    ],
)
async def test_no_key_appears_in_any_error_or_log(
    indiscreet: Callable[[Heard], Answer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"X-Api-Key": "another-s3cret"}
    async with FakeChat(indiscreet) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE, headers) as provider:
        error = await failure_of(provider)

    told = [str(error), repr(error), repr(error.__dict__), repr(error.__context__), repr(provider), caplog.text]
    shown = "\n".join([*told, *traceback.format_exception(error)])
    assert re.findall(r"s3cret|x{490}B|sk-abc", shown) == []


# ---- connections ----------------------------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_nobody_listens() -> None:
    address = f"127.0.0.1:{unused_port()}"
    async with OpenAIChatProvider(f"http://{address}/v1") as provider:
        assert facts(await failure_of(provider)) == (
            f"cannot reach {address} (base URL http://{address}/v1): Connection refused. "
            "Check that the server runs and the base URL is right",
            "unreachable",
            None,
        )


async def test_nobody_knows_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_nobody_picks_up(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_server_without_tls_is_asked_with_it() -> None:
    async with FakeChat(says("hi")) as vendor:
        address = vendor.url.removeprefix("http://")
        async with OpenAIChatProvider(f"https://{address}/v1") as provider:
            error = await failure_of(provider)

    assert (error.fault, error.status) == ("unreachable", None)
    assert re.fullmatch(
        rf"cannot make a secure connection to {address} \(base URL https://{address}/v1\): .+\. "
        "Check the server's certificate, and whether it wants https at all",
        str(error),
    )


async def test_a_proxy_that_is_not_there_is_named_as_the_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    async with OpenAIChatProvider("http://api.example/v1") as provider:
        assert facts(await failure_of(provider)) == (
            "cannot reach api.example:80 (base URL http://api.example/v1) through the proxy that the environment names. "
            "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY",
            "unreachable",
            None,
        )


async def test_a_server_that_hangs_up() -> None:
    assert facts(await failure(Answer(status=0, ending="cut"))) == (
        "VENDOR:PORT (base URL VENDOR/v1) closed the connection before it had answered",
        "cut",
        None,
    )


async def test_a_server_that_speaks_something_else() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with OpenAIChatProvider(f"http://127.0.0.1:{port}/v1") as provider:
            error = await failure_of(provider)

    assert error.fault == "cut"
    assert str(error).startswith(f"127.0.0.1:{port} (base URL http://127.0.0.1:{port}/v1) does not answer in HTTP: ")


# ---- streams --------------------------------------------------------------------------------------------------------

WORDS = event(saying(content="It is bec"))


@pytest.mark.parametrize(
    ("answer", "message", "fault", "partial"),
    [
        (Answer(pieces=(WORDS,), ending="cut"), "the stream ended in the middle of the answer", "cut", "It is bec"),
        (Answer(pieces=(WORDS,)), "the stream ended in the middle of the answer", "cut", "It is bec"),
        (
            Answer(pieces=(WORDS, event(saying(content="ause"))[:-20])),
            'an event of the stream cannot be read: {"id":"r1","model":"m1","choices":[{"index":0,"delta":{"content":"au',
            "cut",
            "It is bec",
        ),
        (
            Answer(pieces=(WORDS, b"data: nonsense\n\n")),
            "an event of the stream cannot be read: nonsense",
            "cut",
            "It is bec",
        ),
        (
            Answer(pieces=(WORDS, event({"error": {"message": "Overloaded", "type": "overloaded_error"}}))),
            "Overloaded",
            "overloaded",
            "It is bec",
        ),
        (
            Answer(pieces=(WORDS, event({"error": {"message": "Bad tool", "type": "invalid_request_error"}}))),
            "Bad tool",
            "bad_request",
            "It is bec",
        ),
        (Answer(), "the answer is empty", "cut", ""),
        (Answer(ending="cut"), "the stream ended without an answer", "cut", ""),
        (Answer(pieces=(DONE,)), "the stream ended without an answer", "cut", ""),
        (
            Answer(headers={"Content-Type": "text/html"}, pieces=(b"<html>Welcome</html>" * 50,)),
            "the answer (text/html) is no stream of events: " + "<html>Welcome</html>" * 10,
            "cut",
            "",
        ),
        (Answer(headers=JSON, pieces=(b'{"error":{"message":"no","code":503}}',)), "no", "overloaded", ""),
        (Answer(headers=JSON, pieces=(b'{"hello":"there"}',)), "the stream ended without an answer", "cut", ""),
        (Answer(headers=JSON, pieces=(b'{"hel',)), 'an event of the stream cannot be read: {"hel', "cut", ""),
    ],
)
async def test_an_answer_that_is_none(answer: Answer, message: str, fault: ProviderFault, partial: str) -> None:
    listener = Listener()
    error = await failure(answer, listener)

    assert (str(error), error.fault) == (f"VENDOR/v1: {message}", fault)
    assert (error.partial, listener.text) == (partial, partial)


async def test_a_whole_answer_that_is_cut() -> None:
    error = await failure(Answer(headers=JSON, pieces=(b'{"choices":[',), ending="cut"))

    assert facts(error) == (
        "VENDOR:PORT (base URL VENDOR/v1) closed the connection before it had answered",
        "cut",
        None,
    )


@pytest.mark.parametrize("body", [b"\x00" * 1000, b"data: {}\n\n" * 1000, b"\r" * 1000, b"{" * 1000, b"data", b"[1]"])
@pytest.mark.parametrize("status", [200, 204, 500])
async def test_garbage_is_a_provider_error(body: bytes, status: int) -> None:
    assert str(await failure(Answer(status=status, pieces=(body,) if status != 204 else ())))


# ---- what cannot even be asked --------------------------------------------------------------------------------------


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
def test_an_address_that_is_none(base_url: str, complaint: str) -> None:
    with pytest.raises(BadInput) as refused:
        OpenAIChatProvider(base_url)

    assert str(refused.value) == complaint


def test_headers_that_cannot_be_sent() -> None:
    with pytest.raises(BadInput, match="header 'X-Mine' cannot be sent"):
        OpenAIChatProvider("http://api.example/v1", headers={"X-Mine": "a\r\nX-Other: b"})
    with pytest.raises(BadInput, match=f"the header Authorization and the key in {VARIABLE} exclude each other"):
        OpenAIChatProvider("http://api.example/v1", VARIABLE, {"authorization": "Bearer x"})


async def test_an_address_with_a_query_is_asked_with_it_and_shown_without() -> None:
    async with FakeChat(failed(404, "gone")) as vendor:
        async with OpenAIChatProvider(f"{vendor.base_url}/?api-version=1&key={KEY}") as provider:
            request = Request(model="m", system="", messages=[UserMessage("hi")])
            with pytest.raises(ProviderError) as failure:
                await provider.answer(request, print)

        assert str(failure.value) == (
            f"{vendor.base_url} answered 404: gone. Check the model name 'm' and the base URL "
            f"(asked: {vendor.base_url}/chat/completions)"
        )
        assert vendor.heard[0].path == "/v1/chat/completions"
