"""A harness for the `zeroclaw` dialect: configured agents, lines by task, and the results of every run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import retinue
from retinue.core.agent import Agent
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.ports import Store, Tool
from retinue.core.run import Outcome
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedReply, calls
from retinue.testing.harness import Harness
from tests.dialects.recording import RecordedRequest, RecordingProvider

TASK = "Why is it slow?"
"""The root's task."""

MODEL = "m"
WIRE = "custom"
"""The wire of a provider that was passed as an object is its name."""


def spawn(prompt: object = "dig", **more: object) -> ScriptedReply:
    """A call of `spawn_subagent`."""
    return calls("spawn_subagent", prompt=prompt, **more)


def delegate(agent: object = "reviewer", prompt: object = "review", **more: object) -> ScriptedReply:
    """A call of `delegate` with a task."""
    return calls("delegate", agent=agent, prompt=prompt, **more)


def act(action: str, **more: object) -> ScriptedReply:
    """A call of `delegate` with another action."""
    return calls("delegate", action=action, **more)


def header(agent: str = "reviewer", wire: str = WIRE, model: str = MODEL) -> str:
    """The first line of a target's response."""
    return f"[Agent '{agent}' ({wire}/{model})]"


@retinue.tool(kind="pure", polls=True)
def look(where: str = "") -> str:
    """Look somewhere."""
    return f"seen {where}"


@retinue.tool(kind="pure")
def count(what: str = "") -> str:
    """Count something."""
    return f"3 of {what}"


REVIEWER = Agent(name="reviewer", system_prompt="You review.", tools=("look",))
WRITER = Agent(name="writer", system_prompt="You write.", tools=("look",))


class ZeroclawHarness(Harness):
    """A harness with the dialect; `lines` are the root's, `tasks` those of other runs by agent and task."""

    def __init__(
        self,
        *lines: Line | LineFunction,
        tasks: Mapping[tuple[str, str], Sequence[Line | LineFunction]] | None = None,
        agents: Sequence[Agent] = (REVIEWER, WRITER),
        root: str = "main",
        tools: Iterable[Tool | str] = (look, count),
        store: Store | None = None,
        latency: float = 0.0,
        **options: Any,
    ) -> None:
        self.root = root
        self.recorder = RecordingProvider(Script().play(root, *lines, task=TASK), latency=latency)
        for (agent, task), played in (tasks or {}).items():
            self.recorder.script.play(agent, *played, task=task)
        super().__init__(
            store=store,
            tools=tools,
            agents=agents,
            dialects=("zeroclaw",),
            provider=self.recorder,
            model=MODEL,
            **options,
        )

    async def play(self, **how: Any) -> Outcome:
        """Run the root with its lines, and wait for its background tasks."""
        async with self:
            return await self.play_on(**how)

    async def play_on(self, **how: Any) -> Outcome:
        """The same, in an open harness."""
        agent = None if self.root == "main" else self.root
        run = await self.retinue.spawn(TASK, agent=agent, output=None, **how)
        outcome = await run.wait()
        await self.retinue.wait(*(row.run_id for row in self.rows()))
        return outcome

    @property
    def alive(self) -> bool:
        """Whether a retinue is open."""
        return self._retinue is not None

    def rows(self) -> list[RunRow]:
        """Every run, oldest first."""
        return self.store.runs(RunQuery())[::-1]

    def row(self, agent: str, place: int = 0) -> RunRow:
        """A run of an agent below the root, by default the oldest."""
        return [row for row in self.rows() if row.agent == agent and row.depth > 0][place]

    def row_of(self, task: str) -> str:
        """The id of the one run with that task."""
        (run_id,) = [accepted.run_id for accepted in self.accepted() if accepted.task == task]
        return run_id

    def accepted(self) -> list[RunAccepted]:
        """The acceptance of every run, oldest first."""
        events = (self.events(row.run_id)[0] for row in self.rows())
        return [event for event in events if isinstance(event, RunAccepted)]

    @property
    def root_row(self) -> RunRow:
        return self.rows()[0]

    def texts(self, row: RunRow | None = None) -> list[str]:
        """The results of a run's calls (by default the root's), in the order in which they returned."""
        return [event.text for event in self.events((row or self.root_row).run_id) if isinstance(event, CallReturned)]

    def failed(self, row: RunRow | None = None) -> list[bool]:
        """Whether each of them is a failure."""
        return [event.failed for event in self.events((row or self.root_row).run_id) if isinstance(event, CallReturned)]

    def requests(self, row: RunRow) -> list[RecordedRequest]:
        """The requests of a run, turn by turn."""
        return [request for request in self.recorder.requests if request.run_id == row.run_id]


def files(workspace: Path) -> dict[str, dict[str, object]]:
    """Every result file of a workspace, by its name without the ending."""
    folder = workspace / "delegate_results"
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
