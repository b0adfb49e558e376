"""Builds a retinue out of its parts: the only file that knows everyone."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from retinue.app.read_only import ReadOnlyClient
from retinue.app.registries import ProviderRegistry, ToolRegistry
from retinue.app.retinue import Retinue
from retinue.app.structured_output import validate_output
from retinue.app.validation import check_agents, check_choices, check_tools
from retinue.core.agent import Agent, split_model
from retinue.core.errors import BadInput
from retinue.core.ids import RandomIds, SessionId
from retinue.core.policy import Policy
from retinue.core.ports import Clock, Ids, Provider, Store, Tool, ToolLike
from retinue.core.profiles import Rules
from retinue.dialects.registry import DEFAULT
from retinue.engine import Approver, Supervisor, build_engine
from retinue.providers.catalog import WIRES, ProviderConfig, called, moved, provider_config
from retinue.tools.builtin import BUILTIN, Builtin
from retinue.tools.dependencies import NoKeyValue, ToolDependencies, ToolOptions

log = logging.getLogger("retinue.app")

MEMORY = ":memory:"
"""As `home`: keep everything in memory, and forget it when the retinue is closed."""

STORE = "retinue.db"
"""The store's file, in the folder where state is kept."""


class SystemClock:
    """The wall clock of the machine."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()


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
    dialects: Sequence[str] = (DEFAULT,),
    dialect_settings: Mapping[str, object] | None = None,
    agents: Sequence[Agent] = (),
    policy: Policy | None = None,
    session: SessionId | None = None,
    home: str | Path | None = None,
    store: Store | None = None,
    approvals: Approver = "deny",
    adopt: bool = False,
    durability: Literal["process", "power"] = "process",
    lease: float = 10.0,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Retinue:
    """A retinue, ready to be entered with `async with`.

    `model` is `wire:name`, or a name at `provider`: the name of a wire or local server (with `base_url` and the name of
    the variable that holds the key), or any object with the provider's one method. `providers` and `contacts` are more
    of them, for agents whose model is written `name:model`. `config` is a settings file, whose agents, providers, tools
    and dialect settings are added. `tools` are your own, and names of those that come with retinue; `tool_options` say
    how the latter work. `home` is the folder of the store (`$RETINUE_HOME`, else
    the platform's data folder), or `:memory:`. `policy` is the ceiling of every run, and its limits on actions an
    hour and cost a day hold for each agent; without one, an agent has its own policy if it has one, else that of
    `Policy()`, and nothing is counted by the hour or day. `approvals` says who answers
    when a call needs a person: a callback, `"wait"` for an answer from anywhere, or `"deny"`. With `adopt` this
    process also takes over runs whose process is gone. `durability="power"` syncs what others may have heard of to
    the disk.

    >>> import asyncio
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> str:
    ...     model = ScriptedProvider(Script().play("main", says("Hello.")))
    ...     async with open(provider=model, home=MEMORY) as retinue:
    ...         return (await retinue.run("Greet me.")).text
    >>> asyncio.run(main())
    'Hello.'
    """
    check_choices(approvals=approvals, durability=durability, lease=lease, dialects=dialects)
    if config is not None:
        from retinue.app.settings_file import dialect_settings as settled_dialects
        from retinue.app.settings_file import load_settings
        from retinue.app.settings_file import provider_configs as settled_contacts
        from retinue.app.tool_modules import load_tools

        settings = load_settings(config)
        agents = (*settings.core_agents(), *agents)
        provider_configs = (*settled_contacts(settings), *provider_configs)
        tools = (*load_tools(settings.tool_modules), *tools)
        tool_options = _merged(tool_options, settings.tool_options)
        dialect_settings = dict(settled_dialects(settings)) | dict(dialect_settings or {})
    check_agents(agents)
    table, name = _providers(model, provider, base_url, api_key_env, providers, provider_configs)
    clock, ids = clock or SystemClock(), ids or RandomIds()
    own, named = check_tools(tools)
    _tell_of_strangers(agents, policy, own)
    store = store if store is not None else _open_store(home, durability)
    builtin = Builtin(lambda: _dependencies(tool_options or ToolOptions(), supervisor, home, agents))
    toolset = ToolRegistry(own, named=named, builtin=builtin)
    supervisor, driver = build_engine(
        store,
        toolset,
        table,
        clock=clock,
        ids=ids,
        validate_output=validate_output,
        rules=Rules(
            session=policy,
            agents={each.name: each.policy for each in agents if each.policy is not None},
            memories={each.name: each.memory_from for each in agents},
        ),
        approver=approvals,
        durable=durability == "power",
        adopts=adopt,
        lease=lease,
    )
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
    )


def _tell_of_strangers(agents: Sequence[Agent], policy: Policy | None, own: Sequence[Tool]) -> None:
    """Warn of names of tools that nobody has."""
    if agents or policy is not None:
        from retinue.app.validation import unknown_in_code

        for stranger in unknown_in_code(agents, policy, [tool.spec.name for tool in own]):
            log.warning("%s", stranger)


def _merged(said: ToolOptions | None, settled: ToolOptions) -> ToolOptions:
    """What was said counts more than the settings, but for what the settings protect: that stays so."""
    return settled if said is None else replace(said, protected=(*said.protected, *settled.protected))


def _dependencies(
    options: ToolOptions, supervisor: Supervisor, home: str | Path | None, agents: Sequence[Agent]
) -> ToolDependencies:
    from retinue.sandbox.probe import choose

    return ToolDependencies(
        sandbox=choose(options.sandbox),
        key_value=supervisor.key_value,
        clock=supervisor.clock,
        origins=supervisor.origins,
        home=_folder(home),
        network=options.network,
        sandboxed=options.sandbox != "off",
        web_search=options.web_search,
        memory=options.memory,
        memories={agent.name: agent.memory for agent in agents if agent.memory is not None},
        max_result=options.max_result,
        program_memory_mb=options.program_memory_mb,
        settings=tuple(map(Path, options.protected)),
    )


def builtin_tools() -> tuple[Tool, ...]:
    """Every built-in tool, for lists and reference pages; not to be called."""
    from retinue.sandbox.probe import choose

    builtin = Builtin(lambda: ToolDependencies(sandbox=choose("required"), key_value=NoKeyValue(), clock=SystemClock()))
    return tuple(tool for name in BUILTIN if (tool := builtin.find(name)) is not None)


def _folder(home: str | Path | None) -> Path | None:
    return None if home == MEMORY else Path(home) if home is not None else default_home()


def open_read_only(*, home: str | Path | None = None, store: Store | None = None) -> ReadOnlyClient:
    """The runs of a store to look at, ready to be entered with `async with`; nobody is asked and nothing driven.

    Where the store cannot be written, it can still be looked at, as far as SQLite can read it.
    """
    unwritable = None
    if store is None and home != MEMORY:
        from retinue.store.sqlite import LookingStore, open_or_look

        store = open_or_look((Path(home) if home is not None else default_home()) / STORE)
        unwritable = store.why if isinstance(store, LookingStore) else None
    supervisor, _ = build_engine(
        store if store is not None else _open_store(home, "process"),
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
    """Everyone who can be asked, the one to ask first in front, and the name of the model there."""
    objects = dict(providers or {})
    if isinstance(provider, str) or provider is None:
        known = (*objects, *(each.name for each in provider_configs), *WIRES)
        prefix, name = split_model(model, known, lambda prefix: called(prefix, known))
        chosen = called(provider, known) if provider else prefix
        if provider is None and chosen is not None:
            model = name
        if chosen is not None and chosen not in objects:
            provider_configs = _first(chosen, base_url, api_key_env, provider_configs)
            return ProviderRegistry(objects, provider_configs), model
        if chosen is not None:
            objects = {chosen: objects[chosen]} | objects
    else:
        prefix, name = split_model(model)
        own = getattr(provider, "name", None) or ("custom" if prefix is None else prefix)
        objects = {str(own): provider} | objects
        model = name if prefix == own else model
    table = ProviderRegistry(objects, provider_configs)
    if not table:
        raise BadInput(
            "nobody to ask: say which model (model='openai-chat:NAME'), which provider, "
            "or pass provider= an object with an `answer` method"
        )
    return table, model


def _first(
    chosen: str, base_url: str | None, api_key_env: str | None, provider_configs: Sequence[ProviderConfig]
) -> tuple[ProviderConfig, ...]:
    """The chosen provider in front, as the settings describe it and with what was said on top."""
    settled = next((each for each in provider_configs if each.name == chosen), None)
    others = tuple(each for each in provider_configs if each.name != chosen)
    if settled is None:
        return (provider_config(chosen, base_url=base_url, api_key_env=api_key_env), *others)
    return (moved(settled, base_url, api_key_env), *others)


def _open_store(home: str | Path | None, durability: Literal["process", "power"]) -> Store:
    if home == MEMORY:
        from retinue.store.memory import MemoryStore

        return MemoryStore()
    from retinue.store.sqlite import SqliteStore

    folder = Path(home) if home is not None else default_home()
    return SqliteStore(folder / STORE, durability=durability)


def default_home() -> Path:
    """Where state is kept when nobody says: `$RETINUE_HOME`, else the platform's folder for such things."""
    if given := os.environ.get("RETINUE_HOME"):
        # A ~ that no shell has seen, as in a file of variables, must not become a folder of that name.
        return Path(os.path.expanduser(given))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "retinue"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "retinue"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "retinue"
