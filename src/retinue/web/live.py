"""Trees of runs as pages follow them: rows that have changed, and new entries of one conversation, in small batches.

All pages that follow a tree share one reader of its events, and what is sent to all is encoded once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from retinue.app.engine_types import RunView
from retinue.app.json_rows import run_row
from retinue.app.read_only import ReadOnlyClient
from retinue.app.transcript import Conversation
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.events import Event
from retinue.core.ids import RunId

BATCH_SECONDS = 0.04
"""The pause between two batches, in which changes are collected."""

BATCH_SECONDS_OF_A_PAGE = 0.0006
"""What each page that follows adds to that pause: the cost of many pages stays bounded."""

SETTLE_SECONDS = 0.3
"""After this time rows are looked at again: a parent begins to wait without an event."""

ALIVE_SECONDS = 15.0
"""The longest time without a line, so that proxies keep the connection."""

MAX_TAIL = 4000
"""Characters of a reply in progress that are sent; the whole reply follows as an entry."""

MAX_WAITING = 8 << 20
"""Bytes that wait for a page which does not read; beyond it, its stream ends, and it may come back."""


@dataclass(eq=False, slots=True)
class _Follower:
    """A page that follows a tree. `waiting` are events of its selected run until the stored ones were sent."""

    selected: RunId
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    outbox: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    ended: bool = False
    seen: int | None = None
    waiting: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    conversation: Conversation = field(default_factory=Conversation)

    def put(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > MAX_WAITING:
            self.ended = True
        else:
            self.outbox.append(chunk)
        self.ready.set()

    def take(self) -> bytes:
        chunk = b"".join(self.outbox)
        self.outbox.clear()
        self.size = 0
        self.ready.clear()
        return chunk

    def entries(self, events: Sequence[tuple[int, Event]]) -> bytes:
        """The entries of events that were not sent, as one server-sent event; nothing without any."""
        new = [(seq, event) for seq, event in events if seq > (self.seen or 0)]
        if not new:
            return b""
        items = [entry for _, event in new for entry in self.conversation.entries(event)]
        self.seen = new[-1][0]
        return sent("entries", {"run_id": self.selected, "seq": self.seen, "items": items})


def sent(name: str, value: object) -> bytes:
    """A server-sent event with a name."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


def tree_row(client: ReadOnlyClient, view: RunView) -> dict[str, object]:
    """The row of a run, with the reason of its failure and with what it does now, if this process drives it."""
    error = view.outcome.error if view.outcome is not None else ""
    live = client.supervisor.live(view.run_id) if view.outcome is None else None
    doing = ""
    if live is not None and (pause := live.pause) is not None:
        doing = f"waits to call the model again: {pause.error}"
    elif live is not None:
        calls = [live.run.open[index].call.name for index in live.in_flight if 0 <= index < len(live.run.open)]
        doing = f"calls {', '.join(calls[:3])}" if calls else "calls the model" if live.in_flight else ""
    return run_row(view) | {"error": error[:1000], "doing": doing[:300]}


class _Tree:
    """A tree that is followed by at least one page."""

    def __init__(self, client: ReadOnlyClient, root_id: RunId) -> None:
        self._client = client
        self._root_id = root_id
        self.followers: set[_Follower] = set()
        self.selected: Counter[RunId] = Counter()
        """How many pages show each conversation: only their deltas are read."""
        self._rows: dict[RunId, bytes] = {}
        self._parents: dict[RunId, RunId | None] = {}
        self._over: set[RunId] = set()
        """Runs whose last row was sent: it does not change any more."""
        self._changed: set[RunId] = set()
        self._settling: set[RunId] = set()
        self._events: dict[RunId, list[tuple[int, Event]]] = {}
        self._texts: set[RunId] = set()
        self._wake = asyncio.Event()
        self._is_read = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._follow(), name=f"retinue-page-{root_id}")

    def join(self, follower: _Follower) -> None:
        self.followers.add(follower)
        self.selected[follower.selected] += 1

    def leave(self, follower: _Follower) -> None:
        self.followers.discard(follower)
        self.selected[follower.selected] -= 1
        if not self.selected[follower.selected]:
            del self.selected[follower.selected]

    async def _follow(self) -> None:
        problem = ""
        try:
            after = await self._numbers()  # read first: an event between the two reads is seen twice, not never
            for view in sorted(await self._client.tree(self._root_id), key=lambda view: (view.started_at, view.depth)):
                self._rows[view.run_id] = msgspec.json.encode(tree_row(self._client, view))
                self._parents[view.run_id] = view.parent_id
            self.ready.set_result(None)
            reading = asyncio.ensure_future(self._read(after))
            try:
                await self._send_batches(reading)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            if (error := None if reading.cancelled() else reading.exception()) is not None:
                raise error
        except RetinueError as error:
            problem = str(error)
        finally:
            if not self.ready.done():
                self.ready.set_result(None)
        for follower in self.followers:
            if follower.seen is None:
                continue  # its rows come first, and then its end: see `LiveTrees.changes`
            follower.put(sent("problem", {"error": problem}) if problem else sent("end", {}))
            follower.ended = True
            follower.ready.set()

    async def _numbers(self) -> dict[RunId, int]:
        rows = await self._client.supervisor.stored.runs(RunQuery(root_id=self._root_id))
        return {row.run_id: row.seq for row in rows}

    async def _read(self, after: dict[RunId, int]) -> None:
        try:
            async for item in self._client.supervisor.tree_events(self._root_id, after=after, deltas_of=self.selected):
                run_id = item.run
                if item.seq:
                    self._changed.add(run_id)
                    if run_id in self.selected:
                        self._events.setdefault(run_id, []).append((item.seq, cast("Event", item.event)))
                else:
                    self._texts.add(run_id)
                self._wake.set()
        finally:
            self._is_read = True
            self._wake.set()

    async def _send_batches(self, reading: asyncio.Future[None]) -> None:
        while True:
            if not self._changed and not self._texts:
                if self._is_read and not self._settling:
                    return
                try:
                    await asyncio.wait_for(self._wake.wait(), SETTLE_SECONDS if self._settling else None)
                except TimeoutError:
                    settled, self._settling = self._settling, set()
                    self._changed |= settled
                    await self._send(again=True)
                    continue
                if self._is_read and not self._changed and not self._texts:
                    self._changed, self._settling = self._settling, set()
                    await self._send(again=True)
                    return
            self._wake.clear()
            await self._send()
            await asyncio.sleep(BATCH_SECONDS + BATCH_SECONDS_OF_A_PAGE * len(self.followers))

    async def _send(self, *, again: bool = False) -> None:
        """Send what has changed to all followers; `again` looks at rows that were sent before."""
        changed, self._changed = self._changed, set()
        events, self._events = self._events, {}
        texts, self._texts = self._texts, set()
        rows: list[bytes] = []
        # A parent's row changes with its child's.
        related = changed | {parent for run_id in changed if (parent := self._parents.get(run_id)) is not None}
        for run_id in related - self._over:
            if (row := await self._row(run_id)) is not None and row != self._rows.get(run_id):
                self._rows[run_id] = row
                rows.append(row)
        if not again:
            self._settling |= related - self._over
        shared = b"event: rows\ndata: [%s]\n\n" % b",".join(rows) if rows else b""
        replies = {run_id: self._reply(run_id) for run_id in texts | events.keys()}
        for follower in self.followers:
            chunk = shared
            if new := events.get(follower.selected):
                if follower.seen is None:
                    follower.waiting += new
                else:
                    chunk += follower.entries(new)
            chunk += replies.get(follower.selected, b"")
            if chunk:
                follower.put(chunk)

    async def _row(self, run_id: RunId) -> bytes | None:
        view = await self._client.supervisor.look(run_id)
        if view is None:
            return None
        if not view.task:
            (view,) = await self._client.supervisor.with_tasks([view])
        self._parents[run_id] = view.parent_id
        if view.outcome is not None:
            self._over.add(run_id)
        return msgspec.json.encode(tree_row(self._client, view))

    def _reply(self, run_id: RunId) -> bytes:
        """The end of the reply in progress of a run that this process drives, and why it is tried again."""
        live = self._client.supervisor.live(run_id)
        pieces: list[str] = []
        length = 0
        for piece in reversed(live.partial if live is not None else ()):
            pieces.append(piece)
            length += len(piece)
            if length >= MAX_TAIL:
                break
        pause = live.pause if live is not None else None
        text = "".join(reversed(pieces))[-MAX_TAIL:]
        return sent("reply", {"run_id": run_id, "text": text, "retry": pause.error if pause is not None else ""})

    def rows(self) -> bytes:
        """All rows as one server-sent event."""
        return b"event: rows\ndata: [%s]\n\n" % b",".join(self._rows.values())

    async def start(self, follower: _Follower) -> None:
        """Send the stored entries of the selected run, and then those that came meanwhile."""
        events = await self._client.supervisor.stored.events(follower.selected)
        follower.put(self.rows())
        items = [entry for _, event in events for entry in follower.conversation.entries(event)]
        follower.seen = events[-1][0] if events else 0
        first = {"run_id": follower.selected, "seq": follower.seen, "items": items, "all": True}
        follower.put(sent("entries", first) + self._reply(follower.selected))
        if later := follower.entries(follower.waiting):
            follower.put(later)
        follower.waiting.clear()


class LiveTrees:
    """The trees that pages follow; each is read once, for as long as a page follows it."""

    def __init__(self, client: ReadOnlyClient) -> None:
        self._client = client
        self._trees: dict[RunId, _Tree] = {}

    async def changes(self, root_id: RunId, selected: RunId) -> AsyncGenerator[bytes]:
        """The rows of a tree and the entries of one of its runs, and then their changes, as server-sent events.

        Ends with the event `end` when the whole tree has ended or has no driver any more.
        """
        yield b": ok\n\n"
        tree = self._trees.get(root_id)
        if tree is None or tree.task.done():
            tree = self._trees[root_id] = _Tree(self._client, root_id)
        follower = _Follower(selected)
        tree.join(follower)
        try:
            await asyncio.shield(tree.ready)
            await tree.start(follower)
            if tree.task.done():  # before this page followed
                follower.put(sent("end", {}))
                follower.ended = True
            while True:
                try:
                    await asyncio.wait_for(follower.ready.wait(), ALIVE_SECONDS)
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                yield follower.take()
                if follower.ended:
                    return
        except RetinueError as error:
            yield sent("problem", {"error": str(error)})
        finally:
            tree.leave(follower)
            if not tree.followers:
                if self._trees.get(root_id) is tree:
                    del self._trees[root_id]
                tree.task.cancel()
                await asyncio.gather(tree.task, return_exceptions=True)
