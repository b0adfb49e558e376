"""A retinue as a program holds it: the verbs on runs, in words of Python."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, TypeAlias

from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.app.sessions import Sessions
from retinue.app.setup import Setup
from retinue.app.structured import Demand, demanded
from retinue.app.tables import ProviderTable, Toolset, make_dialect
from retinue.core.agent import Agent, Brief
from retinue.core.errors import BadInput, NotAdoptable, StoreError, UnknownName
from retinue.core.events import Event
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.messages import Delta
from retinue.core.policy import Policy, intersect
from retinue.core.records import RunQuery
from retinue.core.run import Approval, HistoryRef, Limits, Manner, Outcome
from retinue.dialects.base import Dialect
from retinue.dialects.desk import Desk
from retinue.engine.admission import Spawn
from retinue.engine.approval import answer_to, open_questions
from retinue.engine.driver import Driver
from retinue.engine.shelf import StoreShelf
from retinue.engine.supervisor import Supervisor
from retinue.engine.view import RunView

log = logging.getLogger("retinue.app")

MAX_TURNS = 50
"""Turns of a run that a program starts, when nobody says."""

WAIT_MODES: dict[str, int | None] = {"all": None, "any": 1}

Which: TypeAlias = RunHandle | RunId


class Retinue:
    """An open retinue: an async context manager that drives runs for as long as it is open.

    Made by `retinue.open`. What is unfinished when it closes stays in the store and can be resumed.

    >>> import asyncio, retinue
    >>> from retinue.providers.scripted import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     mind = ScriptedProvider(Script().play("main", says("Four.")))
    ...     async with retinue.open(provider=mind, home=retinue.MEMORY) as r:
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
        tools: Toolset,
        providers: ProviderTable,
        *,
        agents: Sequence[Agent],
        dialects: Sequence[str],
        dialect_settings: Mapping[str, object],
        model: str,
        session: SessionId,
    ) -> None:
        self.supervisor = supervisor
        self.sessions = Sessions(supervisor)
        self.session_id = session
        self.agents = {agent.name: agent for agent in agents}
        self._driver = driver
        self._tools = tools
        self._providers = providers
        self._model = model
        self._settings = dialect_settings
        self.setup: Setup | None = None
        """What a later process needs to go on with the runs started here, if it is to be kept with them."""
        self._chosen = tuple(dialects)
        self._dialects: dict[str, Dialect] = {}

    # Life

    async def __aenter__(self) -> Retinue:
        desk = Desk(
            supervisor=self.supervisor,
            shelf=StoreShelf(self.supervisor.parts),
            clock=self.supervisor.parts.clock,
            agents=tuple(self.agents.values()),
            registry=tuple(self._tools.own),
            temperature=self._providers.temperature,
            resolve=lambda model, asker: (
                self._providers.split(model, asker.provider) if model else (asker.provider, asker.model)
            ),
        )
        try:
            for name in self._chosen:
                dialect = make_dialect(name, desk, self._settings.get(name))
                self._dialects[name] = dialect
                self._tools.add(dialect)
            await self.sessions.ensure(self.session_id)
            await self._driver.enlist()
        except BaseException:
            await self.supervisor.parts.journal.close()
            self.supervisor.parts.store.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._driver.leave()
        finally:
            await self._providers.close()
            self.supervisor.parts.store.close()

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
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        think: bool = False,
        stays: bool = False,
        inherits: HistoryRef | None = None,
        detached: bool = False,
        output: Demand | None = None,
    ) -> RunHandle:
        """Start a run in the background and return its handle; it is on disk by then.

        A `detached` one is not begun here: it is there for another process to resume. `output` demands an answer in
        JSON: of a JSON Schema (a mapping, or the path of a file), of a type (a dataclass, a TypedDict, a msgspec
        Struct, a pydantic model, ...), or with `dict` any object.
        """
        spec = self._agent(agent)
        chosen = self._chosen if dialects is None else tuple(dialects)
        brief = self._brief(spec, chosen, tools=tools, model=model, system=system, think=think)
        if output is not None:
            brief = replace(brief, output=demanded(output))
        wish = Spawn(
            agent=spec.name,
            brief=brief,
            task=task,
            limits=self._limits(limits, spec, chosen),
            policy=policy,
            manner=Manner(stays=stays),
            inherits=inherits,
            dialect=chosen[0] if chosen else "",
        )
        if detached:
            return self.handle((await self.supervisor.accept(wish, session_id=self.session_id)).run_id)
        started = await self.supervisor.spawn(wish, session_id=self.session_id, key=key)
        if started.existed:
            return await self.resume(started.run_id)
        return RunHandle(self.supervisor, started.run_id)

    async def fork(self, run: Which, task: str, *, last_turns: int | None = None, stays: bool = False) -> RunHandle:
        """A new run that begins with another's history as it stands, and with `task` as the next words."""
        origin = await self.supervisor.recall(_id(run))
        chosen = origin.brief
        wish = Spawn(
            agent=origin.accepted.agent,
            brief=chosen,
            task=task,
            limits=origin.accepted.limits,
            policy=intersect(origin.accepted.policy, self.supervisor.parts.ceiling),
            manner=Manner(stays=stays),
            inherits=HistoryRef(origin.run_id, origin.seq, last_turns),
            dialect=origin.accepted.dialect,
        )
        started = await self.supervisor.spawn(wish, session_id=self.session_id)
        return RunHandle(self.supervisor, started.run_id)

    async def resume(self, run: Which) -> RunHandle:
        """Go on with a run that nobody drives; one that is at work here, or over, is simply returned."""
        run_id = _id(run)
        view = await self.supervisor.look(run_id)
        if view is None:
            raise UnknownName("run", run_id)
        if view.state == "interrupted":
            await self._driver.adopt(view.root_id)
        elif view.state != "ended" and run_id not in self.supervisor.roster.live:
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
        return await self.supervisor.wait([_id(run) for run in runs], count=count, timeout=timeout, outside=True)

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
        parts = self.supervisor.parts
        rows = await parts.journal.read(parts.store.runs, RunQuery(unfinished_only=True))
        questions: list[Approval] = []
        for row in rows:
            if row.progress.phase == "parked":
                try:
                    questions += await self._questions(row.run_id)
                except StoreError as unreadable:
                    log.warning("the questions of run %s cannot be read: %s", row.run_id, unreadable)
        return questions

    async def _questions(self, run_id: RunId) -> list[Approval]:
        driven = self.supervisor.roster.live.get(run_id)
        return open_questions(driven.run if driven is not None else await self.supervisor.recall(run_id))

    async def approve(self, question: Approval | str, *, allow: bool = True, note: str = "") -> None:
        """Answer a question by itself or its id; works from any process, for runs that nobody drives too."""
        if isinstance(question, str):
            asking = question.partition("/")[0]
            known = {each.id: each for each in await self._questions(asking)} if asking != question else {}
            if question not in known:
                raise UnknownName("approval", question, tuple(known))
            question = known[question]
        await self.supervisor.post(question.run_id, answer_to(question, allow=allow, note=note), outside=True)

    async def deny(self, question: Approval | str, *, note: str = "") -> None:
        """Answer a question with no."""
        await self.approve(question, allow=False, note=note)

    # Building a root

    def _agent(self, name: str | None) -> Agent:
        if name is None:
            return Agent(name="main", tools=tuple(self._tools.own))
        if name not in self.agents:
            raise UnknownName("agent", name, tuple(self.agents))
        return self.agents[name]

    def _brief(
        self,
        agent: Agent,
        chosen: tuple[str, ...],
        *,
        tools: Sequence[str] | None,
        model: str | None,
        system: str,
        think: bool,
    ) -> Brief:
        own = agent.tools if tools is None else tuple(tools)
        unknown = [name for name in own if name not in self._tools.own and not self._is_dialect_tool(name, chosen)]
        if unknown:
            raise UnknownName("tool", unknown[0], tuple(self._tools.own))
        dialects = [self._dialect(name) for name in chosen]
        delegation = tuple(name for dialect in dialects for name in dialect.offered(depth=0))
        offered = tuple(dict.fromkeys((*own, *delegation)))
        agents = tuple(self.agents.values())
        texts = [agent.system_prompt, system, *(dialect.system_text(agents, offered) for dialect in dialects)]
        chosen_model = model or agent.model
        first = self._providers.first
        provider, name = self._providers.split(chosen_model, first) if chosen_model else (first, self._model)
        return Brief(
            agent=agent.name,
            system="\n\n".join(text for text in texts if text),
            offered=offered,
            dialects=chosen,
            provider=provider,
            model=name,
            fallback=tuple(self._providers.split(other, provider) for other in agent.fallback),
            temperature=self._providers.temperature(provider),
            think=think,
            setup=self.setup.text() if self.setup is not None else "",
        )

    def _dialect(self, name: str) -> Dialect:
        if name not in self._dialects:
            raise UnknownName("dialect of this retinue", name, tuple(self._dialects))
        return self._dialects[name]

    def _is_dialect_tool(self, name: str, chosen: tuple[str, ...]) -> bool:
        return self._tools.find(name, chosen) is not None

    def _limits(self, limits: Limits | None, agent: Agent, chosen: tuple[str, ...]) -> Limits:
        if limits is None:
            # The dialects' limits are exact; without one, the last turn is set aside for an answer.
            limits = replace(agent.limits, max_turns=agent.max_turns or MAX_TURNS, wrap_up=not chosen)
        elif limits.max_turns is None and agent.max_turns is not None:
            limits = replace(limits, max_turns=agent.max_turns)
        return limits


def _id(run: Which) -> RunId:
    return run if isinstance(run, str) else run.run_id
