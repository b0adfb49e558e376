"""A stage for stories in the `meerkat` dialect: lines by agent and task, and what every run heard and read."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned
from retinue.core.ids import call_key
from retinue.core.messages import AssistantMessage, Message, Reply, ToolMessage, UserMessage
from retinue.core.ports import CallContext, Publish, Request, Store, Tool
from retinue.core.run import Outcome
from retinue.dialects.meerkat.settings import ConcurrencyLimits, MeerkatSettings
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider, ScriptedReply, calls, streams
from retinue.testing.harness import Harness
from tests.internals import live_run, tool_of

TASK = "Why is it slow?"
OWN = "claude-sonnet-4-5"
"""The root's model; another is the first that is allowed."""

COMMS = MeerkatSettings(enable_comms=True)
NESTED = MeerkatSettings(nested_tools=True)
MANY = ConcurrencyLimits(
    max_depth=9, max_concurrent_ops=9_999, max_concurrent_agents=9_999, max_children_per_agent=9_999
)


def spawn(prompt: str = "find it", **more: object) -> ScriptedReply:
    """Somebody spawns."""
    return calls("agent_spawn", prompt=prompt, **more)


def fork(prompt: str = "look below", **more: object) -> ScriptedReply:
    """Somebody forks."""
    return calls("agent_fork", prompt=prompt, **more)


def slowly(text: str, seconds: float = 5.0) -> ScriptedReply:
    """Words that take so many seconds of held time."""
    return streams(text[:1], text[1:], every=seconds)


def about(tool: str, nth: int = 0, **more: object) -> LineFunction:
    """A call about the `nth` sub-agent that the caller has started."""

    def line(request: Request) -> Line:
        return calls(tool, agent_id=started(request.messages)[nth], **more)

    return line


def started(messages: Iterable[Message]) -> list[str]:
    """The ids of the sub-agents that a conversation has started, in order."""
    texts = [message.text for message in messages if isinstance(message, ToolMessage)]
    return [json.loads(text)["agent_id"] for text in texts if text.startswith('{"agent_id":') and '"name":' in text]


@retinue.tool(kind="pure")
def fetch(url: str = "") -> str:
    """Fetch a page."""
    return f"page {url}"


@retinue.tool(kind="pure")
def grep(pattern: str = "") -> str:
    """Search in files."""
    return f"2 lines about {pattern}"


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
    """Plays a script and keeps what it was asked; the root's answers take `latency` seconds each."""

    def __init__(self, script: Script, *, latency: float = 0.0) -> None:
        super().__init__(script)
        self.heard: list[Heard] = []
        self._roots = latency

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The next line."""
        names = tuple(tool.name for tool in request.tools)
        self.heard.append(
            Heard(request.path, request.agent, request.model, request.system, names, tuple(request.messages))
        )
        await asyncio.sleep(self._roots if request.agent == "main" else 0.0)
        return await super().answer(request, publish)


Lines = Mapping[str, Sequence[Line | LineFunction]]


class Stage(Harness):
    """A harness with the dialect on, on a provider of Anthropic's family; `lines` are the root's.

    `spawned`, `forked` and `hosts` are the lines of sub-agents by the words of their prompts.
    """

    def __init__(
        self,
        *lines: Line | LineFunction,
        spawned: Lines | None = None,
        forked: Lines | None = None,
        hosts: Lines | None = None,
        settings: MeerkatSettings | None = None,
        tools: Iterable[Tool] = (fetch, grep),
        store: Store | None = None,
        latency: float = 0.0,
        model: str = f"anthropic:{OWN}",
        **options: Any,
    ) -> None:
        self.listening = Listening(Script().play("main", *lines), latency=latency)
        for agent, tasks in (("sub-agent", spawned), ("fork", forked), ("host", hosts)):
            for task, played in (tasks or {}).items():
                self.listening.script.play(agent, *played, task=task)
        given = {} if settings is None else {"dialect_settings": {"meerkat": settings}}
        options = {"providers": {"openai": self.listening, "gemini": self.listening}} | given | options
        super().__init__(
            store=store, tools=tools, dialects=("meerkat",), provider=self.listening, model=model, **options
        )

    async def play(self, **how: Any) -> Outcome:
        """Let the root play its lines to their end."""
        async with self:
            return await self.run(TASK, **how)

    def context(self, run_id: str, *, turn: int = 1, again: bool = False) -> CallContext:
        """That of the first call of a live run's turn, for whoever calls a tool in its place."""
        accepted = live_run(self.retinue, run_id).accepted
        return CallContext(
            run_id=run_id,
            session_id=accepted.session_id,
            root_id=accepted.root_id,
            key=call_key(run_id, turn, 0),
            turn=turn,
            index=0,
            depth=accepted.depth,
            agent=accepted.agent,
            path=accepted.path,
            handle=None,
            policy=accepted.policy,
            offered=(),
            again=again,
        )

    def tool(self, name: str) -> Tool:
        """One of the dialect's tools."""
        return tool_of(self.retinue, name, "meerkat")

    # Who was there

    def rows(self) -> list[RunRow]:
        """Every run, in the order of their starts."""
        return sorted(self.store.runs(RunQuery()), key=lambda row: row.run_id)

    def row(self, path: str) -> RunRow:
        """The run at a path such as `root/fork/1`."""
        (row,) = [row for row in self.rows() if row.path == path]
        return row

    def outcome(self, path: str) -> Outcome:
        """How a run ended."""
        outcome = self.row(path).progress.outcome
        assert outcome is not None
        return outcome

    # What was said

    def texts(self, path: str = "root") -> list[str]:
        """What the calls of a run came to, in the order in which they returned."""
        return [event.text for event in self.events(self.row(path).run_id) if isinstance(event, CallReturned)]

    def answers(self, path: str = "root") -> list[dict[str, Any]]:
        """The same, where all are answers of the dialect's tools and none a refusal."""
        return [json.loads(text) for text in self.texts(path)]

    def heard(self, path: str) -> list[Heard]:
        """What a run's model heard, turn by turn."""
        return [heard for heard in self.listening.heard if heard.path == path]

    def last(self, path: str = "root") -> list[str]:
        """The conversation as a run's model heard it last."""
        return said(self.heard(path)[-1].messages)


def said(messages: Iterable[Message]) -> list[str]:
    """A conversation in short: who spoke, and the words or the tool."""
    return [
        f"assistant: {message.text or ', '.join(call.name for call in message.calls)}"
        if isinstance(message, AssistantMessage)
        else f"{type(message).__name__.removesuffix('Message').lower()}: {message.text}"
        for message in messages
    ]


def name(run_id: str, kind: str = "sub-agent") -> str:
    return f"{kind}-{run_id.replace('-', '')[:12]}"


def named(request: Request, nth: int = 0) -> str:
    """The name of the `nth` sub-agent that was started."""
    found = re.findall(r'"name":"((?:sub-agent|fork)-[0-9a-f]{12})"', "\n".join(each.text for each in request.messages))
    return found[nth]


def tells(body: str, nth: int = 0) -> Callable[[Request], ScriptedReply]:
    """A message to the `nth` child."""
    return lambda request: calls("send_message", to=named(request, nth), body=body)


def to_parent(body: str) -> ScriptedReply:
    return calls("send_message", to="parent", body=body)


def users(stage: Stage, path: str) -> list[str]:
    """The user messages that a run's model heard last."""
    return [message.text for message in stage.heard(path)[-1].messages if isinstance(message, UserMessage)]
