"""Providers that answer from processes of their own: who can be asked so, and how they are made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.app.registries import ProviderRegistry
from retinue.core.errors import BadInput
from retinue.core.ports import Prices, Provider
from retinue.dialects.buzzllm.settings import DEFAULTS, BuzzllmSettings
from retinue.engine.supervisor import Supervisor
from retinue.providers.catalog import WIRES, ProviderConfig, provider_config, request_url
from retinue.tools.dependencies import ToolOptions

if TYPE_CHECKING:
    from retinue.dispatch.worker import ProcessPool, Reaching

IN_PROCESS = "call"
"""The kind of provider: `call:NAME` asks the models of NAME from a process of its own, `retinue call`."""

BUZZLLM = "buzzllm"
"""The dialect whose settings say how long such a call may take, and how many processes are kept ready."""


def process_provider_config(table: ProviderRegistry, name: str) -> ProviderConfig | None:
    """How a provider is reached, if another process can do it: it is no object of this one, and speaks a wire that
    `retinue call` speaks.
    """
    known = next((each for each in table.provider_configs if each.name == name), None)
    if known is None and (table.has(name) or name not in WIRES):
        return None
    try:
        reached = known or provider_config(name)
    except BadInput:
        return None
    return reached if WIRES[reached.wire].call_name and sys.platform != "win32" else None


class ProcessProviders:
    """Makes such providers for a process; what they are made of is imported when the first one is asked for."""

    def __init__(
        self,
        table: ProviderRegistry,
        supervisor: Supervisor,
        *,
        settings: object = None,
        tool_options: ToolOptions | None = None,
        home: Path | None = None,
    ) -> None:
        self._table = table
        self._supervisor = supervisor
        self._settings = settings if isinstance(settings, BuzzllmSettings) else DEFAULTS
        self._tool_options = tool_options or ToolOptions()
        self._home = home
        self._nursery: ProcessPool | None = None

    def provider(self, name: str) -> Provider | None:
        """The provider that asks the models of the one called `name` in processes of their own."""
        from retinue.dispatch.worker import ProcessPool, ProcessProvider, ProcessSettings

        where = process_provider_config(self._table, name)
        if where is None:
            return None
        if self._nursery is None:
            self._nursery = ProcessPool(ready=self._settings.warm_processes)
        itself = self._table.find(name)
        return ProcessProvider(
            self._nursery,
            self._supervisor,
            ProcessSettings(
                home=str(self._home.absolute()) if self._home is not None else "",
                tool_options=self._tool_options,
                seconds=self._settings.timeout_secs,
            ),
            reaching=lambda model: _reaching(where, model),
            price=lambda model: itself.price(model) if isinstance(itself, Prices) else None,
        )


def _reaching(where: ProviderConfig, model: str) -> Reaching:
    from retinue.dispatch.worker import Reaching

    return Reaching(
        wire=WIRES[where.wire].call_name,
        url=request_url(where, model),
        api_key_env=where.api_key_env,
        settled=where.wire,
        headers=where.headers,
        prices=where.prices,
        responses_wire=where.responses_wire,
    )
