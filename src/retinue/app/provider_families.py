"""The providers of a process for dialects: their vendor families, their keys, and providers that a dialect adds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.app.registries import ProviderRegistry
from retinue.core.errors import BadInput
from retinue.core.ports import Provider
from retinue.dialects import registry
from retinue.dialects.base import MakeProvider
from retinue.dialects.context import ProviderFamilies, ProviderHost
from retinue.engine import Supervisor
from retinue.providers.catalog import LOCAL_SERVERS, WIRES, ProviderConfig, family, family_by_name, provider_config
from retinue.tools.dependencies import ToolOptions

_SECRET = re.compile("key|token|secret|auth", re.IGNORECASE)

SHORTEST_KEY = 8
"""Values from this length on count as keys; shorter ones occur in ordinary text."""


class RegistryFamilies(ProviderFamilies):
    """Reads the registry of providers, and the environment for keys."""

    def __init__(self, table: ProviderRegistry) -> None:
        self._table = table

    def names(self) -> Sequence[str]:
        """The wires, the local servers, and all given and configured providers."""
        return tuple(dict.fromkeys((*WIRES, *self._table.names)))

    def config(self, provider: str) -> ProviderConfig | None:
        """How a provider is reached: as configured, or a wire's vendor; None for an object that was handed in."""
        known = next((each for each in self._table.provider_configs if each.name == provider), None)
        if known is None and (self._table.has(provider) or provider not in WIRES):
            return None
        try:
            return known or provider_config(provider)
        except BadInput:
            return None

    def family(self, provider: str) -> str | None:
        """The vendor family of a provider."""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        return family(known.wire if known is not None else provider)

    def called(self, name: str) -> str | None:
        """The vendor family with this name or alias."""
        return family_by_name(name)

    def member(self, family: str) -> str:
        """A provider of this family: a given or configured one, else the vendor's own wire."""
        if self._table.has(family):
            return family
        return next((each.name for each in self._table.provider_configs if self.family(each.name) == family), family)

    def complaint(self, provider: str) -> str:
        """An error message if the provider cannot be used or its key is not set; otherwise empty."""
        if self._table.is_reached(provider):
            return ""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        try:
            reached = known or provider_config(provider)
        except BadInput as wrong:
            return str(wrong)
        if reached.api_key_env and not os.environ.get(reached.api_key_env):
            return f"Missing API key for provider: {self.family(provider) or provider}"
        return ""

    def is_local(self, provider: str) -> bool:
        """Whether the provider is a model server on the user's own machine."""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        return (known.wire if known is not None else provider) in LOCAL_SERVERS

    def wire(self, provider: str) -> str:
        """The name of the wire that a provider speaks."""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        return provider if known is None else known.wire

    def secrets(self) -> Sequence[str]:
        """All keys in the environment and in headers, including those of vendors that are not in use."""
        names = {each.api_key_env for each in (*self._table.provider_configs, *WIRES.values())}
        keys = [os.environ.get(name, "") for name in sorted(names) if name]
        for known in self._table.provider_configs:
            keys += [value.rpartition(" ")[2] for name, value in known.headers.items() if _SECRET.search(name)]
        return tuple(key for key in keys if len(key) >= SHORTEST_KEY)


class DialectProviders:
    """The providers that dialects add, `kind:NAME`, whether or not a run of this process has such a dialect.

    A run that another process began may need one. A dialect's code is imported when its first provider is asked for.
    """

    def __init__(self, host: ProviderHost, dialect_settings: Mapping[str, object]) -> None:
        self._host = host
        self._settings = dialect_settings
        self._makers: dict[str, MakeProvider] = {}

    def find(self, kind: str, name: str) -> Provider | None:
        """A new provider of this kind that uses the models of the provider `name`; None if there is no such kind."""
        if kind not in self._makers:
            for entry in registry.entries():
                if entry.processes is not None and entry.processes.kind == kind:
                    self._makers[kind] = entry.processes.make.load()(self._host, self._settings.get(entry.name))
        maker = self._makers.get(kind)
        return None if maker is None else maker(name)


def lend_providers(
    table: ProviderRegistry,
    supervisor: Supervisor,
    *,
    dialect_settings: Mapping[str, object],
    tool_options: ToolOptions | None,
    home: Path | None,
) -> None:
    """Let the registry find the providers that dialects add."""
    host = ProviderHost(
        supervisor=supervisor,
        families=RegistryFamilies(table),
        find=table.find,
        tool_options=tool_options or ToolOptions(),
        home=home,
    )
    table.lend(DialectProviders(host, dialect_settings).find)
