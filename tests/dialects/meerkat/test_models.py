"""Providers and models of sub-agents: families, allowed models, keys and settings."""

from pathlib import Path
from typing import Any

import pytest

from retinue.app.registries import ProviderRegistry, RegistryFamilies
from retinue.app.settings_file import dialect_settings, load_settings
from retinue.core.agent import RunSpec
from retinue.core.errors import BadInput
from retinue.dialects.context import ProviderFamilies
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.meerkat.settings import DEFAULT_MODELS, DEFAULTS, ConcurrencyLimits, MeerkatSettings, mistakes
from retinue.dialects.meerkat.spawn import ResolvedModel, resolve_model
from retinue.providers.catalog import provider_config
from tests.dialects.meerkat.harness import OWN

PRO, OPUS = "gpt-5.2-pro", "claude-opus-4-5"
ANTHROPIC = "Allowed models: claude-opus-4-6, claude-sonnet-4-5, claude-opus-4-5"
OPENAI = "Allowed models: gpt-5.2, gpt-5.2-pro"


# ---- providers and models -------------------------------------------------------------------------------------------


def asks(
    provider: str | None = None,
    model: str | None = None,
    *,
    fork: bool = False,
    caller_spec: tuple[str, str] = ("anthropic", OWN),
    settings: MeerkatSettings = DEFAULTS,
    families: ProviderFamilies | None = None,
) -> ResolvedModel | str:
    """The resolved model of a sub-agent, or the text of the refusal."""
    run_spec = RunSpec(agent="main", provider=caller_spec[0], model=caller_spec[1])
    table = families or RegistryFamilies(ProviderRegistry(dict.fromkeys(("anthropic", "openai", "gemini", "custom"))))  # type: ignore[arg-type]
    try:
        return resolve_model(provider, model, run_spec, families=table, settings=settings, fork=fork)
    except CallRefused as refusal:
        return str(refusal)


def settled(**spawn_request: Any) -> MeerkatSettings:
    found = MeerkatSettings(**spawn_request)
    assert mistakes(found) == []
    return found


@pytest.mark.promise("MK-ALIASES", "MK-FAMILY")
@pytest.mark.parametrize(
    ("name", "family", "model"),
    [
        ("anthropic", "anthropic", "claude-opus-4-6"),
        ("Claude", "anthropic", "claude-opus-4-6"),
        ("openai", "openai", "gpt-5.2"),
        ("GPT", "openai", "gpt-5.2"),
        ("chatgpt", "openai", "gpt-5.2"),
        ("gemini", "gemini", "gemini-3-flash-preview"),
        ("Google", "gemini", "gemini-3-flash-preview"),
    ],
)
def test_spawn_accepts_the_vendors_other_names(name: str, family: str, model: str) -> None:
    assert asks(name) == ResolvedModel(family, family, model)


@pytest.mark.promise("MK-ALIASES", "MK-PROVIDER")
@pytest.mark.parametrize("name", ["claude", "gpt", "google", "OpenAI", "openai-chat", ""])
def test_fork_accepts_the_three_names_only(name: str) -> None:
    assert asks(name, fork=True) == f"Invalid arguments: Invalid provider: {name}"
    assert asks("gemini", fork=True) == ResolvedModel("gemini", "gemini", "gemini-3-flash-preview")


@pytest.mark.promise("MK-PROVIDER")
@pytest.mark.parametrize("name", ["mistral", "openai-chat", "vertexai-anthropic", "scripted", "custom", "", " openai"])
def test_any_other_name_is_an_invalid_provider(name: str) -> None:
    assert asks(name) == f"Invalid arguments: Invalid provider: {name}"


@pytest.mark.promise("MK-FAMILY", "MK-OWN-MODEL", "MK-DEFAULT-MODEL")
def test_sub_agents_of_the_parents_family_use_the_parents_provider() -> None:
    own = provider_config("mine", wire="openai-chat", base_url="http://localhost:9/v1")
    other = provider_config("theirs", wire="gemini", base_url="http://localhost:8")
    here = provider_config("ollama")
    families = RegistryFamilies(ProviderRegistry({}, (own, other, here)))

    assert asks("openai", caller_spec=("mine", "tiny"), families=families) == ResolvedModel("openai", "mine", "tiny")
    assert asks("gpt", "tiny", caller_spec=("mine", "tiny"), families=families) == ResolvedModel(
        "openai", "mine", "tiny"
    )
    assert asks(caller_spec=("mine", "tiny"), families=families) == ResolvedModel("openai", "mine", "tiny")
    assert asks("google", caller_spec=("mine", "tiny"), families=families) == ResolvedModel(
        "gemini", "theirs", "gemini-3-flash-preview"
    )
    # A server of one's own knows none of the vendors' names.
    assert asks(caller_spec=("ollama", "qwen3"), families=families) == ResolvedModel("openai", "ollama", "qwen3")


@pytest.mark.promise("MK-DEFAULT-PROVIDER", "MK-DEFAULT-MODEL", "MK-FORK-MODEL")
@pytest.mark.parametrize(
    ("spawn_request", "spawned", "forked"),
    [
        ({}, ("anthropic", "claude-opus-4-6"), ("anthropic", OWN)),
        ({"default_model": "inherit"}, ("anthropic", OWN), ("anthropic", OWN)),
        ({"default_provider": "openai"}, ("openai", "gpt-5.2"), ("openai", "gpt-5.2")),
        ({"default_provider": "openai", "default_model": PRO}, ("openai", PRO), ("openai", PRO)),
        ({"default_provider": "anthropic", "default_model": OPUS}, ("anthropic", OPUS), ("anthropic", OWN)),
        ({"default_model": PRO}, ("openai", PRO), ("anthropic", OWN)),
    ],
)
def test_settings_choose_the_default_model_and_a_fork_keeps_its_parents(
    spawn_request: dict[str, Any], spawned: tuple[str, str], forked: tuple[str, str]
) -> None:
    settings = settled(**spawn_request)

    assert asks(settings=settings) == ResolvedModel(spawned[0], *spawned)
    assert asks(settings=settings, fork=True) == ResolvedModel(forked[0], *forked)


@pytest.mark.promise("MK-MODEL", "MK-OWN-MODEL")
@pytest.mark.parametrize("fork", [False, True])
def test_a_model_that_is_not_allowed_is_refused_and_the_allowed_are_named(fork: bool) -> None:
    refused = "Invalid arguments: Model 'custom-model' is not in allowlist for provider"

    assert asks(None, "custom-model", fork=fork) == f"{refused} 'anthropic'. {ANTHROPIC}"
    assert asks("openai", "custom-model", fork=fork) == f"{refused} 'openai'. {OPENAI}"
    assert asks("anthropic", "custom-model", caller_spec=("anthropic", "custom-model"), fork=fork) == ResolvedModel(
        "anthropic", "anthropic", "custom-model"
    )
    assert (
        asks("openai", "custom-model", caller_spec=("anthropic", "custom-model"), fork=fork)
        == f"{refused} 'openai'. {OPENAI}"
    )
    own = settled(allowed_models={**DEFAULT_MODELS, "openai": ("custom-model",)})
    assert asks("openai", "custom-model", settings=own, fork=fork) == ResolvedModel("openai", "openai", "custom-model")


@pytest.mark.promise("MK-FAMILY", "MK-OWN-MODEL")
def test_sub_agents_of_a_provider_without_a_family_use_the_same_provider() -> None:
    caller_spec = ("custom", "m")

    assert asks(caller_spec=caller_spec) == ResolvedModel("custom", "custom", "m")
    assert asks(None, "m", caller_spec=caller_spec, fork=True) == ResolvedModel("custom", "custom", "m")
    assert asks(None, "n", caller_spec=caller_spec) == (
        "Invalid arguments: Model 'n' is not in allowlist for provider 'custom'. Allowed models: m"
    )


@pytest.mark.promise("MK-CLIENT")
@pytest.mark.parametrize(("family", "variable"), [("openai", "OPENAI_API_KEY"), ("gemini", "GEMINI_API_KEY")])
def test_a_provider_without_its_key_is_refused(family: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    families = RegistryFamilies(ProviderRegistry({"anthropic": None}))  # type: ignore[dict-item]
    monkeypatch.delenv(variable, raising=False)
    refused = f"Execution failed: Failed to create LLM client: Missing API key for provider: {family}"

    for is_fork in (False, True):
        assert asks(family, families=families, fork=is_fork) == refused
    monkeypatch.setenv(variable, "k")
    assert asks(family, families=families) == ResolvedModel(family, family, DEFAULT_MODELS[family][0])


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-SETTINGS-WRONG")
@pytest.mark.parametrize(
    ("spawn_request", "complaints"),
    [
        ({}, []),
        (
            {"allowed_models": {"anthropic": ("a",), "openai": ()}},
            [
                "allowed_models needs at least one model for provider 'gemini'",
                "allowed_models needs at least one model for provider 'openai'",
            ],
        ),
        (
            {"allowed_models": {**DEFAULT_MODELS, "openai": ("gpt-*",)}},
            ["allowed_models for provider 'openai': wildcards ('*') are not allowed"],
        ),
        (
            {"allowed_models": {**DEFAULT_MODELS, "mistral": ("m",)}},
            ["allowed_models: unknown provider 'mistral'; known: anthropic, gemini, openai"],
        ),
        ({"default_provider": "claude"}, ["default_provider 'claude' is none of inherit, anthropic, gemini, openai"]),
        (
            {"default_provider": "openai", "default_model": "gpt-4"},
            ["default_model 'gpt-4' is not in allowed_models for provider 'openai'"],
        ),
        ({"default_model": "gpt-4"}, ["default_model 'gpt-4' with default_provider 'inherit' is ambiguous"]),
    ],
)
def test_inconsistent_model_lists_and_defaults_are_errors(spawn_request: dict[str, Any], complaints: list[str]) -> None:
    assert [complaint for _, complaint in mistakes(MeerkatSettings(**spawn_request))] == complaints


@pytest.mark.promise("MK-SETTINGS")
def test_a_settings_file_can_say_everything_that_the_two_tables_have(tmp_path: Path) -> None:
    file = tmp_path / "retinue.toml"
    file.write_text(
        """
        [sub_agents]
        default_provider = "openai"
        default_model = "gpt-5.2-pro"
        allow_nested_spawn = false
        nested_tools = true
        max_budget_per_agent = 90000
        default_budget = 20000
        inherit_system_prompt = false
        enable_comms = true
        comms_tools = "send"
        fork_keeps_tools = true

        [sub_agents.concurrency_limits]
        max_depth = 2
        max_concurrent_ops = 16
        max_concurrent_agents = 4
        max_children_per_agent = 3

        [sub_agents.allowed_models]
        anthropic = ["claude-opus-4-6"]
        openai = ["gpt-5.2-pro"]
        gemini = ["gemini-3-pro-preview"]
        """
    )

    assert dialect_settings(load_settings(file))["meerkat"] == MeerkatSettings(
        default_provider="openai",
        default_model="gpt-5.2-pro",
        allowed_models={
            "anthropic": ("claude-opus-4-6",),
            "openai": ("gpt-5.2-pro",),
            "gemini": ("gemini-3-pro-preview",),
        },
        concurrency_limits=ConcurrencyLimits(
            max_depth=2, max_concurrent_ops=16, max_concurrent_agents=4, max_children_per_agent=3
        ),
        allow_nested_spawn=False,
        nested_tools=True,
        max_budget_per_agent=90_000,
        default_budget=20_000,
        inherit_system_prompt=False,
        enable_comms=True,
        comms_tools="send",
        fork_keeps_tools=True,
    )


@pytest.mark.promise("MK-SETTINGS", "MK-SETTINGS-WRONG")
def test_errors_in_a_settings_file_have_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "retinue.toml"
    file.write_text(
        """
[sub_agents]
default_model = "gpt-4"
enable_coms = true

[sub_agents.concurrency_limits]
max_depth = 0
"""
    )

    with pytest.raises(BadInput) as refusal:
        load_settings(file)

    told = str(refusal.value)
    assert "retinue.toml:4: sub_agents.enable_coms: unknown key, did you mean enable_comms?" in told
    assert "retinue.toml:7: sub_agents.concurrency_limits.max_depth" in told
    file.write_text('[sub_agents]\ndefault_model = "gpt-4"\n')
    with pytest.raises(BadInput, match=r"default_model 'gpt-4' with default_provider 'inherit' is ambiguous"):
        load_settings(file)
