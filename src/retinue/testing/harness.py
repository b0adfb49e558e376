"""A whole retinue in memory, with a scripted model as its mind and time that the test holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

from retinue.app.engine_types import Supervisor
from retinue.app.open import SystemClock
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.agent import Agent
from retinue.core.commands import DeclareDead, RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, Event, ReplyReceived
from retinue.core.ids import RandomIds, RunId
from retinue.core.ports import Store, ToolLike
from retinue.core.run import Outcome
from retinue.dialects.registry import DEFAULT
from retinue.providers.scripted import Improvised, Line, Script, ScriptedProvider
from retinue.store.memory import MemoryStore
from retinue.testing.crashing_store import CrashingStore
from retinue.testing.virtual_time import VirtualClock, VirtualTimeLoop


class Harness:
    """Scripts, opens, kills and reopens a retinue.

    >>> import asyncio
    >>> from retinue.testing import says
    >>> async def story() -> str:
    ...     async with Harness(dialects=()) as retinue:
    ...         retinue.script("main", says("hello"))
    ...         return (await retinue.run("hi")).text
    >>> asyncio.run(story())
    'hello'

    Leaving the block complains about lines that nobody asked for.
    """

    def __init__(
        self,
        *,
        store: Store | None = None,
        tools: Iterable[ToolLike | str] = (),
        agents: Sequence[Agent] = (),
        dialects: Sequence[str] = (DEFAULT,),
        provider: ScriptedProvider | None = None,
        session: str = "session",
        **options: Any,
    ) -> None:
        self.provider = provider or ScriptedProvider(Script())
        self.store: Store = store if store is not None else MemoryStore()
        self._options: dict[str, Any] = options | {
            "tools": tuple(tools),
            "agents": agents,
            "dialects": dialects,
            "session": session,
            "provider": self.provider,
        }
        self._retinue: Retinue | None = None
        self._brittle: CrashingStore | None = None
        self._supervisor: Supervisor | None = None

    @property
    def retinue(self) -> Retinue:
        """The retinue that is open now."""
        assert self._retinue is not None, "the harness is not open"
        return self._retinue

    @property
    def written(self) -> int:
        """How many writes this life has made."""
        assert self._brittle is not None
        return self._brittle.written

    def script(self, agent: str, *lines: Line | Improvised, task: str | None = None) -> None:
        """What an agent's model will say, turn by turn."""
        self.provider.script.play(agent, *lines, task=task)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._retinue is not None:
            await self.close()
        if error is None:
            self.provider.script.verify()

    async def open(self, *, adopt: bool = False, killed_after: int | None = None) -> Retinue:
        """Begin a life: a process of its own, as far as the store can tell."""
        import asyncio

        held = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
        self._brittle = CrashingStore(self.store, limit=killed_after)
        options: dict[str, Any] = {
            "clock": VirtualClock() if held else SystemClock(),
            "ids": RandomIds(),
            "adopt": adopt,
        } | self._options
        retinue = open_retinue(store=cast(Store, self._brittle), **options)
        self._supervisor = retinue.supervisor
        self._retinue = await retinue.__aenter__()
        return self._retinue

    async def close(self) -> None:
        """End this life in good order."""
        retinue, self._retinue = self.retinue, None
        await retinue.__aexit__(None, None, None)

    async def kill(self) -> None:
        """End this life as a power switch does: nothing more is written, and the store learns that the driver
        is gone.
        """
        assert self._brittle is not None
        self._brittle.limit = self._brittle.written
        retinue, self._retinue = self._retinue, None
        if retinue is not None:
            with suppress(StoreError):
                await retinue.__aexit__(None, None, None)
        if self._supervisor is not None and self._supervisor.driver_id is not None:
            self.store.commit(None, (DeclareDead(driver_id=self._supervisor.driver_id),))

    async def restart(self) -> Retinue:
        """Kill this life and begin another that takes over what is unfinished."""
        await self.kill()
        return await self.open(adopt=True)

    async def run(self, task: str, **how: Any) -> Outcome:
        """Start a run and wait for how it ends."""
        return await self.retinue.run(task, **how)

    # Looking at what is stored

    def events(self, run_id: RunId) -> list[Event]:
        """What is stored of a run."""
        return [event for _, event in self.store.events(run_id)]

    def run_of(self, agent: str) -> RunId:
        """The one run of an agent."""
        (row,) = [row for row in self.store.runs(RunQuery()) if row.agent == agent]
        return row.run_id

    def results(self, agent: str) -> list[str]:
        """What the calls of an agent's one run came to, in the order they returned."""
        return [event.text for event in self.events(self.run_of(agent)) if isinstance(event, CallReturned)]

    def replies(self) -> set[tuple[RunId, int]]:
        """Every model reply that is stored: run and turn."""
        return {
            (row.run_id, event.turn)
            for row in self.store.runs(RunQuery())
            for event in self.events(row.run_id)
            if isinstance(event, ReplyReceived)
        }
