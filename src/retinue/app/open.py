"""`retinue.open`: the composition root, which builds a retinue from arguments, settings, a store and the engine."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from retinue.app.read_only import ReadOnlyClient
from retinue.app.registries import ProviderRegistry, ToolRegistry
from retinue.app.retinue import Retinue
from retinue.app.state_folder import chosen_url, is_sqlite, memory_tables, open_url, secure_state_folder, sqlite_path
from retinue.app.state_folder import default_home as default_home
from retinue.app.structured_output import validate_output
from retinue.app.validation import (
    check_agents,
    check_choices,
    check_hooks,
    check_tools,
    check_types,
    unknown_in_code,
    with_own_tools,
)
from retinue.config.error_texts import closest_match
from retinue.core.agent import DEFAULT_AGENT, Agent, split_model
from retinue.core.commands import DEFAULT_LEASE
from retinue.core.errors import BadInput
from retinue.core.ids import RandomIds, RunId, SessionId, SystemClock
from retinue.core.log_context import logger
from retinue.core.policy import Policy, Restriction, Rules, WorkspaceRights, intersect
from retinue.core.ports import Clock, Ended, Hooks, Ids, KeyValue, Provider, Store, Talk, Tool, ToolLike
from retinue.core.workspace import host_tag
from retinue.dialects.base import Dialect
from retinue.dialects.registry import DEFAULT
from retinue.engine import Approver, build_engine
from retinue.local.workspaces import FetchedWorkspaces
from retinue.mcp_client import McpServer, McpTools
from retinue.net.loopback import check_encrypted, check_values_encrypted
from retinue.providers.acp import AgentPrograms
from retinue.providers.catalog import (
    WIRES,
    ProviderConfig,
    canonical_name,
    provider_config,
    with_address,
)
from retinue.telemetry import exporters, logs
from retinue.telemetry.exporters import Telemetry
from retinue.tools.builtin import BUILTIN, IN_FOLDER, Builtin
from retinue.tools.dependencies import MemoryTables, NoKeyValue, ToolDependencies, ToolOptions
from retinue.tools.file_changes import FileChanges
from retinue.tools.path_walk import Workspaces
from retinue.tools.settings_trust import recorded_roots

if TYPE_CHECKING:
    from retinue.config.settings import Settings
    from retinue.tools.server_tools import ServerTool

log = logger("retinue.app")

MEMORY = ":memory:"
"""As `home`: keep everything in memory, and drop it when the retinue closes."""

STORE = "retinue.db"
"""The name of the store's file in the home folder."""


def open(
    *,
    model: str = "",
    provider: Provider | str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    config: str | Path | None = None,
    providers: Mapping[str, Provider] | None = None,
    provider_configs: Sequence[ProviderConfig] = (),
    tools: Iterable[ToolLike | str] = (),
    tool_options: ToolOptions | None = None,
    dialects: Sequence[str | Dialect] = (DEFAULT,),
    dialect_settings: Mapping[str, object] | None = None,
    agents: Sequence[Agent] = (),
    mcp_servers: Sequence[McpServer] = (),
    server_tools: Sequence[ServerTool] = (),
    policy: Policy | None = None,
    session: SessionId | None = None,
    home: str | Path | None = None,
    store: Store | str | None = None,
    approvals: Approver = "deny",
    hooks: Sequence[Hooks] = (),
    telemetry: Telemetry | None = None,
    adopt: bool = False,
    durability: Literal["process", "power"] = "process",
    lease: float = DEFAULT_LEASE,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Retinue:
    """Build a retinue; enter it with `async with`.

    - `model`: `provider:name`, or a name at `provider`.
    - `provider`: the name of a wire, of a local server or of a configured provider, or any object with an `answer`
      method (`retinue.core.ports.Provider`).
    - `base_url`, `api_key_env`: another address for `provider`, and the name of the environment variable that holds its
      key.
    - `config`: a settings file, whose agents, providers, tools and dialect settings are added to the arguments.
    - `providers`, `provider_configs`: more providers, as objects by name and as configs, for agents whose model is
      written `name:model`.
    - `tools`: your own tools, and names of built-in ones. `tool_options` configures the built-in ones.
    - `dialects`: the delegation tools that runs are offered: names, and objects of your own subclasses of
      `retinue.Dialect`. `dialect_settings` are settings by the dialect's name.
    - `agents`: the agents that runs and models can name.
    - `mcp_servers`: MCP servers whose tools agents can have, as `mcp__SERVER__TOOL`; needs the extra `retinue[mcp]`.
    - `server_tools`: options of tools that the model's vendor runs, for agents that list them as `server:NAME`.
    - `policy`: the ceiling of every run; its limits on actions per hour and cost per day hold for each agent. Without
      one, an agent has its own policy, else `Policy()`, and nothing is limited by hour or day.
    - `session`: the id of the session of new runs; without one, a new session is opened.
    - `home`: the folder of the store (default: `$RETINUE_HOME`, else the platform's data folder), or `retinue.MEMORY`.
    - `store`: a store object or address, instead of one in `home`: `sqlite:PATH`, `postgresql://...` or `memory:`
      (default: `$RETINUE_STORE`, if no `home` is given).
    - `approvals`: how approval requests are answered: a callback, `"wait"` for an answer from any process, or `"deny"`.
    - `hooks`: objects of subclasses of `retinue.Hooks`, called before and after each model call and tool call.
    - `telemetry`: where traces and metrics go; by default what OpenTelemetry's variables say, else nowhere.
    - `adopt`: also take over runs whose process is gone.
    - `durability`: with `"power"`, commits are synced to the disk before their results are visible to others.
    - `lease`: seconds without a sign of life after which other processes may take over the runs of this one.
    - `clock`, `ids`: the sources of time and ids, for tests.

    Raises `BadInput` for arguments that do not fit together, `UnknownName` for an unknown provider or tool, and
    `ConfigError` for a settings file with errors.

    >>> import asyncio
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> str:
    ...     model = ScriptedProvider(Script().play("main", says("Hello.")))
    ...     async with open(provider=model, home=MEMORY) as retinue:
    ...         return (await retinue.run("Greet me.")).text
    >>> asyncio.run(main())
    'Hello.'
    """
    logs.set_payloads_from(os.environ, log.warning)
    check_types(model=model, provider=provider, providers=providers, policy=policy, session=session, agents=agents)
    check_choices(approvals=approvals, durability=durability, lease=lease, dialects=dialects)
    if config is not None:
        from retinue.app import settings_file, tool_modules

        settings = settings_file.load_settings(config, home=_folder(home), user=False)
        agents = (*settings.core_agents(), *agents)
        provider_configs = (*settings_file.provider_configs(settings), *provider_configs)
        tools = (*tool_modules.load_tools(settings.tool_modules, home=_folder(home)), *tools)
        tool_options = _merge_tool_options(tool_options, settings.tool_options)
        dialect_settings = dict(settings_file.dialect_settings(settings)) | dict(dialect_settings or {})
        mcp_servers = (*settings_file.mcp_servers(settings), *mcp_servers)
        server_tools = (*server_tools, *settings_file.server_tools(settings))
        if store is None and home is None and chosen_url() is None:
            store = settings_file.store_url(settings)
        if telemetry is None:
            telemetry = settings_file.telemetry_of(settings)
        if settings.policy is not None:
            policy = settings.policy if policy is None else intersect(settings.policy, policy)
        if not model and provider is None and base_url is None and not providers and provider_configs:
            provider = settings_file.default_provider(settings) or provider_configs[0].name
            model = settings_file.default_model(settings, provider) or ""
    telemetry = telemetry or Telemetry()
    agents, of_agents = with_own_tools(agents, tools := tuple(tools) if not isinstance(tools, str) else tools)
    check_agents(agents)
    table, name = _providers(model, provider, base_url, api_key_env, providers, provider_configs)
    clock, ids = clock or SystemClock(), ids or RandomIds()
    own, named = check_tools(tools)
    if server_tools:  # the first of a name holds: arguments come before settings
        known = {tool.spec.name for tool in (*own, *of_agents)}
        configured = {tool.spec.name: tool for tool in reversed(server_tools)}
        of_agents = (*of_agents, *(tool for name, tool in configured.items() if name not in known))
    for warning in unknown_in_code(agents, policy, [tool.spec.name for tool in (*own, *of_agents)]):
        log.warning("%s", warning)
    store = _open_store(home, durability, store)
    rules = Rules(
        session=policy,
        agents={agent.name: agent.policy for agent in agents if agent.policy is not None},
        restrictions={
            agent.name: Restriction(agent.read_only, agent.excluded_tools)
            for agent in agents
            if agent.read_only or agent.excluded_tools
        },
        memories={agent.name: agent.memory_from for agent in agents},
        tags={agent.name: agent.tags for agent in agents if agent.tags},
        anywhere=frozenset(agent.name for agent in agents if agent.placement == "anywhere"),
        # Other machines reach a database; a file is where its processes are.
        machine="" if memory_tables_of(store) is None else host_tag(platform.node()),
        folder_tools=IN_FOLDER,
    )
    workspaces = open_workspaces(agents, rules)
    changes = cache(FileChanges)

    @cache
    def dependencies() -> ToolDependencies:
        options, key_value = tool_options or ToolOptions(), supervisor.key_value
        return dataclasses.replace(
            tool_dependencies(
                options,
                key_value=key_value,
                home=_folder(home),
                clock=clock,
                agents_write=writable_folders(agents, policy),
            ),
            memory_tables=memory_tables_of(store),
            origins=supervisor.origins,
            memories={agent.name: agent.memory for agent in agents if agent.memory is not None},
            workspaces={agent.name: agent.workspace for agent in agents if agent.workspace},
            opened_workspaces=workspaces,
            changes=changes(),
            trace_hosts=telemetry.propagate_to,
        )

    toolset = ToolRegistry(
        own, named=named, builtin=Builtin(dependencies, tool_options or ToolOptions()), of_agents=of_agents
    )
    exporting = exporters.start(telemetry, os.environ, check_values_encrypted)
    folders = FetchedWorkspaces(_folder(home), allow=(tool_options or ToolOptions()).workspaces)
    supervisor, driver = build_engine(
        store,
        toolset,
        table,
        clock=clock,
        ids=ids,
        validate_output=validate_output,
        rules=rules,
        approver=approvals,
        durable=durability == "power",
        adopts=adopt,
        lease=lease,
        hooks=check_hooks(hooks),
        folders=folders,
        tracing=None if exporting is None else exporting.tracing,
    )

    def agent_programs() -> AgentPrograms:
        from retinue.app.agent_programs import LocalAgentPrograms

        return LocalAgentPrograms(supervisor, dependencies)

    table.use_programs(agent_programs)
    # Folders can have been recorded since this process began: those of worktrees and of other processes.
    table.refuse_programs_in(lambda: (*writable_folders(agents, policy), *recorded_roots(_folder(home))))

    async def is_over(run_id: RunId) -> bool:
        row = await supervisor.stored.run(run_id)
        return row is None or row.progress.phase == "ended"

    table.keep_batches(supervisor.key_value, clock, is_over)
    return Retinue(
        supervisor,
        driver,
        toolset,
        table,
        agents=agents,
        dialects=dialects,
        dialect_settings=dialect_settings or {},
        model=name,
        session=session or ids.new(),
        tool_options=tool_options,
        home=_folder(home),
        workspaces=workspaces,
        folders=folders,
        file_changes=changes,
        exporting=exporting,
        mcp_tools=_mcp_tools(
            mcp_servers, lambda: supervisor.key_value, dependencies, tool_options, policy, _folder(home)
        ),
    )


def _mcp_tools(
    servers: Sequence[McpServer],
    key_value: Callable[[], KeyValue],
    dependencies: Callable[[], ToolDependencies],
    options: ToolOptions | None,
    policy: Policy | None,
    home: Path | None,
) -> McpTools | None:
    """The tools of MCP servers, of which those with `sandbox` run in it, unless the options switch it off."""
    if not servers:
        return None

    async def converse(server: McpServer, rights: WorkspaceRights, talk: Talk) -> Ended:
        from retinue.app.interactive_programs import converse_with_server

        return await converse_with_server(server, rights, talk, dependencies())

    sandboxed = (options or ToolOptions()).sandbox != "off"
    return McpTools(
        servers,
        key_value,
        converse=converse if sandboxed else None,
        policy=policy,
        # Folders can have been recorded since the dependencies were made: those of worktrees and of other processes.
        agents_write=lambda: (*dependencies().agents_write, *recorded_roots(home)),
        home=home,
    )


def mcp_tools_of(servers: Sequence[McpServer], settings: Settings, key_value: KeyValue) -> McpTools | None:
    """MCP servers, to be listed as a retinue with these settings lists them; None without servers."""

    @cache
    def dependencies() -> ToolDependencies:
        return tool_dependencies(
            settings.tool_options,
            key_value=key_value,
            home=default_home(),
            agents_write=writable_folders(settings.core_agents(), settings.policy),
        )

    return _mcp_tools(servers, lambda: key_value, dependencies, settings.tool_options, settings.policy, default_home())


def open_workspaces(agents: Sequence[Agent], rules: Rules) -> Workspaces:
    """The workspaces of these agents and the current folder, resolved now; see `Workspaces`."""
    workspaces = Workspaces()
    with suppress(OSError):  # the current folder is gone: each call says so
        for agent in (Agent(name=DEFAULT_AGENT), *agents):
            workspaces.add_agent(rules.ceiling_of(agent.name), agent.workspace)
    return workspaces


def _merge_tool_options(given: ToolOptions | None, configured: ToolOptions) -> ToolOptions:
    """The given options, else the configured ones; files that the settings protect stay protected either way."""
    return configured if given is None else replace(given, protected=(*given.protected, *configured.protected))


def writable_folders(agents: Sequence[Agent], policy: Policy | None) -> tuple[str, ...]:
    """The folders in which agents may write, besides the current one."""
    policies = (policy, *(agent.policy for agent in agents))
    allowed = [root for each in policies if each for root in (*each.allowed_roots, *each.allowed_roots_write_only)]
    return (*filter(None, (agent.workspace for agent in agents)), *allowed)


def tool_dependencies(
    options: ToolOptions,
    *,
    key_value: KeyValue,
    home: Path | None,
    clock: Clock | None = None,
    agents_write: Sequence[str] = (),
) -> ToolDependencies:
    """What the built-in tools need, with these options; programs are not started from `agents_write`."""
    from retinue.sandbox.probe import choose
    from retinue.tools.coding import CodingPreset

    agents_write = (*agents_write, *recorded_roots(home))
    return ToolDependencies(
        sandbox=choose(options.sandbox, agents_write=agents_write),
        agents_write=agents_write,
        key_value=key_value,
        clock=clock or SystemClock(),
        home=home,
        network=options.network,
        sandboxed=options.sandbox != "off",
        coding=CodingPreset(agents_write) if options.preset == "coding" else None,
        web_search=options.web_search,
        memory=options.memory,
        max_result=options.max_result,
        program_memory_mb=options.program_memory_mb,
        program_memory_total_mb=options.program_memory_total_mb,
        settings=(*map(Path, options.protected), *_own_environment()),
        memory_tables=None if home is None else memory_tables(),
    )


def _own_environment() -> tuple[Path, ...]:
    """The virtual environment that this process runs in, which the next process runs in, too."""
    return () if sys.prefix == sys.base_prefix else (Path(sys.prefix),)


def builtin_tools() -> tuple[Tool, ...]:
    """Every built-in tool, for lists and reference pages; not to be called."""
    options = ToolOptions()
    builtin = Builtin(lambda: tool_dependencies(options, key_value=NoKeyValue(), home=None), options)
    return tuple(map(builtin.made, BUILTIN))


def _folder(home: str | Path | None) -> Path | None:
    return None if home == MEMORY else Path(home) if home is not None else default_home()


def open_read_only(*, home: str | Path | None = None, store: Store | None = None) -> ReadOnlyClient:
    """Open a store for reading, with `async with`: no model is called and no run is driven.

    A store that cannot be written can still be opened, as far as SQLite can read it.
    """
    unwritable = None
    url = chosen_url() if store is None and home is None else None
    if (store is None and home != MEMORY and url is None) or is_sqlite(url):
        from retinue.store.sqlite import ReadOnlySqliteStore, open_or_read_only

        folder = Path(home) if home is not None else default_home()
        if url is None:
            secure_state_folder(folder, is_default=home is None)
        store = open_or_read_only(folder / STORE if url is None else sqlite_path(url))
        unwritable = store.why if isinstance(store, ReadOnlySqliteStore) else None
    supervisor, _ = build_engine(
        _open_store(home, "process", store),
        ToolRegistry(()),
        ProviderRegistry({}),
        clock=SystemClock(),
        ids=RandomIds(),
        validate_output=validate_output,
    )
    return ReadOnlyClient(supervisor, unwritable=unwritable)


def _providers(
    model: str,
    provider: Provider | str | None,
    base_url: str | None,
    api_key_env: str | None,
    providers: Mapping[str, Provider] | None,
    provider_configs: Sequence[ProviderConfig],
) -> tuple[ProviderRegistry, str]:
    """The registry of providers, the default one first, and the name of the model at that one."""
    objects = dict(providers or {})
    if isinstance(provider, str) or provider is None:
        known = (*objects, *(config.name for config in provider_configs), *WIRES)
        prefix, name = split_model(model, known, lambda prefix: canonical_name(prefix, known))
        chosen = canonical_name(provider, known) if provider else prefix
        if provider is None and chosen is not None:
            model = name
        if chosen is not None and chosen not in objects:
            provider_configs = _put_first(chosen, base_url, api_key_env, provider_configs)
            return ProviderRegistry(objects, provider_configs), model
        if chosen is not None:
            objects = {chosen: objects[chosen]} | objects
    else:
        prefix, name = split_model(model)
        own_name = getattr(provider, "name", None) or ("custom" if prefix is None else prefix)
        objects = {str(own_name): provider} | objects
        model = name if prefix == own_name else model
    table = ProviderRegistry(objects, provider_configs)
    if not table and ":" in model:
        wrong = model.partition(":")[0]
        match = closest_match(wrong, tuple(WIRES))
        hint = f": did you mean {match}:{model.partition(':')[2]}?" if match else f"; known: {', '.join(WIRES)}"
        raise BadInput(f"model={model!r}: there is no provider named {wrong!r}{hint}")
    if not table:
        raise BadInput(
            "no model is configured: give one (model='openai-chat:NAME'), the name of a provider, "
            "or an object with an `answer` method (provider=...)"
        )
    return table, model


def _put_first(
    chosen: str, base_url: str | None, api_key_env: str | None, provider_configs: Sequence[ProviderConfig]
) -> tuple[ProviderConfig, ...]:
    """The configs with the chosen provider first, at the given address and with the given key variable."""
    configured = next((config for config in provider_configs if config.name == chosen), None)
    others = tuple(config for config in provider_configs if config.name != chosen)
    if configured is None:
        first = provider_config(chosen, base_url=base_url, api_key_env=api_key_env)
    else:
        first = with_address(configured, base_url, api_key_env)
    check_encrypted(first.base_url, first.api_key_env, first.headers)
    return (first, *others)


def memory_tables_of(store: Store) -> MemoryTables | None:
    """The tables of memories of a PostgreSQL store; None for any other store."""
    tables = getattr(store, "memory_tables", None)
    return None if tables is None else tables()


def _open_store(home: str | Path | None, durability: Literal["process", "power"], store: Store | str | None) -> Store:
    """The given store, else the one in `home`, else the one of the environment, else the one in the default home."""
    if store is None and home is None:
        store = chosen_url()
    if isinstance(store, str):
        return open_url(store, durability=durability)
    if store is not None:
        return store
    if home == MEMORY:
        from retinue.store.memory import MemoryStore

        return MemoryStore()
    from retinue.store.sqlite import SqliteStore

    folder = Path(home) if home is not None else default_home()
    secure_state_folder(folder, is_default=home is None)
    return SqliteStore(folder / STORE, durability=durability)
