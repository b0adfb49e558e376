"""The tools and providers of a process, by name; and what dialects may know of the providers."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from retinue.core.agent import is_server_tool, split_model
from retinue.core.errors import BadInput
from retinue.core.ids import RunId
from retinue.core.messages import Reply
from retinue.core.model_options import NO_OPTIONS, ModelOptions
from retinue.core.ports import Clock, KeyValue, Provider, Publish, Request, Tool, as_tool, own_tools_of
from retinue.dialects import registry
from retinue.dialects.base import Dialect, MakeProvider
from retinue.dialects.context import ProviderFamilies, ProviderHost
from retinue.engine import Supervisor
from retinue.mcp_client import McpTools
from retinue.providers import catalog
from retinue.providers.acp import AgentPrograms
from retinue.providers.catalog import (
    LOCAL_SERVERS,
    WIRES,
    ProviderConfig,
    canonical_name,
    default_address,
    family,
    provider_config,
)
from retinue.providers.pricing import PricedProvider
from retinue.tools.builtin import BUILTIN, Builtin
from retinue.tools.dependencies import ToolOptions
from retinue.tools.path_walk import Workspaces

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec
    from retinue.providers.batch import BatchQueue


class ToolRegistry:
    """The tools of a process: the caller's own, the built-in ones, and for runs with a dialect its tools.

    An own tool hides a built-in one of the same name. `named` are the built-in tools offered to runs whose agent lists
    no tools. `of_agents` are tools that only their agents are offered.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        named: Sequence[str] = (),
        builtin: Builtin | None = None,
        of_agents: Iterable[Tool] = (),
    ) -> None:
        self.own: dict[str, Tool] = {}
        self._builtin = builtin
        for tool in tools:
            self._register(tool)
        self.offered = tuple(dict.fromkeys((*self.own, *named)))
        """The tools offered to a run whose agent lists none."""
        for tool in of_agents:
            if self.own.get(tool.spec.name) is not tool:
                self._register(tool)
        own = (name for name in self.own if not is_server_tool(name))
        self.names = tuple(dict.fromkeys((*own, *(BUILTIN if builtin is not None else ()))))
        """The tools that an agent can be given, without those of dialects and those that a vendor runs."""
        self._mcp: McpTools | None = None
        self._dialects: dict[str, Dialect] = {}
        self._delegation: dict[str, Mapping[str, Tool]] = {}

    def _register(self, tool: Tool) -> None:
        if tool.spec.name in self.own:
            raise BadInput(f"two tools are named {tool.spec.name!r}: rename one of them")
        self.own[tool.spec.name] = tool

    def add_servers(self, tools: McpTools) -> None:
        """Add the tools of MCP servers, which are known once the servers were listed."""
        self._mcp = tools
        self.offered = tuple(dict.fromkeys((*self.offered, *tools.names)))
        self.names = tuple(dict.fromkeys((*self.names, *tools.names)))

    def expanded(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of tools with patterns of MCP tools replaced by the tools that they match."""
        return tuple(names) if self._mcp is None else self._mcp.expanded(names)

    def add(self, dialect: Dialect) -> None:
        self._dialects[dialect.name] = dialect
        self._delegation[dialect.name] = {name: as_tool(tool) for name, tool in dialect.tools().items()}

    def check_together(self, dialects: Sequence[str]) -> None:
        """Raise `BadInput` if two dialects of one run have a tool of the same name."""
        for this, other in combinations(dialects, 2):
            if shared := sorted(self._delegation[this].keys() & self._delegation[other].keys()):
                raise BadInput(f"dialects {this!r} and {other!r} both have a tool named {shared[0]!r}: choose one")

    def find(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool with this name, as a run with these dialects sees and calls it."""
        theirs = (self._delegation[dialect].get(name) for dialect in self._present(dialects))
        tool = next((tool for tool in theirs if tool is not None), None) or self._registered(name)
        return None if tool is None else self.wrapped(tool, dialects)

    def wrapped(self, tool: Tool, dialects: tuple[str, ...]) -> Tool:
        """A tool in the wrappers of these dialects, such as a log."""
        for dialect in self._present(dialects):
            tool = self._dialects[dialect].wrapped(tool)
        return tool

    def _present(self, dialects: tuple[str, ...]) -> list[str]:
        return [dialect for dialect in dialects if dialect in self._dialects]

    def _registered(self, name: str) -> Tool | None:
        if self._builtin is None:
            return self.own.get(name)
        if is_server_tool(name):
            from retinue.tools.server_tools import standard_tools  # imported late: few runs have one

            return self.own.get(name) or standard_tools().get(name)
        tool = self.own.get(name) or self._builtin.find(name) or (None if self._mcp is None else self._mcp.find(name))
        return None if tool is None else self._builtin.truncating(tool)


class ProviderRegistry:
    """The providers of a process: objects given by the caller, and configs whose providers are created on first use."""

    def __init__(self, providers: Mapping[str, Provider], provider_configs: Iterable[ProviderConfig] = ()) -> None:
        self._reached = dict(providers)
        self._provider_configs = {each.name: each for each in provider_configs}
        self._lend: Callable[[str, str], Provider | None] = lambda kind, name: None
        self._environ: Mapping[str, str] | None = None
        self._programs: Callable[[], AgentPrograms] | None = None
        self._agents_write: Callable[[], Sequence[str]] = tuple
        self._batches: tuple[KeyValue, Clock, Callable[[RunId], Awaitable[bool]]] | None = None
        self._queues: dict[str, BatchQueue] = {}

    def use_programs(self, programs: Callable[[], AgentPrograms]) -> None:
        """Start the programs of providers that have one with these, which are made for the first of them."""
        self._programs = programs

    def refuse_programs_in(self, agents_write: Callable[[], Sequence[str]]) -> None:
        """Start no program for credentials of a vendor that lies in one of the folders that this gives."""
        self._agents_write = agents_write

    def use_own_only(self, environ: Mapping[str, str]) -> None:
        """Find only providers that this process can call: configured ones and vendors, if their keys are set.

        A worker drives runs that other processes started: by a name alone it would call a vendor without a key, or a
        server of its own machine that no setting names.
        """
        self._environ = environ

    def _is_own(self, name: str) -> bool:
        if self._environ is None or name in self._reached:
            return True
        config = self._provider_configs.get(name)
        key = config.api_key_env if config is not None else WIRES[name].api_key_env if name in WIRES else None
        if config is None and name in WIRES and not key:
            return False  # a local server or a script that is not configured here
        wire = WIRES.get(name if config is None else config.wire)
        others = wire.secret_envs if wire is not None else ()
        return not key or any(self._environ.get(each, "").strip() for each in (key, *others))

    def lend(self, make: Callable[[str, str], Provider | None]) -> None:
        """Let providers named `kind:NAME` be created by `make(NAME)` on first use."""
        self._lend = make

    def __bool__(self) -> bool:
        return bool(self._reached or self._provider_configs)

    @property
    def first(self) -> str:
        return next(iter((*self._reached, *self._provider_configs)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._reached, *self._provider_configs)))

    @property
    def provider_configs(self) -> tuple[ProviderConfig, ...]:
        """The configs that another process needs to reach the same providers."""
        return tuple(self._provider_configs.values())

    def config(self, name: str) -> ProviderConfig | None:
        return self._provider_configs.get(name)

    def has(self, name: str) -> bool:
        """Whether a provider was given or configured, as opposed to a vendor that could be used by its wire's name."""
        return name in self._reached or name in self._provider_configs

    def is_reached(self, name: str) -> bool:
        """Whether a provider was given as an object or has been used before."""
        return name in self._reached

    def find(self, name: str) -> Provider | None:
        """The provider with this name; a wire that is not configured is its vendor's."""
        if name in self._reached:  # looked up in every turn
            return self._reached[name]
        name = self._called(name)
        if not self._is_own(name):
            return None
        if name not in self._reached and name in (*self._provider_configs, *WIRES):
            config = self._provider_configs.get(name) or provider_config(name)
            made = catalog.create_provider(config, programs=self._programs, agents_write=self._agents_write)
            self._reached[name] = self._with_batches(name, made)
        kind, colon, other = name.partition(":")
        if name not in self._reached and colon and (made := self._lend(kind, other)) is not None:
            self._reached[name] = made
        return self._reached.get(name)

    def own_tools(self) -> list[Tool]:
        """The tools that models have of themselves: those of agent programs, and of providers given as objects."""
        acting = (
            name for name in self.names if name in self._reached or self._provider_configs[name].wire == catalog.ACP
        )
        providers = (self.find(name) for name in acting)
        return [tool for each in providers if each is not None for tool in own_tools_of(each).values()]

    def keep_batches(self, key_value: KeyValue, clock: Clock, is_over: Callable[[RunId], Awaitable[bool]]) -> None:
        """Journal batches in `key_value`; `is_over` says whether a run has ended."""
        self._batches = (key_value, clock, is_over)

    def _with_batches(self, name: str, provider: Provider) -> Provider:
        """The provider with a queue for calls that may wait for a batch, which is made for the first of them."""
        if self._batches is None or not isinstance(provider, PricedProvider):
            return provider

        async def answer(request: Request, publish: Publish) -> Reply:
            return await self._batch_queue(name, provider).answer(request, publish)

        return replace(provider, batch=answer)

    def _batch_queue(self, name: str, provider: PricedProvider) -> BatchQueue:
        if name not in self._queues:
            from retinue.providers.batch import BatchQueue  # imported late: few runs wait for batches

            assert self._batches is not None
            self._queues[name] = BatchQueue(name, cast("Any", provider.provider), *self._batches)
        return self._queues[name]

    async def cancel_batches(self) -> None:
        """Cancel the batches at vendors whose runs have all ended; raises `ProviderError`."""
        from retinue.providers.batch import batch_records

        if self._batches is None:
            return
        for name in {record.provider for record in await batch_records(self._batches[0]) if not record.ended}:
            if isinstance(provider := self.find(name), PricedProvider) and provider.batch is not None:
                await self._batch_queue(name, provider).cancel_abandoned()

    def split(self, model: str, default: str) -> tuple[str, str]:
        """Provider and name of a model: `provider:name` if there is such a provider, else a name at `default`."""
        provider, name = split_model(model, (*self._reached, *self._provider_configs, *WIRES), self._called)
        return (default, name) if provider is None else (provider, name)

    def _called(self, name: str) -> str:
        return canonical_name(name, (*self._reached, *self._provider_configs))

    def check_options(self, name: str, options: ModelOptions) -> None:
        """Raise `BadInput` for options that the wire of a provider does not have; objects of the caller take any."""
        config = self.config(name)
        wire = name if config is None else config.wire
        if options != NO_OPTIONS and wire in WIRES and (config is not None or not self.is_reached(name)):
            catalog.check_options(WIRES[wire], wire, options)

    def check_server_tools(self, name: str, model: str, tools: Sequence[ServerToolSpec], *, others: bool) -> None:
        """Raise `BadInput` for tools that the vendor behind a provider does not run; `others` are tools besides."""
        config = self.config(name)
        if config is None and not self.is_reached(name) and name in WIRES:
            config = provider_config(name)
        if config is not None:
            catalog.check_server_tools(config, model, tools, others=others)
            return
        provider = self.find(name)
        kinds: Collection[str] = getattr(provider, "server_tools", ())
        if missing := [tool.full_name for tool in tools if tool.kind not in kinds]:
            raise BadInput(f"{missing[0]}: the provider {name} has no server tools")

    @cached_property
    def temperatures(self) -> Mapping[str, float]:
        """The temperatures that the settings give to providers."""
        configs = self._provider_configs.values()
        return {each.name: each.temperature for each in configs if each.temperature is not None}

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()
        for provider in self._reached.values():
            if isinstance(provider, Closes):
                await provider.close()


@runtime_checkable
class Closes(Protocol):
    """A provider with connections to close."""

    async def close(self) -> None:
        """Close the connections."""


_SECRET = re.compile("key|token|secret|auth", re.IGNORECASE)
MIN_KEY_LENGTH = 8
"""Values from this length on count as keys; shorter ones occur in ordinary text."""


class RegistryFamilies(ProviderFamilies):
    """Reads the registry of providers, and the environment for keys."""

    def __init__(self, table: ProviderRegistry) -> None:
        self._table = table

    def names(self) -> Sequence[str]:
        return tuple(dict.fromkeys((*WIRES, *self._table.names)))

    def config(self, provider: str) -> ProviderConfig | None:
        known = self._table.config(provider)
        if known is None and (self._table.has(provider) or provider not in WIRES):
            return None
        try:
            return known or provider_config(provider)
        except BadInput:
            return None

    def family(self, provider: str) -> str | None:
        return family(self.wire(provider))

    def called(self, name: str) -> str | None:
        return catalog.family_by_name(name)

    def member(self, family: str) -> str:
        if self._table.has(family):
            return family
        return next((each.name for each in self._table.provider_configs if self.family(each.name) == family), family)

    def complaint(self, provider: str) -> str:
        if self._table.is_reached(provider):
            return ""
        try:
            config = self._table.config(provider) or provider_config(provider)
        except BadInput as error:
            return str(error)
        if config.api_key_env and not os.environ.get(config.api_key_env) and not WIRES[config.wire].finds_credentials:
            return f"Missing API key for provider: {self.family(provider) or provider}"
        return ""

    def is_local(self, provider: str) -> bool:
        wire, config = self.wire(provider), self._table.config(provider)
        if wire in LOCAL_SERVERS:
            return True
        # A server at another address than the vendor's has models of its own, whatever its wire.
        own = default_address(WIRES[wire]) if wire in WIRES else ""
        return config is not None and bool(own) and config.base_url.rstrip("/") != own

    def wire(self, provider: str) -> str:
        known = self._table.config(provider)
        return provider if known is None else known.wire

    def secrets(self) -> Sequence[str]:
        names = {each.api_key_env for each in (*self._table.provider_configs, *WIRES.values())}
        names |= {name for wire in WIRES.values() for name in wire.secret_envs}
        keys = [os.environ.get(name, "") for name in sorted(names) if name]
        for known in self._table.provider_configs:
            keys += [value.rpartition(" ")[2] for name, value in known.headers.items() if _SECRET.search(name)]
        return tuple(key for key in keys if len(key) >= MIN_KEY_LENGTH)


def lend_providers(
    table: ProviderRegistry,
    supervisor: Supervisor,
    *,
    dialect_settings: Mapping[str, object],
    tool_options: ToolOptions | None,
    home: Path | None,
    workspaces: Workspaces,
) -> None:
    """Let the registry find providers of dialects, `kind:NAME`, also if no run of this process has the dialect.

    A run that another process began may need one. A dialect's code is imported when its first provider is looked up.
    """
    host = ProviderHost(
        supervisor=supervisor,
        families=RegistryFamilies(table),
        find=table.find,
        tool_options=tool_options or ToolOptions(),
        home=home,
        workspaces=workspaces,
    )
    makers: dict[str, MakeProvider] = {}

    def find(kind: str, name: str) -> Provider | None:
        if kind not in makers:
            for entry in registry.entries():
                if entry.processes is not None and entry.processes.kind == kind:
                    makers[kind] = entry.processes.make.load()(host, dialect_settings.get(entry.name))
        return makers[kind](name) if kind in makers else None

    table.lend(find)
