"""Conversations of subagents after the end of their tree: retention, and the transcripts of `retinue replay`.

The trees whose retention is still to be applied are in a key-value namespace of the store, from before the first
subagent starts; what a crash interrupts is done by the next process that drives runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.attachments import with_labels
from retinue.core.commands import Accept, Decide, Decision, OpenSession, Record, RunQuery, RunRow, Write
from retinue.core.errors import RetinueError
from retinue.core.events import Event, HistoryCompacted, RunAccepted
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from retinue.core.run import Outcome
from retinue.core.state import Run, fold
from retinue.core.text import clean_body, clean_line, rfc3339
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME, TOOL_NAMES
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.engine import Supervisor

log = logger("retinue.tools.subagent", dialect=NAME)

SPACE = "xzatoma-trees"
"""The namespace: the root of each tree whose retention is to be applied, and its rule."""
DROP = b""
"""The rule that drops the messages of a tree; any other is the path of a database that they are copied to."""


class SubagentTranscript(Struct, frozen=True, kw_only=True):
    """One subagent's conversation; `parent_id` is None for a child of the root, which is no subagent itself."""

    id: RunId
    parent_id: RunId | None
    label: str
    depth: int
    task: str
    messages: tuple[Message, ...]
    started_at: float
    completed_at: float | None
    status: str
    turns_used: int
    tokens_consumed: int
    max_turns_reached: bool
    allowed_tools: tuple[str, ...]


class KeptTranscripts:
    """The transcripts of a store."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._stored = supervisor.stored
        self._key_value = supervisor.key_value
        self._text = _Text()

    async def rows(self) -> list[RunRow]:
        """The subagents whose messages are kept, newest first."""
        trees = await self._key_value.look(SPACE)
        return [
            row
            for row in await self._stored.runs(RunQuery(dialect=NAME))
            if row.parent_id is not None and row.seq > 0 and trees.get(row.root_id) != DROP
        ]

    async def read(self, rows: Sequence[RunRow]) -> list[SubagentTranscript]:
        return [await self._transcript(row) for row in rows]

    async def find(self, run_id: RunId) -> SubagentTranscript | None:
        row = next((row for row in await self.rows() if row.run_id == run_id), None)
        return None if row is None else await self._transcript(row)

    async def _transcript(self, row: RunRow) -> SubagentTranscript:
        events = await self._stored.events(row.run_id)
        return transcript(row, events, await self._stored.run_spec(row.run_spec))

    async def listing(self, *, limit: int, offset: int) -> str:
        page = (await self.rows())[offset : offset + limit]
        return "\n".join(self._text.listing(await self.read(page), limit, offset))

    async def conversation(self, run_id: RunId) -> str | None:
        transcript = await self.find(run_id)
        return None if transcript is None else "\n".join(self._text.conversation(transcript))

    async def tree(self, run_id: RunId | None, *, limit: int, offset: int) -> str | None:
        rows = await self.rows()
        if run_id is None:
            tops = [row for row in rows if row.depth == 1][offset : offset + limit]
        else:
            tops = [row for row in rows if row.run_id == run_id]
            if not tops:
                return None
        return "\n".join(self._text.tree(tops, rows))


def transcript(row: RunRow, events: Iterable[tuple[int, Event]], run_spec: RunSpec) -> SubagentTranscript:
    """The transcript of a run, with the messages that compaction removed from the model's history."""
    run = fold([(seq, event) for seq, event in events if not isinstance(event, HistoryCompacted)], run_spec)
    limited = _ran_out_of_turns(run)
    return SubagentTranscript(
        id=row.run_id,
        parent_id=row.parent_id if row.depth > 1 else None,
        label=row.label,
        depth=row.depth,
        task=run.accepted.task,
        messages=tuple(run.history),
        started_at=row.accepted_at,
        completed_at=row.progress.ended_at,
        status=_status(run, limited),
        turns_used=run.turns,
        tokens_consumed=run.usage.total,
        max_turns_reached=limited,
        allowed_tools=tuple(name for name in run_spec.offered if name not in TOOL_NAMES),
    )


def _ran_out_of_turns(run: Run) -> bool:
    first = run.exchanges[0] if run.exchanges else run.outcome
    return first is not None and first.reason == "max_turns"


def _status(run: Run, limited: bool) -> str:
    """The status in the document's words, and `running` for a subagent that has not ended."""
    if run.outcome is None:
        return "running"
    answers = run.exchanges[1:] if limited else run.exchanges
    if run.outcome.result != "completed" or any(exchange.result != "completed" for exchange in answers):
        return "failed"
    return "incomplete" if limited else "complete"


class _Text:
    """The text that `retinue replay` prints: printable, and no line of a message looks like a heading."""

    def listing(self, page: Sequence[SubagentTranscript], limit: int, offset: int) -> Iterator[str]:
        yield f"Conversations (showing {limit} starting at {offset}):"
        for transcript in page:
            yield ""
            yield f"ID:     {transcript.id}"
            yield f"Label:  {self._one_line(transcript.label)}"
            yield f"Depth:  {transcript.depth}"
            yield f"Status: {transcript.status}"
            yield f"Turns:  {transcript.turns_used}"
            yield f"Start:  {rfc3339(transcript.started_at)}"
            if transcript.parent_id is not None:
                yield f"Parent: {transcript.parent_id}"

    def conversation(self, transcript: SubagentTranscript) -> Iterator[str]:
        yield f"=== Conversation {transcript.id} ==="
        yield f"Label: {self._one_line(transcript.label)}"
        yield f"Depth: {transcript.depth}"
        yield f"Started: {rfc3339(transcript.started_at)}"
        if transcript.completed_at is not None:
            yield f"Completed: {rfc3339(transcript.completed_at)}"
        yield from ("", f"Task: {self._body(transcript.task)}", "", "=== Messages ===", "")
        for number, message in enumerate(transcript.messages, 1):
            yield f"--- Message {number} ({_ROLES[type(message)]}) ---"
            yield from self._message(message)
            yield ""
        yield "=== Metadata ==="
        yield f"Turns Used: {transcript.turns_used}"
        yield f"Tokens Consumed: {transcript.tokens_consumed}"
        yield f"Status: {transcript.status}"
        yield f"Max Turns Reached: {str(transcript.max_turns_reached).lower()}"
        yield f"Allowed Tools: {clean_line(json.dumps(transcript.allowed_tools, ensure_ascii=False))}"

    def _message(self, message: Message) -> Iterator[str]:
        text = message.text if isinstance(message, AssistantMessage) else with_labels(message.text, message.attachments)
        yield self._body(text) or "(no content)"
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                yield f"Tool call: {self._one_line(call.name)} {self._body(call.arguments)}"

    def tree(self, tops: Sequence[RunRow], rows: Sequence[RunRow]) -> Iterator[str]:
        below: dict[str | None, list[RunRow]] = {}
        for row in reversed(rows):  # oldest first
            below.setdefault(row.parent_id, []).append(row)
        yield "Conversation tree:"
        waiting = [(row, 0) for row in reversed(tops)]
        while waiting:
            row, level = waiting.pop()
            turns = row.progress.turns
            yield f"{'  ' * level}├─ {row.run_id} [{self._one_line(row.label)}] (depth={row.depth}, turns={turns})"
            waiting += [(child, level + 1) for child in reversed(below.get(row.run_id, []))]

    def _one_line(self, text: str) -> str:
        return " ".join(clean_line(text).split())

    def _body(self, text: str) -> str:
        return clean_body(text, "--- ", "=== ")


_ROLES: dict[type[Message], str] = {UserMessage: "user", AssistantMessage: "assistant", ToolMessage: "tool"}


def copy(logs: Sequence[Sequence[Event]], run_specs: Mapping[str, RunSpec], path: Path) -> None:
    """Copy whole runs, parents first, into the store at `path`, which keeps the runs that it has already."""
    from retinue.store.sqlite import SqliteStore

    path.parent.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(path)
    try:
        accepts: list[Write] = []
        records: list[Write] = []
        for accepted, *events in logs:
            if isinstance(accepted, RunAccepted) and store.run(accepted.run_id) is None:
                accepts.append(OpenSession(session_id=accepted.session_id, at=accepted.at))
                # No run is accepted below one that has ended, so all events follow. Keys and handles are not copied.
                copied = replace(accepted, key=None, handle=None)
                accepts.append(Accept(accepted=copied, run_spec=run_specs[accepted.run_spec], driver_id=None))
                records.append(Record(run_id=accepted.run_id, seq=2, events=tuple(events)))
        if accepts:
            store.commit(None, [*accepts, *records])
    finally:
        store.close()


class Retention:
    """Applies the retention of the trees in which this process has subagents."""

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self._supervisor = supervisor = dialect_context.supervisor
        self._key_value = supervisor.key_value
        self._rule = _rule(settings)
        self._trees: dict[RunId, bytes] = {}
        self._copying: set[asyncio.Task[None]] = set()
        supervisor.on_register(self._catch_up)
        supervisor.on_adopt(self._adopted)
        supervisor.on_end(self._ended)
        supervisor.on_leave(self._finish)

    def expect(self, root_id: RunId) -> None:
        """Remember a tree in which a subagent is about to start."""
        if self._rule is not None and root_id not in self._trees:
            self._trees[root_id] = self._rule
            self._key_value.queue_change(SPACE, _put(root_id, self._rule))

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        for root_id in self._needed_by(accepted):
            if root_id in self._trees and not self._is_needed(root_id):
                self._apply(root_id, self._trees.pop(root_id))

    def _is_needed(self, root_id: RunId) -> bool:
        """Whether a live run needs the messages of the tree."""
        return any(root_id in self._needed_by(live.run.accepted) for live in self._supervisor.live_runs())

    def _needed_by(self, accepted: RunAccepted) -> tuple[RunId, ...]:
        """The trees whose messages a run needs: its own, and that of the run whose history it inherits."""
        if accepted.inherits is None:
            return (accepted.root_id,)
        origin = accepted.inherits.run_id
        if (live := self._supervisor.live(origin)) is not None:
            return accepted.root_id, live.run.accepted.root_id
        if (ended := self._supervisor.ended(origin)) is not None:
            return accepted.root_id, ended.root_id
        return (accepted.root_id,)

    async def _catch_up(self) -> None:
        """Apply the retention of trees that ended before this process started."""
        for root_id, rule in (await self._key_value.look(SPACE)).items():
            rows = await self._rows(root_id)
            if all(row.progress.phase == "ended" for row in rows) and not self._is_needed(root_id):
                self._apply(root_id, rule)

    async def _adopted(self, runs: Sequence[Run]) -> None:
        known = await self._key_value.look(SPACE)
        roots = {run.accepted.root_id for run in runs}
        self._trees |= {root_id: rule for root_id, rule in known.items() if root_id in roots}

    def _apply(self, root_id: RunId, rule: bytes) -> None:
        if rule == DROP:
            # A crash between the two writes is harmless: the next process drops the events again.
            self._supervisor.drop_events(root_id, NAME)
            self._key_value.queue_change(SPACE, _drop(root_id))
            return
        task = asyncio.get_running_loop().create_task(self._copy(root_id, Path(rule.decode())), name="retinue-copies")
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)

    async def _copy(self, root_id: RunId, path: Path) -> None:
        try:
            rows = [row for row in await self._rows(root_id) if row.dialect == NAME and row.parent_id is not None]
            stored = self._supervisor.stored
            logs = [await stored.events(row.run_id) for row in reversed(rows)]
            run_specs = {row.run_spec: await stored.run_spec(row.run_spec) for row in rows}
            await asyncio.to_thread(copy, [[event for _, event in log] for log in logs], run_specs, path)
            await self._key_value.change(SPACE, _drop(root_id))
        except (RetinueError, OSError) as error:  # the copy is optional: no run fails because of it
            log.warning("the conversations below run %s could not be copied to %s: %s", root_id, path, error)

    async def _finish(self) -> None:
        await asyncio.gather(*self._copying, return_exceptions=True)

    async def _rows(self, root_id: RunId) -> list[RunRow]:
        return await self._supervisor.stored.runs(RunQuery(root_id=root_id))


def _rule(settings: XzatomaSettings) -> bytes | None:
    """The retention rule of the settings; None if the messages stay in the store."""
    if not settings.persistence_enabled:
        return DROP
    if settings.persistence_path is None:
        return None
    return str(Path(settings.persistence_path).expanduser().absolute()).encode()


def _put(root_id: RunId, rule: bytes) -> Decide:
    return lambda key_value: Decision(b"", puts={root_id: rule})


def _drop(root_id: RunId) -> Decide:
    return lambda key_value: Decision(b"", drops=(root_id,))
