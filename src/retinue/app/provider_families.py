"""The vendor families of a process's providers, for dialects in which a model names a vendor."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from retinue.app.registries import ProviderRegistry
from retinue.core.errors import BadInput
from retinue.dialects.buzzllm import IN_PROCESS, process_provider_config
from retinue.providers.catalog import LOCAL_SERVERS, WIRES, family, family_by_name, provider_config

_SECRET = re.compile("key|token|secret|auth", re.IGNORECASE)

SHORTEST_KEY = 8
"""Values from this length on count as keys; shorter ones occur in ordinary text."""


class RegistryFamilies:
    """Reads the registry of providers, and the environment for keys."""

    def __init__(self, table: ProviderRegistry) -> None:
        self._table = table

    def names(self) -> Sequence[str]:
        """The wires, the local servers, and all given and configured providers."""
        return tuple(dict.fromkeys((*WIRES, *self._table.names)))

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

    def in_process(self, provider: str) -> str | None:
        """The name of the provider that calls the same models from a child process, if one can."""
        return f"{IN_PROCESS}:{provider}" if process_provider_config(self._table, provider) is not None else None

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
