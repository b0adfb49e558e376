"""Errors of vendors over HTTP: what happened, which fault it is, and what is left out of the next request."""

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import pytest

from retinue.core.agent import Output
from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.testing.contracts.provider import DeltaListener, sample_request
from retinue.testing.fake_chat import EVENTS, JSON, error_response, event
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.raw_answers import PROVIDERS, answer


async def failure_of(wire: str, response: FakeResponse) -> ProviderError:
    async with FakeServer(lambda _: response) as server, PROVIDERS[wire](server.url) as provider:
        with pytest.raises(ProviderError) as failed:
            await provider.answer(sample_request(), DeltaListener().publish)
    return failed.value


def from_openrouter(raw: str, status: int = 400) -> FakeResponse:
    error = {"message": "Provider returned error", "code": status, "metadata": {"raw": raw, "provider_name": "A"}}
    return FakeResponse(status=status, headers=JSON, pieces=(msgspec.json.encode({"error": error}),))


@pytest.mark.parametrize(
    ("raw", "fault", "message"),
    [
        (
            '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 250000 tokens"}}',
            "too_long",
            "Provider returned error: prompt is too long: 250000 tokens",
        ),
        ("the model is on holiday", "bad_request", "Provider returned error: the model is on holiday"),
        ('{"error":{"message":"Bad tools"}}', "bad_request", "Provider returned error: Bad tools"),
    ],
)
async def test_the_error_behind_openrouter_is_shown(raw: str, fault: str, message: str) -> None:
    error = await failure_of("chat", from_openrouter(raw))

    assert error.fault == fault
    assert message in str(error)


@pytest.mark.parametrize("has_choice", [True, False])
@pytest.mark.parametrize("code", [400, 502])
async def test_the_error_behind_openrouter_is_shown_inside_a_stream(has_choice: bool, code: int) -> None:
    """OpenRouter has sent its headers by then, so that the error comes as an event, with or without a last choice."""
    raw = '{"error":{"message":"prompt is too long: 250000 tokens"}}'
    error = {"message": "Provider returned error", "code": code, "metadata": {"raw": raw, "provider_name": "A"}}
    choice = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]} if has_choice else {}
    failed = await failure_of("chat", FakeResponse(headers=EVENTS, pieces=(event({"error": error} | choice),)))

    assert (failed.fault, "Provider returned error: prompt is too long" in str(failed)) == ("too_long", True)


async def test_the_length_error_of_dashscope_is_too_long() -> None:
    text = "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"

    assert (await failure_of("chat", error_response(400, text))).fault == "too_long"


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_request_that_cloudflare_blocks_is_no_matter_of_the_key(wire: str) -> None:
    page = b"<!DOCTYPE html><html><head><title>Attention Required! | Cloudflare</title></head></html>"
    error = await failure_of(wire, FakeResponse(status=403, headers={"Content-Type": "text/html"}, pieces=(page,)))

    assert error.fault == "bad_request"
    assert "is behind Cloudflare, which blocked the request before it reached the server" in str(error)
    assert "403: Attention Required! | Cloudflare" in str(error)


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_page_in_place_of_an_answer_is_named_by_its_title(wire: str) -> None:
    page = b"<html>\n<head>" + b" " * 300 + b"<title>Sign in</title></head></html>"
    error = await failure_of(wire, FakeResponse(headers={"Content-Type": "text/html"}, pieces=(page,)))

    assert error.fault == "cut"
    assert "the answer is a web page (Sign in), not an event stream. Check the base URL" in str(error)


async def test_the_page_of_a_gateway_is_named_by_its_title() -> None:
    page = b"<html><head><title>502 Bad Gateway</title></head><body>" + b"x" * 1000 + b"</body></html>"
    error = await failure_of("chat", FakeResponse(status=502, headers={"Content-Type": "text/html"}, pieces=(page,)))

    assert error.fault == "overloaded"
    assert str(error).endswith("answered 502: 502 Bad Gateway")


@pytest.mark.parametrize("in_stream", [True, False])
async def test_an_error_that_is_a_mere_string_is_shown(in_stream: bool) -> None:
    body = {"error": "model 'qwen3' not found"}
    response = (
        FakeResponse(headers=EVENTS, pieces=(event(body),))
        if in_stream
        else FakeResponse(status=404, headers=JSON, pieces=(msgspec.json.encode(body),))
    )

    assert "model 'qwen3' not found" in str(await failure_of("chat", response))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 11.5s.", 11.5),
        ("Please try again in 250ms", 0.25),
        ("try again in 1m2s", 62.0),
        ("", None),
    ],
)
async def test_the_wait_that_a_message_announces_is_read_inside_a_stream(text: str, seconds: float | None) -> None:
    error = {"error": {"message": f"Rate limit reached. {text}", "type": "tokens", "code": "rate_limit_exceeded"}}
    failed = await failure_of("chat", FakeResponse(headers=EVENTS, pieces=(event(error),)))

    assert (failed.fault, failed.retry_after) == ("rate_limited", seconds)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_the_wait_that_a_failed_response_announces_is_read(is_whole: bool) -> None:
    error = {"code": "rate_limit_exceeded", "message": "Rate limit reached on tokens. Please try again in 11.5s."}
    failed_response = {"type": "response.failed", "response": {"id": "r1", "status": "failed", "error": error}}
    payload = failed_response if is_whole else {"type": "error", **error}
    failed = await failure_of("responses", FakeResponse(headers=EVENTS, pieces=(event(payload),)))

    assert (failed.fault, failed.retry_after) == ("rate_limited", 11.5)


# ---- options that are left out ---------------------------------------------------------------------------------------


async def bodies_of(wire: str, request: Request, reject: Callable[[dict[str, Any]], FakeResponse | None]) -> list[Any]:
    def respond(heard: ReceivedRequest) -> FakeResponse:
        return reject(heard.body) or (answer(wire, "{}") if heard.body.get("stream") else unstreamed(wire))

    async with FakeServer(respond) as server, PROVIDERS[wire](server.url) as provider:
        for _ in range(2):
            reply = await provider.answer(request, DeltaListener().publish)
            assert reply.message.text == "{}"
    return [heard.body for heard in server.requests]


def unstreamed(wire: str) -> FakeResponse:
    if wire == "chat":
        body: dict[str, Any] = {"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]}
    else:
        item = {"type": "message", "content": [{"type": "output_text", "text": "{}"}]}
        body = {"id": "r1", "status": "completed", "output": [item]}
    return FakeResponse(headers=JSON, pieces=(msgspec.json.encode(body),))


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_model_that_may_not_be_streamed_is_asked_without(wire: str) -> None:
    def reject(body: dict[str, Any]) -> FakeResponse | None:
        text = "Your organization must be verified to stream this model."
        return error_response(400, text, param="stream", code="unsupported_value") if body.get("stream") else None

    first, *others = await bodies_of(wire, sample_request(), reject)

    assert first["stream"] is True
    assert [(each.get("stream"), each.get("stream_options")) for each in others] == [(None, None)] * 2


@pytest.mark.parametrize(
    "message",
    [
        "'response_format.type' must be 'json_schema' or 'text'",
        "This model does not support response format `json_object`.",
        "response_format` does not support streaming",
        "json mode cannot be combined with tool/function calling",
    ],
)
async def test_a_refused_output_format_is_demanded_in_the_prompt(message: str) -> None:
    request = Request(model="m", system="", messages=[UserMessage("hi")], output=Output(mode="json_object"))

    def reject(body: dict[str, Any]) -> FakeResponse | None:
        return error_response(400, message) if "response_format" in body else None

    first, *others = await bodies_of("chat", request, reject)

    assert first["response_format"] == {"type": "json_object"}
    assert [("response_format" in each, "JSON" in each["messages"][0]["content"]) for each in others] == [
        (False, True)
    ] * 2


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "br": import_module("brotli").compress,
    "zstd": import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd").compress,
}


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_compressed_error_is_shown(wire: str, encoding: str) -> None:
    body = COMPRESS[encoding](msgspec.json.encode({"error": {"message": "the model is on holiday"}}))
    response = FakeResponse(status=400, headers=JSON | {"Content-Encoding": encoding}, pieces=(body,))
    error = await failure_of(wire, response)

    assert (error.fault, error.status) == ("bad_request", 400)
    assert "the model is on holiday" in str(error)


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_compressed_stream_is_read(wire: str, encoding: str) -> None:
    whole = answer(wire, "It was the pool.")
    body = COMPRESS[encoding](b"".join(whole.pieces))
    pieces = tuple(body[start : start + 7] for start in range(0, len(body), 7))
    response = FakeResponse(headers={**(whole.headers or {}), "Content-Encoding": encoding}, pieces=pieces)
    async with FakeServer(lambda _: response) as server, PROVIDERS[wire](server.url) as provider:
        reply = await provider.answer(sample_request(), DeltaListener().publish)

    assert reply.message.text == "It was the pool."


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_an_answer_with_large_headers_is_read(wire: str) -> None:
    whole = answer(wire, "It was the pool.")
    headers = {**(whole.headers or {}), **{f"X-Trace-{number}": "x" * 6000 for number in range(8)}}
    async with FakeServer(lambda _: replace(whole, headers=headers)) as server, PROVIDERS[wire](server.url) as provider:
        reply = await provider.answer(sample_request(), DeltaListener().publish)

    assert reply.message.text == "It was the pool."
