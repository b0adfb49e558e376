"""Context windows: from the vendors' table, or as configured for a provider."""

from pathlib import Path

import msgspec
import pytest

from retinue.app.settings_file import load_settings, provider_configs
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request, window_of
from retinue.providers.catalog import ProviderConfig, create_provider, provider_config
from retinue.providers.pricing import ContextWindows, ModelPrices, PricedProvider, list_prices, listed_windows


def window(config: ProviderConfig, model: str) -> int | None:
    return window_of(create_provider(config), model)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-4-5@20250929", 200_000),
        ("claude-4-sonnet", 200_000),
        ("anthropic/claude-sonnet-4-6", 1_000_000),
        ("gpt-4o-2024-05-13", 128_000),
        ("gemini-2.5-flash-preview-09-2025", 1_048_576),
        ("gpt-4o-something-else", None),
        ("", None),
    ],
)
def test_a_context_window_is_found_by_any_version_name(model: str, expected: int | None) -> None:
    assert window(provider_config("openai-chat", base_url="http://proxy.example/v1"), model) == expected


def test_every_listed_model_with_a_price_has_a_window() -> None:
    assert [model for model in list_prices().models if listed_windows().window(model) is None] == []
    assert listed_windows().as_of == list_prices().as_of


def test_a_local_model_has_only_the_configured_window() -> None:
    assert (window(provider_config("ollama"), "gpt-4o"), window(provider_config("vllm"), "qwen3")) == (None, None)
    assert window(provider_config("ollama", context_window=32_768), "qwen3") == 32_768


def test_a_configured_window_precedes_the_list_and_is_stored(tmp_path: Path) -> None:
    settings = tmp_path / "retinue.toml"
    settings.write_text("[providers.anthropic]\ncontext_window = 150000\n")

    (configured,) = provider_configs(load_settings(settings))
    stored = msgspec.json.decode(msgspec.json.encode(configured), type=ProviderConfig)

    assert stored == configured
    assert window(stored, "claude-sonnet-4-5") == 150_000


class WindowedProvider:
    """A provider with context windows of its own."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Never called."""
        raise NotImplementedError

    def window(self, model: str) -> int | None:
        """The same window for all models."""
        return 1234


def test_a_custom_providers_window_is_the_fallback() -> None:
    assert PricedProvider(WindowedProvider(), ModelPrices()).window("m") == 1234
    assert PricedProvider(WindowedProvider(), ModelPrices(), ContextWindows(99).window).window("m") == 99
