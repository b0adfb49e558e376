"""The ledger over HTTP: failed attempts are charged as counted, and replies that no server counts as estimated."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.messages import TextDelta, ToolCall
from retinue.core.model_options import RequestOptions
from retinue.core.ports import Provider, price_factor_of
from retinue.events import ReplyReceived, TurnFailed
from retinue.providers.catalog import create_provider, provider_config
from retinue.providers.pricing import ModelPrices, PricedProvider, Rates
from retinue.testing import Script, ScriptedProvider, says
from retinue.testing.contracts.provider import DeltaListener, sample_request
from retinue.testing.fake_chat import DONE, EVENTS, event
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.providers.fakes.bedrock import event as frame_of
from tests.providers.raw_answers import PROVIDERS, answer

RATES = Rates(input=3.0, output=15.0)


def cost_of(tokens_in: int, tokens_out: int) -> int:
    return tokens_in * 3_000 + tokens_out * 15_000


async def run_with(
    provider: Provider, limits: retinue.Limits | None = None
) -> tuple[retinue.Outcome, list[ReplyReceived]]:
    priced = PricedProvider(provider, ModelPrices({"m": RATES}))
    async with retinue.open(model="m", provider=priced, dialects=(), home=retinue.MEMORY) as r:
        run = await r.spawn("Why is it slow?", limits=limits or retinue.Limits())
        outcome = await run.wait()
        events = [each async for each in run.events() if isinstance(each, ReplyReceived)]
    return outcome, events


def playing(*answers: FakeResponse) -> Callable[[object], FakeResponse]:
    left = list(answers)
    return lambda _: left.pop(0)


INCOMPLETE = {"chat": "abort", "responses": "new", "anthropic": "new", "gemini": "MALFORMED_FUNCTION_CALL"}
INCOMPLETE["bedrock"] = "something_new"


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_failed_attempts_that_were_counted_are_charged(wire: str) -> None:
    failed = answer(wire, "It is", stop=INCOMPLETE[wire], usage=(5000, 12))
    whole = answer(wire, "It was the pool.", usage=(5100, 20))
    async with FakeServer(playing(failed, failed, whole)) as server:
        outcome, replies = await run_with(PROVIDERS[wire](server.url))

    assert (outcome.result, outcome.usage) == ("completed", retinue.Usage(15_100, 44))
    assert outcome.cost == cost_of(15_100, 44)
    assert [(each.reply.usage, each.failed, each.failed_cost) for each in replies] == [
        (retinue.Usage(5100, 20), retinue.Usage(10_000, 24), cost_of(10_000, 24))
    ]


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_run_that_fails_is_charged_for_all_attempts(wire: str) -> None:
    async with FakeServer(lambda _: answer(wire, "It is", stop=INCOMPLETE[wire], usage=(5000, 12))) as server:
        outcome, _ = await run_with(PROVIDERS[wire](server.url))

    assert (outcome.result, outcome.usage) == ("failed", retinue.Usage(20_000, 48))
    assert outcome.cost == cost_of(20_000, 48)


async def test_the_input_of_a_stream_that_was_cut_is_charged() -> None:
    whole = answer("anthropic", "It was the pool.", usage=(5000, 20))
    cut = replace(whole, pieces=whole.pieces[:3], ending="cut")
    async with FakeServer(playing(cut, whole)) as server:
        outcome, replies = await run_with(PROVIDERS["anthropic"](server.url))

    assert (outcome.text, outcome.usage) == ("It was the pool.", retinue.Usage(10_000, 21))
    assert replies[0].failed == retinue.Usage(5000, 1)


async def test_a_stream_of_gemini_that_was_cut_after_its_counts_is_charged() -> None:
    """Gemini counts in every chunk, and the last one before the cut is as much as is known."""
    chunks = [
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}],
            "usageMetadata": {"promptTokenCount": 5000, "candidatesTokenCount": tokens, "thoughtsTokenCount": 30},
        }
        for text, tokens in (("It was", 2), (" the", 3))
    ]
    cut = FakeResponse(headers=EVENTS, pieces=tuple(map(event, chunks)), ending="cut")
    whole = answer("gemini", "It was the pool.", usage=(5000, 20))
    async with FakeServer(playing(cut, whole)) as server:
        outcome, replies = await run_with(PROVIDERS["gemini"](server.url))

    failed = retinue.Usage(5000, 33, reasoning=30)
    assert (outcome.text, outcome.usage) == ("It was the pool.", failed + retinue.Usage(5000, 20))
    assert (replies[0].failed, replies[0].failed_cost) == (failed, cost_of(5000, 33))


def silent() -> FakeResponse:
    """An answer whose server has counted 5,000 tokens of input, and falls silent within the text."""
    whole = answer("anthropic", "It was the pool.", usage=(5000, 20))
    return replace(whole, pieces=whole.pieces[:3], ending="silence")


async def test_an_attempt_that_timed_out_is_charged_as_counted() -> None:
    whole = answer("anthropic", "It was the pool.", usage=(5000, 20))
    limits = retinue.Limits(idle_timeout=0.2, first_timeout=120.0, max_cost=1)
    async with FakeServer(playing(silent(), whole)) as server:
        outcome, replies = await run_with(PROVIDERS["anthropic"](server.url), limits)

    assert (outcome.text, outcome.usage) == ("It was the pool.", retinue.Usage(10_000, 21))
    assert outcome.cost == cost_of(10_000, 21)
    assert (replies[0].failed, replies[0].failed_cost) == (retinue.Usage(5000, 1), cost_of(5000, 1))


@pytest.mark.parametrize("limits", [retinue.Limits(), retinue.Limits(max_cost=1)])
async def test_a_stream_that_is_cancelled_is_charged_as_counted(limits: retinue.Limits) -> None:
    failed = answer("anthropic", "It is", stop="new", usage=(5000, 12))
    async with FakeServer(playing(failed, silent())) as server:
        priced = PricedProvider(PROVIDERS["anthropic"](server.url), ModelPrices({"m": RATES}))
        async with retinue.open(model="m", provider=priced, dialects=(), home=retinue.MEMORY) as r:
            run = await r.spawn("Why is it slow?", limits=limits)
            async for each in run.events():
                if isinstance(each, TextDelta) and each.text == "It was the pool.":
                    await run.cancel()
            outcome = await run.wait()
            (stopped,) = [each async for each in run.events() if isinstance(each, TurnFailed)]

    assert (outcome.result, outcome.text) == ("cancelled", "It was the pool.")
    assert (outcome.usage, outcome.cost) == (retinue.Usage(10_000, 13), cost_of(10_000, 13))
    assert (stopped.fault, stopped.usage, stopped.cost) == ("stopped", retinue.Usage(10_000, 13), cost_of(10_000, 13))


async def test_a_run_whose_stream_was_interrupted_goes_on_and_keeps_the_charge(tmp_path: Path) -> None:
    whole = answer("anthropic", "It was the pool.", usage=(5000, 20))
    async with FakeServer(playing(silent(), whole)) as server:
        priced = PricedProvider(PROVIDERS["anthropic"](server.url), ModelPrices({"m": RATES}))
        async with retinue.open(model="m", provider=priced, dialects=(), home=tmp_path) as r:
            run = await r.spawn("Why is it slow?")
            async for each in run.events():
                if isinstance(each, TextDelta):
                    break
        async with retinue.open(model="m", provider=priced, dialects=(), home=tmp_path) as r:
            outcome = await (await r.resume(run.run_id)).wait()

    assert (outcome.result, outcome.text) == ("completed", "It was the pool.")
    assert (outcome.usage, outcome.cost) == (retinue.Usage(10_000, 21), cost_of(10_000, 21))


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_reply_without_counts_is_charged_as_estimated(wire: str) -> None:
    async with FakeServer(lambda _: answer(wire, "It was the pool. " * 10)) as server:
        outcome, replies = await run_with(PROVIDERS[wire](server.url))

    (reply,) = replies
    assert (outcome.usage, reply.reply.usage) == (retinue.Usage(), None)
    assert reply.estimated is not None
    assert reply.estimated.output == len("It was the pool. " * 10) // 4
    assert reply.estimated_cost == cost_of(reply.estimated.input, reply.estimated.output)
    assert (outcome.estimated, outcome.estimated_cost) == (reply.estimated, reply.estimated_cost)


async def test_a_script_without_counts_is_not_estimated() -> None:
    outcome, replies = await run_with(ScriptedProvider(Script().play("main", says("ok", usage=None))))

    assert (outcome.text, [each.estimated for each in replies]) == ("ok", [None])


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_limits_bind_where_a_server_counts_nothing(wire: str) -> None:
    @retinue.tool(kind="pure")
    def search(query: str) -> str:
        """Search the logs."""
        return "3 lines " * 50

    call = ToolCall("search", '{"query":"pool"}', "toolu_1")
    limits = retinue.Limits(max_output_tokens=400)
    priced = PricedProvider
    async with FakeServer(lambda _: answer(wire, "Let me look. " * 40, call)) as server:
        provider = priced(PROVIDERS[wire](server.url), ModelPrices({"m": RATES}))
        async with retinue.open(model="m", provider=provider, tools=[search], dialects=(), home=retinue.MEMORY) as r:
            outcome = await r.run("Why is it slow?", limits=limits)

    assert (outcome.result, outcome.reason) == ("exhausted", "max_tokens")
    assert 3 <= len(server.requests) <= 5


@pytest.mark.parametrize("wire", ["anthropic", "bedrock"])
async def test_what_a_vendor_keeps_for_an_hour_costs_twice_the_price_of_input(wire: str) -> None:
    counts: dict[str, Any]
    if wire == "anthropic":
        hour = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 900}
        counts = {"input_tokens": 100, "cache_creation_input_tokens": 900, "cache_creation": hour, "output_tokens": 5}
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}
        start = {"type": "message_start", "message": {"id": "r1", "model": "m1", "usage": counts}}
        text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Yes."}}
        opened = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        pieces = tuple(map(event, (start, opened, text, end, {"type": "message_stop"})))
        response = FakeResponse(headers=EVENTS, pieces=pieces)
    else:
        counts = {"inputTokens": 100, "outputTokens": 5, "cacheWriteInputTokens": 900}
        counts["cacheDetails"] = [{"ttl": "1h", "inputTokens": 900}]
        whole = answer(wire, "Yes.")
        response = replace(whole, pieces=(*whole.pieces, frame_of("metadata", usage=counts)))
    rates = Rates(input=4.0, output=8.0, cached=1.0, cache_write=5.0)
    async with FakeServer(lambda _: response) as server:
        priced = PricedProvider(PROVIDERS[wire](server.url), ModelPrices({"m": rates}))
        async with retinue.open(model="m", provider=priced, dialects=(), home=retinue.MEMORY) as r:
            outcome = await r.run("Why is it slow?", options=retinue.ModelOptions(cache_ttl="1h"))

    assert (outcome.text, outcome.cost) == ("Yes.", 100 * 4_000 + 900 * 8_000 + 5 * 8_000)
    assert outcome.usage == retinue.Usage(1000, 5, written=900, written_1h=900)


@pytest.mark.parametrize(
    ("wire", "model", "tier", "cost"),
    [
        ("openai-responses", "gpt-5.2", "", 1_750 * 1000 + 14_000 * 100),
        ("openai-responses", "gpt-5.2", "flex", (1_750 * 1000 + 14_000 * 100) // 2),
        ("openai-responses", "gpt-5.2", "priority", 2 * (1_750 * 1000 + 14_000 * 100)),
        ("openai-responses", "gpt-4.1", "priority", 3_500 * 1000 + 14_000 * 100),
        ("bedrock", "global.anthropic.claude-opus-5", "flex", (5_000 * 1000 + 25_000 * 100) // 2),
    ],
)
async def test_a_tier_of_service_has_its_price(wire: str, model: str, tier: str, cost: int) -> None:
    """The price of a tier holds at the vendor's address; the server here takes its place."""
    name = "responses" if wire == "openai-responses" else wire
    priced = create_provider(provider_config(wire))
    assert isinstance(priced, PricedProvider)
    async with FakeServer(lambda _: answer(name, "Yes.", usage=(1000, 100))) as server:
        priced = replace(priced, provider=PROVIDERS[name](server.url))
        options = retinue.ModelOptions(service_tier=tier, max_output_tokens=200)
        async with retinue.open(model=model, provider=priced, dialects=(), home=retinue.MEMORY) as r:
            outcome = await r.run("Why?", options=options, limits=retinue.Limits(max_cost=1))

    assert (outcome.text, outcome.cost) == ("Yes.", cost)


async def test_the_price_of_a_tier_does_not_hold_at_another_address() -> None:
    provider = create_provider(provider_config("openai-responses", base_url="http://127.0.0.1:9/v1"))
    priced = create_provider(provider_config("openai-responses", prices={"gpt-5.2": RATES}))
    request = replace(sample_request(), model="gpt-5.2", options=RequestOptions(service_tier="priority"))

    assert [price_factor_of(each, request) for each in (provider, priced)] == [1.0, 1.0]


# ---- where servers put their counts ----------------------------------------------------------------------------------

COUNTS = {"prompt_tokens": 100, "completion_tokens": 7}


def chat_answer(last: dict[str, Any], *more: dict[str, Any]) -> FakeResponse:
    first = {"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": {"content": "Yes."}}]}
    return FakeResponse(headers=EVENTS, pieces=(*map(event, (first, last, *more)), DONE))


def ended(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"} | choice]}


def counted(usage: dict[str, Any]) -> Sequence[dict[str, Any]]:
    return ended(), {"choices": list[object](), "usage": usage}


@pytest.mark.parametrize(
    ("told", "cost"),
    [({"cost": 0.5}, 500_000_000), ({"cost": 0}, 0), ({"cost_in_usd_ticks": 37_756_000}, 3_775_600), ({}, None)],
)
async def test_a_failed_attempt_costs_what_its_server_says(told: dict[str, Any], cost: int | None) -> None:
    """OpenRouter and xAI say what an answer costs; the list price of the model is another one."""
    failed = chat_answer(ended(finish_reason="abort"), {"choices": list[object](), "usage": COUNTS | told})
    whole = chat_answer(*counted(COUNTS | {"cost": 0.25}))
    async with FakeServer(playing(failed, whole)) as server:
        outcome, replies = await run_with(PROVIDERS["chat"](server.url))

    listed = cost_of(100, 7)
    assert [(each.failed, each.failed_cost) for each in replies] == [
        (retinue.Usage(100, 7), listed if cost is None else cost)
    ]
    assert outcome.cost == 250_000_000 + (listed if cost is None else cost)


@pytest.mark.parametrize(
    ("events", "usage", "cost"),
    [
        (counted(COUNTS), retinue.Usage(100, 7), None),
        (counted(COUNTS | {"cost": 0.00123}), retinue.Usage(100, 7), 1_230_000),
        (counted(COUNTS | {"cost": 0}), retinue.Usage(100, 7), 0),
        (counted(COUNTS | {"cost": "much"}), retinue.Usage(100, 7), None),
        (counted(COUNTS | {"cost_in_usd_ticks": 37_756_000}), retinue.Usage(100, 7), 3_775_600),
        (counted(COUNTS | {"num_cached_tokens": 40}), retinue.Usage(100, 7, cached=40), None),
        ((ended(usage=COUNTS),), retinue.Usage(100, 7), None),
        ((ended() | {"x_groq": {"id": "req_1", "usage": COUNTS}},), retinue.Usage(100, 7), None),
        ((ended() | {"x_groq": {"id": "req_1"}},), None, None),
    ],
)
async def test_counts_and_costs_are_read_where_chat_servers_put_them(
    events: Sequence[dict[str, Any]], usage: retinue.Usage | None, cost: int | None
) -> None:
    async with FakeServer(lambda _: chat_answer(*events)) as server, PROVIDERS["chat"](server.url) as provider:
        reply = await provider.answer(sample_request(), DeltaListener().publish)

    assert (reply.usage, reply.cost) == (usage, cost)


@pytest.mark.parametrize(
    ("told", "cost"),
    [({"cost": 0.5}, 500_000_000), ({"cost": 0}, 0), ({"cost_in_usd_ticks": 37_756_000}, 3_775_600), ({}, None)],
)
async def test_a_cost_that_a_responses_server_states_is_that_of_the_reply(
    told: dict[str, Any], cost: int | None
) -> None:
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Yes."}]}
    usage = {"input_tokens": 100, "output_tokens": 7} | told
    whole = {"id": "r1", "model": "m1", "status": "completed", "output": [message], "usage": usage}
    events = (
        event({"type": "response.output_item.done", "item": message}),
        event({"type": "response.completed", "response": whole}),
    )
    async with (
        FakeServer(lambda _: FakeResponse(headers=EVENTS, pieces=events)) as server,
        PROVIDERS["responses"](server.url) as provider,
    ):
        reply = await provider.answer(sample_request(), DeltaListener().publish)

    assert (reply.usage, reply.cost, reply.message.text) == (retinue.Usage(100, 7), cost, "Yes.")
