"""Model prices: lookup by name, exact costs, and None for unknown prices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import Publish, Request, price_of
from retinue.core.usage import NANO, Usage
from retinue.providers.pricing import FREE, LongContextRates, ModelPrices, PricedProvider, Rates, list_prices

LIST = list_prices()
COUNTS = st.integers(0, 10**7)

price = ModelPrices().price


def cost(model: str, usage: Usage) -> int | None:
    rates = LIST.rates(model)
    return None if rates is None else rates.cost(usage)


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4-0", "claude-sonnet-4"),
        ("anthropic/claude-haiku-4-5", "claude-haiku-4-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("Claude-Opus-4-1-20250805", "claude-opus-4-1"),
        ("gpt-5", "gpt-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("o3-2025-04-16", "o3"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini-2.5-flash-001", "gemini-2.5-flash"),
        ("gemini-2.5-flash-preview-09-2025", "gemini-2.5-flash"),
        ("gemini-3.1-pro-preview", "gemini-3.1-pro"),
    ],
)
def test_a_price_is_found_by_any_version_name(model: str, listed: str) -> None:
    assert LIST.rates(model) == LIST.models[listed]


@pytest.mark.parametrize(
    "model",
    [
        "",
        "gpt",
        "gpt-5-turbo",
        "gpt-5-mini-high",
        "gpt-4o-audio-preview",
        "gpt-4o-realtime-preview-2024-12-17",
        "gpt-4.5-preview",
        "gpt-55",
        "o3-deep-research",
        "claude-sonnet-4-7",
        "claude-sonnet-4-5-fast",
        "claude-sonnet",
        "my-claude-sonnet-4-5",
        "gemini-2.5-flash-image",
        "gemini-2.5-flash-preview-tts",
        "gemini-3-pro-image-preview",
        "qwen3:8b",
        "-20250514",
    ],
)
def test_unlisted_models_have_no_price(model: str) -> None:
    assert (LIST.rates(model), cost(model, Usage(input=1)), price(model)) == (None, None, None)


def test_every_listed_price_is_plausible() -> None:
    year, _, _ = LIST.as_of.split("-")
    assert int(year) >= 2026
    for model, rates in LIST.models.items():
        assert 0 < rates.input < rates.output, model
        assert rates.cached is None or 0 < rates.cached < rates.input, model
        assert rates.cache_write is None or rates.input < rates.cache_write <= 2 * rates.input, model
        assert rates.long is None or (rates.long.input > rates.input and rates.long.output > rates.output), model
    assert set(LIST.aliases.values()) <= set(LIST.models)
    assert not set(LIST.aliases) & set(LIST.models)


def test_cached_input_is_cheaper_and_reasoning_counts_as_output() -> None:
    usage = Usage(input=1_000, output=200, cached=600, reasoning=150)

    assert cost("claude-sonnet-4-5", usage) == 400 * 3_000 + 600 * 300 + 200 * 15_000
    assert Rates(input=3.0, output=15.0).cost(usage) == 1_000 * 3_000 + 200 * 15_000


def test_cache_writes_cost_more_where_the_vendor_charges_for_them() -> None:
    usage = Usage(input=10_000, output=200, cached=6_000, written=3_000)

    assert cost("claude-sonnet-4-5", usage) == 1_000 * 3_000 + 3_000 * 3_750 + 6_000 * 300 + 200 * 15_000
    assert cost("gpt-5", usage) == 4_000 * 1_250 + 6_000 * 125 + 200 * 10_000, "there it costs nothing extra"
    assert Rates(input=1.0, output=2.0, cache_write=0.0).cost(usage) == 1_000 * 1_000 + 6_000 * 1_000 + 200 * 2_000
    assert Rates(input=3.0, output=15.0).cost(usage) == 10_000 * 3_000 + 200 * 15_000


def test_cache_prices_scale_in_long_prompts() -> None:
    usage = Usage(input=300_000, cached=100_000, written=200_000)

    assert cost("claude-sonnet-4-5", usage) == 100_000 * 600 + 200_000 * 7_500


def test_long_context_rates_apply_from_the_first_token() -> None:
    rates = Rates(
        input=1.25, output=10.0, cached=0.125, long=LongContextRates(above=200_000, input=2.5, output=15.0, cached=0.25)
    )

    assert rates.cost(Usage(input=200_000, output=1)) == 200_000 * 1_250 + 10_000
    assert rates.cost(Usage(input=200_001, output=1, cached=1)) == 200_000 * 2_500 + 250 + 15_000


def test_holds_use_the_highest_token_price() -> None:
    assert price("claude-sonnet-4-5") == (3_750, 15_000), "what the vendor is to remember costs more"
    assert Rates(input=0.0004, output=0.0006).highest() == (1, 1), "never less than it costs"


@given(st.sampled_from(sorted(LIST.models)), COUNTS, COUNTS, COUNTS, COUNTS)
def test_no_ordinary_call_costs_more_than_its_hold(
    model: str, input: int, output: int, cached: int, written: int
) -> None:
    usage = Usage(input=input, output=output, cached=min(cached, input), written=written)
    rates = LIST.models[model]
    spent, most = cost(model, usage), price(model)

    assert spent is not None
    assert most is not None
    if rates.long is None or input <= rates.long.above:
        assert spent <= input * most[0] + output * most[1]


@given(st.floats(0, 1000), st.floats(0, 1000), COUNTS, COUNTS)
def test_costs_are_exact_to_the_nanodollar(input: float, output: float, one: int, other: int) -> None:
    rates = Rates(input=input, output=output)
    exact = (one * round(input * 10**6) + other * round(output * 10**6)) / 1000

    assert 0 <= rates.cost(Usage(input=one, output=other)) - exact < 1 + exact * 1e-12


class Wire:
    """A provider without prices."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.closed = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        return self.reply

    async def close(self) -> None:
        self.closed += 1

    def __repr__(self) -> str:
        return "<Wire>"


A_THOUSAND = Usage(input=1_000)


def provider_with(usage: Usage | None = A_THOUSAND, *, model: str = "", cost: int | None = None) -> Wire:
    return Wire(Reply(AssistantMessage("hi"), usage=usage, model=model, cost=cost))


async def charged(wire: Wire, model: str, tariff: ModelPrices) -> int | None:
    request = Request(model=model, system="", messages=[])
    return (await PricedProvider(wire, tariff).answer(request, lambda delta: None)).cost


async def test_configured_prices_precede_list_prices() -> None:
    own = ModelPrices({"gpt-5": Rates(input=7.0, output=7.0), "mine": Rates(input=0.5, output=0.5)})

    assert await charged(provider_with(), "gpt-5-2025-08-07", own) == 7_000_000
    assert await charged(provider_with(), "mine", own) == 500_000
    assert await charged(provider_with(), "gpt-5-mini", own) == 250_000
    assert await charged(provider_with(), "other", own) is None
    assert await charged(provider_with(model="gpt-5-mini-2025-08-07"), "our-deployment", own) == 250_000
    assert await charged(provider_with(None), "mine", own) is None
    assert await charged(provider_with(cost=3), "mine", own) == 3, "a cost in the reply is kept"


async def test_free_models_cost_nothing_unless_configured() -> None:
    free = ModelPrices({"metered": Rates(input=1.0, output=1.0)}, free=True)

    assert await charged(provider_with(), "qwen3", free) == 0
    assert await charged(provider_with(), "metered", free) == NANO // 1000
    assert (free.price("qwen3"), free.rates("qwen3")) == ((0, 0), FREE)


async def test_a_priced_provider_delegates_repr_and_close() -> None:
    wire = provider_with()
    priced = PricedProvider(wire, ModelPrices({"mine": Rates(input=1.0, output=2.0)}))

    assert (repr(priced), price_of(priced, "mine"), price_of(priced, "other")) == ("<Wire>", (1000, 2000), None)
    await priced.close()
    assert wire.closed == 1
