"""Request bodies of every wire, for many conversations and options, against the types of the vendors' own SDKs.

`make vendors` installs the SDKs and runs this; without them the tests are skipped.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pytest

from retinue.core.agent import Output, ToolSpec
from retinue.core.attachments import File, Image
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.model_options import RequestOptions
from retinue.core.ports import Request
from retinue.core.server_tools import ServerToolSpec
from retinue.providers.anthropic.request import encode as encode_anthropic
from retinue.providers.anthropic.response import Decoder as AnthropicDecoder
from retinue.providers.anthropic.vertex import VERSION
from retinue.providers.bedrock.request import encode as encode_bedrock
from retinue.providers.gemini.request import encode as encode_gemini
from retinue.providers.openai_chat.request import encode as encode_chat
from retinue.providers.openai_responses.request import encode as encode_responses
from tests.providers import gemini_events
from tests.providers.responses_events import completed, decode_reply, done, item

openai_chat = pytest.importorskip("openai.types.chat.completion_create_params", reason="make vendors installs it")
openai_responses = pytest.importorskip("openai.types.responses.response_create_params")
anthropic = pytest.importorskip("anthropic.types.message_create_params")
beta = pytest.importorskip("anthropic.types.beta.message_create_params")
genai = pytest.importorskip("google.genai.types")

from tests.vendors.typed_dicts import misfits  # noqa: E402  (needs typing_extensions, which the SDKs bring)

Body = dict[str, Any]

SEARCH = ToolSpec(
    "search",
    "Search the logs.",
    '{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query"]}',
)
LS = ToolSpec("ls", "List files.")
SCHEMA = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}'

CALLS = (ToolCall("search", '{"query":"pool"}', "call_1"), ToolCall("ls", "", "call_2"))
PNG, PDF = Image(b"\x89PNG dots", name="shot.png"), File(b"%PDF pages", name="report.pdf")
TUNE, NOTES = File(b"RIFF\0\0\0\0WAVE dots", name="tune.wav"), File(b"max = 10", name="pool.toml")
RESULTS = (ToolMessage("search", "3 lines", "call_1"), ToolMessage("ls", "no such folder", "call_2", failed=True))


def phases() -> AssistantMessage:
    """A reply with reasoning and two messages, as the Responses wire decodes it."""
    content = [{"type": "output_text", "text": "Hm.", "annotations": list[object]()}]
    return decode_reply(
        done(item("reasoning", id="rs_1", summary=[], encrypted_content="gAAA")),
        done(item("message", id="msg_1", role="assistant", content=content, phase="commentary")),
        done(item("message", id="msg_2", role="assistant", content=content, phase="final_answer")),
        completed(),
    ).message


CONVERSATIONS: dict[str, Sequence[Message]] = {
    "question": [UserMessage("why?")],
    "answered": [UserMessage("why?"), AssistantMessage("Because."), UserMessage("sure?")],
    "called": [UserMessage("why?"), AssistantMessage("Let me look.", CALLS), *RESULTS],
    "unfinished": [UserMessage("why?"), AssistantMessage("", CALLS), RESULTS[0]],
    "damaged": [AssistantMessage("", (ToolCall("ls", "[1", ""),)), ToolMessage("ls", ""), UserMessage("")],
    "thought": [
        UserMessage("why?"),
        AssistantMessage("So.", CALLS[:1], (Thinking("Hm.", "c2lnbmF0dXJl"), Thinking(opaque="gAAA"))),
        RESULTS[0],
    ],
    "media": [
        UserMessage("What is this?", attachments=(PNG, PDF, NOTES)),
        AssistantMessage("Let me look.", CALLS),
        ToolMessage("search", "Here:", "call_1", attachments=(PNG, PDF, NOTES, TUNE)),
        ToolMessage("ls", "", "call_2", attachments=(PNG,)),
    ],
    "phases": [UserMessage("why?"), phases(), UserMessage("sure?")],
}

SEARCH_BLOCKS: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "pool"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "https://h", "title": "Pools", "encrypted_content": "Eo"}],
    },
    {
        "type": "text",
        "text": "Ten.",
        "citations": [
            {
                "type": "web_search_result_location",
                "url": "https://h",
                "title": "Pools",
                "encrypted_index": "Eo",
                "cited_text": "Ten.",
            }
        ],
    },
]
PAUSED_BLOCK = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {"query": "more"}}


def of_anthropic(*blocks: dict[str, Any], stop: str) -> AssistantMessage:
    """A reply with server tools, as the Anthropic wire decodes it."""
    decoder = AnthropicDecoder()
    decoder.feed_whole(msgspec.json.encode({"type": "message", "id": "m", "content": blocks, "stop_reason": stop}))
    return decoder.finish().message


def of_responses() -> AssistantMessage:
    content = [{"type": "output_text", "text": "Ten.", "annotations": list[object]()}]
    search = {"id": "ws_1", "status": "completed", "action": {"type": "search", "query": "pool", "queries": ["pool"]}}
    code = {"id": "ci_1", "status": "completed", "code": "1", "container_id": "c", "outputs": None}
    return decode_reply(
        done(item("web_search_call", **search)),
        done(item("code_interpreter_call", **code)),
        done(item("file_search_call", id="fs_1", status="completed", queries=["pool"], results=None)),
        done(item("message", id="msg_1", role="assistant", content=content)),
        completed(),
    ).message


def of_gemini() -> AssistantMessage:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2ln"}
    output = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}
    return gemini_events.decode_reply(
        gemini_events.chunk(gemini_events.text("So "), code, output, gemini_events.text("ten."), finish="STOP")
    ).message


CONVERSATIONS.update(
    {
        "searched at anthropic": [
            UserMessage("why?"),
            of_anthropic(*SEARCH_BLOCKS, stop="end_turn"),
            UserMessage("sure?"),
        ],
        "paused at anthropic": [UserMessage("why?"), of_anthropic(*SEARCH_BLOCKS, PAUSED_BLOCK, stop="pause_turn")],
        "searched at openai": [UserMessage("why?"), of_responses(), UserMessage("sure?")],
        "computed at gemini": [UserMessage("why?"), of_gemini(), UserMessage("sure?")],
    }
)

DOCS = ServerToolSpec(name="docs", url="https://mcp.example/mcp", token_env="DOCS_TOKEN", allow=("search",))
SERVER_TOOLS: dict[str, tuple[ServerToolSpec, ...]] = {
    "anthropic": (
        ServerToolSpec(name="web_search", max_uses=3, allowed_domains=("h.example",)),
        ServerToolSpec(name="web_fetch", max_uses=3, blocked_domains=("h.example",)),
        ServerToolSpec(name="code_execution"),
    ),
    "anthropic with mcp": (DOCS, ServerToolSpec(name="remote", url="https://mcp.example/other")),
    "responses": (
        ServerToolSpec(name="web_search", max_uses=3, allowed_domains=("h.example",)),
        ServerToolSpec(name="code_execution", max_uses=1),
        ServerToolSpec(name="file_search", stores=("vs_1",), max_uses=1),
        msgspec.structs.replace(DOCS, max_uses=2),
    ),
    "gemini": (
        ServerToolSpec(name="web_search"),
        ServerToolSpec(name="web_fetch"),
        ServerToolSpec(name="code_execution"),
        ServerToolSpec(name="file_search", stores=("fileSearchStores/s",)),
        msgspec.structs.replace(DOCS, allow=()),
    ),
}
"""The server tools of a wire, in the matrix."""

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "sampling": {"max_output": 2000, "temperature": 0.5, "top_p": 0.9},
    "thinking": {"think": True, "max_output": 9000},
    "no effort": {"effort": "none"},
    "low effort": {"effort": "low"},
    "most effort": {"effort": "max"},
    "options": {
        "options": RequestOptions(
            stop=("END",), seed=7, service_tier="auto", parallel_tool_calls=False, cache_ttl="1h", tool_choice="auto"
        )
    },
    "forced call": {"options": RequestOptions(tool_choice="required", parallel_tool_calls=True)},
    "one tool": {"options": RequestOptions(tool_choice="search")},
    "no calls": {"options": RequestOptions(tool_choice="none", stream=False)},
    "json": {"output": Output()},
    "schema": {"output": Output(mode="json_schema", schema=SCHEMA)},
    "wrap-up": {"tools": (), "withheld_tools": (SEARCH, LS)},
}

MODELS = {
    "chat": ("gpt-4o", "gpt-5.2", "o3"),
    "responses": ("gpt-4o", "gpt-5.2", "o3"),
    "anthropic": ("claude-sonnet-4-5", "claude-opus-4-7"),
    "vertexai-anthropic": ("claude-sonnet-4-5",),
    "gemini": ("gemini-2.5-flash", "gemini-3-pro"),
    "bedrock": (
        "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "global.anthropic.claude-sonnet-5",
        "openai.gpt-oss-120b-1:0",
        "us.amazon.nova-2-lite-v1:0",
    ),
}


def check_chat(body: Body) -> list[str]:
    streams, whole = openai_chat.CompletionCreateParamsStreaming, openai_chat.CompletionCreateParamsNonStreaming
    return misfits(body, streams if "stream" in body else whole)


def check_responses(body: Body) -> list[str]:
    streams, whole = openai_responses.ResponseCreateParamsStreaming, openai_responses.ResponseCreateParamsNonStreaming
    return misfits(body, streams if "stream" in body else whole)


def check_anthropic(body: Body) -> list[str]:
    """The SDK has dropped the sampling options, which models before 4.7 still take."""
    of_older_models = ("$.temperature: unknown", "$.top_p: unknown")
    streams, whole = anthropic.MessageCreateParamsStreaming, anthropic.MessageCreateParamsNonStreaming
    found = misfits(body, streams if "stream" in body else whole)
    return [each for each in found if each not in of_older_models or body["model"] != "claude-sonnet-4-5"]


def encode_vertex(request: Request) -> bytes:
    """A body for Anthropic's models on Google Cloud: the model is in the address."""
    return encode_anthropic(request, version=VERSION)


def check_vertex(body: Body) -> list[str]:
    """The SDK moves the model from the body into the address, and adds a version of the API where there is none."""
    wrong = [] if isinstance(body.get("anthropic_version"), str) else ["$.anthropic_version: missing"]
    wrong += ["$.model: is in the body"] if "model" in body else []
    rest = {name: value for name, value in body.items() if name != "anthropic_version"}
    return wrong + check_anthropic(rest | {"model": MODELS["vertexai-anthropic"][0]})


def check_beta(body: Body) -> list[str]:
    """Requests with MCP servers, which have types of their own."""
    streams, whole = beta.MessageCreateParamsStreaming, beta.MessageCreateParamsNonStreaming
    return misfits(body, streams if "stream" in body else whole)


def check_gemini(body: Body) -> list[str]:
    """The SDK has no type for a whole request; its models of the parts accept no unknown field."""
    kinds = {
        "contents": list[genai.Content],
        "systemInstruction": genai.Content,
        "tools": list[genai.Tool],
        "toolConfig": genai.ToolConfig,
        "generationConfig": genai.GenerationConfig,
    }
    pydantic = pytest.importorskip("pydantic")
    found: list[str] = []
    for name, value in body.items():
        try:
            pydantic.TypeAdapter(kinds[name]).validate_json(msgspec.json.encode(value), strict=False)
        except (KeyError, pydantic.ValidationError) as error:
            found.append(f"{name}: {error}")
    return found


def check_bedrock(body: Body) -> list[str]:
    """The description of the service in botocore, which checks types and fields, and not the values of enums."""
    loaders = pytest.importorskip("botocore.loaders", reason="make vendors installs it")
    model = pytest.importorskip("botocore.model")
    validate = pytest.importorskip("botocore.validate")
    service = model.ServiceModel(loaders.Loader().load_service_model("bedrock-runtime", "service-2"))
    shape = service.operation_model("ConverseStream").input_shape
    report = validate.ParamValidator().validate({"modelId": "m", **body}, shape)
    return [*filter(None, [report.generate_report()]), *wrong_values(body, shape, "$")]


def wrong_values(value: Any, shape: Any, path: str) -> Iterator[str]:
    """The texts of a JSON value that do not fit the enum or the pattern of their shape."""
    if isinstance(value, dict) and shape.type_name == "structure":
        members = cast("Body", value)
        for name in members.keys() & shape.members.keys():
            yield from wrong_values(members[name], shape.members[name], f"{path}.{name}")
    elif isinstance(value, list) and shape.type_name == "list":
        for index, each in enumerate(cast("list[Any]", value)):
            yield from wrong_values(each, shape.member, f"{path}[{index}]")
    elif isinstance(value, str) and getattr(shape, "enum", ()) and value not in shape.enum:
        yield f"{path}: is {value!r}, not one of {shape.enum}"
    elif isinstance(value, str) and (pattern := shape.metadata.get("pattern")) and not re.fullmatch(pattern, value):
        yield f"{path}: {value!r} does not match {pattern}"


WIRES: dict[str, tuple[Callable[[Request], bytes], Callable[[Body], list[str]]]] = {
    "chat": (encode_chat, check_chat),
    "responses": (encode_responses, check_responses),
    "anthropic": (encode_anthropic, check_anthropic),
    "vertexai-anthropic": (encode_vertex, check_vertex),
    "gemini": (encode_gemini, check_gemini),
    "bedrock": (encode_bedrock, check_bedrock),
}

MATRIX = [
    (wire, model, conversation, options)
    for wire in WIRES
    for model, conversation, options in itertools.product(MODELS[wire], CONVERSATIONS, OPTIONS)
]


@pytest.mark.parametrize(("wire", "model", "conversation", "options"), MATRIX)
def test_a_request_fits_the_types_of_the_vendor(wire: str, model: str, conversation: str, options: str) -> None:
    encode, check = WIRES[wire]
    given: dict[str, Any] = {"tools": (SEARCH, LS), **OPTIONS[options]}
    request = Request(model=model, system="Be brief.", messages=CONVERSATIONS[conversation], **given)

    assert check(msgspec.json.decode(encode(request))) == []


EXTRA: dict[str, Body] = {
    "chat": {"logit_bias": {"1": 1}, "metadata": {"team": "pool"}, "stream_options": {"include_obfuscation": False}},
    "responses": {"metadata": {"team": "pool"}, "truncation": "auto", "text": {"verbosity": "low"}},
    "anthropic": {"metadata": {"user_id": "u"}, "top_k": 5},
    "vertexai-anthropic": {"metadata": {"user_id": "u"}},
    "gemini": {"generationConfig": {"presencePenalty": 0.5}},
    "bedrock": {"requestMetadata": {"team": "pool"}, "inferenceConfig": {"maxTokens": 77}},
}
"""Fields that `extra_body` adds, some of them to objects that a request may have already."""


@pytest.mark.parametrize(
    ("wire", "options"),
    list(itertools.product(EXTRA, ("none", "sampling", "low effort", "options", "no calls", "schema", "wrap-up"))),
)
def test_a_request_with_extra_fields_fits_the_types_of_the_vendor(wire: str, options: str) -> None:
    encode, check = WIRES[wire]
    given: dict[str, Any] = {"tools": (SEARCH, LS), **OPTIONS[options]}
    extra = msgspec.json.encode(EXTRA[wire]).decode()
    given["options"] = msgspec.structs.replace(given.get("options", RequestOptions()), extra_body=extra)
    request = Request(model=MODELS[wire][0], system="Be brief.", messages=CONVERSATIONS["called"], **given)

    body = msgspec.json.decode(encode(request))
    found = [each for each in check(body) if "top_k" not in each]  # which the SDK has dropped with the sampling options
    assert (found, contains(body, EXTRA[wire])) == ([], True)


def contains(whole: Any, part: Any) -> bool:
    """Whether an object has all members of another one, at any depth."""
    if not isinstance(part, dict):
        return whole == part
    members = cast("Body", part)
    return all(name in whole and contains(whole[name], value) for name, value in members.items())


@pytest.mark.parametrize(
    ("kind", "conversation", "options"),
    [
        (kind, conversation, options)
        for kind, conversation, options in itertools.product(
            SERVER_TOOLS, CONVERSATIONS, ("none", "thinking", "options", "no calls", "schema", "wrap-up")
        )
    ],
)
def test_a_request_with_server_tools_fits_the_types_of_the_vendor(
    kind: str, conversation: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_TOKEN", "token")
    wire, _, beta = kind.partition(" with ")
    encode, check = WIRES[wire]
    given: dict[str, Any] = {"tools": (SEARCH, LS), **OPTIONS[options], "server_tools": SERVER_TOOLS[kind]}
    request = Request(model=MODELS[wire][-1], system="Be brief.", messages=CONVERSATIONS[conversation], **given)

    assert (check_beta if beta else check)(msgspec.json.decode(encode(request))) == []


@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_request_does_not_fit(wire: str) -> None:
    encode, check = WIRES[wire]
    body = msgspec.json.decode(encode(Request(model="m", system="", messages=[UserMessage("hi")])))

    assert check(body | {"mood": "fine"}) != []
