"""Limits on the number of sub-agents of a tree hold exactly, also if several workers start some in one moment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.messages import ToolCall
from retinue.dispatch.worker import WorkerOptions
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, says, together
from tests.dispatch.worker.stage import LONG, PATIENCE, at, until, worker

pytestmark = [pytest.mark.real_time, LONG]

STARTED_BY_EACH = 4
"""Sub-agents that each of two runs on different workers starts at once."""

LIMIT = 5
"""Two of them are the runs that start the others."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def native(task: str, agent: str | None) -> Line:
    return calls("run_agent", task=task, **({} if agent is None else {"agent": agent}))


def claude(task: str, agent: str | None) -> Line:
    return calls("Agent", prompt=task, description=task, **({} if agent is None else {"subagent_type": agent}))


def codex(task: str, agent: str | None) -> Line:
    name = task.replace(" ", "_").replace("-", "_")
    return calls("spawn_agent", task_name=name, message=task, **({} if agent is None else {"agent_type": agent}))


def xzatoma(task: str, agent: str | None) -> Line:
    return calls("subagent", label=task, task_prompt=task)


DIALECTS: dict[str, tuple[Any, object, str]] = {
    "native": (
        native,
        retinue.NativeSettings(max_depth=2, max_running=LIMIT),
        "5 agents are running, which is the limit: wait for one with wait_agents first.",
    ),
    "claude": (
        claude,
        retinue.ClaudeSettings(max_depth=2, max_running=LIMIT),
        "5 agents are running, which is the limit: wait for the message about the end of one.",
    ),
    "codex": (
        codex,
        retinue.CodexSettings(max_depth=2, max_threads=LIMIT + 1),
        "5 agents are running, which is the limit: wait_agent until one ends, or interrupt_agent.",
    ),
    "xzatoma": (
        xzatoma,
        retinue.XzatomaSettings(max_depth=3, max_executions=LIMIT),
        "Resource quota exceeded: Execution limit reached: 5/5",
    ),
}


class Refusals(retinue.Hooks):
    """Collects the answers of refused calls of all workers."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def after_tool(self, call: ToolCall, context: retinue.CallContext, result: retinue.ToolResult) -> None:
        """Note a refusal."""
        if result.failed:
            self.texts.append(result.text)


class Stage:
    """A lead with two scouts on two workers, each of which starts diggers when the other one is ready to, too."""

    def __init__(self, dialect: str, *, by_tags: bool) -> None:
        self.spawn, settings, self.refusal = DIALECTS[dialect]
        self.refusals = Refusals()
        self.at_work = 0
        self._ready = 0
        self._both_are_ready, self.release = asyncio.Event(), asyncio.Event()
        self.options: dict[str, Any] = {
            "agents": self._agents(by_tags=by_tags),
            "tools": self._tools(),
            "dialects": (dialect,),
            "dialect_settings": {dialect: settings},
        }

    def _agents(self, *, by_tags: bool) -> tuple[retinue.Agent, ...]:
        names = ("ready", "look")
        if not by_tags:
            placed: dict[str, Any] = {"description": "Works.", "tools": names, "placement": "anywhere"}
            return tuple(retinue.Agent(name=name, **placed) for name in ("lead", "scout-a", "scout-b"))
        lead = retinue.Agent(name="lead", description="Leads.", tools=names)
        tagged = (("scout-a", "a"), ("scout-b", "b"))
        return (lead, *(retinue.Agent(name=name, description="S.", tools=names, tags=(tag,)) for name, tag in tagged))

    def _tools(self) -> tuple[retinue.Tool, ...]:
        @retinue.tool(kind="pure", timeout=None)
        async def ready() -> str:
            """Wait for the other scout."""
            self._ready += 1
            if self._ready == 2:
                self._both_are_ready.set()
            await self._both_are_ready.wait()
            return "go"

        @retinue.tool(kind="pure", timeout=None)
        async def look() -> str:
            """Look."""
            self.at_work += 1
            await self.release.wait()
            return "seen"

        return (ready, look)

    def script(self) -> Script:
        """Lines for the names that the dialects give their sub-agents; the tasks tell them apart."""
        script, rest = Script(), [says("done")] * 20
        scouts = [self.spawn(f"scout {name}", f"scout-{name}") for name in "ab"]
        for agent in ("lead", "scout-a", "scout-b", "general", "general-purpose", "default"):
            script.play(agent, together(*scouts), *rest, task="lead them")
            for name in "ab":
                diggers = [self.spawn(f"dig {name} {number}", None) for number in range(STARTED_BY_EACH)]
                script.play(agent, calls("ready"), together(*diggers), *rest, task=f"scout {name}")
            script.play(agent, calls("look"), *rest, task="dig ")
        return script


@pytest.mark.parametrize(
    ("dialect", "by_tags"),
    [("native", True), ("native", False), ("claude", True), ("codex", True), ("xzatoma", False)],
)
async def test_two_workers_that_start_sub_agents_of_a_tree_at_once_keep_to_its_limit(
    place: str, dialect: str, by_tags: bool
) -> None:
    stage = Stage(dialect, by_tags=by_tags)
    async with AsyncExitStack() as stack:
        r = retinue.open(provider=ScriptedProvider(Script()), **at(place), **stage.options)
        await stack.enter_async_context(r)
        tags = [("a",), ("b",), ()] if by_tags else [()] * 6
        found = [
            await stack.enter_async_context(
                worker(
                    place,
                    stage.script(),
                    options=WorkerOptions(tags=frozenset(each), max_runs=256 if by_tags else 1),
                    hooks=(stage.refusals,),
                    **stage.options,
                )
            )
            for each in tags
        ]
        await until(lambda: all(each.reports for each in found))
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: stage.at_work + len(stage.refusals.texts) == 2 * STARTED_BY_EACH)
        at_work, refusals = stage.at_work, [stage.refusal in text for text in stage.refusals.texts]
        stage.release.set()
        assert (await run.wait(timeout=PATIENCE)).result == "completed"

    assert (at_work, refusals) == (LIMIT - 2, [True] * (2 * STARTED_BY_EACH - (LIMIT - 2))), stage.refusals.texts
