"""Tools that the vendors run: requests, replies that go back as they came, pauses, citations, prices and refusals."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.core.errors import BadInput
from retinue.core.messages import AssistantMessage, Citation, UserMessage
from retinue.core.ports import Request
from retinue.core.server_tools import ServerToolSpec
from retinue.core.usage import NANO
from retinue.providers.anthropic.request import encode as encode_anthropic
from retinue.providers.anthropic.response import Decoder as AnthropicDecoder
from retinue.providers.catalog import WIRES, check_server_tools, provider_config
from retinue.providers.gemini.request import encode as encode_gemini
from retinue.providers.openai_responses.request import encode as encode_responses
from retinue.providers.pricing import Rates
from retinue.testing import Script, ScriptedProvider, calls, says
from retinue.testing.fake_chat import EVENTS, JSON
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers import gemini_events, responses_events
from tests.providers.fakes.anthropic import event, failed
from tests.providers.fakes.anthropic_rules import rejection_of, signature_of

URL = "https://docs.example/pools"
FREE = Rates(input=0.0, output=0.0)


@retinue.tool(kind="pure")
def lookup(name: str) -> str:
    """Look up a setting."""
    return f"{name} = 10"


def open_at(server: FakeServer, wire: str, home: str | Path = retinue.MEMORY, **options: Any) -> retinue.Retinue:
    """A retinue whose provider `house` is the server; only the vendor's own tools cost something."""
    config = retinue.ProviderConfig(
        name="house", wire=wire, base_url=server.url, prices={"m": FREE, "gemini-3-m": FREE}
    )
    return retinue.open(model="house:m", provider_configs=[config], tools=[lookup], dialects=(), home=home, **options)


# ---- Anthropic -------------------------------------------------------------------------------------------------------

USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "pool size"}}
RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": URL,
            "title": "Pools",
            "encrypted_content": signature_of(URL),
            "page_age": None,
        }
    ],
}
PLACE = {
    "type": "web_search_result_location",
    "url": URL,
    "title": "Pools",
    "encrypted_index": "Eo8B",
    "cited_text": "A pool has ten.",
}
CITED = {"type": "text", "text": "Ten.", "citations": [PLACE]}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"name": "pool"}}
AGAIN = USE | {"id": "srvtoolu_2", "input": {"query": "pool limit"}}
MORE = RESULT | {"tool_use_id": "srvtoolu_2"}


def anthropic_answer(
    heard: ReceivedRequest, blocks: Sequence[dict[str, Any]], stop: str, *, searches: int = 0, chunk: int | None = None
) -> FakeResponse:
    usage = {"input_tokens": 10, "output_tokens": 5, "server_tool_use": {"web_search_requests": searches}}
    envelope = {"id": f"msg_{heard.attempt}", "type": "message", "role": "assistant", "model": "m"}
    if not heard.body.get("stream"):
        body = envelope | {"content": blocks, "stop_reason": stop, "usage": usage}
        return FakeResponse(headers=JSON, pieces=(msgspec.json.encode(body),))
    pieces = [event("message_start", message=envelope | {"content": (), "usage": usage})]
    for index, block in enumerate(blocks):
        begun: dict[str, Any] = {}
        grown: list[dict[str, Any]] = []
        match block:
            case {"type": "text", "text": text}:
                begun = {"type": "text", "text": ""} | ({"citations": []} if "citations" in block else {})
                grown = [{"type": "citations_delta", "citation": each} for each in block.get("citations", [])]
                grown += [{"type": "text_delta", "text": each} for each in text]
            case {"type": "server_tool_use" | "tool_use", "input": given}:
                begun = block | {"input": {}}
                written = msgspec.json.encode(given).decode()
                grown = [{"type": "input_json_delta", "partial_json": each} for each in ("", written[:3], written[3:])]
            case _:
                begun = block
        pieces.append(event("content_block_start", index=index, content_block=begun))
        pieces += [event("content_block_delta", index=index, delta=delta) for delta in grown]
        pieces.append(event("content_block_stop", index=index))
    pieces.append(event("message_delta", delta={"stop_reason": stop}, usage=usage))
    return FakeResponse(headers=EVENTS, pieces=(*pieces, event("message_stop")), chunk=chunk)


def searching(chunk: int | None = None) -> Callable[[ReceivedRequest], FakeResponse]:
    """A vendor that searches and calls a tool, pauses in its second reply, and goes on with it."""

    def respond(heard: ReceivedRequest) -> FakeResponse:
        if problem := rejection_of(heard):
            return failed(400, problem)
        last = heard.body["messages"][-1]
        if len(heard.body["messages"]) == 1:
            opening = {"type": "text", "text": "Let me look."}
            return anthropic_answer(heard, [opening, USE, RESULT, CITED, CALL], "tool_use", searches=1, chunk=chunk)
        if last["role"] == "user":
            return anthropic_answer(heard, [{"type": "text", "text": "It is "}, AGAIN], "pause_turn", chunk=chunk)
        return anthropic_answer(heard, [MORE, CITED], "end_turn", searches=2, chunk=chunk)

    return respond


def bare(blocks: Any) -> Any:
    """Content blocks without cache marks."""
    return [{name: value for name, value in block.items() if name != "cache_control"} for block in blocks]


RESULT_OF_CALL = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "pool = 10"}
CITATIONS = (Citation(URL, "Pools", "A pool has ten.", start=6, end=10),)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunk", [None, 1])
async def test_anthropic_searches_pauses_and_gets_its_blocks_back_as_they_came(
    *, stream: bool, chunk: int | None
) -> None:
    async with FakeServer(searching(chunk)) as server, open_at(server, "anthropic") as r:
        outcome = await r.run(
            "How large is the pool?",
            tools=["server:web_search", "lookup"],
            options=retinue.ModelOptions(stream=None if stream else False),
        )

    assert (outcome.text, outcome.citations, outcome.turns) == ("It is Ten.", CITATIONS, 3)
    assert outcome.cost == 3 * NANO // 100
    first, second, third = (request.body for request in server.requests)
    assert first["tools"][0] == {"type": "web_search_20250305", "name": "web_search"}
    opening = {"type": "text", "text": "Let me look."}
    assert bare(second["messages"][1]["content"]) == [opening, USE, RESULT, CITED, CALL]
    assert bare(third["messages"][1]["content"]) == bare(second["messages"][1]["content"])
    assert [message["role"] for message in third["messages"]] == ["user", "assistant", "user", "assistant"]
    assert bare(third["messages"][3]["content"]) == [{"type": "text", "text": "It is "}, AGAIN]


async def test_a_paused_turn_goes_on_after_a_crash(tmp_path: Path) -> None:
    answers = searching()

    def respond(heard: ReceivedRequest) -> FakeResponse:
        is_third = heard.body["messages"][-1]["role"] == "assistant"
        return FakeResponse(ending="silence", status=0) if is_third and heard.attempt == 1 else answers(heard)

    async with FakeServer(respond) as server:
        async with open_at(server, "anthropic", tmp_path) as r:
            run = await r.spawn("How large is the pool?", tools=["server:web_search", "lookup"])
            async for item in run.events():
                if getattr(item, "turn", 0) == 2:
                    break
        async with open_at(server, "anthropic", tmp_path) as r:
            outcome = await (await r.resume(run.run_id)).wait()

    assert (outcome.text, outcome.citations) == ("It is Ten.", CITATIONS)
    assert server.requests[-1].body == server.requests[-2].body or len(server.requests) == 3


def decoded(*blocks: dict[str, Any], stop: str = "end_turn") -> AssistantMessage:
    """The reply that Anthropic's decoder makes of a whole message."""
    decoder = AnthropicDecoder()
    decoder.feed_whole(msgspec.json.encode({"type": "message", "id": "msg_1", "content": blocks, "stop_reason": stop}))
    return decoder.finish().message


SEARCH = ServerToolSpec(name="web_search")


def test_a_use_without_a_result_is_left_out_once_a_message_follows() -> None:
    paused = decoded({"type": "text", "text": "Hm."}, AGAIN, stop="pause_turn")
    history = [UserMessage("why?"), paused, UserMessage("Stop and answer.")]
    body = msgspec.json.decode(
        encode_anthropic(Request(model="m", system="", messages=history, server_tools=(SEARCH,)))
    )

    assert bare(body["messages"][1]["content"]) == [{"type": "text", "text": "Hm."}]


def test_blocks_of_server_tools_are_left_out_where_the_run_has_none() -> None:
    history = [UserMessage("why?"), decoded(USE, RESULT, CITED), UserMessage("sure?")]
    body = msgspec.json.decode(encode_anthropic(Request(model="m", system="", messages=history)))

    assert body["messages"][1]["content"] == [{"type": "text", "text": "Ten."}]


@pytest.mark.parametrize("encode", [encode_responses, encode_gemini])
def test_blocks_of_one_vendor_are_not_sent_to_another(encode: Callable[[Request], bytes]) -> None:
    history = [UserMessage("why?"), decoded(USE, RESULT, CITED), UserMessage("sure?")]
    body = encode(Request(model="m", system="", messages=history, server_tools=(SEARCH,)))

    assert b"srvtoolu" not in body
    assert b"Ten." in body


def test_the_token_of_an_mcp_server_is_sent_over_https_only() -> None:
    """It is part of the request to the model's vendor, also where that needs no key."""
    docs = ServerToolSpec(name="docs", url="https://mcp.example/mcp", token_env="DOCS_TOKEN")

    def check(address: str) -> None:
        config = provider_config("anthropic", base_url=address, api_key_env="")
        check_server_tools(config, "m", [docs], others=False)

    check("https://proxy.example/v1")
    check("http://localhost:8000/v1")
    with pytest.raises(BadInput, match=r"the key in DOCS_TOKEN is not sent to proxy\.example over plain http"):
        check("http://proxy.example/v1")


async def test_an_mcp_server_of_the_settings_is_named_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCS_TOKEN", "secret-docs-token")

    def respond(heard: ReceivedRequest) -> FakeResponse:
        if problem := rejection_of(heard):
            return failed(400, problem)
        return failed(400, f"cannot use {heard.body['mcp_servers'][0]['authorization_token']}")

    docs = retinue.ServerTool("docs", url="https://mcp.example/mcp", token_env="DOCS_TOKEN", allow=["search"])
    policy = retinue.Policy(auto_approve=("server:docs",))
    async with FakeServer(respond) as server, open_at(server, "anthropic", server_tools=[docs], policy=policy) as r:
        outcome = await r.run("Look.", tools=["server:docs"])

    (request,) = server.requests
    assert request.body["mcp_servers"] == [
        {"type": "url", "name": "docs", "url": "https://mcp.example/mcp", "authorization_token": "secret-docs-token"}
    ]
    assert bare(request.body["tools"]) == [
        {
            "type": "mcp_toolset",
            "mcp_server_name": "docs",
            "default_config": {"enabled": False},
            "configs": {"search": {"enabled": True}},
        }
    ]
    assert "cannot use" in outcome.error
    assert "secret-docs-token" not in outcome.error


async def test_a_missing_token_is_named_before_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCS_TOKEN", raising=False)
    docs = retinue.ServerTool("docs", url="https://mcp.example/mcp", token_env="DOCS_TOKEN")
    policy = retinue.Policy(auto_approve=("server:docs",))
    async with (
        FakeServer(lambda heard: failed(500, "asked")) as server,
        open_at(server, "anthropic", server_tools=[docs], policy=policy) as r,
    ):
        outcome = await r.run("Look.", tools=["server:docs"])

    assert "the environment variable DOCS_TOKEN has no token" in outcome.error
    assert server.requests == []


# ---- OpenAI Responses ------------------------------------------------------------------------------------------------

SEARCH_ITEM = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
VISIT_ITEM = {
    "type": "web_search_call",
    "id": "ws_2",
    "status": "completed",
    "action": {"type": "open_page", "url": URL},
}
FILE_ITEM = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["pool"], "results": None}


def responses_answer(*items: dict[str, Any]) -> FakeResponse:
    events: list[dict[str, Any]] = [responses_events.CREATED]
    for index, each in enumerate(items):
        events.append(responses_events.added(each | {"status": "in_progress"}, output_index=index))
        events.append(responses_events.done(each, output_index=index))
    usage = {"input_tokens": 10, "output_tokens": 5}
    events.append(responses_events.completed(output=list(items), usage=usage))
    pieces = (b"data: %b\n\n" % msgspec.json.encode(each) for each in events)
    return FakeResponse(headers=EVENTS, pieces=tuple(pieces))


def message_item(number: int, text: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": annotations}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


async def test_responses_items_go_back_and_citations_are_kept() -> None:
    cited = {"type": "url_citation", "url": URL, "title": "Pools", "start_index": 0, "end_index": 4}
    of_file = {"type": "file_citation", "file_id": "file_1", "filename": "pool.md", "index": 4}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c_1", "name": "lookup", "arguments": '{"name":"a"}'}

    def respond(heard: ReceivedRequest) -> FakeResponse:
        if len(heard.body["input"]) == 1:
            return responses_answer(SEARCH_ITEM, VISIT_ITEM, message_item(1, "Hm."), FILE_ITEM, call | {"status": "x"})
        return responses_answer(message_item(2, "Ten.", cited, of_file))

    tools = [
        retinue.ServerTool("web_search", max_uses=3, allowed_domains=["docs.example"]),
        retinue.ServerTool("file_search", stores=["vs_1"], max_uses=2),
        retinue.ServerTool("code_execution", max_uses=1),
    ]
    async with FakeServer(respond) as server, open_at(server, "openai-responses", server_tools=tools) as r:
        named = ["server:web_search", "server:file_search", "server:code_execution", "lookup"]
        outcome = await r.run("How large is the pool?", tools=named)

    first, second = (request.body for request in server.requests)
    assert first["max_tool_calls"] == 6
    assert first["tools"][:3] == [
        {"type": "web_search", "filters": {"allowed_domains": ["docs.example"]}},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    sent = second["input"]
    assert [each.get("type", "message") for each in sent] == [
        "message",
        "web_search_call",
        "web_search_call",
        "message",
        "file_search_call",
        "function_call",
        "function_call_output",
    ]
    assert [sent[1], sent[2], sent[4]] == [SEARCH_ITEM, VISIT_ITEM, FILE_ITEM]
    assert outcome.text == "Ten."
    assert outcome.citations == (Citation(URL, "Pools", start=0, end=4), Citation("", "pool.md", start=4, end=4))
    assert outcome.cost == 10_000_000 + 2_500_000  # a page that was opened is no search


def test_an_mcp_server_has_no_approvals_at_openai() -> None:
    docs = ServerToolSpec(name="docs", url="https://mcp.example/mcp", allow=("search",))
    body = msgspec.json.decode(
        encode_responses(Request(model="m", system="", messages=[UserMessage("hi")], server_tools=(docs,)))
    )

    assert body["tools"] == [
        {
            "type": "mcp",
            "server_label": "docs",
            "server_url": "https://mcp.example/mcp",
            "require_approval": "never",
            "allowed_tools": ["search"],
        }
    ]


# ---- Gemini ----------------------------------------------------------------------------------------------------------

CODE = {"executableCode": {"language": "PYTHON", "code": "print(10)"}, "thoughtSignature": "c2ln"}
OUTPUT = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "10\n"}}
GROUNDING = {
    "webSearchQueries": ["pool size", "pool limit"],
    "groundingChunks": [{"web": {"uri": URL, "title": "Pools"}}],
    "groundingSupports": [
        {"segment": {"startIndex": 0, "endIndex": 9, "text": "Zehn für"}, "groundingChunkIndices": [0, 7]}
    ],
}


def gemini_answer(*events: dict[str, Any]) -> FakeResponse:
    pieces = (b"data: %b\n\n" % msgspec.json.encode(each | {"modelVersion": "gemini-3-m"}) for each in events)
    return FakeResponse(headers=EVENTS, pieces=tuple(pieces))


async def test_gemini_parts_go_back_at_their_places_and_grounding_becomes_citations() -> None:
    def respond(heard: ReceivedRequest) -> FakeResponse:
        usage = {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5}}
        if len(heard.body["contents"]) == 1:
            called = gemini_events.call("lookup", {"name": "a"}, thoughtSignature="c2lnMg==")
            return gemini_answer(
                gemini_events.chunk(gemini_events.text("Let me "), CODE, OUTPUT, gemini_events.text("see.")),
                gemini_events.chunk(called, finish="STOP") | usage,
            )
        last: dict[str, Any] = gemini_events.chunk(gemini_events.text("Zehn für alle."), finish="STOP") | usage
        last["candidates"][0]["groundingMetadata"] = GROUNDING
        return gemini_answer(last)

    async with FakeServer(respond) as server, open_at(server, "gemini") as r:
        named = ["server:web_search", "server:code_execution", "lookup"]
        outcome = await r.run("How large is the pool?", tools=named, model="house:gemini-3-m")

    first, second = (request.body for request in server.requests)
    assert first["tools"][:2] == [{"googleSearch": {}}, {"codeExecution": {}}]
    assert first["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert second["contents"][1]["parts"][:4] == [{"text": "Let me "}, CODE, OUTPUT, {"text": "see."}]
    assert outcome.text == "Zehn für alle."
    assert outcome.citations == (Citation(URL, "Pools", start=0, end=8),)
    assert outcome.cost == 2 * 14_000_000


def test_an_older_gemini_is_charged_by_the_answer() -> None:
    grounded = gemini_events.chunk(gemini_events.text("Ten."), finish="STOP")
    grounded["candidates"][0]["groundingMetadata"] = GROUNDING

    reply = gemini_events.decode_reply(grounded | {"modelVersion": "gemini-2.5-flash"})

    assert reply.server_tools == (("grounded_answer", 1),)
    assert WIRES["gemini"].server_tool_prices["grounded_answer"] == 35_000_000


# ---- chat completions ------------------------------------------------------------------------------------------------


async def test_openrouter_searches_by_its_plugin_and_reports_what_it_cost() -> None:
    annotation = {
        "type": "url_citation",
        "url_citation": {"url": URL, "title": "Pools", "start_index": 0, "end_index": 4},
    }
    events: list[dict[str, Any]] = [
        {"id": "1", "model": "m", "choices": [{"delta": {"content": "Ten."}}]},
        {"id": "1", "choices": [{"delta": {"content": "", "annotations": [annotation]}, "finish_reason": "stop"}]},
        {"id": "1", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.02}},
    ]
    pieces = tuple(b"data: %b\n\n" % msgspec.json.encode(each) for each in events)
    async with (
        FakeServer(lambda heard: FakeResponse(headers=EVENTS, pieces=pieces)) as server,
        open_at(server, "openrouter") as r,
    ):
        outcome = await r.run("How large is the pool?", tools=["server:web_search"])

    assert server.requests[0].body["plugins"] == [{"id": "web"}]
    assert "tools" not in server.requests[0].body
    assert (outcome.text, outcome.citations) == ("Ten.", (Citation(URL, "Pools", start=0, end=4),))
    assert outcome.cost == NANO // 50


GROQ_SEARCH = {"index": 0, "type": "browser_search", "arguments": '{"query":"pool"}'}
GROQ_FOUND = GROQ_SEARCH | {
    "output": "...",
    "search_results": {"results": [{"title": "Pools", "url": URL, "score": 1}]},
}
GROQ_PROGRAM = {"index": 1, "type": "code_interpreter", "arguments": "print(10)", "code_results": [{"text": "10"}]}


def groq_answer(stream: bool) -> FakeResponse:
    """An answer of Groq, whose tools come at first without results."""
    counts = {"prompt_tokens": 10, "completion_tokens": 5}
    if not stream:
        message = {"role": "assistant", "content": "Ten.", "executed_tools": [GROQ_FOUND, GROQ_PROGRAM]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return FakeResponse(headers=JSON, pieces=(msgspec.json.encode({"choices": [choice], "usage": counts}),))
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning": "I search.", "executed_tools": [GROQ_SEARCH]},
        {"executed_tools": [GROQ_FOUND]},
        {"content": "Ten.", "executed_tools": [GROQ_PROGRAM]},
    ]
    events: list[dict[str, Any]] = [{"id": "1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events.append({"id": "1", "choices": [], "x_groq": {"id": "req_1"}, "usage": counts})
    pieces = (b"data: %b\n\n" % msgspec.json.encode(each) for each in events)
    return FakeResponse(headers=EVENTS, pieces=(*pieces, b"data: [DONE]\n\n"))


@pytest.mark.parametrize("stream", [True, False])
async def test_groq_searches_and_runs_programs_and_its_sources_are_kept(*, stream: bool) -> None:
    tools = [
        retinue.ServerTool("web_search", price=0.01),
        retinue.ServerTool("code_execution", price=0.02),
    ]
    async with (
        FakeServer(lambda heard: groq_answer(stream)) as server,
        open_at(server, "groq", server_tools=tools) as r,
    ):
        outcome = await r.run(
            "How large is the pool?",
            tools=["server:web_search", "server:code_execution", "lookup"],
            options=retinue.ModelOptions(stream=None if stream else False),
        )

    sent = server.requests[0].body["tools"]
    assert [tool["type"] for tool in sent] == ["browser_search", "code_interpreter", "function"]
    assert (outcome.text, outcome.citations) == ("Ten.", (Citation(URL, "Pools"),))
    assert outcome.cost == 3 * NANO // 100


UNREADABLE: list[Any] = [None, [], "x", [3], [{"type": 7}], [{"search_results": {"results": [{}]}}]]


@pytest.mark.parametrize("executed", UNREADABLE)
async def test_tools_that_groq_describes_otherwise_are_no_error(executed: object) -> None:
    message = {"role": "assistant", "content": "Ten.", "executed_tools": executed}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    reply = FakeResponse(headers=JSON, pieces=(msgspec.json.encode(body),))
    async with FakeServer(lambda heard: reply) as server, open_at(server, "groq") as r:
        outcome = await r.run("Ten?", options=retinue.ModelOptions(stream=False))

    assert (outcome.text, outcome.citations) == ("Ten.", ())


# ---- refusals and rights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "model", "tool", "refusal"),
    [
        (
            "openai-chat",
            "m",
            {"name": "web_search"},
            "server:web_search: the wire openai-chat does not have it; it has none",
        ),
        (
            "vertexai-anthropic",
            "m",
            {"name": "code_execution"},
            "server:code_execution: the wire vertexai-anthropic does not have it; it has server:web_search",
        ),
        (
            "openai-responses",
            "m",
            {"name": "web_search", "blocked_domains": ["a.example"]},
            "server:web_search: blocked_domains: the wire openai-responses does not have it",
        ),
        (
            "gemini",
            "m",
            {"name": "file_search"},
            "server:file_search needs stores: name them in [server_tools.file_search]",
        ),
        (
            "gemini",
            "gemini-2.5-flash",
            {"name": "web_search"},
            "server:web_search: the model gemini-2.5-flash takes no other tools next to it; use a newer one",
        ),
        (
            "anthropic",
            "m",
            {"name": "file_search", "stores": ["s"]},
            "server:file_search: the wire anthropic does not have it",
        ),
    ],
)
async def test_a_wire_that_lacks_a_server_tool_says_so_before_the_run(
    wire: str, model: str, tool: dict[str, Any], refusal: str
) -> None:
    async with FakeServer(lambda heard: failed(500, "asked")) as server:
        configured = retinue.ServerTool(**tool)
        async with open_at(server, wire, server_tools=[configured]) as r:
            with pytest.raises(BadInput, match="^" + refusal.replace("[", r"\[")):
                await r.run("Look.", tools=[configured.spec.name, "lookup"], model=f"house:{model}")

    assert server.requests == []


async def test_a_limit_of_uses_holds_for_all_server_tools_of_a_wire_that_has_one_limit() -> None:
    async with FakeServer(lambda heard: failed(500, "asked")) as server:
        tools = [retinue.ServerTool("web_search", max_uses=3)]
        async with open_at(server, "openai-responses", server_tools=tools) as r:
            with pytest.raises(BadInput, match="one limit for all server tools"):
                await r.run("Look.", tools=["server:web_search", "server:code_execution"])


def named_by(asked: dict[str, tuple[str, ...]]) -> Callable[[str], Callable[[Request], Any]]:
    """Lines that note which server tools each agent's request has."""

    def line_of(text: str) -> Callable[[Request], Any]:
        def line(ask: Request) -> Any:
            asked[ask.agent] = tuple(tool.full_name for tool in ask.server_tools)
            return says(text)

        return line

    return line_of


RESEARCHER = retinue.Agent(name="researcher", description="Searches", tools=("server:web_search",))


async def delegate(tools: list[str] | None = None, **options: Any) -> dict[str, tuple[str, ...]]:
    """The server tools of a run and of the agent that it delegates to."""
    asked: dict[str, tuple[str, ...]] = {}
    line = named_by(asked)

    def first(ask: Request) -> Any:
        line("")(ask)
        return calls("run_agent", agent="researcher", task="Look.")

    script = Script().play("main", first, says("Done.")).play("researcher", line("Ten."))
    async with retinue.open(
        provider=ScriptedProvider(script), agents=[RESEARCHER], dialects=["native"], home=retinue.MEMORY, **options
    ) as r:
        assert (await r.run("Ask.", tools=tools)).text == "Done."
    return asked


async def test_an_agent_has_the_server_tools_that_it_names_and_its_caller_none() -> None:
    assert await delegate() == {"main": (), "researcher": ("server:web_search",)}


async def test_the_tools_of_a_run_bound_the_server_tools_of_its_children() -> None:
    assert await delegate(["artifact_read"]) == {"main": (), "researcher": ()}
    assert await delegate(["server:web_search"]) == {
        "main": ("server:web_search",),
        "researcher": ("server:web_search",),
    }


async def test_a_policy_bounds_server_tools() -> None:
    excluded = retinue.Policy(excluded_tools=("server:web_search",))
    asked_about = retinue.Policy(always_ask=("server:web_search",))

    assert await delegate(policy=excluded) == {"main": (), "researcher": ()}
    assert await delegate(policy=asked_about) == {"main": (), "researcher": ()}


async def test_a_server_tool_that_needs_an_approval_is_refused_where_it_is_named() -> None:
    docs = retinue.ServerTool("docs", url="https://mcp.example/mcp")
    model = ScriptedProvider(Script().play("main", says("Done.")))
    async with retinue.open(provider=model, server_tools=[docs], dialects=(), home=retinue.MEMORY) as r:
        with pytest.raises(BadInput, match="server:docs is run by the model's vendor, where no call waits"):
            await r.run("Ask.", tools=["server:docs"])


async def test_a_model_cannot_name_a_server_tool_for_a_child() -> None:
    asked: dict[str, tuple[str, ...]] = {}
    line = named_by(asked)
    script = Script().play(
        "main",
        calls("run_agent", task="Look.", tools=["server:web_search"]),
        lambda ask: says(ask.messages[-1].text),
    )
    script.play("main/1", line("Ten."))
    async with retinue.open(provider=ScriptedProvider(script), dialects=["native"], home=retinue.MEMORY) as r:
        outcome = await r.run("Ask.")

    assert "server:web_search" in outcome.text
    assert asked == {}


async def test_an_unknown_server_tool_is_an_unknown_tool() -> None:
    model = ScriptedProvider(Script().play("main", says("Done.")))
    async with retinue.open(provider=model, dialects=(), home=retinue.MEMORY) as r:
        with pytest.raises(retinue.RetinueError, match="server:web_serch"):
            await r.run("Ask.", tools=["server:web_serch"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "docs", "url": "http://mcp.example"}, "begins with https://"),
        ({"name": "docs", "url": "https://user:secret@mcp.example"}, "no secret in it"),
        ({"name": "web_search", "url": "https://mcp.example"}, "needs a name of its own"),
        ({"name": "docs", "url": "https://mcp.example", "token_env": "sk-123"}, "never a token itself"),
        ({"name": "web_search", "stores": ["s"]}, "stores applies to file_search only"),
        ({"name": "web_search", "max_uses": 0}, "expected 1 to 1000"),
        ({"name": "web_search", "allowed_domains": ["a"], "blocked_domains": ["b"]}, "exclude each other"),
        ({"name": "web_search", "allowed_domains": ["a b"]}, "names without spaces"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        retinue.ServerTool(**options)
