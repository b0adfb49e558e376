"""The settings of `meerkat`, `[sub_agents]`: limits, budgets, models and comms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

SECTION = "sub_agents"
INHERIT = "inherit"

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Tokens = Annotated[int, Meta(ge=1, le=2**62)]

DEFAULT_MODELS: dict[str, tuple[str, ...]] = {
    "anthropic": ("claude-opus-4-6", "claude-sonnet-4-5", "claude-opus-4-5"),
    "gemini": ("gemini-3-flash-preview", "gemini-3-pro-preview"),
    "openai": ("gpt-5.2", "gpt-5.2-pro"),
}
"""The default of `allowed_models`."""


class ConcurrencyLimits(Struct, frozen=True, kw_only=True):
    """Limits of the dialect `meerkat`, the section `[sub_agents.concurrency_limits]`; a field of `MeerkatSettings`.

    >>> MeerkatSettings(concurrency_limits=ConcurrencyLimits(max_depth=1)).concurrency_limits.max_concurrent_agents
    8
    """

    max_depth: Annotated[Count, Meta(description="How deep sub-agents may be nested.", examples=[3])] = 3
    max_concurrent_ops: Annotated[
        Count, Meta(description="Running sub-agents and tool calls under way, in the whole tree.", examples=[32])
    ] = 32
    max_concurrent_agents: Annotated[Count, Meta(description="Running sub-agents in the whole tree.", examples=[8])] = 8
    max_children_per_agent: Annotated[Count, Meta(description="Running children of one agent.", examples=[5])] = 5


class MeerkatSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `meerkat`, the section `[sub_agents]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"meerkat": ...})`. `allowed_models` lists models by `anthropic`,
    `openai` and `gemini`.

    >>> MeerkatSettings(enable_comms=True).comms_tools
    'send_message'
    """

    default_provider: Annotated[
        str, Meta(description="anthropic, openai or gemini; inherit is that of the caller.", examples=[INHERIT])
    ] = INHERIT
    default_model: Annotated[
        str | None,
        Meta(description="The model of a call that names none; by default the first allowed one.", examples=[INHERIT]),
    ] = None
    allowed_models: Annotated[
        Mapping[str, tuple[str, ...]],
        Meta(
            description="The allowed models, by provider.",
            examples=[{name: [models[-1]] for name, models in DEFAULT_MODELS.items()}],
        ),
    ] = field(default_factory=DEFAULT_MODELS.copy)
    concurrency_limits: Annotated[ConcurrencyLimits, Meta(description="How many, and how deep.")] = ConcurrencyLimits()
    allow_nested_spawn: Annotated[
        bool, Meta(description="Whether sub-agents that have the tools may use them.", examples=[True])
    ] = True
    nested_tools: Annotated[bool, Meta(description="Whether sub-agents get these tools at all.", examples=[False])] = (
        False
    )
    max_budget_per_agent: Annotated[
        Tokens | None, Meta(description="The most tokens that one sub-agent gets.", examples=[100_000])
    ] = None
    default_budget: Annotated[
        Tokens | None, Meta(description="Tokens of a sub-agent by default.", examples=[50_000])
    ] = 50_000
    inherit_system_prompt: Annotated[
        bool,
        Meta(description="Whether a sub-agent has its parent's usage instructions of its tools.", examples=[True]),
    ] = True
    enable_comms: Annotated[
        bool, Meta(description="Whether parents and children can send each other messages.", examples=[False])
    ] = False
    comms_tools: Annotated[
        Literal["send_message", "send"],
        Meta(description="send_message and its siblings, or the later pair send and peers.", examples=["send_message"]),
    ] = "send_message"
    fork_keeps_tools: Annotated[
        bool,
        Meta(
            description="Whether a fork is shown its parent's exact tools, for the provider's cache.", examples=[False]
        ),
    ] = False


DEFAULTS = MeerkatSettings()


def mistakes(settings: MeerkatSettings) -> list[tuple[str, str]]:
    """The errors in the models of the settings: each key with its message.

    >>> mistakes(DEFAULTS)
    []
    >>> mistakes(MeerkatSettings(default_provider="openai", default_model="gpt-4"))
    [('default_model', "default_model 'gpt-4' is not in allowed_models for provider 'openai'")]
    """
    errors: list[tuple[str, str]] = []
    allowed = settings.allowed_models
    for provider in DEFAULT_MODELS:
        models = allowed.get(provider, ())
        if not models:
            errors.append(("allowed_models", f"allowed_models needs at least one model for provider '{provider}'"))
        if any("*" in model for model in models):
            errors.append(
                ("allowed_models", f"allowed_models for provider '{provider}': wildcards ('*') are not allowed")
            )
    for provider in allowed:
        if provider not in DEFAULT_MODELS:
            known = ", ".join(DEFAULT_MODELS)
            errors.append(("allowed_models", f"allowed_models: unknown provider '{provider}'; known: {known}"))
    provider, model = settings.default_provider, settings.default_model
    if provider not in (INHERIT, *DEFAULT_MODELS):
        expected = ", ".join((INHERIT, *DEFAULT_MODELS))
        errors.append(("default_provider", f"default_provider '{provider}' is none of {expected}"))
    elif model not in (None, INHERIT):
        if provider != INHERIT and model not in allowed.get(provider, ()):
            errors.append(
                ("default_model", f"default_model '{model}' is not in allowed_models for provider '{provider}'")
            )
        elif provider == INHERIT and sum(model in models for models in allowed.values()) != 1:
            errors.append(("default_model", f"default_model '{model}' with default_provider 'inherit' is ambiguous"))
    return errors
