"""A harness for the `meerkat` dialect: lines by agent and task, and the requests and results of every run."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned
from retinue.core.ids import call_key
from retinue.core.messages import Message, ToolMessage, UserMessage
from retinue.core.ports import CallContext, Request, Store, Tool
from retinue.core.run import Outcome
from retinue.dialects.meerkat.settings import ConcurrencyLimits, MeerkatSettings
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedReply, calls, streams
from retinue.testing.harness import Harness
from tests.dialects.recording import RecordedRequest, RecordingProvider, conversation
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
    """A call of `agent_spawn`."""
    return calls("agent_spawn", prompt=prompt, **more)


def fork(prompt: str = "look below", **more: object) -> ScriptedReply:
    """A call of `agent_fork`."""
    return calls("agent_fork", prompt=prompt, **more)


def slowly(text: str, seconds: float = 5.0) -> ScriptedReply:
    """A text that takes so many seconds of virtual time."""
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


class RootDelayingProvider(RecordingProvider):
    """A recording provider whose answers to the root take `latency` seconds each."""

    def __init__(self, script: Script, *, latency: float = 0.0) -> None:
        super().__init__(script)
        self._root_latency = latency

    def delay(self, request: Request) -> float:
        return self._root_latency if request.agent == "main" else 0.0


Lines = Mapping[str, Sequence[Line | LineFunction]]


class MeerkatHarness(Harness):
    """A harness with the dialect, on a provider of Anthropic's family; `lines` are the root's.

    `spawned`, `forked` and `hosts` are the lines of sub-agents by their prompts.
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
        self.recorder = RootDelayingProvider(Script().play("main", *lines), latency=latency)
        for agent, tasks in (("sub-agent", spawned), ("fork", forked), ("host", hosts)):
            for task, played in (tasks or {}).items():
                self.recorder.script.play(agent, *played, task=task)
        given = {} if settings is None else {"dialect_settings": {"meerkat": settings}}
        options = {"providers": {"openai": self.recorder, "gemini": self.recorder}} | given | options
        super().__init__(
            store=store, tools=tools, dialects=("meerkat",), provider=self.recorder, model=model, **options
        )

    async def play(self, **how: Any) -> Outcome:
        """Run the root with its lines."""
        async with self:
            return await self.run(TASK, **how)

    def context(self, run_id: str, *, turn: int = 1, again: bool = False) -> CallContext:
        """The context of the first call in a turn of a live run."""
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
        return tool_of(self.retinue, name, "meerkat")

    def rows(self) -> list[RunRow]:
        """Every run, in the order of their starts."""
        return sorted(self.store.runs(RunQuery()), key=lambda row: row.run_id)

    def row(self, path: str) -> RunRow:
        """The run at a path such as `root/fork/1`."""
        (row,) = [row for row in self.rows() if row.path == path]
        return row

    def outcome(self, path: str) -> Outcome:
        outcome = self.row(path).progress.outcome
        assert outcome is not None
        return outcome

    def texts(self, path: str = "root") -> list[str]:
        """The results of a run's calls, in the order in which they returned."""
        return [event.text for event in self.events(self.row(path).run_id) if isinstance(event, CallReturned)]

    def answers(self, path: str = "root") -> list[dict[str, Any]]:
        """The same, decoded, if all are results of the dialect's tools and none a refusal."""
        return [json.loads(text) for text in self.texts(path)]

    def requests(self, path: str) -> list[RecordedRequest]:
        """The requests of a run, turn by turn."""
        return [request for request in self.recorder.requests if request.path == path]

    def last(self, path: str = "root") -> list[str]:
        """The conversation in the last request of a run."""
        return conversation(self.requests(path)[-1].messages)


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


def users(harness: MeerkatHarness, path: str) -> list[str]:
    """The user messages in the last request of a run."""
    return [message.text for message in harness.requests(path)[-1].messages if isinstance(message, UserMessage)]
