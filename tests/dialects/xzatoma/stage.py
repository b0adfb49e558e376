"""A stage for stories in the `xzatoma` dialect: lines by task, and what every run heard and read."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned
from retinue.core.messages import AssistantMessage, Message, Reply
from retinue.core.ports import Publish, Request, Store, Tool
from retinue.core.run import Outcome
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider, ScriptedReply, calls
from retinue.testing.harness import Harness

TASK = "Why is it slow?"
"""What the root is asked; it has no label."""

ROOT = ""

KEEPS = XzatomaSettings(persistence_enabled=True)
"""So that what subagents heard and said can be looked at afterwards."""


def subagent(label: str = "dig", task_prompt: str = "find it", **more: object) -> ScriptedReply:
    """Somebody delegates."""
    return uses("subagent", label=label, task_prompt=task_prompt, **more)


def refused(error: str, *, label: str = "dig", depth: int = 1) -> dict[str, object]:
    """The answer to a call that is not met."""
    metadata = {"subagent_label": label, "recursion_depth": str(depth)}
    return {"success": False, "output": "", "error": error, "metadata": metadata}


def answered(
    output: str, *, label: str = "dig", depth: int = 1, turns: int = 2, tokens: int = 0, limited: bool = False
) -> dict[str, object]:
    """The answer to a call that is met."""
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
    """Words of a model whose provider reports no usage, so that answers can be written down beforehand."""
    return ScriptedReply(pieces=(text,) if text else (), usage=None)


def uses(tool: str, **arguments: object) -> ScriptedReply:
    """A call by a model whose provider reports no usage."""
    return ScriptedReply(calls=calls(tool, **arguments).calls, usage=None)


@retinue.tool(kind="pure")
def fetch(url: str = "") -> str:
    """Fetch a page."""
    return f"page {url}"


@retinue.tool(kind="pure")
def grep(pattern: str = "") -> str:
    """Search in files."""
    return f"2 lines about {pattern}"


@retinue.tool(kind="pure")
def file_ops(path: str = "") -> str:
    """Read and write files."""
    raise OSError(f"no such file: {path}")


@dataclass(frozen=True)
class Heard:
    """One question as a model heard it."""

    path: str
    agent: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]


class Listening(ScriptedProvider):
    """Plays a script and keeps what it was asked."""

    def __init__(self, script: Script, *, latency: float = 0.0) -> None:
        super().__init__(script, latency=latency)
        self.heard: list[Heard] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The next line."""
        names = tuple(tool.name for tool in request.tools)
        self.heard.append(
            Heard(request.path, request.agent, request.model, request.system, names, tuple(request.messages))
        )
        return await super().answer(request, publish)


class Stage(Harness):
    """A harness with the dialect on; `lines` are the root's, `tasks` those of subagents by their task prompt."""

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
        self.listening = Listening(Script().play("main", *lines, task=TASK), latency=latency)
        for task, played in (tasks or {}).items():
            self.listening.script.play("main", *played, task=task)
        options = {"dialect_settings": {"xzatoma": settings}, "model": "m"} | options
        super().__init__(store=store, tools=tools, dialects=("xzatoma",), provider=self.listening, **options)

    async def play(self, **how: Any) -> Outcome:
        """Let the root play its lines to their end."""
        async with self:
            return await self.run(TASK, **how)

    @property
    def alive(self) -> bool:
        """Whether a process is at work."""
        return self._retinue is not None

    def rows(self) -> dict[str, RunRow]:
        """Every run by its label; no label may stand for two."""
        rows = self.store.runs(RunQuery())
        assert len({row.label for row in rows}) == len(rows), [row.label for row in rows]
        return {row.label: row for row in rows}

    def outcome(self, label: str) -> Outcome | None:
        """How a run ended."""
        return self.rows()[label].progress.outcome

    def texts(self, label: str = ROOT) -> list[str]:
        """What the calls of a run came to, in the order in which they returned."""
        events = self.events(self.rows()[label].run_id)
        return [event.text for event in events if isinstance(event, CallReturned)]

    def answers(self, label: str = ROOT) -> list[dict[str, object]]:
        """The same, where all are answers of `subagent`."""
        return [json.loads(text) for text in self.texts(label)]

    def heard(self, label: str) -> list[Heard]:
        """What a run's model heard, turn by turn."""
        path = self.rows()[label].path
        return [heard for heard in self.listening.heard if heard.path == path]


def said(messages: Iterable[Message]) -> list[str]:
    """A conversation in short: who spoke, and the words or the tool."""
    return [
        f"assistant: {message.text or ', '.join(call.name for call in message.calls)}"
        if isinstance(message, AssistantMessage)
        else f"{type(message).__name__.removesuffix('Message').lower()}: {message.text}"
        for message in messages
    ]
