"""How much models can read: by the vendors' table, or by what the user says about a provider."""

from pathlib import Path

import msgspec
import pytest

from retinue.app.settings_file import load_settings, provider_configs
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request, Windows
from retinue.providers.catalog import ProviderConfig, create_provider, provider_config
from retinue.providers.context_windows import ContextWindows, listed_windows
from retinue.providers.pricing import ModelPrices, PricedProvider, list_prices


def window(where: ProviderConfig, model: str) -> int | None:
    provider = create_provider(where)
    assert isinstance(provider, Windows)
    return provider.window(model)


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
def test_a_model_has_its_window_under_every_name_of_a_version(model: str, expected: int | None) -> None:
    assert window(provider_config("openai-chat", base_url="http://proxy.example/v1"), model) == expected


def test_every_model_with_a_price_has_a_window() -> None:
    assert [model for model in list_prices().models if listed_windows().window(model) is None] == []
    assert listed_windows().as_of == list_prices().as_of


def test_a_model_on_ones_own_server_has_the_window_that_the_user_says() -> None:
    assert (window(provider_config("ollama"), "gpt-4o"), window(provider_config("vllm"), "qwen3")) == (None, None)
    assert window(provider_config("ollama", context_window=32_768), "qwen3") == 32_768


def test_what_the_user_says_goes_before_the_table_and_outlives_the_process(tmp_path: Path) -> None:
    settings = tmp_path / "retinue.toml"
    settings.write_text("[providers.anthropic]\ncontext_window = 150000\n")

    (settled,) = provider_configs(load_settings(settings))
    stored = msgspec.json.decode(msgspec.json.encode(settled), type=ProviderConfig)

    assert stored == settled
    assert window(stored, "claude-sonnet-4-5") == 150_000


class Knows:
    """A provider that knows its windows itself."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Nobody asks."""
        raise NotImplementedError

    def window(self, model: str) -> int | None:
        """The same for all."""
        return 1234


def test_a_provider_of_ones_own_is_asked_where_nothing_is_said() -> None:
    assert PricedProvider(Knows(), ModelPrices()).window("m") == 1234
    assert PricedProvider(Knows(), ModelPrices(), ContextWindows(99)).window("m") == 99
