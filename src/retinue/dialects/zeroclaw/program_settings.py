"""The `config.toml` of the zeroclaw program in retinue's layout.

That program has had three layouts. The newest has providers in `[providers.models.TYPE.ALIAS]` and profiles as retinue
has them. The older ones have one policy for all agents in `[autonomy]`, a default provider and model at the top, and
agents that name a provider by its type. A file may mix them; what stands in the newest place wins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from retinue.core.key_paths import ROOT_DEFAULTS, KeyPath
from retinue.dialects.settings_translation import SettingsTranslation, as_table, vendor_variable, with_version
from retinue.providers.catalog import ALIASES, WIRES, canonical_name


class ProviderEndpoint(NamedTuple):
    """How a type of provider is reached here; an empty address or variable is the wire's own."""

    wire: str
    base_url: str = ""
    api_key_env: str = ""


_CHAT = "openai-chat"
CUSTOM = "custom"
"""The type of any server that speaks chat completions; its address is in the file."""

ENDPOINTS: dict[str, ProviderEndpoint] = {
    **{
        name: ProviderEndpoint(name)
        for name in ("anthropic", "openai", "gemini", "ollama", "lmstudio", "llamacpp", "vllm")
    },
    CUSTOM: ProviderEndpoint(_CHAT),
    "openrouter": ProviderEndpoint(_CHAT, "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": ProviderEndpoint(_CHAT, "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": ProviderEndpoint(_CHAT, "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": ProviderEndpoint(_CHAT, "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "xai": ProviderEndpoint(_CHAT, "https://api.x.ai/v1", "XAI_API_KEY"),
}
"""The types of providers that have a counterpart."""

WIRE_APIS = {"responses": "openai-responses", "chat_completions": _CHAT}
"""Values of `wire_api`."""

DEFAULT_TYPE = "openrouter"
"""The provider of an old file that names a default model and no provider."""

ADDRESSES = {"custom": CUSTOM, "anthropic-custom": "anthropic"}
"""The types of a provider that is written with its address in an old file: `custom:https://host/v1`."""

NAME = r"[A-Za-z0-9_-]{1,64}"
"""What a provider can be called here."""

AT_TOP = {
    "default_model": "model",
    "default_temperature": "temperature",
    "api_url": "base_url",
    "extra_headers": "extra_headers",
    "api_key": "api_key",
}
"""Keys at the top of an old file that belong to its default provider, each with its name in a provider's table."""

OLD_KEY_VARIABLE = "ZEROCLAW_API_KEY"

NO_KEYS = "keys are not read from files"

RUNTIME_KEYS = ("max_actions_per_hour", "max_cost_per_day_cents", "shell_timeout_secs")
"""The keys of `[autonomy]` that belong to a runtime profile; the others belong to a risk profile."""

AUTONOMY = "autonomy"
"""The name of the profiles made of `[autonomy]`."""

ProviderWires: TypeAlias = dict[str, str]
"""The name here of each provider of the file, by its name there."""


def translate(values: Mapping[str, object], environ: Mapping[str, str]) -> SettingsTranslation:
    """The file's values in retinue's layout; the environment says which variables hold keys."""
    translation = SettingsTranslation(values)
    translation.take(("schema_version",))
    old = _OldProviders(translation, environ)
    new = _NewProviders(translation, environ)
    known = {**old.translate_default(), **new.translate(), **old.translate_tables()}
    for name in list(translation.table(("agents",))):
        _translate_agent(translation, ("agents", name), known, old)
    _translate_profiles(translation)
    _translate_memory(translation)
    _translate_cron(translation)
    return translation


# ---- providers -------------------------------------------------------------------------------------------------------


def _put_provider(
    translation: SettingsTranslation, name: str, kind: str, table: KeyPath, *, variable: str, environ: Mapping[str, str]
) -> None:
    """Make a provider of a table of the file, which may be missing: then it is a provider with the defaults."""
    endpoint, here = ENDPOINTS[kind], ("providers", name)
    address = next((key for key in ("uri", "base_url") if translation.find((*table, key)) is not None), "uri")
    wire_api = translation.take((*table, "wire_api"))
    wire = WIRE_APIS.get(wire_api, endpoint.wire) if isinstance(wire_api, str) and kind == "openai" else endpoint.wire
    base_url = translation.take((*table, address))
    if kind not in ("anthropic", "gemini"):
        base_url = with_version(base_url)
    if base_url is None and endpoint.base_url:
        base_url = endpoint.base_url
    own = endpoint.api_key_env if base_url == endpoint.base_url else vendor_variable(wire, base_url)
    key = translation.key_variable((*table, "api_key"), own=own, variable=variable, environ=environ)
    translation.put((*here, "wire"), wire, table)
    translation.put((*here, "base_url"), base_url, (*table, address))
    translation.put((*here, "api_key_env"), key, (*table, "api_key"))
    translation.move((*table, "extra_headers"), (*here, "headers"))
    for same in ("model", "temperature", "context_window"):
        translation.move((*table, same), (*here, same))
    translation.ignore_rest(table)
    translation.take(table)


def _unsupported(kind: str) -> str:
    return f"{kind} is not supported; supported: {', '.join(ENDPOINTS)}"


def _kind_of(name: str) -> str:
    """The type that a provider's name stands for; the name itself if it is no known one.

    >>> _kind_of("Claude"), _kind_of("grok"), _kind_of("bedrock")
    ('anthropic', 'xai', 'bedrock')
    """
    lower = {"grok": "xai", "google-gemini": "gemini", "llama.cpp": "llamacpp"}.get(name.lower(), name.lower())
    return canonical_name(lower) if lower in ALIASES else lower


class _NewProviders:
    """`[providers.models.TYPE.ALIAS]`, and `[providers.models.TYPE]` of the layout before."""

    def __init__(self, translation: SettingsTranslation, environ: Mapping[str, str]) -> None:
        self._translation = translation
        self._environ = environ

    def translate(self) -> ProviderWires:
        translation = self._translation
        tables = [(kind, alias, path) for kind, alias, path in self._tables() if self._is_supported(kind, path)]
        others = [name for name in translation.table(("providers",)) if self._is_own(name)]
        uses = Counter([*(alias for _, alias, _ in tables), *others])
        known: ProviderWires = {}
        for kind, alias, path in tables:
            known[f"{kind}.{alias}"] = name = alias if uses[alias] == 1 else f"{kind}-{alias}"
            variable = f"ZEROCLAW_providers__models__{kind}__{alias}__api_key"
            _put_provider(translation, name, _kind_of(kind), path, variable=variable, environ=self._environ)
        default = translation.take(("providers", "fallback"))
        if isinstance(default, str):
            default = {**_by_kind(known), **known}.get(default, default)
        translation.put((ROOT_DEFAULTS, "provider"), default, ("providers", "fallback"))
        for name in list(translation.table(("providers",))):
            if not self._is_own(name):
                translation.ignore(("providers", name))
        return known

    def _tables(self) -> Iterator[tuple[str, str, KeyPath]]:
        models = ("providers", "models")
        for kind, below in list(self._translation.table(models).items()):
            table = as_table(below) or {}
            if any(as_table(each) is None for each in table.values()):
                yield kind, kind, (*models, kind)
            else:
                yield from [(kind, alias, (*models, kind, alias)) for alias in table]

    def _is_supported(self, kind: str, path: KeyPath) -> bool:
        if _kind_of(kind) in ENDPOINTS:
            return True
        self._translation.ignore(path, _unsupported(kind))
        return False

    def _is_own(self, name: str) -> bool:
        """Whether a table in `[providers]` is written as retinue's settings have it."""
        table = self._translation.table(("providers", name))
        return name != "models" and (name in WIRES or "wire" in table)


def _by_kind(known: ProviderWires) -> ProviderWires:
    """The first provider of each type."""
    return {kind.partition(".")[0]: name for kind, name in reversed(known.items())}


class _OldProviders:
    """`default_provider` with its model, address and key at the top, `[model_providers.NAME]`, and types in agents."""

    def __init__(self, translation: SettingsTranslation, environ: Mapping[str, str]) -> None:
        self._translation = translation
        self._environ = environ
        self._known: ProviderWires = {}

    def translate_default(self) -> ProviderWires:
        """The default provider; it comes first, so that it is also the default of a Python program."""
        translation = self._translation
        named = translation.find(("default_provider",))
        has_default = named is not None or any(translation.find((key,)) for key in AT_TOP)
        if not has_default or not isinstance(named or DEFAULT_TYPE, str):
            translation.move(("default_provider",), (ROOT_DEFAULTS, "provider"))
            return {}
        default = str(named or DEFAULT_TYPE)
        table = ("model_providers", default)
        if (name := self.find(default, AT_TOP)) is None:
            for key in AT_TOP:
                translation.ignore((key,), NO_KEYS if key == "api_key" else "")
            translation.ignore(table, _unsupported(default))
        translation.take(("default_provider",))
        translation.put((ROOT_DEFAULTS, "provider"), name or default, ("default_provider",))
        return self._known

    def translate_tables(self) -> ProviderWires:
        """What is left in `[model_providers]`."""
        for name in list(self._translation.table(("model_providers",))):
            if self.find(name) is None:
                self._translation.ignore(("model_providers", name), _unsupported(name))
        return self._known

    def find(self, named: str, top: Mapping[str, str] | None = None) -> str | None:
        """The name here of a provider that the file names by its type; None if it is not supported.

        `top` are the keys at the top of the file that belong to it, with their names in a table of a provider.
        """
        if named in self._known:
            return self._known[named]
        translation = self._translation
        prefix, _, address = named.partition(":")
        table = ("model_providers", named)
        kind = ADDRESSES[prefix] if address and prefix in ADDRESSES else _kind_of(named)
        called = translation.find((*table, "name"))
        if kind not in ENDPOINTS and isinstance(called, str) and translation.find((*table, "base_url")) is not None:
            kind = _kind_of(called)  # a table of any name may say of which type it is
        if kind not in ENDPOINTS:
            return None
        translation.take((*table, "name"))
        if address:
            translation.put((*table, "base_url"), address, ("default_provider",))
        for key, below in (top or {}).items():
            translation.move((key,), (*table, below))
        name = prefix if address else named if re.fullmatch(NAME, named) else kind
        variable = OLD_KEY_VARIABLE
        _put_provider(translation, name, kind, table, variable=variable, environ=self._environ)
        self._known[named] = name
        return name


# ---- agents ----------------------------------------------------------------------------------------------------------


def _translate_agent(
    translation: SettingsTranslation, agent: KeyPath, known: ProviderWires, old: _OldProviders
) -> None:
    for key in ("model_provider", "risk_profile", "runtime_profile"):
        if translation.find((*agent, key)) == "":  # how the program writes a reference to nothing
            translation.take((*agent, key))
    _translate_model(translation, agent, known)
    _translate_old_agent(translation, agent, old)


def _translate_model(translation: SettingsTranslation, agent: KeyPath, known: ProviderWires) -> None:
    """`model_provider` names a table of `[providers.models]`, which has the model, too."""
    here = (*agent, "model_provider")
    reference = translation.find(here)
    if not isinstance(reference, str):
        return
    if reference in known:
        provider = known[reference]
        translation.take(here)
        translation.put(here, f"{translation.find(('providers', provider, 'wire'))}.{provider}", here)
        translation.put((*agent, "model"), translation.find(("providers", provider, "model")), here)
        return
    kind, _, alias = reference.partition(".")
    own = translation.find(("providers", alias, "wire")) == kind
    if not own and _kind_of(kind) not in ENDPOINTS:
        translation.take(here)
        if translation.find((*agent, "enabled")) is not False:
            translation.refuse(here, f"{_unsupported(kind)}. Name another provider, or disable the agent")


def _translate_old_agent(translation: SettingsTranslation, agent: KeyPath, old: _OldProviders) -> None:
    """An agent of the old layout has a provider's type, a list of tools, and the keys of a runtime profile."""
    named = translation.take((*agent, "provider"))
    if isinstance(named, str):
        provider, model = old.find(named), translation.find((*agent, "model"))
        if provider is None:
            translation.refuse((*agent, "provider"), f"{_unsupported(named)}. Name another provider")
        elif isinstance(model, str):
            translation.take((*agent, "model"))
            translation.put((*agent, "model"), f"{provider}:{model}", (*agent, "model"))
    elif named is not None:
        translation.refuse((*agent, "provider"), "expected the type of a provider, as a string")
    if translation.find((*agent, "api_key")):
        translation.ignore((*agent, "api_key"), NO_KEYS)
    translation.move((*agent, "allowed_tools"), (*agent, "tools"))
    keys = {
        "agentic": "agentic",
        "max_depth": "max_delegation_depth",
        "max_iterations": "max_tool_iterations",
        "timeout_secs": "delegation_timeout_secs",
        "agentic_timeout_secs": "agentic_timeout_secs",
    }
    present = [key for key in keys if translation.find((*agent, key)) is not None]
    shared = [
        key for key in ("timeout_secs", "agentic_timeout_secs") if translation.find(("delegate", key)) is not None
    ]
    if (present or shared) and translation.find((*agent, "runtime_profile")) is None:
        profile = f"agent_{agent[-1]}"
        for key in present:
            translation.move((*agent, key), ("runtime_profiles", profile, keys[key]))
        for key in shared:
            value = translation.find(("delegate", key))
            translation.put(("runtime_profiles", profile, keys[key]), value, ("delegate", key))
        translation.put((*agent, "runtime_profile"), profile, agent)


# ---- profiles and schedules -----------------------------------------------------------------------------------------


def _translate_profiles(translation: SettingsTranslation) -> None:
    """`[autonomy]` is the policy of every run, `[agent]` its loop; `[delegate]` has been given to the agents."""
    for key in ("timeout_secs", "agentic_timeout_secs"):
        translation.take(("delegate", key))
    translation.require_table((AUTONOMY,))
    for key in list(translation.table((AUTONOMY,))):
        section = "runtime_profiles" if key in RUNTIME_KEYS else "risk_profiles"
        translation.put((ROOT_DEFAULTS, section.removesuffix("s")), AUTONOMY, (AUTONOMY,))
        translation.move((AUTONOMY, key), (section, AUTONOMY, key))
    if translation.find(("agent", "max_tool_iterations")) == 0:  # the program's default
        translation.take(("agent", "max_tool_iterations"))
    translation.move(("agent", "max_tool_iterations"), (ROOT_DEFAULTS, "max_turns"))


def _translate_memory(translation: SettingsTranslation) -> None:
    """A backend may have the alias of its storage behind a dot; messages are stored unless the file says no."""
    here = ("memory", "backend")
    backend = translation.find(here)
    if isinstance(backend, str) and "." in backend:
        translation.take(here)
        translation.put(here, backend.partition(".")[0], here)
    translation.put(("memory", "auto_save"), True, ("memory",))


def _translate_cron(translation: SettingsTranslation) -> None:
    """Jobs are in the store here, not in the file."""
    how = "add jobs with retinue cron add"
    catches_up = translation.find(("cron", "catch_up_on_startup"))
    if isinstance(catches_up, bool):
        translation.take(("cron", "catch_up_on_startup"))
        translation.put(("cron", "missed"), "once" if catches_up else "skip", ("cron", "catch_up_on_startup"))
    translation.move(("scheduler", "max_concurrent"), ("cron", "max_running"))
    translation.ignore_rest(("scheduler",))
    for name in _names_of_tables(translation.table(("cron",)).items()):
        translation.ignore(("cron", name), how)
    translation.ignore(("cron", "jobs"), how)


def _names_of_tables(items: Iterable[tuple[str, object]]) -> list[str]:
    return [name for name, value in items if as_table(value) is not None]
