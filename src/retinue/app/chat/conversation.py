"""A conversation with an agent: one for the user, a sequence of root runs in the store.

A segment of the conversation is a keep-alive run. The tools of a run cannot change, and a cancelled run has ended: when
delegation is switched or an answer is stopped, the next input starts a new run that inherits the history. Where limits
apply to each answer, each answer is a run of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.app.launch.start import Launch
from retinue.app.retinue import Retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError, RunIsOver, StoreError
from retinue.core.events import Event, ExchangeEnded, MailTaken, RunEnded
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Input
from retinue.core.messages import Delta
from retinue.core.run import CHAT, HistoryRef, Outcome
from retinue.dialects.registry import cancelled_notice
from retinue.engine import RunView

Receive = Callable[[Event | Delta], None]


class Segment:
    """A run of the conversation, and its events and deltas from the start.

    It is followed all the time, and not only while an answer is awaited: a subscriber that comes late has missed the
    start of a reply, and receives no deltas of it.
    """

    def __init__(self, run: RunHandle, dialects: tuple[str, ...]) -> None:
        self.run = run
        self.dialects = dialects
        self.is_over = False
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
            async for event in self.run.events():
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
        self._run_per_answer = _needs_run_per_answer(launch)
        self.runs: list[RunId] = list(earlier.runs) if earlier is not None else []
        """Every root run of the conversation, oldest first."""

    @property
    def current(self) -> RunId | None:
        """The run that gets the next input, or got the last one."""
        return self.runs[-1] if self.runs else None

    async def begin(self, text: str, dialects: tuple[str, ...]) -> tuple[RunId, Key | None]:
        """Post the input to the current run, or start a new one with it; the run, and the key of the input there."""
        segment = self._segment
        if segment is not None and not segment.is_over and segment.dialects == dialects:
            supervisor, run_id = self._retinue.supervisor, segment.run.run_id
            item = Input(key=supervisor.new_id(), text=text)
            with suppress(RunIsOver):
                await supervisor.post(run_id, item, durable=True)
                await self._launch.save_message(self._retinue, run_id, text, dialects)
                return run_id, item.key
        await self.close()
        self._segment = Segment(await self._new_run(text, dialects), dialects)
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
        elif key is None:
            await segment.run.answer()  # the answer is on disk before it is reported as complete
        return outcome

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
        self._earlier = None

    async def trees(self) -> list[list[RunView]]:
        """Every run of the conversation with its descendants, in the order of their starts."""
        trees = [await self._retinue.tree(run_id) for run_id in self.runs]
        return [sorted(tree, key=lambda view: (view.started_at, view.run_id)) for tree in trees]

    async def _new_run(self, text: str, dialects: tuple[str, ...]) -> RunHandle:
        retinue = self._retinue
        if self._earlier is not None:
            earlier, self._earlier = self._earlier, None
            await settle(retinue, earlier)
        if retinue.launch_config is not None:
            retinue.launch_config = replace(retinue.launch_config, dialects=dialects)
        limits = replace(self._launch.limits, wrap_up=not dialects)
        if not self._run_per_answer:
            limits = replace(limits, max_turns=None, exchange_turns=limits.max_turns)
        return await self._launch.spawn(
            retinue,
            text,
            limits=limits,
            dialects=dialects,
            keep_alive=not self._run_per_answer,
            inherits=await history_of(retinue, self.runs[-1]) if self.runs else None,
            label=CHAT,
        )

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


def _needs_run_per_answer(launch: Launch) -> bool:
    """Whether a limit applies that can be enforced for whole runs only, and is meant for each answer."""
    limits = launch.limits
    whole = (limits.max_tokens, limits.max_input_tokens, limits.max_output_tokens, limits.max_cost, limits.max_calls)
    return launch.options.agent is not None or any(each is not None for each in (*whole, limits.seconds))


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
        runs=await _chain(retinue, last.run_id),
        last=last,
        messages=len(run.history),
        is_answering=run.outcome is None and run.in_exchange,
    )


async def _chain(retinue: Retinue, run_id: RunId) -> tuple[RunId, ...]:
    """The run, preceded by the runs whose history it inherits."""
    chain = [run_id]
    accepted = await retinue.supervisor.acceptance(run_id)
    while accepted is not None and accepted.inherits is not None:
        chain.append(accepted.inherits.run_id)
        accepted = await retinue.supervisor.acceptance(accepted.inherits.run_id)
    return tuple(reversed(chain))


async def history_of(retinue: Retinue, run_id: RunId) -> HistoryRef:
    """A reference to the whole history of a run as it stands."""
    return HistoryRef(run_id, (await retinue.supervisor.replay(run_id)).seq)


async def settle(retinue: Retinue, earlier: EarlierChat) -> None:
    """End the last run of an earlier chat if its process is gone: the conversation continues in a new run.

    An interrupted answer is cancelled, with everything below it; a run that only waited for input is closed. A run
    that another process drives is left alone.
    """
    view = await retinue.supervisor.look(earlier.last.run_id)
    if view is None or view.state != "interrupted":
        return
    unfinished = [each for each in await retinue.tree(view.run_id) if each.outcome is None]
    if not earlier.is_answering and len(unfinished) == 1:
        with suppress(RetinueError):
            await (await retinue.resume(view.run_id)).close()
            return
    await retinue.cancel(view.run_id, "the chat went on without it")
