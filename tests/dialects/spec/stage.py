"""A stage for stories in the `spec` dialect: models play their lines, and what they heard and read is kept."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import retinue
from retinue.core.messages import Message, Reply, ToolMessage
from retinue.core.ports import CallContext, Publish, Request, Store, Tool
from retinue.core.run import Outcome
from retinue.dialects.spec.settings import DEFAULTS, SpecSettings
from retinue.providers.scripted import Line, Script, ScriptedProvider, ScriptedReply, calls
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import CountedIds
from retinue.testing.virtual_time import VirtualClock
from tests.internals import live_run, tool_of

ROOT = "main"
Answer = dict[str, object]


def subagent(action: str, **fields: object) -> ScriptedReply:
    """The orchestrator uses the `subagent` tool."""
    return calls("subagent", action=action, **fields)


def context(action: str, **fields: object) -> ScriptedReply:
    """Somebody uses the `shared_context` tool."""
    return calls("shared_context", action=action, **fields)


def other_work(seconds: float) -> ScriptedReply:
    """The orchestrator does something else for a while."""
    return calls("work", seconds=seconds)


@retinue.tool(kind="pure")
async def work(seconds: float) -> str:
    """Work on something else."""
    await asyncio.sleep(seconds)
    return "worked"


@dataclass(frozen=True)
class Heard:
    """One question as a model heard it."""

    agent: str
    turn: int
    provider: str
    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]


class Actor:
    """A provider that plays the script and remembers what it was asked."""

    def __init__(self, name: str, script: Script, heard: list[Heard]) -> None:
        self.name = name
        self._scripted = ScriptedProvider(script)
        self._heard = heard

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The next line, a second later; subagents are a little quicker, so that no two things happen at once."""
        self._heard.append(
            Heard(
                agent=request.agent,
                turn=request.turn,
                provider=self.name,
                model=request.model,
                system=request.system,
                messages=tuple(request.messages),
                tools=tuple(tool.name for tool in request.tools),
            )
        )
        await asyncio.sleep(1.001 if "/" not in request.path else 1.0)
        return await self._scripted.answer(request, publish)


@dataclass(frozen=True)
class Played:
    """How a story ended, and what the orchestrator read from the dialect's tools, in order."""

    run_id: str
    outcome: Outcome
    answers: list[Answer]


class Stage:
    """Everything a story needs; `store` and `session` may outlive a stage."""

    def __init__(
        self,
        *,
        agents: Sequence[retinue.Agent] = (),
        tools: Iterable[Tool] = (),
        policy: retinue.Policy | None = None,
        store: Store | None = None,
        session: str = "s1",
        settings: SpecSettings = DEFAULTS,
    ) -> None:
        self.script = Script()
        self.heard: list[Heard] = []
        self.store = MemoryStore() if store is None else store
        self.session = session
        self._agents = agents
        self._tools = (work, *tools)
        self._policy = policy
        self._settings = settings

    @asynccontextmanager
    async def open(self, ids: str = "run") -> AsyncGenerator[retinue.Retinue, None]:
        """A retinue on this stage; the root's model is `lead-model` on the provider `alpha`."""
        alpha, beta = Actor("alpha", self.script, self.heard), Actor("beta", self.script, self.heard)
        async with retinue.open(
            providers={"alpha": alpha, "beta": beta},
            model="alpha:lead-model",
            agents=self._agents,
            tools=self._tools,
            dialects=["spec"],
            dialect_settings={"spec": self._settings},
            policy=self._policy,
            store=self.store,
            session=self.session,
            clock=VirtualClock(),
            ids=CountedIds(ids),
        ) as opened:
            yield opened

    async def play(self, *lines: Line) -> Played:
        """Let the orchestrator play these lines to their end."""
        self.script.play(ROOT, *lines)
        async with self.open() as opened:
            handle = await opened.spawn("Go.")
            played = Played(handle.run_id, await handle.wait(), await answers(opened, handle.run_id))
            self.script.verify()
            return played

    def of(self, agent: str) -> list[Heard]:
        """What the models of an agent heard."""
        return [heard for heard in self.heard if heard.agent == agent]


async def answers(opened: retinue.Retinue, run_id: str) -> list[Answer]:
    """What a run read from `subagent` and `shared_context`, in order."""
    run = await opened.supervisor.replay(run_id)
    return [json.loads(text) for name, text in _results(run.history) if name in ("subagent", "shared_context")]


async def read_by(opened: retinue.Retinue, agent: str) -> list[str]:
    """What the runs of an agent read from all their tools, in order."""
    views = [view for view in await opened.list(everyone=True) if view.agent == agent]
    runs = [await opened.supervisor.replay(view.run_id) for view in reversed(views)]
    return [text for run in runs for _, text in _results(run.history)]


def _results(history: Iterable[Message]) -> list[tuple[str, str]]:
    return [(message.name, message.text) for message in history if isinstance(message, ToolMessage)]


async def read_after(opened: retinue.Retinue, who: CallContext, tool_name: str, **arguments: object) -> Answer:
    """What a model reads after this call."""
    return json.loads((await tool_of(opened, tool_name, "spec").call(json.dumps(arguments), who)).text)


Caller = Callable[..., CallContext]


@asynccontextmanager
async def waiting_orchestrator(stage: Stage) -> AsyncGenerator[tuple[retinue.Retinue, Caller], None]:
    """A root that works on something else meanwhile, so that a test can make its calls one by one."""
    stage.script.play(ROOT, other_work(100_000))
    async with stage.open() as opened:
        handle = await opened.spawn("Go.")
        await asyncio.sleep(2)
        run = live_run(opened, handle.run_id)
        accepted = run.accepted

        def caller(index: int, *, again: bool = False) -> CallContext:
            return CallContext(
                run_id=accepted.run_id,
                session_id=accepted.session_id,
                root_id=accepted.root_id,
                key=f"{accepted.run_id}/1/{index}",
                turn=1,
                index=index,
                depth=0,
                agent=accepted.agent,
                path=accepted.path,
                handle=None,
                policy=accepted.policy,
                offered=run.run_spec.offered,
                again=again,
            )

        yield opened, caller
