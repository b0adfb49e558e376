"""`Harness`: a complete retinue for tests, in memory, with a scripted model and virtual time.

Also predictable run ids, and a dialect context for tests that make a dialect without opening a retinue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Self, cast

from retinue.app.engine_types import Supervisor
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.app.structured_output import OutputFormat
from retinue.core.agent import Agent
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, Event, ReplyReceived
from retinue.core.ids import RandomIds, RunId, SystemClock
from retinue.core.ports import Store, ToolLike
from retinue.core.run import Outcome
from retinue.dialects.context import DialectContext
from retinue.dialects.registry import DEFAULT
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider
from retinue.store.memory import MemoryStore
from retinue.testing.crashing_store import CrashingStore
from retinue.testing.virtual_time import VirtualClock, VirtualTimeLoop


class Harness:
    """Opens, kills and reopens a retinue whose models follow a script; takes the options of `retinue.open`.

    >>> import asyncio
    >>> from retinue.testing import says
    >>> async def example() -> str:
    ...     async with Harness(dialects=()) as harness:
    ...         harness.script("main", says("hello"))
    ...         return (await harness.run("hi")).text
    >>> asyncio.run(example())
    'hello'

    Leaving the block raises `AssertionError` if lines of the script were not used.
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
        self._crashing_store: CrashingStore | None = None
        self._supervisor: Supervisor | None = None

    @property
    def retinue(self) -> Retinue:
        """The open retinue."""
        assert self._retinue is not None, "the harness is not open"
        return self._retinue

    @property
    def written(self) -> int:
        """Writes since the last `open`."""
        assert self._crashing_store is not None
        return self._crashing_store.written

    def script(self, agent: str, *lines: Line | LineFunction, task: str | None = None) -> None:
        """Add the replies of an agent's model, one line for each turn; `task` selects runs by a part of their task."""
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
        """Open a retinue as a new driver; with `killed_after`, writes after that many fail as in a killed process."""
        is_virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
        self._crashing_store = CrashingStore(self.store, limit=killed_after)
        options: dict[str, Any] = {
            "clock": VirtualClock() if is_virtual else SystemClock(),
            "ids": RandomIds(),
            "adopt": adopt,
        } | self._options
        retinue = open_retinue(store=cast(Store, self._crashing_store), **options)
        self._supervisor = retinue.supervisor
        self._retinue = await retinue.__aenter__()
        return self._retinue

    async def close(self) -> None:
        """Close the retinue cleanly."""
        retinue, self._retinue = self.retinue, None
        await retinue.__aexit__(None, None, None)

    async def kill(self) -> None:
        """Simulate the death of the process: nothing more is written, and its driver is declared dead.

        As after a real crash, the time since its last heartbeat does not count toward the deadlines of its runs.
        """
        assert self._crashing_store is not None
        self._crashing_store.limit = self._crashing_store.written
        retinue, self._retinue = self._retinue, None
        if retinue is not None:
            with suppress(StoreError):
                await retinue.__aexit__(None, None, None)
        if self._supervisor is not None and self._supervisor.driver_id is not None:
            self.store.commit(None, (self._supervisor.drivers.death_of(self._supervisor.driver_id),))

    async def restart(self) -> Retinue:
        """Kill the retinue and open another one, which adopts unfinished runs."""
        await self.kill()
        return await self.open(adopt=True)

    async def run(self, task: str, **options: Any) -> Outcome:
        """Start a root run and wait for its outcome; options as for `Retinue.run`."""
        output: OutputFormat | None = options.pop("output", None)
        return await self.retinue.run(task, output=output, **options)

    # Stored facts

    def events(self, run_id: RunId) -> list[Event]:
        """The stored events of a run."""
        return [event for _, event in self.store.events(run_id)]

    def run_of(self, agent: str) -> RunId:
        """The id of an agent's only run."""
        (row,) = [row for row in self.store.runs(RunQuery()) if row.agent == agent]
        return row.run_id

    def results(self, agent: str) -> list[str]:
        """The tool results of an agent's only run, in the order in which the calls returned."""
        return [event.text for event in self.events(self.run_of(agent)) if isinstance(event, CallReturned)]

    def replies(self) -> set[tuple[RunId, int]]:
        """(run id, turn) of every stored model reply."""
        return {
            (row.run_id, event.turn)
            for row in self.store.runs(RunQuery())
            for event in self.events(row.run_id)
            if isinstance(event, ReplyReceived)
        }


class CountedIds:
    """Sequential run ids.

    >>> ids = CountedIds("child")
    >>> ids.new(), ids.new()
    ('child-0001', 'child-0002')
    """

    def __init__(self, prefix: str = "run") -> None:
        self._prefix = prefix
        self._numbers = count(1)

    def new(self) -> str:
        return f"{self._prefix}-{next(self._numbers):04}"


def dialect_context(*, agents: Sequence[Agent] = (), tool_names: Sequence[str] = ()) -> DialectContext:
    """A context with an empty store in memory and no live run: enough to make a dialect and look at its tools.

    For a dialect at work, use `Harness`.

    >>> dialect_context(tool_names=["search_logs"]).tool_names
    ['search_logs']
    """
    provider = ScriptedProvider(Script())
    supervisor = open_retinue(provider=provider, store=MemoryStore(), dialects=()).supervisor
    return DialectContext(
        supervisor=supervisor,
        key_value=supervisor.key_value,
        clock=supervisor.clock,
        agents=agents,
        tool_names=tool_names,
        resolve=lambda model, caller_spec: (caller_spec.provider, model or caller_spec.model),
    )
