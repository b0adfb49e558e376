"""The tables that `make model-data` makes of the two data sets."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from retinue.providers.pricing import find_model, list_prices, listed_windows
from tests.project.repository import ROOT


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_data", ROOT / "scripts" / "model_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up the module of a class
    spec.loader.exec_module(module)
    return module


model_data: Any = _load()


def entry(vendor: str, *, mode: str = "chat", window: int | None = 1000, **costs: float) -> dict[str, Any]:
    return {"litellm_provider": vendor, "mode": mode, "max_input_tokens": window, **costs}


def price(input: float, output: float, **others: Any) -> dict[str, Any]:
    prices: dict[str, Any] = {"input_mtok": {"base": input, "tiers": []}, "output_mtok": {"base": output, "tiers": []}}
    return prices | {"window": None} | others


def test_only_chat_models_of_the_vendors_are_listed() -> None:
    listed = {
        "gpt-9": entry("openai"),
        "ada": entry("openai"),
        "text-embedding-9": entry("openai", mode="embedding"),
        "gpt-9-realtime": entry("openai", mode="realtime"),
        "groq/gpt-9-open": entry("groq"),
        "gemini/gemini-9": entry("gemini"),
        "gemini/gemini-9-tts": entry("gemini"),
    }
    names = ("gpt-9", "ada", "text-embedding-9", "gpt-9-realtime", "babbage", "curie")
    priced = {"openai": {name: price(1, 2) for name in names}, "google": {"gemini-9": price(1, 2)}}

    tables = model_data.build(listed, priced)

    assert tables.prices == {"gemini-9": {"input": 1, "output": 2}, "gpt-9": {"input": 1, "output": 2}}
    assert tables.windows == {"gemini-9": 1000, "gpt-9": 1000}


def test_a_version_is_listed_only_if_it_differs_from_its_model() -> None:
    versions = ("claude-x", "claude-x-20260101", "claude-x-20250101", "claude-y-latest")
    listed = {name: entry("anthropic") for name in versions}
    priced = {"anthropic": {name: price(1, 5) for name in versions} | {"claude-x-20250101": price(2, 5)}}

    tables = model_data.build(listed, priced)

    assert tables.prices == {
        "claude-x": {"input": 1, "output": 5},
        "claude-x-20250101": {"input": 2, "output": 5},
        "claude-y": {"input": 1, "output": 5},
    }
    assert tables.windows == {"claude-x": 1000, "claude-y": 1000}


def test_the_higher_price_is_used_where_the_data_sets_disagree() -> None:
    listed = {"grok-9": entry("xai", input_cost_per_token=3e-6, output_cost_per_token=4e-6)}

    tables = model_data.build(listed, {"x-ai": {"grok-9": price(1, 5)}})

    assert tables.prices == {"grok-9": {"input": 3.0, "output": 5}}
    assert tables.disagreements == [
        "grok-9: input 1 by genai-prices, 3 by litellm",
        "grok-9: output 5 by genai-prices, 4 by litellm",
    ]


def test_each_data_set_fills_the_gaps_of_the_other() -> None:
    listed = {"grok-9": entry("xai", input_cost_per_token=3e-6, output_cost_per_token=4e-6)}
    tables = model_data.build(listed, {"x-ai": {"grok-8": price(1, 2, window=5000)}})

    assert tables.prices == {"grok-8": {"input": 1, "output": 2}, "grok-9": {"input": 3.0, "output": 4.0}}
    assert tables.windows == {"grok-8": 5000, "grok-9": 1000}


def test_long_prompts_and_caches_have_their_prices() -> None:
    prices: dict[str, Any] = {
        "input_mtok": {"base": 1.0, "tiers": [[200_000, 2.0]]},
        "output_mtok": {"base": 5.0, "tiers": [[200_000, 8.0]]},
        "cache_read_mtok": {"base": 0.1, "tiers": [[200_000, 0.2]]},
        "cache_write_mtok": {"base": 1.25, "tiers": []},
    }

    assert model_data.rates_of(prices) == {
        "input": 1.0,
        "output": 5.0,
        "cached": 0.1,
        "cache_write": 1.25,
        "long": {"above": 200_000, "input": 2.0, "output": 8.0, "cached": 0.2},
    }


def test_a_model_that_both_data_sets_dropped_keeps_its_entry(tmp_path: Path) -> None:
    file = tmp_path / "windows.json"
    file.write_text(json.dumps({"as_of": "2026-01-01", "models": {"old": 10, "new": 20}}), encoding="utf-8")

    assert model_data.with_dropped(file, {"new": 30}) == {"new": 30, "old": 10}


def test_the_shipped_tables_are_of_one_day_and_name_their_sources() -> None:
    assert (list_prices().as_of, list_prices().sources) == (listed_windows().as_of, listed_windows().sources)
    assert sorted(list_prices().sources) == ["genai-prices", "litellm"]
    assert all(find_model(listed_windows().models, model) is not None for model in list_prices().models)
