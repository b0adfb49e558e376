"""Whose models the providers of a process have, for dialects in which a model names a vendor."""

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
"""Characters from which a value is taken for a key; shorter ones occur in ordinary words."""


class RegistryFamilies:
    """Reads a table of providers, and the environment for keys."""

    def __init__(self, table: ProviderRegistry) -> None:
        self._table = table

    def names(self) -> Sequence[str]:
        """The wires and local servers, and whoever was handed in or settled."""
        return tuple(dict.fromkeys((*WIRES, *self._table.names)))

    def family(self, provider: str) -> str | None:
        """Whose way of talking a provider speaks."""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        return family(known.wire if known is not None else provider)

    def called(self, name: str) -> str | None:
        """The family that a model means by a name."""
        return family_by_name(name)

    def member(self, family: str) -> str:
        """A provider of that family: an object or a contact of the settings, else the vendor's own wire."""
        if self._table.has(family):
            return family
        return next((each.name for each in self._table.provider_configs if self.family(each.name) == family), family)

    def complaint(self, provider: str) -> str:
        """That its key is missing, if so."""
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
        """Whether it is a server of the user's own."""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        return (known.wire if known is not None else provider) in LOCAL_SERVERS

    def in_process(self, provider: str) -> str | None:
        """The provider that asks the same models from a process of its own, if a process could reach them."""
        return f"{IN_PROCESS}:{provider}" if process_provider_config(self._table, provider) is not None else None

    def wire(self, provider: str) -> str:
        """The name of the wire that a provider speaks."""
        known = {each.name: each for each in self._table.provider_configs}.get(provider)
        return provider if known is None else known.wire

    def secrets(self) -> Sequence[str]:
        """The keys in the environment and in headers, those of vendors that nobody has asked yet included."""
        names = {each.api_key_env for each in (*self._table.provider_configs, *WIRES.values())}
        keys = [os.environ.get(name, "") for name in sorted(names) if name]
        for known in self._table.provider_configs:
            keys += [value.rpartition(" ")[2] for name, value in known.headers.items() if _SECRET.search(name)]
        return tuple(key for key in keys if len(key) >= SHORTEST_KEY)
