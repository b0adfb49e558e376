"""A harness for the `spec` dialect: scripted models, recorded requests and the results of tool calls."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import retinue
from retinue.core.messages import Message, ToolMessage
from retinue.core.ports import CallContext, Request, Store, Tool
from retinue.core.run import Outcome
from retinue.dialects.spec.settings import DEFAULTS, SpecSettings
from retinue.providers.scripted import Line, Script, ScriptedReply, calls
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import CountedIds
from retinue.testing.virtual_time import VirtualClock
from tests.dialects.recording import RecordedRequest, RecordingProvider
from tests.internals import live_run, tool_of

ROOT = "main"
Answer = dict[str, object]


def subagent(action: str, **fields: object) -> ScriptedReply:
    """A call of `subagent`."""
    return calls("subagent", action=action, **fields)


def context(action: str, **fields: object) -> ScriptedReply:
    """A call of `shared_context`."""
    return calls("shared_context", action=action, **fields)


def other_work(seconds: float) -> ScriptedReply:
    """A call of `work`, which takes so many seconds."""
    return calls("work", seconds=seconds)


@retinue.tool(kind="pure", polls=True)
async def work(seconds: float) -> str:
    """Work on something else."""
    await asyncio.sleep(seconds)
    return "worked"


class DelayedProvider(RecordingProvider):
    """Answers after a second; subagents are a little quicker, so that no two replies come at the same time."""

    def delay(self, request: Request) -> float:
        return 1.001 if "/" not in request.path else 1.0


@dataclass(frozen=True)
class PlayedRun:
    """The outcome of a root run, and the results of the dialect's tools that it read, in order."""

    run_id: str
    outcome: Outcome
    answers: list[Answer]


class SpecHarness:
    """A retinue with scripted models; `store` and `session` may outlive it."""

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
        self.requests: list[RecordedRequest] = []
        self.store = MemoryStore() if store is None else store
        self.session = session
        self._agents = agents
        self._tools = (work, *tools)
        self._policy = policy
        self._settings = settings

    @asynccontextmanager
    async def open(self, ids: str = "run") -> AsyncGenerator[retinue.Retinue, None]:
        """An opened retinue; the root's model is `lead-model` on the provider `alpha`."""
        alpha, beta = (DelayedProvider(self.script, name=name, requests=self.requests) for name in ("alpha", "beta"))
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

    async def play(self, *lines: Line) -> PlayedRun:
        """Run the orchestrator with these lines."""
        self.script.play(ROOT, *lines)
        async with self.open() as opened:
            handle = await opened.spawn("Go.")
            played = PlayedRun(handle.run_id, await handle.wait(), await answers(opened, handle.run_id))
            self.script.verify()
            return played

    def requests_of(self, agent: str) -> list[RecordedRequest]:
        """The requests of an agent's runs."""
        return [request for request in self.requests if request.agent == agent]


async def answers(opened: retinue.Retinue, run_id: str) -> list[Answer]:
    """The results of `subagent` and `shared_context` in a run, in order."""
    run = await opened.supervisor.replay(run_id)
    return [json.loads(text) for name, text in _results(run.history) if name in ("subagent", "shared_context")]


async def read_by(opened: retinue.Retinue, agent: str) -> list[str]:
    """The results of all tools in the runs of an agent, in order."""
    views = [view for view in await opened.list(everyone=True) if view.agent == agent]
    runs = [await opened.supervisor.replay(view.run_id) for view in reversed(views)]
    return [text for run in runs for _, text in _results(run.history)]


def _results(history: Iterable[Message]) -> list[tuple[str, str]]:
    return [(message.name, message.text) for message in history if isinstance(message, ToolMessage)]


async def read_after(opened: retinue.Retinue, caller: CallContext, tool_name: str, **arguments: object) -> Answer:
    """The result of this call."""
    return json.loads((await tool_of(opened, tool_name, "spec").call(json.dumps(arguments), caller)).text)


Caller = Callable[..., CallContext]


@asynccontextmanager
async def waiting_orchestrator(harness: SpecHarness) -> AsyncGenerator[tuple[retinue.Retinue, Caller], None]:
    """A live root that is busy, so that a test can make its calls one by one."""
    harness.script.play(ROOT, other_work(100_000))
    async with harness.open() as opened:
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
