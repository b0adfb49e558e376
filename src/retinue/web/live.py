"""Trees of runs as pages follow them: rows that have changed, and new entries of one conversation, in small batches.

All pages that follow a tree share one reader of its events, and what is sent to all is encoded once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import msgspec

from retinue.app.engine_types import RunView
from retinue.app.json_rows import run_row
from retinue.app.read_only import ReadOnlyClient
from retinue.app.transcript import RunEntries, TranscriptEntry
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.web.current_calls import OpenCalls, doing, open_calls

BATCH_SECONDS = 0.04
"""The pause between two batches, in which changes are collected."""

BATCH_SECONDS_OF_A_PAGE = 0.0006
"""What each page that follows adds to that pause: the cost of many pages stays bounded."""

SETTLE_SECONDS = (0.3, 2.0)
"""After these times rows are looked at again: a parent begins to wait without an event, and so ends a pause."""

ALIVE_SECONDS = 15.0
"""The longest time without a line, so that proxies keep the connection."""

MAX_TAIL = 4000
"""Characters of a reply in progress that are sent; the whole reply follows as an entry."""

MAX_WAITING = 8 << 20
"""Bytes that wait for a page which does not read; beyond them its stream ends, and it may come back."""


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

    def put(self, chunk: bytes) -> None:
        if self.size and self.size + len(chunk) > MAX_WAITING:  # one chunk may be larger: a whole conversation is
            self.ended = True
        else:
            self.size += len(chunk)
            self.outbox.append(chunk)
        self.ready.set()

    def finish(self, last: bytes) -> None:
        """Send a last event; a page that was left lacks what was before it, and has to come back."""
        if not self.ended:
            self.outbox.append(last)
            self.ended = True
            self.ready.set()

    def take(self) -> bytes:
        chunk = b"".join(self.outbox)
        self.outbox.clear()
        self.size = 0
        self.ready.clear()
        return chunk


def sent(name: str, value: object) -> bytes:
    """A server-sent event with a name."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


def tree_row(client: ReadOnlyClient, view: RunView, calls: OpenCalls | None) -> dict[str, object]:
    """The row of a run, with the reason of its failure and with what it does now; `calls` are as for `doing`."""
    error = view.outcome.error if view.outcome is not None else ""
    return run_row(view) | {"error": error[:1000], "doing": doing(client, view, calls)[:300]}


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
        self._calls: dict[RunId, OpenCalls] = {}
        self._conversations: dict[RunId, RunEntries] = {}
        """Of runs that a page has shown. Each begins with the first event; events may be taken again."""
        self._changed: set[RunId] = set()
        self._settling: dict[RunId, tuple[float, int]] = {}
        """When a row is looked at again, and how often that was done since it changed."""
        self._look_at = math.inf
        """When the first of them is due, or before."""
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
            views = sorted(await self._client.tree(self._root_id), key=lambda view: (view.started_at, view.depth))
            self._calls = await open_calls(self._client, self._root_id, views)
            for view in views:
                row = tree_row(self._client, view, self._calls.get(view.run_id))
                self._rows[view.run_id] = msgspec.json.encode(row)
                self._parents[view.run_id] = view.parent_id
                if view.outcome is not None:
                    self._over.add(view.run_id)
            self._settle(self._rows.keys() - self._over)
            self.ready.set_result(None)
            reading = asyncio.ensure_future(self._read(after))
            try:
                await self._send_batches()
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
            follower.finish(sent("problem", {"error": problem}) if problem else sent("end", {}))

    async def _numbers(self) -> dict[RunId, int]:
        rows = await self._client.supervisor.stored.runs(RunQuery(root_id=self._root_id))
        return {row.run_id: row.seq for row in rows}

    async def _read(self, after: dict[RunId, int]) -> None:
        try:
            async for item in self._client.supervisor.tree_events(self._root_id, after=after, deltas_of=self.selected):
                run_id = item.run
                if item.seq:
                    event = cast("Event", item.event)
                    self._changed.add(run_id)
                    self._calls.setdefault(run_id, OpenCalls()).take(event)
                    if run_id in self.selected:
                        self._events.setdefault(run_id, []).append((item.seq, event))
                else:
                    self._texts.add(run_id)
                self._wake.set()
        finally:
            self._is_read = True
            self._wake.set()

    async def _send_batches(self) -> None:
        while True:
            if not self._changed and not self._texts and not self._is_read:
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._wake.wait(), max(0.0, self._look_at - _now()) if self._settling else None
                    )
            is_last = self._is_read
            if is_last:  # runs that have lost their driver changed without an event
                self._changed |= self._rows.keys()
            self._wake.clear()
            await self._send()
            if is_last:
                return
            await asyncio.sleep(BATCH_SECONDS + BATCH_SECONDS_OF_A_PAGE * len(self.followers))

    def _settle(self, run_ids: Iterable[RunId]) -> None:
        """Have rows that have changed looked at again."""
        at = _now() + SETTLE_SECONDS[0]
        self._settling.update((run_id, (at, 0)) for run_id in run_ids)
        self._look_at = min(self._look_at, at)

    def _settled(self) -> set[RunId]:
        """The runs whose rows are to be looked at again now."""
        if (now := _now()) < self._look_at:
            return set()
        due = {run_id: times for run_id, (at, times) in self._settling.items() if at <= now}
        for run_id, times in due.items():
            live = self._client.supervisor.live(run_id)
            is_paused = live is not None and live.pause is not None  # it goes on without an event
            times += not is_paused
            # Of a run that this process drives, the second look costs more than it would show.
            if run_id in self._over or times == (len(SETTLE_SECONDS) if live is None else 1):
                del self._settling[run_id]
            else:
                self._settling[run_id] = (now + SETTLE_SECONDS[times], times)
        self._look_at = min((at for at, _ in self._settling.values()), default=math.inf)
        return due.keys() - self._over

    async def _send(self) -> None:
        """Send what has changed to all followers, and rows that have come to look different meanwhile."""
        changed, self._changed = self._changed, set()
        events, self._events = self._events, {}
        texts, self._texts = self._texts, set()
        settled = self._settled() - changed
        rows = await self._changed_rows(changed | settled)
        # A parent's row changes with its child's; the parent of a new run is known with its row.
        parents = {parent for run_id in changed if (parent := self._parents.get(run_id)) is not None} - changed
        rows += await self._changed_rows(parents)
        self._settle((changed | parents) - self._over)
        shared = b"event: rows\ndata: [%s]\n\n" % b",".join(rows) if rows else b""
        replies = {run_id: self._reply(run_id) for run_id in texts | events.keys()}
        entries: dict[tuple[RunId, int], tuple[bytes, int]] = {}
        for follower in self.followers:
            new = events.get(follower.selected, ())
            if follower.seen is None:  # all rows and entries come first: see `start`
                follower.waiting += new
                continue
            chunk = shared
            if new:
                key = (follower.selected, follower.seen)
                if key not in entries:  # most pages have read the same
                    entries[key] = self._entries(*key, new)
                text, follower.seen = entries[key]
                chunk += text
            chunk += replies.get(follower.selected, b"")
            if chunk:
                follower.put(chunk)

    def _entries(self, run_id: RunId, seen: int, events: Sequence[tuple[int, Event]]) -> tuple[bytes, int]:
        """The entries of events after `seen` as one server-sent event, nothing without any, and the last number."""
        new = [(seq, event) for seq, event in events if seq > seen]
        if not new:
            return b"", seen
        items = self._items(run_id, new)
        return sent("entries", {"run_id": run_id, "seq": new[-1][0], "items": items}), new[-1][0]

    def _items(self, run_id: RunId, events: Sequence[tuple[int, Event]]) -> list[TranscriptEntry]:
        conversation = self._conversations.setdefault(run_id, RunEntries())
        return [entry for _, event in events for entry in conversation.entries(event)]

    async def _changed_rows(self, run_ids: Set[RunId]) -> list[bytes]:
        rows: list[bytes] = []
        for run_id in run_ids - self._over:
            if (row := await self._row(run_id)) is not None and row != self._rows.get(run_id):
                self._rows[run_id] = row
                rows.append(row)
        return rows

    async def _row(self, run_id: RunId) -> bytes | None:
        view = await self._client.supervisor.look(run_id)
        if view is None:
            return None
        if not view.task:
            (view,) = await self._client.supervisor.with_tasks([view])
        self._parents[run_id] = view.parent_id
        if view.outcome is not None:
            self._over.add(run_id)
        return msgspec.json.encode(tree_row(self._client, view, self._calls.get(run_id)))

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
        items = self._items(follower.selected, events)
        number = events[-1][0] if events else 0
        first = {"run_id": follower.selected, "seq": number, "items": items, "all": True}
        later, follower.seen = self._entries(follower.selected, number, follower.waiting)
        follower.put(self.rows() + sent("entries", first) + self._reply(follower.selected) + later)
        follower.waiting.clear()


def _now() -> float:
    return asyncio.get_running_loop().time()


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
                follower.finish(sent("end", {}))
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
