"""Builds a retinue out of its parts: the only file that knows everyone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from retinue.app.archive import Archive
from retinue.app.checking import check_agents, check_choices, check_tools
from retinue.app.modules import load_tools
from retinue.app.retinue import Retinue
from retinue.app.sections import contacts as settled_contacts
from retinue.app.sections import dialect_settings as settled_dialects
from retinue.app.sections import load_settings
from retinue.app.structured import judge
from retinue.app.tables import ProviderTable, Toolset
from retinue.app.wires import WIRES, Contact, called, contact
from retinue.core.agent import Agent
from retinue.core.errors import BadInput
from retinue.core.ids import RandomIds, SessionId
from retinue.core.policy import Policy
from retinue.core.ports import Clock, Ids, Provider, Store, Tool
from retinue.engine.accounts import Accounts
from retinue.engine.driver import Driver
from retinue.engine.gate import Gates
from retinue.engine.journal import Journal
from retinue.engine.parts import Approver, Parts
from retinue.engine.supervisor import Supervisor

MEMORY = ":memory:"
"""As `home`: keep everything in memory, and forget it when the retinue is closed."""


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
    contacts: Sequence[Contact] = (),
    tools: Iterable[Tool] = (),
    dialects: Sequence[str] = ("spec",),
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
    and dialect settings are added. `home` is the folder of the store (`$RETINUE_HOME`, else
    the platform's data folder), or `:memory:`. `policy` is the ceiling of every run. `approvals` says who answers
    when a call needs a person: a callback, `"wait"` for an answer from anywhere, or `"deny"`. With `adopt` this
    process also takes over runs whose process is gone. `durability="power"` syncs what others may have heard of to
    the disk.

    >>> import asyncio
    >>> from retinue.providers.scripted import Script, ScriptedProvider, says
    >>> async def main() -> str:
    ...     mind = ScriptedProvider(Script().play("main", says("Hello.")))
    ...     async with open(provider=mind, home=MEMORY) as retinue:
    ...         return (await retinue.run("Greet me.")).text
    >>> asyncio.run(main())
    'Hello.'
    """
    check_choices(approvals=approvals, durability=durability, lease=lease, dialects=dialects)
    if config is not None:
        settings = load_settings(config)
        agents = (*settings.core_agents(), *agents)
        contacts = (*settled_contacts(settings), *contacts)
        tools = (*load_tools(settings.tool_modules), *tools)
        dialect_settings = dict(settled_dialects(settings)) | dict(dialect_settings or {})
    check_agents(agents)
    table, name = _providers(model, provider, base_url, api_key_env, providers, contacts)
    clock, ids = clock or SystemClock(), ids or RandomIds()
    toolset = Toolset(check_tools(tools))
    parts = _parts(
        store if store is not None else _open_store(home, durability),
        toolset,
        table,
        clock=clock,
        ids=ids,
        ceiling=policy if policy is not None else Policy(),
        approver=approvals,
        durable=durability == "power",
    )
    supervisor = Supervisor(parts)
    parts.journal.on_broken = supervisor.broke
    return Retinue(
        supervisor,
        Driver(supervisor, adopts=adopt, lease=lease),
        toolset,
        table,
        agents=agents,
        dialects=dialects,
        dialect_settings=dialect_settings or {},
        model=name,
        session=session or ids.new(),
    )


def open_archive(*, home: str | Path | None = None, store: Store | None = None) -> Archive:
    """The runs of a store to look at, ready to be entered with `async with`; nobody is asked and nothing driven."""
    parts = _parts(
        store if store is not None else _open_store(home, "process"),
        Toolset(()),
        ProviderTable({}),
        clock=SystemClock(),
        ids=RandomIds(),
        ceiling=Policy(),
        approver="deny",
        durable=False,
    )
    supervisor = Supervisor(parts)
    return Archive(supervisor, Driver(supervisor))


def _providers(
    model: str,
    provider: Provider | str | None,
    base_url: str | None,
    api_key_env: str | None,
    providers: Mapping[str, Provider] | None,
    contacts: Sequence[Contact],
) -> tuple[ProviderTable, str]:
    """Everyone who can be asked, the one to ask first in front, and the name of the model there."""
    objects = dict(providers or {})
    wire, colon, name = model.partition(":")
    if isinstance(provider, str) or provider is None:
        known = (*objects, *(each.name for each in contacts), *WIRES)
        wire = called(wire, known)
        chosen = called(provider, known) if provider else (wire if colon and wire in known else None)
        if provider is None and chosen is not None:
            model = name
        if chosen is not None and chosen not in objects:
            contacts = _first(chosen, base_url, api_key_env, contacts)
            return ProviderTable(objects, contacts), model
        if chosen is not None:
            objects = {chosen: objects[chosen]} | objects
    else:
        own = getattr(provider, "name", None) or (wire if colon else "custom")
        objects = {str(own): provider} | objects
        model = name if colon and wire == own else model
    table = ProviderTable(objects, contacts)
    if not table:
        raise BadInput(
            "nobody to ask: say which model (model='openai-chat:NAME'), which provider, "
            "or pass provider= an object with an `answer` method"
        )
    return table, model


def _first(
    chosen: str, base_url: str | None, api_key_env: str | None, contacts: Sequence[Contact]
) -> tuple[Contact, ...]:
    """The chosen provider in front, as the settings describe it and with what was said on top."""
    settled = next((each for each in contacts if each.name == chosen), None)
    others = tuple(each for each in contacts if each.name != chosen)
    if settled is None:
        return (contact(chosen, base_url=base_url, api_key_env=api_key_env), *others)
    moved = base_url is not None and base_url.rstrip("/") != settled.base_url
    return (
        contact(
            chosen,
            wire=settled.wire,
            base_url=base_url or settled.base_url,
            api_key_env=api_key_env if api_key_env is not None or moved else settled.api_key_env,
            temperature=settled.temperature,
            headers={} if moved else settled.headers,
            prices=settled.prices,
        ),
        *others,
    )


def _parts(
    store: Store,
    toolset: Toolset,
    providers: ProviderTable,
    *,
    clock: Clock,
    ids: Ids,
    ceiling: Policy,
    approver: Approver,
    durable: bool,
) -> Parts:
    journal = Journal(store, durable=durable)
    return Parts(
        store=store,
        journal=journal,
        accounts=Accounts(clock, journal, store),
        gates=Gates(),
        toolbox=toolset,
        providers=providers,
        clock=clock,
        ids=ids,
        ceiling=ceiling,
        judge=judge,
        approver=approver,
    )


def _open_store(home: str | Path | None, durability: Literal["process", "power"]) -> Store:
    if home == MEMORY:
        from retinue.store.memory import MemoryStore

        return MemoryStore()
    from retinue.store.sqlite import SqliteStore

    folder = Path(home) if home is not None else default_home()
    return SqliteStore(folder / "retinue.db", durability=durability)


def default_home() -> Path:
    """Where state is kept when nobody says: `$RETINUE_HOME`, else the platform's folder for such things."""
    if given := os.environ.get("RETINUE_HOME"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "retinue"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "retinue"
    return Path(os.environ.get("XDG_DATA_HOME", str(Path.home() / ".local" / "share"))) / "retinue"
