"""A stage for stories in the `zeroclaw` dialect: agents of an operator, lines by task, and what every run read."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import retinue
from retinue.core.agent import Agent
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.messages import Message, Reply
from retinue.core.ports import Publish, Request, Store, Tool
from retinue.core.run import Outcome
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider, ScriptedReply, calls
from retinue.testing.harness import Harness

TASK = "Why is it slow?"
"""What the root is asked."""

MODEL = "m"
WIRE = "custom"
"""The wire of a provider that was handed in as an object is its name."""


def spawn(prompt: object = "dig", **more: object) -> ScriptedReply:
    """Somebody runs itself again."""
    return calls("spawn_subagent", prompt=prompt, **more)


def delegate(agent: object = "reviewer", prompt: object = "review", **more: object) -> ScriptedReply:
    """Somebody hands a task over."""
    return calls("delegate", agent=agent, prompt=prompt, **more)


def act(action: str, **more: object) -> ScriptedReply:
    """Somebody asks about tasks in the background."""
    return calls("delegate", action=action, **more)


def header(agent: str = "reviewer", wire: str = WIRE, model: str = MODEL) -> str:
    """The first line of a target's response."""
    return f"[Agent '{agent}' ({wire}/{model})]"


@retinue.tool(kind="pure")
def look(where: str = "") -> str:
    """Look somewhere."""
    return f"seen {where}"


@retinue.tool(kind="pure")
def count(what: str = "") -> str:
    """Count something."""
    return f"3 of {what}"


@dataclass(frozen=True)
class Heard:
    """One question as a model heard it."""

    run_id: str
    agent: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]


class Listening(ScriptedProvider):
    """Plays a script and keeps what it was asked."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(script, **options)
        self.heard: list[Heard] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The next line."""
        names = tuple(tool.name for tool in request.tools)
        self.heard.append(
            Heard(request.run_id, request.agent, request.model, request.system, names, tuple(request.messages))
        )
        return await super().answer(request, publish)


REVIEWER = Agent(name="reviewer", system_prompt="You review.", tools=("look",))
WRITER = Agent(name="writer", system_prompt="You write.", tools=("look",))


class Stage(Harness):
    """A harness with the dialect on; `lines` are the root's, `tasks` those of others by agent and task."""

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
        self.listening = Listening(Script().play(root, *lines, task=TASK), latency=latency)
        for (agent, task), played in (tasks or {}).items():
            self.listening.script.play(agent, *played, task=task)
        super().__init__(
            store=store,
            tools=tools,
            agents=agents,
            dialects=("zeroclaw",),
            provider=self.listening,
            model=MODEL,
            **options,
        )

    async def play(self, **how: Any) -> Outcome:
        """Let the root play its lines to their end, and whatever it left in the background."""
        async with self:
            return await self.play_on(**how)

    async def play_on(self, **how: Any) -> Outcome:
        """The same, in a stage that is open."""
        run = await self.retinue.spawn(TASK, agent=None if self.root == "main" else self.root, **how)
        outcome = await run.wait()
        await self.retinue.wait(*(row.run_id for row in self.rows()))
        return outcome

    @property
    def alive(self) -> bool:
        """Whether a process is at work."""
        return self._retinue is not None

    def rows(self) -> list[RunRow]:
        """Every run, the oldest first."""
        return self.store.runs(RunQuery())[::-1]

    def row(self, agent: str, place: int = 0) -> RunRow:
        """A run of an agent, the oldest unless said otherwise; the root does not count."""
        return [row for row in self.rows() if row.agent == agent and row.depth > 0][place]

    def row_of(self, task: str) -> str:
        """The id of the one run with that task."""
        (found,) = [accepted.run_id for accepted in self.accepted() if accepted.task == task]
        return found

    def accepted(self) -> list[RunAccepted]:
        """The acceptance of every run, the oldest first."""
        events = (self.events(row.run_id)[0] for row in self.rows())
        return [event for event in events if isinstance(event, RunAccepted)]

    @property
    def root_row(self) -> RunRow:
        """The root."""
        return self.rows()[0]

    def texts(self, row: RunRow | None = None) -> list[str]:
        """What the calls of a run (the root) came to, in the order in which they returned."""
        return [event.text for event in self.events((row or self.root_row).run_id) if isinstance(event, CallReturned)]

    def failed(self, row: RunRow | None = None) -> list[bool]:
        """Which of them tell of a failure."""
        return [event.failed for event in self.events((row or self.root_row).run_id) if isinstance(event, CallReturned)]

    def heard(self, row: RunRow) -> list[Heard]:
        """What a run's model heard, turn by turn."""
        return [heard for heard in self.listening.heard if heard.run_id == row.run_id]


def files(workspace: Path) -> dict[str, dict[str, object]]:
    """Every result file of a workspace, by its name without the ending."""
    folder = workspace / "delegate_results"
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
