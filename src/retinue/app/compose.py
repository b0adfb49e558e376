"""Builds a retinue out of its parts: the only file that knows everyone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from retinue.app.retinue import Retinue
from retinue.app.tables import ProviderTable, Toolset
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
    provider: Provider | None = None,
    providers: Mapping[str, Provider] | None = None,
    tools: Iterable[Tool] = (),
    dialects: Sequence[str] = ("spec",),
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

    `provider` is any object with the provider's one method; `providers` are more of them by name, for models written as
    `name:model`. `home` is the folder of the store (`$RETINUE_HOME`, else the platform's data folder), or `:memory:`.
    `policy` is the ceiling of every run. `approvals` says who answers when a call needs a person: a callback,
    `"wait"` for an answer from anywhere, or `"deny"`. With `adopt` this process also takes over runs whose process
    is gone. `durability="power"` syncs what others may have heard of to the disk.
    """
    table = ProviderTable(_named(provider, providers, model))
    if not table.known:
        raise BadInput("a retinue needs a model: pass provider= an object with an `answer` method, or providers=")
    default = next(iter(table.known))
    first, name = table.split(model, default)
    parts = _parts(
        store if store is not None else _open_store(home, durability),
        Toolset(tools),
        table,
        clock=clock or SystemClock(),
        ids=ids or RandomIds(),
        ceiling=policy if policy is not None else Policy(),
        approver=approvals,
        durable=durability == "power",
    )
    supervisor = Supervisor(parts)
    parts.journal.on_broken = supervisor.broke
    assert isinstance(parts.toolbox, Toolset)
    return Retinue(
        supervisor,
        Driver(supervisor, adopts=adopt, lease=lease),
        parts.toolbox,
        table,
        agents=agents,
        dialects=dialects,
        provider=first,
        model=name,
        session=session or parts.ids.new(),
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
        approver=approver,
    )


def _named(provider: Provider | None, providers: Mapping[str, Provider] | None, model: str) -> dict[str, Provider]:
    """Providers by name; a single object goes by its own name, else by the wire that the model names."""
    named = dict(providers or {})
    if provider is not None:
        wire, colon, _ = model.partition(":")
        name = getattr(provider, "name", None) or (wire if colon else "custom")
        named = {str(name): provider} | named
    return named


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
