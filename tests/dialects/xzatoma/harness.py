"""A harness for the `xzatoma` dialect: lines by task, and the requests and results of every run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned
from retinue.core.ports import Store, Tool
from retinue.core.run import Outcome
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedReply, calls
from retinue.testing.harness import Harness
from tests.dialects.recording import RecordedRequest, RecordingProvider

TASK = "Why is it slow?"
"""The root's task; it has no label."""

ROOT = ""

KEEPS = XzatomaSettings(persistence_enabled=True)
"""So that the messages of subagents are kept for the test."""


def subagent(label: str = "dig", task_prompt: str = "find it", **more: object) -> ScriptedReply:
    """A call of `subagent`."""
    return uses("subagent", label=label, task_prompt=task_prompt, **more)


def refused(error: str, *, label: str = "dig", depth: int = 1) -> dict[str, object]:
    """The result of a refused call."""
    metadata = {"subagent_label": label, "recursion_depth": str(depth)}
    return {"success": False, "output": "", "error": error, "metadata": metadata}


def answered(
    output: str, *, label: str = "dig", depth: int = 1, turns: int = 2, tokens: int = 0, limited: bool = False
) -> dict[str, object]:
    """The result of a successful call."""
    metadata = {
        "subagent_label": label,
        "recursion_depth": str(depth),
        "completion_status": "incomplete" if limited else "complete",
        "turns_used": str(turns),
        "max_turns_reached": "true" if limited else "false",
        "tokens_consumed": str(tokens),
    }
    return {"success": True, "output": output, "error": None, "metadata": metadata}


def says(text: str) -> ScriptedReply:
    """A text reply whose provider reports no usage, so that results are known beforehand."""
    return ScriptedReply(pieces=(text,) if text else (), usage=None)


def uses(tool: str, **arguments: object) -> ScriptedReply:
    """A tool call whose provider reports no usage."""
    return ScriptedReply(calls=calls(tool, **arguments).calls, usage=None)


@retinue.tool(kind="pure")
def fetch(url: str = "") -> str:
    """Fetch a page."""
    return f"page {url}"


@retinue.tool(kind="pure", polls=True)
def grep(pattern: str = "") -> str:
    """Search in files."""
    return f"2 lines about {pattern}"


@retinue.tool(kind="pure")
def file_ops(path: str = "") -> str:
    """Read and write files."""
    raise OSError(f"no such file: {path}")


class XzatomaHarness(Harness):
    """A harness with the dialect; `lines` are the root's, `tasks` those of subagents by their task prompt."""

    def __init__(
        self,
        *lines: Line | LineFunction,
        tasks: Mapping[str, Sequence[Line | LineFunction]] | None = None,
        tools: Iterable[Tool] = (fetch, grep, file_ops),
        store: Store | None = None,
        latency: float = 0.0,
        settings: XzatomaSettings = KEEPS,
        **options: Any,
    ) -> None:
        self.recorder = RecordingProvider(Script().play("main", *lines, task=TASK), latency=latency)
        for task, played in (tasks or {}).items():
            self.recorder.script.play("main", *played, task=task)
        options = {"dialect_settings": {"xzatoma": settings}, "model": "m"} | options
        super().__init__(store=store, tools=tools, dialects=("xzatoma",), provider=self.recorder, **options)

    async def play(self, **how: Any) -> Outcome:
        """Run the root with its lines."""
        async with self:
            return await self.run(TASK, **how)

    @property
    def alive(self) -> bool:
        """Whether a retinue is open."""
        return self._retinue is not None

    def rows(self) -> dict[str, RunRow]:
        """Every run by its label, which must be unique."""
        rows = self.store.runs(RunQuery())
        assert len({row.label for row in rows}) == len(rows), [row.label for row in rows]
        return {row.label: row for row in rows}

    def outcome(self, label: str) -> Outcome | None:
        return self.rows()[label].progress.outcome

    def texts(self, label: str = ROOT) -> list[str]:
        """The results of a run's calls, in the order in which they returned."""
        events = self.events(self.rows()[label].run_id)
        return [event.text for event in events if isinstance(event, CallReturned)]

    def answers(self, label: str = ROOT) -> list[dict[str, object]]:
        """The same, decoded, if all are results of `subagent`."""
        return [json.loads(text) for text in self.texts(label)]

    def requests(self, label: str) -> list[RecordedRequest]:
        """The requests of a run, turn by turn."""
        path = self.rows()[label].path
        return [request for request in self.recorder.requests if request.path == path]
