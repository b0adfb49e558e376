"""The Bedrock wire against a fake server: the provider contract, keys and signatures, blocks, caching and errors."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from yarl import URL

import retinue
from retinue.core.agent import Output
from retinue.core.attachments import File, Image
from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import AssistantMessage, Delta, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.model_options import RequestOptions
from retinue.core.ports import Provider, Request
from retinue.core.usage import Usage
from retinue.providers.bedrock.response import BedrockProvider, Decoder
from retinue.providers.bedrock.signature import FoundCredentials
from retinue.providers.catalog import check_key_address, create_provider, provider_config, vendor_model
from retinue.providers.scripted import Line, calls, fails, says, together
from retinue.testing.contracts.provider import PROMISES, TOOLS, DeltaListener, Promise, sample_request
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.providers.fakes.anthropic_rules import signature_of
from tests.providers.fakes.bedrock import FRAMES, FakeBedrock, event, exception, failed

pytestmark = pytest.mark.real_time

CLAUDE = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
KEY = "AWS_BEARER_TOKEN_BEDROCK"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (KEY, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    async with FakeBedrock(line) as vendor, BedrockProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def byte_by_byte(line: Line) -> AsyncGenerator[Provider]:
    async with FakeBedrock(line, chunk=1) as vendor, BedrockProvider(vendor.base_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_provider_contract_byte_by_byte(promise: Promise) -> None:
    await promise(byte_by_byte)


def ignore(_: Delta) -> None:
    """Ignore all deltas."""


async def heard_for(request: Request, line: Line | None = None) -> ReceivedRequest:
    """The request that the fake server answers."""
    async with FakeBedrock(line or says("yes")) as vendor, BedrockProvider(vendor.base_url) as provider:
        await provider.answer(request, ignore)
        return vendor.requests[-1]


def request_for(model: str, *messages: Message, **options: Any) -> Request:
    return Request(model=model, system="Be brief.", messages=messages or [UserMessage("hi")], **options)


async def failure(response: FakeResponse) -> ProviderError:
    async with FakeBedrock(response) as vendor, BedrockProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.answer(sample_request(), ignore)
    return caught.value


# ---- addresses, keys and signatures ---------------------------------------------------------------------------------


async def test_a_key_of_bedrock_is_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "bedrock-api-key-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with FakeBedrock(says("yes")) as vendor, BedrockProvider(vendor.base_url, KEY) as provider:
        await provider.answer(request_for(CLAUDE), ignore)

    (heard,) = vendor.requests
    assert heard.headers["authorization"] == "Bearer bedrock-api-key-1"
    assert heard.path == f"/model/{CLAUDE}/converse-stream"


async def test_requests_are_signed_with_the_credentials_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "temporary")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    async with FakeBedrock(says("yes")) as vendor, BedrockProvider(vendor.base_url, KEY) as provider:
        await provider.answer(request_for(CLAUDE), ignore)

    (heard,) = vendor.requests
    scheme, credential, names, signature = heard.headers["authorization"].split()
    day = heard.headers["x-amz-date"][:8]
    assert scheme == "AWS4-HMAC-SHA256"
    assert credential == f"Credential=AKIDEXAMPLE/{day}/eu-central-1/bedrock/aws4_request,"
    assert names == "SignedHeaders=host;x-amz-date;x-amz-security-token,"
    assert len(signature) == len("Signature=") + 64
    assert heard.headers["x-amz-security-token"] == "temporary"


async def test_an_address_elsewhere_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "bedrock-api-key-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    heard = await heard_for(request_for(CLAUDE))

    assert {"authorization", "x-amz-date"}.isdisjoint(heard.headers)
    bedrock = provider_config("bedrock", base_url="https://bedrock-runtime.eu-west-3.amazonaws.com", api_key_env=KEY)
    check_key_address(bedrock)
    for host in (
        "evil.s3.amazonaws.com",
        "ec2-1.compute.amazonaws.com",
        "bedrock-runtime.eu-west-3.amazonaws.com.evil.org",
    ):
        with pytest.raises(BadInput, match=f"the key in {KEY} is not sent to {host}"):
            check_key_address(provider_config("bedrock", base_url=f"https://{host}", api_key_env=KEY))


async def test_without_credentials_the_error_says_what_to_set() -> None:
    def load(name: str) -> Any:
        raise ImportError(name)

    with pytest.raises(ProviderError) as caught:
        await FoundCredentials(load).valid()

    assert caught.value.fault == "auth"
    for name in (KEY, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "botocore"):
        assert name in str(caught.value)


class BotoCoreError(Exception):
    """The base of botocore's errors."""


class Boto:
    """A stand-in for a session of botocore with these profiles, of which `work` is chosen."""

    profile = "work"

    def __init__(self, **profiles: dict[str, str]) -> None:
        self.full_config = {"profiles": profiles}
        self.asked = 0

    def load(self, name: str) -> Any:
        if name == "botocore.exceptions":
            return SimpleNamespace(BotoCoreError=BotoCoreError)
        return SimpleNamespace(get_session=lambda: self)

    def get_credentials(self) -> Any:
        self.asked += 1
        frozen = SimpleNamespace(access_key="AKIA", secret_key="hush", token=None)
        return SimpleNamespace(get_frozen_credentials=lambda: frozen)


@pytest.mark.parametrize("source", [False, True])
async def test_a_credential_program_that_an_agent_could_write_is_not_started(
    source: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, project = tmp_path / "system", tmp_path / "project"
    for folder in (system, project / "bin"):
        folder.mkdir(parents=True)
    helper = system / "aws-helper"
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o755)
    monkeypatch.chdir(project)
    named = {"credential_process": "aws-helper get 'a b'"}
    boto = Boto(work={"source_profile": "base"}, base=named) if source else Boto(work=named)
    credentials = FoundCredentials(boto.load)

    monkeypatch.setenv("PATH", f"{system}:{project}/bin")
    assert (await credentials.valid()).key_id == "AKIA"
    monkeypatch.setenv("PATH", f"{project}/bin:{system}")
    with pytest.raises(
        ProviderError, match=r"aws-helper, which the profile .* names, is not started: agents may write"
    ):
        await credentials.valid()
    with pytest.raises(ProviderError, match="is not started"):
        await FoundCredentials(boto.load).valid()
    assert boto.asked == 1


@pytest.mark.parametrize("placed", ["program", "script", "on path"])
async def test_a_credential_program_in_another_folder_of_agents_is_not_started(
    placed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, shared, project = (tmp_path / name for name in ("system", "shared", "project"))
    for folder in (system, shared, project):
        folder.mkdir()
    for helper in (system / "aws-helper", shared / "aws-helper"):
        helper.write_text("#!/bin/sh\n")
        helper.chmod(0o755)
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"{shared}:{system}" if placed == "on path" else str(system))
    command = {
        "program": f"{shared}/aws-helper",
        "script": f"{system}/aws-helper {shared}/aws-helper",
        "on path": "aws-helper",
    }
    boto = Boto(work={"credential_process": command[placed]})

    with pytest.raises(ProviderError, match="is not started: agents may write in"):
        await FoundCredentials(boto.load, agents_write=lambda: [str(shared)]).valid()
    assert boto.asked == 0
    assert (await FoundCredentials(boto.load).valid()).key_id == "AKIA"


async def test_a_provider_of_a_retinue_knows_the_folders_in_which_its_agents_write(tmp_path: Path) -> None:
    agents = [retinue.Agent(name="helper", workspace=str(tmp_path / "shared"))]
    policy = retinue.Policy(allowed_roots=(str(tmp_path / "root"),))
    async with retinue.open(
        model="bedrock:m", base_url="http://localhost:1", agents=agents, policy=policy, home=retinue.MEMORY, dialects=()
    ) as r:
        made: Any = r.providers.find("bedrock")

        assert {str(tmp_path / "shared"), str(tmp_path / "root")} <= set(made.provider.agents_write())


def test_the_region_in_the_environment_chooses_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    default = provider_config("bedrock")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    chosen = provider_config("bedrock")
    monkeypatch.setenv("AWS_REGION", "eu-west-1.evil.org/")

    assert default.base_url == "https://bedrock-runtime.us-east-1.amazonaws.com"
    assert chosen.base_url == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert chosen.api_key_env == default.api_key_env == KEY
    assert provider_config("bedrock") == default
    assert vendor_model(default) == "global.anthropic.claude-sonnet-5"


async def test_the_name_of_a_model_is_encoded_in_the_path() -> None:
    arn = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
    endpoint = await BedrockProvider("http://localhost:1").endpoint(arn)

    path = endpoint.info.url.removeprefix("http://localhost:1")
    assert URL(endpoint.info.url, encoded=True).raw_path == path
    assert path.count("/") == 3
    assert unquote(path) == f"/model/{arn}/converse-stream"


# ---- requests -------------------------------------------------------------------------------------------------------


async def test_blocks_of_a_conversation_keep_their_order() -> None:
    thought = Thinking("Hm.", signature_of("Hm."))
    call = ToolCall("search", '{"query":"pool"}', "tooluse_1")
    heard = await heard_for(
        request_for(
            "deepseek.v3-v1:0",
            UserMessage(
                "What is this?", attachments=(Image(b"GIF8", name="a.gif"), File(b"%PDF", name="my_report.pdf"))
            ),
            AssistantMessage("Let me look.", (call,), (thought, Thinking(opaque="c2VjcmV0"))),
            ToolMessage("search", "Here:", "tooluse_1", attachments=(Image(b"GIF8"),)),
            UserMessage("Go on."),
            tools=TOOLS,
        )
    )

    assert heard.body["messages"] == [
        {
            "role": "user",
            "content": [
                {"image": {"format": "gif", "source": {"bytes": "R0lGOA=="}}},
                {"document": {"format": "pdf", "name": "my report", "source": {"bytes": "JVBERg=="}}},
                {"text": "What is this?"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": signature_of("Hm.")}}},
                {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
                {"text": "Let me look."},
                {"toolUse": {"toolUseId": "tooluse_1", "name": "search", "input": {"query": "pool"}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "tooluse_1",
                        "content": [
                            {"text": "Here:"},
                            {"image": {"format": "gif", "source": {"bytes": "R0lGOA=="}}},
                        ],
                    }
                },
                {"text": "Go on."},
            ],
        },
    ]
    assert heard.body["system"] == [{"text": "Be brief."}]


async def test_claude_gets_cache_points_and_reads_the_cache() -> None:
    messages: list[Message] = [UserMessage("why? " * 100)]
    used: list[Usage | None] = []
    async with FakeBedrock(says("Hm.", usage="counted")) as vendor, BedrockProvider(vendor.base_url) as provider:
        for _ in range(2):
            reply = await provider.answer(request_for(CLAUDE, *messages, tools=TOOLS), ignore)
            used.append(reply.usage)
            messages += [reply.message, UserMessage("sure?")]
        body = vendor.requests[1].body

    point = {"cachePoint": {"type": "default"}}
    assert [body["toolConfig"]["tools"][-1], body["system"][-1], body["messages"][-1]["content"][-1]] == [point] * 3
    assert body["messages"][0]["content"][-1] == point
    first, second = used
    assert first is not None
    assert second is not None
    assert (first.cached, first.written > 0, second.cached) == (0, True, first.written)


@pytest.mark.parametrize(
    ("model", "options", "sent"),
    [
        (CLAUDE, {"effort": "low"}, {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        (
            "global.anthropic.claude-sonnet-5",
            {"effort": "max"},
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}},
        ),
        ("global.anthropic.claude-sonnet-5", {"effort": "none"}, {"thinking": {"type": "disabled"}}),
        ("openai.gpt-oss-120b-1:0", {"effort": "max"}, {"reasoning_effort": "high"}),
        (
            "us.amazon.nova-2-lite-v1:0",
            {"effort": "minimal"},
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}},
        ),
        ("meta.llama4-maverick-17b-instruct-v1:0", {"effort": "high"}, None),
    ],
)
async def test_an_effort_goes_where_the_model_takes_it(
    model: str, options: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    heard = await heard_for(request_for(model, **options))

    assert heard.body.get("additionalModelRequestFields") == sent


async def test_options_go_into_the_fields_of_converse() -> None:
    heard = await heard_for(
        request_for(
            "amazon.nova-pro-v1:0",
            tools=TOOLS,
            max_output=900,
            temperature=0.5,
            top_p=0.9,
            options=RequestOptions(
                stop=("END",), service_tier="flex", tool_choice="search", cache_ttl="1h", extra_body='{"system":[]}'
            ),
            output=Output(mode="json_schema", schema='{"type":"object"}'),
        )
    )

    body = heard.body
    assert body["inferenceConfig"] == {"maxTokens": 900, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]}
    assert body["serviceTier"] == {"type": "flex"}
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": "search"}}
    assert body["messages"][0]["content"][-1] == {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert body["outputConfig"]["textFormat"]["type"] == "json_schema"


async def test_a_request_that_must_not_call_tools_has_none() -> None:
    """Converse has no `toolChoice` for it: with its tools the model would call them."""
    options = RequestOptions(tool_choice="none")
    messages = (UserMessage("why?"), AssistantMessage("", (ToolCall("search", "{}", "c1"),)))
    messages = (*messages, ToolMessage("search", "3 lines", "c1"))
    first = await heard_for(request_for("m", tools=TOOLS, options=options))
    later = await heard_for(request_for("m", *messages, tools=TOOLS, options=options))

    assert "toolConfig" not in first.body
    assert [tool["toolSpec"]["name"] for tool in later.body["toolConfig"]["tools"]] == ["no_tool"]


async def test_a_turn_without_tools_declares_those_of_its_calls() -> None:
    call = ToolCall("search", "{}", "c1")
    messages = (UserMessage("why?"), AssistantMessage("", (call,)), ToolMessage("search", "3 lines", "c1"))
    withheld = await heard_for(request_for("m", *messages, withheld_tools=TOOLS))
    unknown = await heard_for(request_for("m", *messages))

    assert [tool["toolSpec"]["name"] for tool in withheld.body["toolConfig"]["tools"]] == ["search", "list_files"]
    assert [tool["toolSpec"]["name"] for tool in unknown.body["toolConfig"]["tools"]] == ["no_tool"]


async def test_an_answer_can_come_as_a_whole() -> None:
    line = together(says("Let me look.", thinking="Hm."), calls("search", query="pool"))
    async with FakeBedrock(line) as vendor, BedrockProvider(vendor.base_url) as provider:
        listener = DeltaListener()
        request = request_for("m", tools=TOOLS, options=RequestOptions(stream=False))
        reply = await provider.answer(request, listener.publish)

    assert vendor.requests[0].path == "/model/m/converse"
    assert reply.message == AssistantMessage(
        "Let me look.",
        (ToolCall("search", '{"query":"pool"}', "tooluse_fake_1_0"),),
        (Thinking("Hm.", signature_of("Hm.")),),
    )
    assert (listener.text, listener.thinking) == ("Let me look.", "Hm.")


async def test_thinking_goes_back_with_the_next_request() -> None:
    async with FakeBedrock(together(says("", thinking="Hm."), calls("search"))) as vendor:
        async with BedrockProvider(vendor.base_url) as provider:
            messages: list[Message] = [UserMessage("why?")]
            reply = await provider.answer(request_for(CLAUDE, *messages, tools=TOOLS, think=True), ignore)
            messages += [reply.message, ToolMessage("search", "3 lines", reply.message.calls[0].id)]
            await provider.answer(request_for(CLAUDE, *messages, tools=TOOLS, think=True), ignore)
        content = vendor.requests[1].body["messages"][1]["content"]

    assert content[0] == {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": signature_of("Hm.")}}}


async def test_what_a_model_rejects_is_left_out() -> None:
    message = "This model doesn't support the inferenceConfig.temperature field. Remove it and try again."

    def play(heard: ReceivedRequest) -> Any:
        return failed(400, message) if "temperature" in heard.body.get("inferenceConfig", {}) else says("fine")

    async with FakeBedrock(play) as vendor, BedrockProvider(vendor.base_url) as provider:
        for _ in range(2):
            await provider.answer(request_for("m", temperature=0.5, max_output=9), ignore)

    sent = [heard.body["inferenceConfig"] for heard in vendor.requests]
    assert sent == [{"maxTokens": 9, "temperature": 0.5}, {"maxTokens": 9}, {"maxTokens": 9}]


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "message", "fault"),
    [
        (429, "ThrottlingException", "Too many tokens, please wait before trying again.", "rate_limited"),
        (400, "ValidationException", "Input is too long for requested model.", "too_long"),
        (400, "ValidationException", "The provided model identifier is invalid.", "bad_request"),
        (403, "AccessDeniedException", "You don't have access to the model with the specified model ID.", "auth"),
        (403, "ExpiredTokenException", "The security token included in the request is expired", "auth"),
        (404, "ResourceNotFoundException", "Could not resolve the foundation model.", "bad_request"),
        (408, "ModelTimeoutException", "Model has timed out in processing the request.", "timeout"),
        (424, "ModelErrorException", "The system encountered an unexpected error.", "overloaded"),
        (429, "ModelNotReadyException", "Model is not ready for inference.", "rate_limited"),
        (500, "InternalServerException", "The system encountered an unexpected error.", "overloaded"),
        (503, "ServiceUnavailableException", "Bedrock is unable to process your request.", "overloaded"),
    ],
)
async def test_errors_before_the_answer(status: int, kind: str, message: str, fault: str) -> None:
    error = await failure(failed(status, message, kind=kind))

    assert (error.fault, error.status) == (fault, status)
    assert f"answered {status}: {message}" in str(error)


@pytest.mark.parametrize(
    ("kind", "message", "fault"),
    [
        ("throttlingException", "Too many requests, please wait.", "rate_limited"),
        ("serviceUnavailableException", "Try again.", "overloaded"),
        ("internalServerException", "Unexpected error.", "overloaded"),
        ("modelStreamErrorException", "The model stopped.", "overloaded"),
        ("validationException", "Input is too long for requested model.", "too_long"),
        ("somethingNewException", "What?", "internal"),
    ],
)
async def test_exceptions_inside_the_stream(kind: str, message: str, fault: str) -> None:
    pieces = (event("messageStart", role="assistant"), event("contentBlockDelta", delta={"text": "It is"}))
    error = await failure(FakeResponse(headers=FRAMES, pieces=(*pieces, exception(kind, message))))

    assert (error.fault, error.partial) == (fault, "It is")
    assert message in str(error)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("guardrail_intervened", "refusal"), ("model_context_window_exceeded", "length"), ("stop_sequence", "end")],
)
def test_a_stop_reason_becomes_the_stop_of_the_reply(reason: str, stop: str) -> None:
    decoder = Decoder()
    decoder.feed(b'{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"It"}}}')
    decoder.feed(msgspec.json.encode({"messageStop": {"stopReason": reason}}))

    assert (decoder.finish().stop, decoder.finish().message.text) == (stop, "It")


def test_malformed_calls_and_unknown_stop_reasons_are_errors() -> None:
    faults: dict[str, tuple[str, str]] = {}
    for reason in ("malformed_tool_use", "malformed_model_output", "tired"):
        decoder = Decoder()
        decoder.feed(msgspec.json.encode({"messageStop": {"stopReason": reason}}))
        with pytest.raises(ProviderError) as caught:
            decoder.finish()
        faults[reason] = (caught.value.fault, caught.value.slip)

    assert faults == {
        "malformed_tool_use": ("cut", "the tool call was malformed."),
        "malformed_model_output": ("cut", "the answer was malformed."),
        "tired": ("cut", ""),
    }


async def test_an_error_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "FwoGZXIvYXdzEXAMPLETOKEN")
    said = "bad signature for wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY with FwoGZXIvYXdzEXAMPLETOKEN"
    async with FakeBedrock(failed(403, said)) as vendor, BedrockProvider(vendor.base_url, KEY) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.answer(sample_request(), ignore)

    assert "bad signature for [key] with [key]" in str(caught.value)
    assert "Check the AWS credentials" in str(caught.value)


async def test_the_catalogue_makes_the_provider_with_prices() -> None:
    async with FakeBedrock(
        fails(ProviderError("slow down", fault="rate_limited", status=429), times=1, then=says("yes"))
    ) as vendor:
        provider = create_provider(provider_config("bedrock", base_url=vendor.base_url))
        with pytest.raises(ProviderError, match="slow down"):
            await provider.answer(sample_request(), ignore)
        assert (await provider.answer(sample_request(), ignore)).message.text == "yes"
