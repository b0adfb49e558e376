"""Error responses carry fault, vendor's message and advice, and never the key."""

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import msgspec
import pytest

from retinue.core.errors import ProviderFault
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import sample_request
from retinue.testing.fake_chat import EVENTS, JSON, FakeChat, error_response, event
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.providers.chat_errors import KEY, VARIABLE, facts, failure, failure_of

# ---- statuses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "expected", "fault"),
    [
        (400, "Bad temperature", "VENDOR/v1 answered 400: Bad temperature", "bad_request"),
        (401, "Who are you?", f"VENDOR/v1 answered 401: Who are you? Check the key in {VARIABLE}", "auth"),
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
async def test_each_status_is_mapped_to_its_fault(status: int, text: str, expected: str, fault: ProviderFault) -> None:
    assert facts(await failure(error_response(status, text))) == (expected, fault, status)


@pytest.mark.parametrize(
    "text",
    [
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000.", "code": None},
        {"message": "m", "code": "context_length_exceeded"},
        {"message": "the request exceeds the available context size, try increasing it", "type": "exceed_context"},
        {"message": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
)
async def test_too_long_errors_are_recognized(text: dict[str, object]) -> None:
    error = await failure(FakeResponse(status=400, headers=JSON, pieces=(msgspec.json.encode({"error": text}),)))

    assert (error.fault, error.transient) == ("too_long", False)


async def test_content_filter_errors_have_fault_refused() -> None:
    body = msgspec.json.encode({"error": {"message": "flagged", "code": "content_filter"}})

    assert (await failure(FakeResponse(status=400, headers=JSON, pieces=(body,)))).fault == "refused"


@pytest.mark.parametrize(
    ("body", "text"),
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
async def test_error_messages_are_found_in_any_body_and_shortened(body: bytes, text: str) -> None:
    assert str(await failure(FakeResponse(status=400, pieces=(body,)))) == f"VENDOR/v1 answered 400: {text}"


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
async def test_retry_after_is_read_from_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert (await failure(FakeResponse(status=429, headers=headers))).retry_after == seconds


async def test_retry_after_may_be_a_date() -> None:
    error = await failure(FakeResponse(status=503, headers={"Retry-After": formatdate(time.time() + 100, usegmt=True)}))

    assert error.retry_after is not None
    assert 90 < error.retry_after <= 100


async def test_a_redirect_is_not_followed() -> None:
    target = f"https://someone:{KEY}@elsewhere.example/v1?key={KEY}#{KEY}"

    assert facts(await failure(FakeResponse(status=307, headers={"Location": target}))) == (
        "VENDOR/v1 answered 307 and points to https://elsewhere.example/v1; redirects are not followed: "
        "set the base URL to where the API is",
        "bad_request",
        307,
    )


async def test_an_endless_error_body_is_read_up_to_a_limit() -> None:
    error = await failure(FakeResponse(status=500, pieces=(b"still thinking",), ending="silence"))

    assert facts(error) == ("VENDOR/v1 answered 500: still thinking", "overloaded", 500)


# ---- keys -----------------------------------------------------------------------------------------------------------


async def test_the_key_is_read_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    async with FakeChat(says("hi")) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        await provider.answer(sample_request(), print)
        monkeypatch.setenv(VARIABLE, " another \n")
        await provider.answer(sample_request(), print)

        assert [heard.headers["authorization"] for heard in vendor.requests] == [f"Bearer {KEY}", "Bearer another"]


async def test_without_a_variable_no_key_is_sent_and_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with FakeChat(error_response(401, "no")) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        error = await failure_of(provider)

        assert "authorization" not in vendor.requests[0].headers
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
async def test_a_missing_or_invalid_key_is_an_error_before_any_request(
    value: str | None, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    async with FakeChat(says("hi")) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        error = await failure_of(provider)

        texts = f"the environment variable {VARIABLE} {complaint.format(vendor.base_url)}"
        assert (facts(error), vendor.requests) == ((texts, "auth", None), [])


def echo_in_an_error(heard: ReceivedRequest) -> FakeResponse:
    return error_response(
        401, f"Wrong key: {heard.headers['authorization']}, {heard.headers['x-api-key']}, sk-abcdefgh"
    )


def echo_in_a_long_error(heard: ReceivedRequest) -> FakeResponse:
    return error_response(400, "x" * 495 + heard.headers["authorization"].removeprefix("Bearer "))


def echo_in_a_stream(heard: ReceivedRequest) -> FakeResponse:
    return FakeResponse(headers=EVENTS, pieces=(event({"error": {"message": heard.headers["authorization"]}}),))


def echo_nonsense(heard: ReceivedRequest) -> FakeResponse:
    return FakeResponse(headers=EVENTS, pieces=(b"data: " + heard.headers["authorization"].encode() + b"\n\n",))


def echo_something_else(heard: ReceivedRequest) -> FakeResponse:
    return FakeResponse(headers={"Content-Type": "text/html"}, pieces=(heard.headers["authorization"].encode(),))


def echo_elsewhere(heard: ReceivedRequest) -> FakeResponse:
    return FakeResponse(status=302, headers={"Location": f"http://x/{heard.headers['x-api-key']}/{KEY}"})


def hang_up(_: ReceivedRequest) -> FakeResponse:
    return FakeResponse(status=0, ending="cut")


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
    indiscreet: Callable[[ReceivedRequest], FakeResponse],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    caplog.set_level(logging.DEBUG)
    headers = {"X-Api-Key": "another-s3cret"}
    async with FakeChat(indiscreet) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE, headers) as provider:
        error = await failure_of(provider)

    texts = [str(error), repr(error), repr(error.__dict__), repr(error.__context__), repr(provider), caplog.text]
    output = "\n".join([*texts, *traceback.format_exception(error)])
    assert re.findall(r"s3c|sk-abc", output) == []


async def test_a_key_in_the_reason_phrase_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line for line in head.split("\r\n") if line.lower().startswith("authorization")).split()[-1]
        writer.write(f"HTTP/1.1 400 {key}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    monkeypatch.setenv(VARIABLE, KEY)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, OpenAIChatProvider(f"http://127.0.0.1:{port}/v1", VARIABLE) as provider:
        error = await failure_of(provider)

    assert str(error) == f"http://127.0.0.1:{port}/v1 answered 400: [key]"
