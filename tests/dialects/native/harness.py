"""A harness for the `native` dialect: lines by agent and task, and the requests and answers of every run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.messages import Message, ToolMessage
from retinue.core.ports import Request, Store, ToolLike
from retinue.core.run import Outcome
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedReply, calls, streams
from retinue.testing.harness import Harness
from tests.dialects.recording import RecordedRequest, RecordingProvider, conversation

TASK = "Why is it slow?"
DIG = "find it"

Lines = Mapping[str, Sequence[Line | LineFunction]]


def run_agent(task: str = DIG, **more: object) -> ScriptedReply:
    """A call of `run_agent`."""
    return calls("run_agent", task=task, **more)


def slowly(text: str, seconds: float = 5.0) -> ScriptedReply:
    """A text that takes so many seconds of virtual time."""
    return streams(text[:1], text[1:], every=seconds)


def about(tool: str, nth: int = 0, **more: object) -> LineFunction:
    """A call about the `nth` run that the caller has started."""

    def line(request: Request) -> Line:
        return calls(tool, run=started(request.messages)[nth], **more)

    return line


def waits(*nth: int, **more: object) -> LineFunction:
    """A call of `wait_agents` for these runs, by default for all that the caller has started."""

    def line(request: Request) -> Line:
        known = started(request.messages)
        return calls("wait_agents", runs=[known[number] for number in nth] or known, **more)

    return line


def started(messages: Iterable[Message]) -> list[str]:
    """The ids of the runs that a conversation has started, in order."""
    texts = [message.text for message in messages if isinstance(message, ToolMessage)]
    found = [json.loads(text) for text in texts if text.startswith('{"run":')]
    return list(dict.fromkeys(answer["run"] for answer in found))


@retinue.tool(kind="pure")
def fetch(url: str = "") -> str:
    """Fetch a page."""
    return f"page {url}"


@retinue.tool(kind="pure")
def grep(pattern: str = "") -> str:
    """Search in files."""
    return f"2 lines about {pattern}"


class NativeHarness(Harness):
    """A harness with the dialect; `lines` are the root's, `tasks` the lines of general agents by their tasks."""

    dialect = "native"
    general = "general"

    def __init__(
        self,
        *lines: Line | LineFunction,
        tasks: Lines | None = None,
        settings: object = None,
        tools: Iterable[ToolLike] = (fetch, grep),
        store: Store | None = None,
        **options: Any,
    ) -> None:
        self.recorder = RecordingProvider(Script().play("main", *lines))
        for task, played in (tasks or {}).items():
            self.recorder.script.play(self.general, *played, task=task)
        given: dict[str, Any] = {} if settings is None else {"dialect_settings": {self.dialect: settings}}
        super().__init__(
            store=store, tools=tools, dialects=(self.dialect,), provider=self.recorder, **(given | options)
        )

    async def play(self, **how: Any) -> Outcome:
        """Run the root with its lines."""
        async with self:
            return await self.run(TASK, **how)

    @property
    def alive(self) -> bool:
        """Whether a retinue is open."""
        return self._retinue is not None

    def rows(self) -> list[RunRow]:
        """Every run, in the order of their starts."""
        return sorted(self.store.runs(RunQuery()), key=lambda row: row.run_id)

    def row(self, path: str) -> RunRow:
        """The run at a path such as `root/general/1`."""
        (row,) = [row for row in self.rows() if row.path == path]
        return row

    def accepted(self, row: RunRow) -> RunAccepted:
        """The first event of a run."""
        accepted = self.events(row.run_id)[0]
        assert isinstance(accepted, RunAccepted)
        return accepted

    def outcome(self, path: str) -> Outcome:
        outcome = self.row(path).progress.outcome
        assert outcome is not None
        return outcome

    def returned(self, path: str = "root") -> list[CallReturned]:
        """The results of a run's calls, in the order of the calls."""
        events = [event for event in self.events(self.row(path).run_id) if isinstance(event, CallReturned)]
        return sorted(events, key=lambda event: (event.turn, event.index))

    def answers(self, path: str = "root") -> list[dict[str, Any]]:
        """The same, decoded, with the path of each run in place of its id."""
        paths = {row.run_id: row.path for row in self.rows()}
        decoded: list[dict[str, Any]] = []
        for event in self.returned(path):
            text = event.text
            for run_id, known in paths.items():
                text = text.replace(run_id, known)
            decoded.append(json.loads(text))
        return decoded

    def requests(self, path: str) -> list[RecordedRequest]:
        """The requests of a run, turn by turn."""
        return [request for request in self.recorder.requests if request.path == path]

    def last(self, path: str = "root") -> list[str]:
        """The conversation in the last request of a run, with paths in place of ids."""
        lines = conversation(self.requests(path)[-1].messages)
        for row in self.rows():
            lines = [line.replace(row.run_id, row.path) for line in lines]
        return lines
