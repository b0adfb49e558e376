"""A conversation with an agent: one for the user, a sequence of root runs in the store.

A segment of the conversation is a keep-alive run, whose limits apply to each answer. The tools of a run cannot change,
and a cancelled run has ended: when delegation is switched or an answer is stopped, the next input starts a new run that
inherits the history. A run whose process was killed between two answers is continued where its run spec and limits are
those of today, with the descendants that were at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.app.launch.start import Launch
from retinue.app.retinue import Retinue
from retinue.core.attachments import Attachment, checked
from retinue.core.commands import RunQuery
from retinue.core.errors import NotAdoptable, RunIsOver, SessionClosed, StoreError
from retinue.core.events import Event, ExchangeEnded, MailTaken, RunAccepted, RunEnded
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Input
from retinue.core.log_context import logger
from retinue.core.messages import Delta
from retinue.core.run import CHAT, HistoryRef, Limits, Outcome
from retinue.dialects.registry import cancelled_notice
from retinue.engine import RunView

log = logger("retinue.app")

Receive = Callable[[Event | Delta], None]

SUPERSEDED = "superseded by the next input of the chat"
"""Why the interrupted answer of an earlier chat is cancelled."""


class Segment:
    """A run of the conversation, and its events and deltas from the start.

    It is followed all the time, and not only while an answer is awaited: a subscriber that comes late has missed the
    start of a reply, and receives no deltas of it.
    """

    def __init__(
        self, run: RunHandle, launch: Launch, dialects: tuple[str, ...], events: AsyncIterator[Event | Delta]
    ) -> None:
        self.run = run
        self.launch = launch
        self.dialects = dialects
        self.is_over = False
        self._events = events
        self._received: asyncio.Queue[Event | Delta | StoreError] = asyncio.Queue()
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="retinue-chat-reader")

    async def answer(self, key: Key | None, receive: Receive) -> Outcome:
        """Pass events on until the input with this key is answered, the first input if None, or the run ends."""
        begun = key is None
        while True:
            event = await self._received.get()
            if isinstance(event, StoreError):
                raise event
            receive(event)
            match event:
                case MailTaken(items=items) if any(item.key == key for item in items):
                    begun = True
                case ExchangeEnded(exchange=exchange) if begun:
                    return Outcome(
                        result=exchange.result,
                        reason=exchange.reason,
                        text=exchange.text,
                        error=exchange.error,
                        limit=exchange.limit,
                    )
                case RunEnded(outcome=outcome):
                    self.is_over = True
                    return outcome
                case _:
                    pass

    async def stop_following(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            async for event in self._events:
                self._received.put_nowait(event)
        except StoreError as error:
            self._received.put_nowait(error)


class Conversation:
    """Takes one input at a time, answers or stops it, and can be cleared.

    Its runs are started as `launch` says; the limits of `launch`, `max_turns` too, apply to each answer.
    """

    def __init__(self, retinue: Retinue, launch: Launch, earlier: EarlierChat | None = None) -> None:
        self._retinue = retinue
        self._launch = launch
        self._earlier = earlier
        self._segment: Segment | None = None
        self._start: _Start | None = None
        """How the next run begins, if not with the whole history as it stands."""
        self._compacts = False
        """Whether the next run compacts its history first."""
        self.runs: list[RunId] = list(earlier.runs) if earlier is not None else []
        """Every root run of the conversation, oldest first."""

    @property
    def launch(self) -> Launch:
        """How the next run of the conversation is started."""
        return self._launch

    def use(self, launch: Launch) -> None:
        """Start a new run with the next input, as `launch` says; it inherits the history."""
        self._launch = launch

    @property
    def current(self) -> RunId | None:
        """The run that gets the next input, or got the last one."""
        return self.runs[-1] if self.runs else None

    async def begin(
        self, text: str, dialects: tuple[str, ...], attachments: Sequence[Attachment] = ()
    ) -> tuple[RunId, Key | None]:
        """Post the input to the current run, or start a new one with it; the run, and the key of the input there."""
        attachments = checked(attachments)
        session_id = self._retinue.session_id
        if await self._retinue.sessions.is_archived(session_id):
            raise SessionClosed(session_id, "archived")  # a run may read it, a conversation would change it
        await self._continue_earlier(dialects)
        segment = self._segment
        if segment is not None and not segment.is_over and self._fits(segment, dialects):
            supervisor, run_id = self._retinue.supervisor, segment.run.run_id
            item = Input(key=supervisor.new_id(), text=text, attachments=attachments)
            with suppress(RunIsOver):
                await supervisor.post(run_id, item, durable=True)
                await self._launch.save_message(self._retinue, run_id, text, dialects)
                return run_id, item.key
        await self.close()
        run = await self._new_run(text, dialects, attachments)
        self._segment = Segment(run, self._launch, dialects, run.events())
        self.runs.append(self._segment.run.run_id)
        await self._launch.save_message(self._retinue, self._segment.run.run_id, text, dialects)
        return self._segment.run.run_id, None

    async def answer(self, key: Key | None, receive: Receive, stop: asyncio.Event) -> Outcome:
        """The answer to the input of `begin`; `stop` cancels its run with everything below it."""
        segment = self._segment
        assert segment is not None
        async with self._stopped_by(stop, segment.run):
            outcome = await segment.answer(key, receive)
        if segment.is_over:
            await self._see_cancelled(segment.run.run_id)
        elif key is None:  # the answer is on disk before it is reported as complete
            await segment.run.answer()
        else:
            await self._retinue.supervisor.reply_to(segment.run.run_id, key, durable=True)
        return outcome

    def _fits(self, segment: Segment, dialects: tuple[str, ...]) -> bool:
        """Whether the next input can be posted to the run of a segment."""
        return segment.dialects == dialects and segment.launch is self._launch and not (self._start or self._compacts)

    def compact(self) -> bool:
        """Compact the history before the next input is answered; False if there is none."""
        self._compacts = bool(self.runs) and (self._start is None or self._start.history is not None)
        return self._compacts

    async def rewind(self, dialects: tuple[str, ...]) -> str | None:
        """Go back to before the last input; its text, or None if there is none. What it has done is not undone."""
        await self._continue_earlier(dialects)
        if not self.runs:
            return None
        run_id = self.runs[-1]
        events = await self._retinue.supervisor.stored.events(run_id)
        text, history = _last_input(run_id, events)
        await self.close()
        self._start = _Start(history)
        return text

    async def close(self) -> str | None:
        """End the current run; a line about descendants that were cancelled with it."""
        segment, self._segment = self._segment, None
        if segment is None:
            return None
        await segment.stop_following()
        if segment.is_over:
            return None
        await segment.run.close()
        await self._see_cancelled(segment.run.run_id)
        return cancelled_notice(await self._retinue.tree(segment.run.run_id))

    async def clear(self) -> None:
        """Start over: the next input begins a new conversation."""
        await self.close()
        self.runs.clear()
        self._earlier = self._start = None
        self._compacts = False

    async def trees(self) -> list[list[RunView]]:
        """Every run of the conversation with its descendants, in the order of their starts."""
        trees = [await self._retinue.tree(run_id) for run_id in self.runs]
        return [sorted(tree, key=lambda view: (view.started_at, view.run_id)) for tree in trees]

    async def _new_run(self, text: str, dialects: tuple[str, ...], attachments: Sequence[Attachment]) -> RunHandle:
        retinue = self._retinue
        self._set_launch_config(dialects)
        history = await self._inherited()
        return await self._launch.spawn(
            retinue,
            text,
            limits=self._limits(dialects),
            dialects=dialects,
            keep_alive=True,
            per_input=True,
            inherits=history,
            label=CHAT,
            attachments=attachments,
        )

    async def _inherited(self) -> HistoryRef | None:
        """The history that the next run inherits."""
        (start, self._start), (compacts, self._compacts) = (self._start, None), (self._compacts, False)
        if start is not None:
            history = start.history
        else:
            history = await history_of(self._retinue, self.runs[-1]) if self.runs else None
        return replace(history, compact=True) if compacts and history is not None else history

    def _set_launch_config(self, dialects: tuple[str, ...]) -> None:
        retinue = self._retinue
        if retinue.launch_config is not None:
            choice = self._launch.model_choice
            retinue.launch_config = replace(
                retinue.launch_config, dialects=dialects, model=choice.model, provider_configs=choice.providers
            )

    def _limits(self, dialects: tuple[str, ...]) -> Limits:
        limits = self._launch.limits
        return replace(limits, wrap_up=not dialects, max_turns=None, exchange_turns=limits.max_turns)

    async def _continue_earlier(self, dialects: tuple[str, ...]) -> None:
        if self._earlier is not None:
            earlier, self._earlier = self._earlier, None
            self._segment = await self._resume_earlier(earlier, dialects)

    async def _resume_earlier(self, earlier: EarlierChat, dialects: tuple[str, ...]) -> Segment | None:
        """Take over what the processes of an earlier chat left unfinished; its last run, if that can go on.

        An interrupted answer is cancelled, with everything below it. A run that waited for input is resumed, with its
        descendants; it is closed if the flags or settings are others today. Work that earlier runs left in the
        background is resumed. What another process drives is left alone.
        """
        retinue = self._retinue
        last = earlier.last.run_id
        unfinished = RunQuery(session_id=retinue.session_id, unfinished_only=True)
        left = [view for view in await retinue.supervisor.list(unfinished) if view.state == "interrupted"]
        for root_id in dict.fromkeys(view.root_id for view in left if view.root_id in earlier.runs):
            try:
                if root_id == last and earlier.is_answering:
                    await retinue.cancel(root_id, SUPERSEDED)
                else:
                    await retinue.resume(next(view.run_id for view in left if view.root_id == root_id))
            except NotAdoptable as refused:
                log.warning("%s", refused)
                if root_id == last:
                    await retinue.cancel(root_id, SUPERSEDED)
        live = retinue.supervisor.live(last)
        if live is None:
            return None
        run = live.run
        self._set_launch_config(dialects)
        current_spec = retinue.supervisor.admitted(self._launch.run_spec(retinue, dialects=dialects))
        handle = retinue.handle(last)
        segment = Segment(handle, self._launch, dialects, retinue.supervisor.events(last, after=run.seq))
        is_same = (run.run_spec, run.accepted.limits) == (current_spec, self._limits(dialects))
        if is_same and run.accepted.lifecycle.per_input:
            return segment
        self._segment = segment
        await self.close()
        return None

    def at_work(self) -> list[RunId]:
        """Descendants of the conversation's runs that are still at work in the background."""
        live = self._retinue.supervisor.live_runs()
        return [each.run_id for each in live if each.run.accepted.parent_id is not None]

    async def _see_cancelled(self, run_id: RunId) -> None:
        """Wait for descendants that were cancelled with the run; other descendants may go on for long."""
        live = self._retinue.supervisor.live_runs()
        while ending := [each.run_id for each in live if each.cancelled and each.run.accepted.root_id == run_id]:
            await self._retinue.wait(*ending)

    @asynccontextmanager
    async def _stopped_by(self, stop: asyncio.Event, run: RunHandle) -> AsyncGenerator[None]:
        async def cancel() -> None:
            await stop.wait()
            with suppress(StoreError):
                await run.cancel("stopped by the person at the terminal")

        waiting = asyncio.get_running_loop().create_task(cancel(), name="retinue-chat-stop")
        try:
            yield
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


class _Start(Struct, frozen=True):
    """How a run of the conversation begins: with this history, or with none."""

    history: HistoryRef | None


def _last_input(run_id: RunId, events: Sequence[tuple[int, Event]]) -> tuple[str, HistoryRef | None]:
    """The text of the last input of a run, and the history before it."""
    for seq, event in reversed(events):
        match event:
            case MailTaken(items=items) if found := [item for item in items if isinstance(item, Input)]:
                return found[-1].text, HistoryRef(run_id, seq - 1)
            case RunAccepted(task=task, inherits=inherits):
                return task, inherits
            case _:
                pass
    raise AssertionError(f"run {run_id} has no first event")


class EarlierChat(Struct, frozen=True, kw_only=True):
    """A conversation that can be continued: its runs, oldest first, and the state of the last one."""

    runs: tuple[RunId, ...]
    last: RunView
    messages: int
    is_answering: bool
    """Whether the last event of its last run is part of an unfinished answer."""


async def earlier_chat(retinue: Retinue) -> EarlierChat | None:
    """The last chat of the retinue's session, if there was one."""
    query = RunQuery(session_id=retinue.session_id, roots_only=True)
    last = next((view for view in await retinue.supervisor.list(query) if view.label == CHAT), None)
    if last is None:
        return None
    run = await retinue.supervisor.replay(last.run_id)
    return EarlierChat(
        runs=await retinue.supervisor.conversation(last.run_id),
        last=last,
        messages=len(run.history),
        is_answering=run.outcome is None and run.in_exchange,
    )


async def history_of(retinue: Retinue, run_id: RunId) -> HistoryRef:
    """A reference to the whole history of a run as it stands."""
    return HistoryRef(run_id, (await retinue.supervisor.replay(run_id)).seq)
