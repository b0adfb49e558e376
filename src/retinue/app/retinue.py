"""A retinue as a program holds it: the verbs on runs, in words of Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from msgspec.structs import replace

from retinue.app.approvals import Approvals
from retinue.app.grants import Grants, escalation, narrowed_memory
from retinue.app.handle import RunHandle
from retinue.app.launch_config import LaunchConfig
from retinue.app.provider_families import lend_providers
from retinue.app.registries import ProviderRegistry, ToolRegistry
from retinue.app.run_spec import RunSpecBuilder, limits_of
from retinue.app.sessions import Sessions
from retinue.app.structured_output import Demand, demanded
from retinue.core.agent import Agent, ToolSpec
from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput, NotAdoptable, PolicyError, UnknownName
from retinue.core.events import Event
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.messages import Delta
from retinue.core.policy import Policy
from retinue.core.run import Approval, HistoryRef, Lifecycle, Limits, Outcome
from retinue.engine import Driver, RunView, SpawnRequest, Supervisor
from retinue.tools.dependencies import ToolOptions

WAIT_MODES: dict[str, int | None] = {"all": None, "any": 1}

Which: TypeAlias = RunHandle | RunId


class Retinue:
    """An open retinue: an async context manager that drives runs for as long as it is open.

    Made by `retinue.open`. What is unfinished when it closes stays in the store and can be resumed.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", says("Four.")))
    ...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
    ...         run = await r.spawn("What is two and two?")
    ...         ended = await r.wait(run)
    ...         print(ended[run.run_id].text, [view.state for view in await r.list()])
    >>> asyncio.run(main())
    Four. ['ended']
    """

    def __init__(
        self,
        supervisor: Supervisor,
        driver: Driver,
        tools: ToolRegistry,
        providers: ProviderRegistry,
        *,
        agents: Sequence[Agent],
        dialects: Sequence[str],
        dialect_settings: Mapping[str, object],
        model: str,
        session: SessionId,
        tool_options: ToolOptions | None = None,
        home: Path | None = None,
    ) -> None:
        self.supervisor = supervisor
        self.sessions = Sessions(supervisor)
        self._approvals = Approvals(supervisor)
        self.session_id = session
        self.agents = {agent.name: agent for agent in agents}
        self._driver = driver
        self._tools = tools
        self._providers = providers
        self._grants = Grants(supervisor)
        self._run_specs = RunSpecBuilder(
            supervisor, tools, providers, agents=self.agents, model=model, dialect_settings=dialect_settings
        )
        self.launch_config: LaunchConfig | None = None
        """What a later process needs to go on with the runs started here, if it is to be kept with them."""
        lend_providers(providers, supervisor, dialect_settings=dialect_settings, tool_options=tool_options, home=home)
        self._chosen = tuple(dialects)

    # Life

    async def __aenter__(self) -> Retinue:
        try:
            self._run_specs.begin(self._chosen)
            await self.sessions.ensure(self.session_id)
            await self._driver.register()
        except BaseException:
            await self.supervisor.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._driver.leave()
        finally:
            try:
                await self._providers.close()
            finally:
                await self.supervisor.close()

    # Starting

    async def run(
        self,
        task: str,
        *,
        agent: str | None = None,
        key: Key | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        output: Demand | None = None,
    ) -> Outcome:
        """Start a run and wait for how it ends. The same key, also in a later process, is the same run: it goes on.

        With `output` the answer has to be JSON, and `Outcome.structured` is its value; see `spawn`.
        """
        handle = await self.spawn(
            task,
            agent=agent,
            key=key,
            limits=limits,
            policy=policy,
            dialects=dialects,
            tools=tools,
            model=model,
            system=system,
            output=output,
        )
        return await handle.wait()

    async def spawn(
        self,
        task: str,
        *,
        agent: str | None = None,
        key: Key | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        memory_from: Sequence[str] | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        think: bool = False,
        keep_alive: bool = False,
        inherits: HistoryRef | None = None,
        detached: bool = False,
        output: Demand | None = None,
        label: str = "",
    ) -> RunHandle:
        """Start a run in the background and return its handle; it is on disk by then.

        `policy` and `memory_from` can only narrow what the agent has; asking for more raises `PolicyError`.
        `label` is a word for people who look at lists of runs.

        A `detached` one is not begun here: it is there for another process to resume. `output` demands an answer in
        JSON: of a JSON Schema (a mapping, or the path of a file), of a type (a dataclass, a TypedDict, a msgspec
        Struct, a pydantic model, ...), or with `dict` any object.
        """
        spec = self._run_specs.agent(agent)
        chosen = self._chosen if dialects is None else tuple(dialects)
        run_spec = self._run_specs.run_spec(spec, chosen, tools=tools, model=model, system=system, think=think)
        if output is not None:
            run_spec = replace(run_spec, output=demanded(output))
        if memory_from is not None:
            run_spec = replace(run_spec, memory_from=narrowed_memory(memory_from, run_spec))
        if self.launch_config is not None:
            run_spec = replace(run_spec, launch_config=self.launch_config.text())
        spawn_request = SpawnRequest(
            agent=spec.name,
            run_spec=run_spec,
            task=task,
            limits=limits_of(spec, limits, delegates=bool(chosen)),
            policy=policy,
            windows=self._grants.windows(spec.name, policy),
            lifecycle=Lifecycle(keep_alive=keep_alive),
            inherits=inherits,
            label=label,
            dialect=chosen[0] if chosen else "",
        )
        try:
            if detached:
                return self.handle((await self.supervisor.accept(spawn_request, session_id=self.session_id)).run_id)
            started = await self.supervisor.spawn(spawn_request, session_id=self.session_id, key=key)
        except PolicyError as refused:
            raise escalation(refused) from refused
        if started.existed:
            return await self.resume(started.run_id)
        return RunHandle(self.supervisor, started.run_id)

    def offers(
        self, *, agent: str | None = None, dialects: Sequence[str] | None = None, tools: Sequence[str] | None = None
    ) -> tuple[ToolSpec, ...]:
        """What the model of a run would be shown that is started like this."""
        chosen = self._chosen if dialects is None else tuple(dialects)
        run_spec = self._run_specs.run_spec(self._run_specs.agent(agent), chosen, tools=tools)
        found = (self._tools.find(name, chosen) for name in self.supervisor.visible_tools(run_spec))
        return tuple(tool.spec for tool in found if tool is not None)

    async def fork(
        self,
        run: Which,
        task: str,
        *,
        policy: Policy | None = None,
        last_turns: int | None = None,
        keep_alive: bool = False,
    ) -> RunHandle:
        """A new run that begins with another's history as it stands, and with `task` as the next words.

        It has the other's rights and draws on the same windows; `policy` can only narrow that.
        """
        origin = await self.supervisor.replay(_id(run))
        grants = await self._grants.of_fork(origin, policy)
        spawn_request = SpawnRequest(
            agent=origin.accepted.agent,
            run_spec=origin.run_spec,
            task=task,
            limits=origin.accepted.limits,
            policy=grants,
            lifecycle=Lifecycle(keep_alive=keep_alive),
            inherits=HistoryRef(origin.run_id, origin.seq, last_turns),
            dialect=origin.accepted.dialect,
            windows=await self._grants.windows_of_fork(origin, grants, own=policy),
        )
        started = await self.supervisor.spawn(spawn_request, session_id=self.session_id)
        return RunHandle(self.supervisor, started.run_id)

    async def resume(self, run: Which) -> RunHandle:
        """Go on with a run that nobody drives; one that is at work here, or over, is simply returned."""
        run_id = _id(run)
        view = await self.supervisor.look(run_id)
        if view is None:
            raise UnknownName("run", run_id)
        if view.state == "interrupted":
            await self._driver.adopt(view.root_id)
        elif view.state != "ended" and self.supervisor.live(run_id) is None:
            raise NotAdoptable(run_id, "another process is driving it")
        return RunHandle(self.supervisor, run_id)

    # Verbs on runs

    def handle(self, run_id: RunId) -> RunHandle:
        """A handle on a run by its name."""
        return RunHandle(self.supervisor, run_id)

    async def wait(
        self, *runs: Which, mode: Literal["all", "any"] | int = "all", timeout: float | None = None
    ) -> dict[RunId, Outcome]:
        """How runs ended, in the order of their ends: all of them, any one, or the first n; fewer after `timeout`."""
        if (isinstance(mode, str) and mode not in WAIT_MODES) or (not isinstance(mode, str) and mode < 1):
            raise BadInput(f"mode {mode!r} is none of 'all', 'any' and a number from 1")
        count = WAIT_MODES[mode] if isinstance(mode, str) else mode
        return await self.supervisor.wait([_id(run) for run in runs], count=count, timeout=timeout, durable=True)

    async def send(self, run: Which, text: str, *, key: Key | None = None) -> None:
        """Say something to a run; see `RunHandle.send`."""
        await self.handle(_id(run)).send(text, key=key)

    async def cancel(self, run: Which, note: str = "") -> tuple[RunId, ...]:
        """Stop a run and everything below it; the runs that this concerned."""
        return await self.supervisor.cancel(_id(run), note=note)

    async def list(
        self, *, everyone: bool = False, session: SessionId | None = None, limit: int | None = None
    ) -> list[RunView]:
        """Root runs, newest first, or with `everyone` their descendants too; looking starts nothing."""
        return await self.supervisor.list(RunQuery(session_id=session, roots_only=not everyone, limit=limit))

    async def tree(self, run: Which) -> list[RunView]:
        """A root run and all its descendants, newest first."""
        return await self.supervisor.list(RunQuery(root_id=_id(run)))

    def events(self, run: Which) -> AsyncIterator[Event | Delta]:
        """What happens in a run, from its beginning until its end."""
        return self.supervisor.events(_id(run))

    # Approvals

    async def approvals(self) -> list[Approval]:
        """Calls, in any unfinished run of the store, that wait for a person."""
        return await self._approvals.open()

    async def approve(self, question: Approval | str, *, allow: bool = True, note: str = "") -> None:
        """Answer a question by itself or its id; works from any process, for runs that nobody drives too."""
        await self._approvals.answer(question, allow=allow, note=note)

    async def deny(self, question: Approval | str, *, note: str = "") -> None:
        """Answer a question with no."""
        await self._approvals.answer(question, allow=False, note=note)


def _id(run: Which) -> RunId:
    return run if isinstance(run, str) else run.run_id
