"""Submissions of batches against the types of the vendors' SDKs, and against what the SDKs submit themselves."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, cast, get_args

import pytest

import retinue
from retinue.core.model_options import NO_OPTIONS
from retinue.testing.fake_server import ReceivedRequest
from tests.providers.fakes.batches import FakeBatches
from tests.vendors.test_request_bodies import MODELS, Body, check_chat, check_gemini, check_responses, misfits

openai = pytest.importorskip("openai", reason="make vendors installs it")
anthropic = pytest.importorskip("anthropic")
genai = pytest.importorskip("google.genai")
openai_batches = pytest.importorskip("openai.types.batch_create_params")
openai_files = pytest.importorskip("openai.types.file_purpose")
anthropic_batches = pytest.importorskip("anthropic.types.messages.batch_create_params")

WIRES = {"chat": "openai-chat", "responses": "openai-responses", "anthropic": "anthropic", "gemini": "gemini"}
TASKS = ("2", "3")
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "tools": {"tools": ["search"]},
    "effort": {"effort": "low"},
    "limits": {"options": retinue.ModelOptions(max_output_tokens=500, extra_headers={"X-Team": "search"})},
    "schema": {"output": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
}


@retinue.tool(kind="pure")
def search(query: str) -> str:
    """Search the logs."""
    return query


async def submission(wire: str, model: str, **options: Any) -> list[ReceivedRequest]:
    """The requests with which a batch of two tasks is submitted."""
    vendor = FakeBatches(wire, lambda text: '{"n": 4}', looks=0)
    async with vendor.server() as server:
        address = f"{server.url}/v1" if wire in ("responses", "chat") else server.url
        config = retinue.ProviderConfig(name="house", wire=WIRES[wire], base_url=address)
        given = retinue.ModelOptions(max_output_tokens=1000).over(options.pop("options", NO_OPTIONS))
        async with retinue.open(
            model=f"house:{model}", provider_configs=[config], tools=[search], dialects=(), home=retinue.MEMORY
        ) as r:
            more: dict[str, Any] = {"tools": [], **options}
            outcomes = await r.run_batch(TASKS, system="Be brief.", options=given, **more)
    assert [outcome.text for outcome in outcomes] == ['{"n": 4}'] * len(TASKS)
    return [heard for heard in server.requests if heard.method == "POST"]


def lines_of_file(heard: ReceivedRequest) -> list[Body]:
    """The requests in an uploaded file."""
    return [json.loads(line) for line in heard.raw.splitlines() if line.startswith(b"{")]


def check_openai(check: Callable[[Body], list[str]], requests: list[ReceivedRequest]) -> list[str]:
    upload, submitted = requests
    assert b'name="purpose"\r\n\r\nbatch\r\n' in upload.raw
    assert "batch" in get_args(openai_files.FilePurpose)
    lines = lines_of_file(upload)
    assert {frozenset(line) for line in lines} == {frozenset(("custom_id", "method", "url", "body"))}
    assert {line["url"] for line in lines} == {submitted.body["endpoint"]}
    found = misfits(submitted.body, openai_batches.BatchCreateParams)
    return [*found, *(problem for line in lines for problem in check(line["body"]))]


def check_anthropic(requests: list[ReceivedRequest]) -> list[str]:
    (submitted,) = requests
    return misfits(submitted.body, anthropic_batches.BatchCreateParams)


def check_google(requests: list[ReceivedRequest]) -> list[str]:
    (submitted,) = requests
    items = submitted.body["batch"]["inputConfig"]["requests"]["requests"]
    return [problem for item in items for problem in check_gemini(item["request"])]


CHECKS: dict[str, Callable[[list[ReceivedRequest]], list[str]]] = {
    "chat": lambda requests: check_openai(check_chat, requests),
    "responses": lambda requests: check_openai(check_responses, requests),
    "anthropic": check_anthropic,
    "gemini": check_google,
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("wire", "model"), [(wire, model) for wire in WIRES for model in MODELS[wire]])
async def test_a_submission_fits_the_types_of_the_vendor(wire: str, model: str, options: str) -> None:
    assert CHECKS[wire](await submission(wire, model, **dict(OPTIONS[options]))) == []


# ---- what the SDKs submit --------------------------------------------------------------------------------------------


def shape(value: Any, below: str = "") -> set[str]:
    """The paths of the fields in a JSON value."""
    if isinstance(value, dict):
        fields = cast("Body", value).items()
        return {path for name, each in fields for path in (f"{below}.{name}", *shape(each, f"{below}.{name}"))}
    if isinstance(value, list):
        return {path for each in cast("list[Any]", value) for path in shape(each, f"{below}[]")}
    return set()


async def test_gemini_is_asked_as_by_its_sdk() -> None:
    (ours,) = await submission("gemini", "gemini-3-pro")
    vendor = FakeBatches("gemini", lambda text: "4")

    def submit(address: str) -> None:
        client = genai.Client(api_key="key-12345678", http_options={"base_url": address})
        requests = [
            genai.types.InlinedRequest(
                contents=[{"role": "user", "parts": [{"text": task}]}],
                metadata={"key": f"k-{task}"},
                config={"system_instruction": "Be brief.", "max_output_tokens": 1000},
            )
            for task in TASKS
        ]
        client.batches.create(model="gemini-3-pro", src=requests, config={"display_name": "k"})

    async with vendor.server() as server:
        await asyncio.to_thread(submit, server.url)
    (theirs,) = server.requests

    version = "/v1beta/"  # the release of the SDK decides which one it takes
    assert (ours.method, ours.path.removeprefix(version)) == (theirs.method, re.sub("^/v1(beta)?/", "", theirs.path))
    fields = [{path.lower().replace("_", "") for path in shape(each.body)} for each in (ours, theirs)]
    assert fields[0] == {path for path in fields[1] if not path.endswith(".systeminstruction.role")}


async def test_anthropic_and_openai_are_asked_as_by_their_sdks() -> None:
    (ours,) = await submission("anthropic", "claude-sonnet-4-5")
    ours_of_openai = await submission("responses", "gpt-5.2")

    def submit(address: str) -> None:
        message = {"role": "user", "content": [{"type": "text", "text": "2"}]}
        params = {"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": [message]}
        with anthropic.Anthropic(api_key="key-12345678", base_url=address) as client:
            client.messages.batches.create(requests=[{"custom_id": "k-0", "params": params}])

    def upload(address: str) -> None:
        lines = b"".join(json.dumps(line).encode() + b"\n" for line in lines_of_file(ours_of_openai[0]))
        with openai.OpenAI(api_key="key-12345678", base_url=f"{address}/v1") as client:
            file = client.files.create(file=("k.jsonl", lines), purpose="batch")
            client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/responses",
                completion_window="24h",
                metadata={"retinue_key": "k"},
            )

    async with FakeBatches("anthropic", lambda text: "4").server() as server:
        await asyncio.to_thread(submit, server.url)
    (theirs,) = server.requests
    assert ours.path == theirs.path
    assert shape(theirs.body) <= shape(ours.body)

    async with FakeBatches("responses", lambda text: "4").server() as server:
        await asyncio.to_thread(upload, server.url)
    assert [heard.path for heard in server.requests] == [heard.path for heard in ours_of_openai]
    assert shape(server.requests[1].body) == shape(ours_of_openai[1].body)
