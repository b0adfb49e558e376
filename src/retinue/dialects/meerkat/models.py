"""Who answers for a sub-agent: a family of providers, one that can be reached, and a model that is allowed."""

from __future__ import annotations

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.dialects.arguments import CallRefused
from retinue.dialects.context import ProviderFamilies
from retinue.dialects.meerkat.requests import failed, invalid, shown
from retinue.dialects.meerkat.settings import DEFAULT_MODELS, INHERIT, MeerkatSettings


class ResolvedModel(Struct, frozen=True):
    """The family as it is printed, the provider of this process, and the model's name there."""

    shown: str
    provider: str
    model: str


def resolve_model(
    provider: str | None,
    model: str | None,
    caller_spec: RunSpec,
    *,
    families: ProviderFamilies,
    settings: MeerkatSettings,
    fork: bool,
) -> ResolvedModel:
    """Who answers for a sub-agent that asks for this provider and model; refused when nobody may, or nobody can."""
    own = families.family(caller_spec.provider)
    family = _family(provider, model, own, families, settings, fork=fork)
    if family is None:  # whoever answers the asker belongs to no family, and nobody else was asked for
        return _checked(
            ResolvedModel(caller_spec.provider, caller_spec.provider, model or caller_spec.model), (caller_spec.model,)
        )
    at = caller_spec.provider if family == own else families.member(family)
    allowed = settings.allowed_models.get(family, ())
    beside = (caller_spec.model,) if at == caller_spec.provider else ()
    if model is None:
        model = _default_model(at, caller_spec, allowed, families, settings, fork=fork)
    resolved = _checked(ResolvedModel(family, at, model), (*allowed, *beside), named=allowed)
    if complaint := families.complaint(at):
        raise failed(f"Failed to create LLM client: {complaint}")
    return resolved


def _family(
    asked: str | None,
    model: str | None,
    own: str | None,
    families: ProviderFamilies,
    settings: MeerkatSettings,
    *,
    fork: bool,
) -> str | None:
    if asked is not None:
        meant = (asked if asked in DEFAULT_MODELS else None) if fork else families.called(asked)
        if meant is None:
            raise invalid(f"Invalid provider: {shown(asked)}")
        return meant
    if settings.default_provider != INHERIT:
        return settings.default_provider
    if model is None and not fork and settings.default_model not in (None, INHERIT):
        # A model that the settings name without its family is in exactly one list, or the settings were refused.
        return next(name for name, models in settings.allowed_models.items() if settings.default_model in models)
    return own


def _default_model(
    at: str,
    caller_spec: RunSpec,
    allowed: tuple[str, ...],
    families: ProviderFamilies,
    settings: MeerkatSettings,
    *,
    fork: bool,
) -> str:
    """The model when nobody says: the settings', or the first that is allowed.

    A fork keeps its parent's model, without which the provider's cache would be lost, and so does whoever works on a
    local server, which knows none of the vendors' names.
    """
    is_own = at == caller_spec.provider
    settled = settings.default_model
    if is_own and (fork or settled == INHERIT or (settled is None and families.is_local(at))):
        return caller_spec.model
    if settled not in (None, INHERIT) and settled in allowed:
        return settled
    return allowed[0]


def _checked(
    resolved: ResolvedModel, allowed: tuple[str, ...], *, named: tuple[str, ...] | None = None
) -> ResolvedModel:
    if resolved.model not in allowed:
        raise _not_allowed(resolved, allowed if named is None else named)
    return resolved


def _not_allowed(resolved: ResolvedModel, allowed: tuple[str, ...]) -> CallRefused:
    asked = shown(resolved.model)
    return invalid(
        f"Model '{asked}' is not in allowlist for provider '{resolved.shown}'. Allowed models: {', '.join(allowed)}"
    )
