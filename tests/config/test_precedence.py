"""Precedence: flags, environment, file; and no key is sent to an address it was not set for."""

from __future__ import annotations

import pytest

from retinue.config.agents import AgentSettings
from retinue.config.precedence import Flags, ModelSelection, resolve
from retinue.config.providers import ProviderSettings
from retinue.config.settings import Settings

SETTINGS = Settings(
    agents={
        "dig": AgentSettings(model="local:qwen3"),
        "plain": AgentSettings(model="gpt-5"),
        "none": AgentSettings(),
    },
    providers={
        "local": ProviderSettings(wire="openai-chat", base_url="http://localhost:9/v1", api_key_env="LOCAL_KEY"),
        "vendor": ProviderSettings(wire="openai-chat", api_key_env="VENDOR_KEY"),
    },
)
WIRES = ("openai-chat", "vllm")


def choose(flags: Flags, environ: dict[str, str], agent: str | None = None) -> ModelSelection:
    return resolve(flags, environ, SETTINGS, agent=agent, wires=WIRES)


def test_without_options_nothing_is_selected() -> None:
    assert choose(Flags(), {"RETINUE_MODEL": "", "HOME": "/"}) == ModelSelection()
    assert choose(Flags(), {}, "none") == choose(Flags(), {}, "unknown") == ModelSelection()


def test_flags_override_the_environment() -> None:
    environ = {
        "RETINUE_MODEL": "em",
        "RETINUE_PROVIDER": "vllm",
        "RETINUE_BASE_URL": "http://e",
        "RETINUE_API_KEY_ENV": "E_KEY",
    }

    assert choose(Flags(), environ) == ModelSelection(
        model="em",
        provider="vllm",
        base_url="http://e",
        api_key_env="E_KEY",
        origins={
            "model": "RETINUE_MODEL",
            "provider": "RETINUE_PROVIDER",
            "base_url": "RETINUE_BASE_URL",
            "api_key_env": "RETINUE_API_KEY_ENV",
        },
    )
    flags = Flags(model="fm", provider="openai-chat", base_url="http://f", api_key_env="F_KEY")
    assert choose(flags, environ) == ModelSelection(
        model="fm",
        provider="openai-chat",
        base_url="http://f",
        api_key_env="F_KEY",
        origins={
            "model": "--model",
            "provider": "--provider",
            "base_url": "--base-url",
            "api_key_env": "--api-key-env",
        },
    )


def test_the_file_sets_address_and_key_of_a_provider() -> None:
    assert choose(Flags(provider="local", model="m"), {}) == ModelSelection(
        model="m",
        provider="local",
        base_url="http://localhost:9/v1",
        api_key_env="LOCAL_KEY",
        origins={
            "model": "--model",
            "provider": "--provider",
            "base_url": "[providers.local]",
            "api_key_env": "[providers.local]",
        },
    )


@pytest.mark.parametrize(
    ("flags", "environ", "agent", "provider", "model"),
    [
        (Flags(model="local:qwen3"), {}, None, "local", "qwen3"),
        (Flags(model="vllm:a:b"), {}, None, "vllm", "a:b"),
        (Flags(model="llama3:8b"), {}, None, None, "llama3:8b"),
        (Flags(model="qwen3"), {}, None, None, "qwen3"),
        # With a provider from the same source, the whole text is the model's name.
        (Flags(model="vllm:x", provider="local"), {}, None, "local", "vllm:x"),
        (Flags(), {"RETINUE_MODEL": "vllm:x", "RETINUE_PROVIDER": "local"}, None, "local", "vllm:x"),
        # A provider prefix in a flag overrides the environment ...
        (Flags(model="vllm:x"), {"RETINUE_PROVIDER": "local"}, None, "vllm", "x"),
        (Flags(model="llama3:8b"), {"RETINUE_PROVIDER": "local"}, None, "local", "llama3:8b"),
        # ... and a provider overrides a prefix from a lower source.
        (Flags(provider="vllm"), {"RETINUE_MODEL": "local:x"}, None, "vllm", "x"),
        (Flags(), {}, "dig", "local", "qwen3"),
        (Flags(), {}, "plain", None, "gpt-5"),
        (Flags(model="m"), {}, "dig", None, "m"),
        (Flags(), {"RETINUE_MODEL": "m"}, "dig", None, "m"),
        (Flags(provider="vllm"), {}, "dig", "vllm", "qwen3"),
    ],
)
def test_a_model_may_have_a_provider_prefix(
    flags: Flags, environ: dict[str, str], agent: str | None, provider: str | None, model: str
) -> None:
    choice = choose(flags, environ, agent)

    assert (choice.provider, choice.model) == (provider, model)


LOCAL_AT_HOME = {"RETINUE_PROVIDER": "vllm", "RETINUE_BASE_URL": "http://home", "RETINUE_API_KEY_ENV": "HOME_KEY"}


@pytest.mark.parametrize(
    ("flags", "environ", "base_url", "api_key_env"),
    [
        # The file's key is for the file's address.
        (Flags(provider="local", base_url="http://x"), {}, "http://x", None),
        (Flags(provider="local", base_url="http://localhost:9/v1"), {}, "http://localhost:9/v1", "LOCAL_KEY"),
        (Flags(provider="vendor"), {}, None, "VENDOR_KEY"),
        (Flags(provider="vendor", base_url="http://x"), {}, "http://x", None),
        (Flags(provider="local"), {"RETINUE_BASE_URL": "http://x"}, "http://x", None),
        (Flags(provider="local", api_key_env="K", base_url="http://x"), {}, "http://x", "K"),
        (Flags(provider="local", api_key_env="K"), {}, "http://localhost:9/v1", "K"),
        # Address and key of one provider in the environment are not for another ...
        (Flags(provider="openai-chat"), LOCAL_AT_HOME, None, None),
        (Flags(model="openai-chat:m"), LOCAL_AT_HOME, None, None),
        (Flags(provider="vllm"), LOCAL_AT_HOME, "http://home", "HOME_KEY"),
        (Flags(base_url="http://x"), LOCAL_AT_HOME, "http://x", None),
        # ... but without a provider or an address they are for any.
        (Flags(provider="vllm"), {"RETINUE_BASE_URL": "http://e"}, "http://e", None),
        (Flags(base_url="http://x"), {"RETINUE_API_KEY_ENV": "E_KEY"}, "http://x", "E_KEY"),
        (Flags(provider="local"), {"RETINUE_API_KEY_ENV": "E_KEY"}, "http://localhost:9/v1", "E_KEY"),
    ],
)
def test_addresses_and_keys_stay_with_their_provider(
    flags: Flags, environ: dict[str, str], base_url: str | None, api_key_env: str | None
) -> None:
    choice = choose(flags, environ)

    assert (choice.base_url, choice.api_key_env) == (base_url, api_key_env)
