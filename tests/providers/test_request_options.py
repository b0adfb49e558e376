"""Options of requests on every wire: what a run, its agent and its provider set arrives in the body and the headers."""

import json
from typing import Any

import pytest

import retinue
from retinue.core.agent import ToolSpec
from retinue.core.messages import ToolCall, UserMessage
from retinue.core.model_options import NO_OPTIONS, ModelOptions
from retinue.core.ports import Request
from retinue.errors import BadInput
from retinue.providers import catalog
from retinue.providers.catalog import ProviderConfig, create_provider, provider_config
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.raw_answers import PROVIDERS, answer

WIRES = {
    "chat": "openai-chat",
    "responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "bedrock": "bedrock",
}
CALL = ToolCall("search", '{"query":"pool"}', "toolu_1")


@retinue.tool(kind="pure")
def search(query: str) -> str:
    """Search the logs."""
    return f"3 lines about {query}"


async def requests_of(
    wire: str,
    options: ModelOptions = NO_OPTIONS,
    *,
    agent: ModelOptions = NO_OPTIONS,
    provider: dict[str, Any] | None = None,
    model: str = "m",
) -> list[ReceivedRequest]:
    """The two requests of a run that calls a tool, which the wire's server receives."""
    answers = [answer(wire, "", CALL), answer(wire, "It was the pool.")]
    async with FakeServer(lambda _: answers.pop(0)) as server:
        base_url = server.url if wire in ("anthropic", "gemini", "bedrock") else f"{server.url}/v1"
        config = provider_config("house", wire=WIRES[wire], base_url=base_url, **(provider or {}))
        async with retinue.open(
            model=f"house:{model}",
            provider_configs=[config],
            agents=[retinue.Agent(name="main", options=agent, tools=("search",))],
            tools=[search],
            dialects=(),
            home=retinue.MEMORY,
        ) as r:
            outcome = await r.run("Why is it slow?", agent="main", options=options)
    assert (outcome.result, outcome.text) == ("completed", "It was the pool.")
    return server.requests


def parts(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: body[name] for name in names if name in body}


FULL = ModelOptions(
    temperature=0.5,
    top_p=0.9,
    max_output_tokens=500,
    tool_choice="required",
    extra_body={"metadata": {"team": "search"}},
    extra_headers={"X-Team": "search"},
)
MORE: dict[str, ModelOptions] = {
    "chat": ModelOptions(stop=("END",), seed=7, service_tier="flex", parallel_tool_calls=False),
    "responses": ModelOptions(service_tier="flex", parallel_tool_calls=False),
    "anthropic": ModelOptions(
        stop=("END",), service_tier="auto", parallel_tool_calls=False, cache_ttl="1h", betas=("a-1", "b-2")
    ),
    "gemini": ModelOptions(stop=("END",), seed=7),
    "bedrock": ModelOptions(stop=("END",), service_tier="flex"),
}
SENT: dict[str, dict[str, Any]] = {
    "chat": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 500,
        "stop": ["END"],
        "seed": 7,
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "tool_choice": "required",
        "metadata": {"team": "search"},
    },
    "responses": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 500,
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "tool_choice": "required",
        "metadata": {"team": "search"},
    },
    "anthropic": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 500,
        "stop_sequences": ["END"],
        "service_tier": "auto",
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "metadata": {"team": "search"},
    },
    "gemini": {
        "generationConfig": {
            "maxOutputTokens": 500,
            "temperature": 0.5,
            "topP": 0.9,
            "stopSequences": ["END"],
            "seed": 7,
        },
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "metadata": {"team": "search"},
    },
    "bedrock": {
        "inferenceConfig": {"maxTokens": 500, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
        "serviceTier": {"type": "flex"},
        "metadata": {"team": "search"},
    },
}


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_the_options_of_a_run_are_sent(wire: str) -> None:
    first, second = await requests_of(wire, FULL.over(MORE[wire]))

    assert parts(first.body, *SENT[wire]) == SENT[wire]
    assert (first.headers["x-team"], second.headers["x-team"]) == ("search", "search")
    # A model that had to call a tool in every reply could never answer.
    forced = "toolConfig" if wire in ("gemini", "bedrock") else "tool_choice"
    assert second.body.get(forced) != first.body[forced]


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_the_options_of_an_agent_and_of_a_provider_are_sent(wire: str) -> None:
    by_agent, _ = await requests_of(wire, agent=FULL.over(MORE[wire]))
    by_provider, _ = await requests_of(wire, provider={"options": FULL.over(MORE[wire])})

    assert parts(by_agent.body, *SENT[wire]) == parts(by_provider.body, *SENT[wire]) == SENT[wire]


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_the_run_comes_before_its_agent_and_the_agent_before_its_provider(wire: str) -> None:
    request, _ = await requests_of(
        wire,
        ModelOptions(max_output_tokens=100),
        agent=ModelOptions(max_output_tokens=200, top_p=0.2),
        provider={"options": ModelOptions(max_output_tokens=300, top_p=0.3, temperature=0.3)},
    )
    body = request.body.get("generationConfig") or request.body.get("inferenceConfig") or request.body
    limits = ("max_tokens", "max_output_tokens", "maxOutputTokens", "maxTokens")

    assert [body.get(name) for name in limits if name in body] == [100]
    assert body.get("top_p", body.get("topP")) == 0.2
    assert body["temperature"] == 0.3


@pytest.mark.parametrize(
    ("wire", "choice"),
    [
        ("chat", {"type": "function", "function": {"name": "search"}}),
        ("responses", {"type": "function", "name": "search"}),
        ("anthropic", {"type": "tool", "name": "search"}),
        ("gemini", {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["search"]}}),
    ],
)
async def test_the_first_reply_can_be_made_to_call_one_tool(wire: str, choice: object) -> None:
    request, _ = await requests_of(wire, ModelOptions(tool_choice="search", effort="high"), model="claude-sonnet-4-5")

    assert request.body["toolConfig" if wire == "gemini" else "tool_choice"] == choice
    assert "thinking" not in request.body  # the API of Anthropic rejects thinking together with such a choice


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_wire_refuses_options_that_it_does_not_have(wire: str) -> None:
    lacking = {"chat": "cache_ttl", "responses": "stop", "gemini": "service_tier"}.get(wire, "seed")
    value: Any = {"cache_ttl": "1h", "stop": ("END",), "seed": 7, "service_tier": "flex"}[lacking]
    options = ModelOptions(**{lacking: value})

    with pytest.raises(BadInput, match=f"{lacking}: the wire {WIRES[wire]} does not have it"):
        await requests_of(wire, options)
    with pytest.raises(BadInput, match=f"{lacking}: the wire {WIRES[wire]} does not have it"):
        await requests_of(wire, provider={"options": options})


async def test_anthropic_gets_betas_and_an_hour_in_its_cache() -> None:
    first, second = await requests_of("anthropic", ModelOptions(cache_ttl="1h", betas=("a-1", "b-2")))

    marks = [
        first.body["tools"][-1],
        first.body["messages"][0]["content"][-1],
        second.body["messages"][-1]["content"][-1],
    ]
    assert [each["cache_control"] for each in marks] == [{"type": "ephemeral", "ttl": "1h"}] * 3
    assert first.headers["anthropic-beta"] == "a-1,b-2"


async def test_anthropic_takes_a_token_in_place_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_TOKEN", "token-12345678")
    plain, _ = await requests_of("anthropic", provider={"api_key_env": "HOUSE_TOKEN"})
    bearer, _ = await requests_of("anthropic", provider={"api_key_env": "HOUSE_TOKEN", "bearer": True})

    assert plain.headers["x-api-key"] == "token-12345678"
    assert bearer.headers["authorization"] == "Bearer token-12345678"
    assert "authorization" not in plain.headers
    assert "x-api-key" not in bearer.headers
    with pytest.raises(BadInput, match="bearer applies to the wire anthropic only"):
        provider_config("openai", bearer=True)


EXAMPLES: dict[str, Any] = {
    "effort": "low",
    "temperature": 0.5,
    "top_p": 0.9,
    "max_output_tokens": 500,
    "stop": ("END",),
    "seed": 7,
    "service_tier": "flex",
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "cache_ttl": "1h",
    "stream": False,
    "betas": ("a-1",),
    "batch_hours": 24.0,
    "extra_body": {"user": "u"},
    "extra_headers": {"X-Team": "search"},
}
THINKING_MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "bedrock": "anthropic.claude-sonnet-4-5",
    "gemini": "gemini-3.5-flash",
    "openai": "gpt-5.4",
}
"""A model of each family that takes an effort."""


async def sent_by(name: str, option: str, *, is_set: bool) -> tuple[bytes, dict[str, str], str]:
    """Body, headers and URL of a request on a wire, with or without an option."""
    record = catalog.WIRES[name]
    options = ModelOptions(**{option: EXAMPLES[option]}) if is_set else NO_OPTIONS
    config = provider_config(name, base_url=record.base_url or record.base_url_example, api_key_env="")
    provider: Any = create_provider(config)
    is_of_model = option == "effort" or record.family == "bedrock"
    model = THINKING_MODELS[record.family or ""] if is_of_model else "some-model"
    asked = Request(model=model, system="", messages=[UserMessage("hi")], tools=(ToolSpec("search", "Search."),))
    asked = asked.with_defaults(options)
    endpoint = await provider.provider.endpoint(model, streams=options.stream is not False)
    return provider.provider.encode(asked, ()), provider.provider.headers_of(asked), endpoint.info.url


@pytest.mark.parametrize("name", [name for name, wire in catalog.WIRES.items() if wire.kind != "script"])
async def test_every_option_in_the_table_of_features_changes_a_request(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "token-12345678")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "token-12345678")
    unsent = [
        option
        for option in sorted(catalog.WIRES[name].supports - {"batch_hours"})  # which changes the address
        if await sent_by(name, option, is_set=True) == await sent_by(name, option, is_set=False)
    ]

    assert unsent == []
    assert catalog.WIRES[name].supports <= EXAMPLES.keys() == set(ModelOptions.__struct_fields__)


# ---- prompt cache keys ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_runs_that_begin_in_the_same_way_share_a_prompt_cache_key(wire: str) -> None:
    async with FakeServer(lambda _: answer(wire, "Yes.")) as server:
        config = provider_config("house", wire=WIRES[wire], base_url=f"{server.url}/v1", prompt_cache_key=True)
        async with retinue.open(model="house:m", provider_configs=[config], dialects=(), home=retinue.MEMORY) as r:
            await r.run("One?")
            await r.run("Two?")
            await r.run("Three?", system="Be brief.")

    keys = [heard.body["prompt_cache_key"] for heard in server.requests]
    assert keys[0] == keys[1] != keys[2]
    assert len(keys[0]) == 64


@pytest.mark.parametrize(("name", "expected"), [("openai", True), ("openai-chat", True), ("vllm", False)])
def test_a_prompt_cache_key_is_sent_to_openai_unless_the_settings_say_otherwise(name: str, expected: bool) -> None:
    def sends(config: ProviderConfig) -> bool:
        provider: Any = create_provider(config)
        return provider.provider._cache_key  # pyright: ignore[reportPrivateUsage] no request to the vendor is made

    assert sends(provider_config(name)) == expected
    assert sends(provider_config(name, base_url="http://localhost:9/v1")) is False
    assert sends(provider_config(name, prompt_cache_key=False)) is False


# ---- whole answers --------------------------------------------------------------------------------------------------

WHOLE: dict[str, dict[str, Any]] = {
    "chat": {"id": "r1", "choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}]},
    "responses": {
        "id": "r1",
        "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}],
    },
    "anthropic": {
        "id": "r1",
        "type": "message",
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
    },
    "gemini": {"candidates": [{"content": {"parts": [{"text": "Yes."}]}, "finishReason": "STOP"}]},
    "bedrock": {"output": {"message": {"content": [{"text": "Yes."}]}}, "stopReason": "end_turn"},
}


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_an_answer_can_be_asked_for_as_a_whole(wire: str) -> None:
    async with (
        FakeServer(lambda _: FakeResponse(pieces=(json.dumps(WHOLE[wire]).encode(),))) as server,
        retinue.open(model="m", provider=PROVIDERS[wire](server.url), dialects=(), home=retinue.MEMORY) as r,
    ):
        outcome = await r.run("Why?", options=ModelOptions(stream=False))

    assert outcome.text == "Yes."
    (request,) = server.requests
    assert not {"stream", "stream_options"} & request.body.keys()
    assert "alt=sse" not in request.query
    assert "stream" not in request.path


# ---- what cannot be set ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_body": {"messages": []}}, "extra_body: messages cannot be replaced; it is part of the conversation"),
        ({"extra_body": {"max_tokens": 5}}, "extra_body: set max_output_tokens in place of max_tokens"),
        ({"extra_body": [1]}, "extra_body: expected an object"),
        ({"extra_body": {"a": "x" * 70_000}}, "extra_body: expected at most 65536 bytes"),
        ({"extra_headers": {"Authorization": "Bearer x"}}, "extra_headers: Authorization may carry a credential"),
        ({"extra_headers": {"X-Api-Key": "x"}}, "extra_headers: X-Api-Key may carry a credential"),
        ({"extra_headers": {"Cookie": "x"}}, "extra_headers: Cookie may carry a credential"),
        ({"extra_headers": {"Host": "h.example"}}, "extra_headers: 'Host' cannot be sent"),
        ({"extra_headers": {"X-A": "b\r\nX-C: d"}}, "extra_headers: 'X-A' cannot be sent"),
        ({"effort": "huge"}, "effort: found 'huge'; expected one of: none, minimal, low"),
        ({"stop": [""]}, "stop: expected at most 16 texts of 1 to 1000 characters"),
        ({"tool_choice": "a b"}, "tool_choice: expected letters, digits"),
        ({"temperature": 3}, "temperature: found 3; expected a number from 0 to 2"),
    ],
)
def test_options_that_cannot_be_sent_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("(", r"\(")):
        ModelOptions(**options)


async def test_a_header_of_the_provider_is_not_replaced_by_one_of_a_run() -> None:
    first, _ = await requests_of(
        "chat",
        ModelOptions(extra_headers={"x-team": "mine", "X-Other": "1"}),
        provider={"headers": {"X-Team": "house"}},
    )

    assert (first.headers["x-team"], first.headers["x-other"]) == ("house", "1")


async def test_a_fallback_at_another_vendor_gets_no_headers_and_extra_fields_of_the_run() -> None:
    options = ModelOptions(
        extra_headers={"X-Team": "search"}, extra_body={"user": "u"}, service_tier="flex", stop=("END",)
    )
    async with (
        FakeServer(lambda _: FakeResponse(status=404)) as broken,
        FakeServer(lambda _: answer("chat", "Yes.")) as other,
    ):
        configs = [
            provider_config(name, wire="openai-chat", base_url=f"{server.url}/v1")
            for name, server in (("broken", broken), ("other", other))
        ]
        agent = retinue.Agent(name="main", fallback=("other:m",))
        async with retinue.open(
            model="broken:m", provider_configs=configs, agents=[agent], dialects=(), home=retinue.MEMORY
        ) as r:
            assert (await r.run("Why?", agent="main", options=options)).text == "Yes."

    (request,) = other.requests
    assert "x-team" not in request.headers
    assert parts(request.body, "stop", "user", "service_tier") == {"stop": ["END"]}
