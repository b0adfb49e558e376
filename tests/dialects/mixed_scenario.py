"""Trees of five levels that mix four dialects, with limits that are reached and calls that are refused.

`xzatoma` and `spec` have a tool of the same name, so one tree has the first of them and another tree the second. Both
have `meerkat`, `zeroclaw`, and `buzzllm` with a child process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import retinue
from retinue.app.engine_types import Supervisor
from retinue.core.agent import Agent
from retinue.core.budget import Caps
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned, HistoryCompacted, ReplyReceived, RunAccepted, WrapUpAsked
from retinue.core.messages import Reply
from retinue.core.policy import Policy
from retinue.core.ports import Publish, Request, Store, Tool
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.dialects.child_process import USAGE_FD, Tally
from retinue.dialects.meerkat.settings import ConcurrencyLimits, MeerkatSettings
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers.catalog import provider_config
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider, calls, says, together
from retinue.testing.harness import Harness

TASK = "Why is it slow?"
KEY = "mixed"
MODEL = "fake-1"
PROCESS_TEXT = "asked outside"
PROCESS_USAGE = Usage(input=100, output=10)
NOTICE = re.compile(r"\[sub-agent sub-agent-[0-9a-f]{12} (\w+)\] Task: (.*)\n(.*)")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=sub-agent-)[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

LEAD = Agent(
    name="lead",
    description="Leads.",
    system_prompt="You lead.",
    tools=("look", "deploy"),
    policy=Policy(max_actions_per_hour=8, excluded_tools=("deploy",)),
)
REVIEWER = Agent(
    name="reviewer",
    description="Reviews.",
    system_prompt="You review.",
    tools=("look", "act", "deploy"),
    policy=Policy(max_actions_per_hour=4, excluded_tools=("deploy",)),
)
WORKER = Agent(name="worker", description="Works.", system_prompt="You work.", tools=("look", "shared_context"))
LIMITS = Limits(max_tokens=60_000, max_cost=0.9, max_turns=12)


@retinue.tool(kind="pure")
def look(where: str = "") -> str:
    """Look somewhere."""
    return f"seen {where}"


@retinue.tool(kind="idempotent", acts=True)
def act(what: str = "") -> str:
    """Do something that counts as an action."""
    return f"did {what}"


@retinue.tool
def deploy(version: int = 1) -> str:
    """Deploy; no policy here allows it."""
    return f"deployed {version}"


def stand_in() -> tuple[str, ...]:
    """A program in place of `retinue call`: it reads its request, reports its usage, and answers at once."""
    tally = Tally(usage=PROCESS_USAGE, cost=1_000, turns=1).line().decode().strip()
    events = "".join(
        f'event: {kind}\\ndata: {{"id":"","delta":"{delta}","type":"{kind}"}}\\n\\n'
        for kind, delta in (("output_text", PROCESS_TEXT), ("block_end", ""), ("response_end", ""))
    )
    return ("sh", "-c", f"cat >/dev/null; echo '{tally}' >/dev/fd/${USAGE_FD}; printf '{events}'")


Lines: TypeAlias = Mapping[tuple[str, str], tuple[Line | LineFunction, ...]]
"""Lines by agent and task."""


@dataclass(frozen=True)
class Tree:
    """A tree: its dialects, their settings, and the lines of its runs by agent and task."""

    dialects: tuple[str, ...]
    settings: Mapping[str, object]
    lines: Lines
    answer: str
    shape: Mapping[str, str]
    """The dialect of every run below the root, by its task."""
    waits: Mapping[str, int]
    """The turns in which a parent waits for sub-agents in the background, by their tasks."""


def notices(request: Request) -> str:
    """How the sub-agents of a run have ended, as the run has read it."""
    found = [match for message in request.messages for match in NOTICE.findall(message.text)]
    return "; ".join(f"{task}: {text if how == 'completed' else how}" for how, task, text in found)


def results(request: Request) -> list[str]:
    return [message.text for message in request.messages if type(message).__name__ == "ToolMessage"]


def below(request: Request) -> Line:
    """The last word of a run in the middle: the last result that it read."""
    return says(f"{request.messages[-1].text.splitlines()[-1]} below")


def notices_of(request: Request) -> Line:
    return says(notices(request))


REVIEW: Lines = {
    ("reviewer", "review"): (
        together(calls("act", what="measure"), calls("deploy", version=2)),
        calls("spawn_subagent", prompt="measure"),
        calls("delegate", agent="lead", prompt="too deep"),
        calls("act", what="one too many"),
        lambda request: says(f"{results(request)[2]} below"),
    ),
    ("reviewer", "measure"): (
        together(calls("look", where="bottom"), calls("act", what="fix")),
        together(calls("act", what="more"), calls("spawn_subagent", prompt="deeper")),
        says("bottom reached"),
    ),
}
"""A target of `delegate` and its subagent: together they have four actions an hour, and may not deploy."""

GREEDY: Lines = {("sub-agent", "greedy"): tuple(calls("look", where="x" * 400) for _ in range(10))}
"""A sub-agent that ends at its budget."""


def mixed_xzatoma() -> Tree:
    return Tree(
        dialects=("xzatoma", "meerkat", "zeroclaw", "buzzllm"),
        settings={
            "xzatoma": XzatomaSettings(max_depth=5, max_executions=2, persistence_enabled=True),
            "meerkat": MeerkatSettings(default_model="inherit", concurrency_limits=ConcurrencyLimits(max_depth=5)),
        },
        lines={
            ("lead", TASK): (
                calls("call_subagent", prompt="ask"),
                calls("agent_spawn", prompt="manage"),
                says("Waiting."),
                together(
                    calls("agent_spawn", prompt="greedy", budget={"max_tokens": 6_000}),
                    calls("subagent", label="late", task_prompt="late"),
                    calls("deploy"),
                ),
                says("Waiting."),
                lambda request: says(f"{results(request)[0]}; {notices(request)}"),
            ),
            ("sub-agent", "manage"): (
                calls("subagent", label="dig", task_prompt="dig", max_turns=3),
                calls("subagent", label="short", task_prompt="short", max_turns=1),
                lambda request: says(json.loads(results(request)[0])["output"]),
            ),
            ("sub-agent", "dig"): (
                calls("delegate", agent="reviewer", prompt="review"),
                below,
                lambda request: says(f"summed up: {request.messages[-2].text}"),
            ),
            ("sub-agent", "short"): (calls("look", where="here"), says("not enough turns")),
            **REVIEW,
            **GREEDY,
        },
        answer="asked outside; manage: summed up: bottom reached below below; greedy: failed",
        shape={
            "ask": "buzzllm",
            "manage": "meerkat",
            "greedy": "meerkat",
            "dig": "xzatoma",
            "short": "xzatoma",
            "review": "zeroclaw",
            "measure": "zeroclaw",
        },
        waits={"manage": 3, "greedy": 5},
    )


def mixed_spec() -> Tree:
    return Tree(
        dialects=("spec", "meerkat", "zeroclaw", "buzzllm"),
        settings={
            "meerkat": MeerkatSettings(
                default_model="inherit", nested_tools=True, concurrency_limits=ConcurrencyLimits(max_depth=2)
            ),
        },
        lines={
            ("lead", TASK): (
                calls("call_subagent", prompt="ask"),
                calls("subagent", action="spawn", agent="worker", task="prepare", max_output_tokens=500),
                calls("subagent", action="wait", task_ids=["t_01"]),
                together(
                    calls("subagent", action="collect", task_id="t_01"),
                    calls("shared_context", action="read", key="finding"),
                    calls("agent_spawn", prompt="manage"),
                    calls("deploy"),
                ),
                says("Waiting."),
                calls("agent_spawn", prompt="greedy", budget={"max_tokens": 6_000}),
                says("Waiting."),
                lambda request: says(f"{json.loads(results(request)[3])['result']}; {notices(request)}"),
            ),
            ("worker", "prepare"): (
                calls("shared_context", action="write", key="finding", value="the pool"),
                says("prepared"),
            ),
            ("sub-agent", "manage"): (
                together(
                    calls("agent_spawn", prompt="dig"),
                    calls("subagent", action="spawn", agent="worker", task="not from here"),
                ),
                says("Waiting."),
                notices_of,
            ),
            ("sub-agent", "dig"): (
                together(calls("agent_spawn", prompt="too deep"), calls("look", where="here")),
                calls("delegate", agent="reviewer", prompt="review"),
                below,
            ),
            **REVIEW,
            **GREEDY,
        },
        answer="prepared; manage: dig: bottom reached below below; greedy: failed",
        shape={
            "ask": "buzzllm",
            "prepare": "spec",
            "manage": "meerkat",
            "dig": "meerkat",
            "greedy": "meerkat",
            "review": "zeroclaw",
            "measure": "zeroclaw",
        },
        waits={"manage": 5, "dig": 2, "greedy": 7},
    )


TREES = {"xzatoma": mixed_xzatoma, "spec": mixed_spec}


class Model(ScriptedProvider):
    """The model of a tree, known by a name that child processes can reach as well.

    The first reply of a sub-agent in the background comes after the reply with which its parent begins to wait for it,
    so that what a parent has read at each turn does not depend on time.
    """

    name = "model"

    def __init__(self, tree: Tree) -> None:
        script = Script()
        for (agent, task), lines in tree.lines.items():
            script.play(agent, *lines, task=task)
        super().__init__(script, prices={MODEL: (1_000, 4_000)})
        self.left: dict[str, Caps] = {}
        """What the root has not spent at its last turn, and what it may still use."""
        self.supervisor: Callable[[], Supervisor | None] = lambda: None
        self._last_turn = len(tree.lines["lead", TASK])
        self._waits = tree.waits

    async def answer(self, request: Request, publish: Publish) -> Reply:
        supervisor = self.supervisor()
        assert supervisor is not None
        if (request.path, request.turn) == ("root", self._last_turn):
            self.left = {"unspent": supervisor.unspent(request.run_id), "left": supervisor.left(request.run_id)}
        if request.turn == 1 and (turn := self._waits.get(request.messages[0].text)) is not None:
            await _wait_for_parent(supervisor, request.run_id, turn)
        return await super().answer(request, publish)


async def _wait_for_parent(supervisor: Supervisor, run_id: str, turn: int) -> None:
    """Wait until the reply of a turn of the run's parent is recorded."""
    live = supervisor.live(run_id)
    parent_id = None if live is None else live.run.accepted.parent_id
    assert parent_id is not None
    async for event in supervisor.events(parent_id):
        if isinstance(event, ReplyReceived) and event.turn >= turn:
            return


class MixedHarness(Harness):
    """A harness with one of the trees."""

    def __init__(
        self,
        tree: Tree,
        store: Store,
        base_url: str = "http://127.0.0.1:9/v1",
        *,
        tools: Sequence[Tool] = (look, act, deploy),
        agents: Sequence[Agent] = (LEAD, REVIEWER, WORKER),
    ) -> None:
        self.model = Model(tree)
        self.model.supervisor = lambda: self._supervisor
        super().__init__(
            store=store,
            tools=tools,
            agents=agents,
            dialects=tree.dialects,
            dialect_settings=dict(tree.settings),
            provider=self.model,
            provider_configs=(provider_config("model", wire="openai-chat", base_url=base_url),),
            model=MODEL,
            home=retinue.MEMORY,
        )

    async def life(self, *, adopt: bool = False, killed_after: int | None = None) -> retinue.Outcome:
        """Open a process and run the tree to its end."""
        await self.open(adopt=adopt, killed_after=killed_after)
        return await self.run(TASK, agent="lead", limits=LIMITS, key=KEY)

    def rows(self) -> list[RunRow]:
        return self.store.runs(RunQuery())[::-1]

    def record(self) -> dict[str, dict[str, Any]]:
        """Every run by its task: its place, rights, limits, results and end, without ids and times."""
        return {accepted.task: self._facts(row, accepted) for row in self.rows() for accepted in [self._accepted(row)]}

    def _accepted(self, row: RunRow) -> RunAccepted:
        accepted = self.events(row.run_id)[0]
        assert isinstance(accepted, RunAccepted)
        return accepted

    def _facts(self, row: RunRow, accepted: RunAccepted) -> dict[str, Any]:
        events = self.events(row.run_id)
        returned = sorted(
            (event.turn, event.index, plain(event.text), event.failed)
            for event in events
            if isinstance(event, CallReturned)
        )
        outcome = row.progress.outcome
        return {
            "agent": accepted.agent,
            "dialect": accepted.dialect,
            "depth": accepted.depth,
            "policy": accepted.policy,
            "limits": accepted.limits,
            "windows": accepted.windows,
            "reserved": accepted.reserved,
            "tools": self.store.run_spec(accepted.run_spec).offered,
            "results": returned,
            "replies": [plain(event.reply.message.text) for event in events if isinstance(event, ReplyReceived)],
            "extra": [type(event).__name__ for event in events if isinstance(event, HistoryCompacted | WrapUpAsked)],
            "turns": row.progress.turns,
            "usage": row.progress.usage,
            "cost": row.progress.cost,
            "result": outcome and (outcome.result, outcome.reason, plain(outcome.text), outcome.limit, outcome.error),
        }


def plain(text: str) -> str:
    """The text with one word for all ids and times."""
    return TIME.sub("NOW", UUID.sub("ID", text))
