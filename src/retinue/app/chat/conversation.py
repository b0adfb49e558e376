"""A conversation with a model: for the person it is one, in the store it is a run for each stretch of it.

A stretch is a run that stays for more input. What it is offered cannot change, and once cancelled it is over; so when
delegation is switched, or an answer stopped, the next input begins a new run that inherits the history. Where limits
are for each answer, each answer is a run of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from msgspec.structs import replace

from retinue.app.chat.history import Past, inheritance, lay_to_rest
from retinue.app.handle import RunHandle
from retinue.app.retinue import Retinue
from retinue.core.errors import RunIsOver, StoreError
from retinue.core.events import Event, ExchangeEnded, MailTaken, RunEnded
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Input
from retinue.core.messages import Delta
from retinue.core.run import CHAT, Exchange, Limits, Outcome
from retinue.dialects.registry import cancelled_notice
from retinue.engine import RunView

Hear = Callable[[Event | Delta], None]

UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How every run of the chat is started."""

    agent: str | None = None
    model: str = ""
    system: str = ""
    tools: tuple[str, ...] | None = None
    think: bool = False
    limits: Limits = UNLIMITED
    """For each answer; `max_turns` too."""
    one_run_each: bool = False
    """Whether each answer is a run of its own, because something is limited that only whole runs can be held to."""


class Stretch:
    """A run of the conversation, and what happens in it from its beginning.

    It is followed all the time, and not only while somebody waits for an answer: a reader who comes late has missed how
    a reply began, and hears nothing of it before it is whole.
    """

    def __init__(self, run: RunHandle, dialects: tuple[str, ...]) -> None:
        self.run = run
        self.dialects = dialects
        self.is_over = False
        self._happenings: asyncio.Queue[Event | Delta | StoreError] = asyncio.Queue()
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="retinue-chat-reader")

    async def answer(self, key: Key | None, hear: Hear) -> Outcome:
        """Tell what happens until the input with this key is answered, or the first one; an end answers everything."""
        begun = key is None
        while True:
            what = await self._happenings.get()
            if isinstance(what, StoreError):
                raise what
            hear(what)
            match what:
                case MailTaken(items=items) if any(item.key == key for item in items):
                    begun = True
                case ExchangeEnded(exchange=exchange) if begun:
                    return _outcome(exchange)
                case RunEnded(outcome=outcome):
                    self.is_over = True
                    return outcome
                case _:
                    pass

    async def leave(self) -> None:
        """Follow it no more."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            async for what in self.run.events():
                self._happenings.put_nowait(what)
        except StoreError as error:
            self._happenings.put_nowait(error)


class Conversation:
    """Asks, stops and begins anew; one at a time."""

    def __init__(self, retinue: Retinue, manners: Manners, past: Past | None = None) -> None:
        self._retinue = retinue
        self._manners = manners
        self._past = past
        self._stretch: Stretch | None = None
        self.runs: list[RunId] = list(past.runs) if past is not None else []
        """Every root run of the conversation, oldest first."""

    @property
    def current(self) -> RunId | None:
        """The run that has the next input, or had the last one."""
        return self.runs[-1] if self.runs else None

    async def begin(self, text: str, dialects: tuple[str, ...]) -> tuple[RunId, Key | None]:
        """Give the input to the run of the present stretch, or to a new one; its run, and its key there."""
        stretch = self._stretch
        if stretch is not None and not stretch.is_over and stretch.dialects == dialects:
            with suppress(RunIsOver):
                return stretch.run.run_id, await self._post(stretch, text)
        await self.close()
        self._stretch = Stretch(await self._new_run(text, dialects), dialects)
        self.runs.append(self._stretch.run.run_id)
        return self._stretch.run.run_id, None

    async def answer(self, key: Key | None, hear: Hear, stop: asyncio.Event) -> Outcome:
        """The answer to what was begun; `stop` cancels its run with everything below it."""
        stretch = self._stretch
        assert stretch is not None
        async with self._stopped_by(stop, stretch.run):
            outcome = await stretch.answer(key, hear)
        if stretch.is_over:
            await self._see_cancelled(stretch.run.run_id)
        elif key is None:
            await stretch.run.answer()  # on disk, before the person hears that it is over
        return outcome

    async def close(self) -> str | None:
        """End the present stretch; a line about work that was still under way below it."""
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return None
        await stretch.leave()
        if stretch.is_over:
            return None
        await stretch.run.close()
        await self._see_cancelled(stretch.run.run_id)
        return cancelled_notice(await self._retinue.tree(stretch.run.run_id))

    async def clear(self) -> None:
        """Forget what was said: the next input begins a new conversation."""
        await self.close()
        self.runs.clear()
        self._past = None

    async def trees(self) -> list[list[RunView]]:
        """Every run of the conversation with its descendants, in the order in which they began."""
        trees = [await self._retinue.tree(run_id) for run_id in self.runs]
        return [sorted(tree, key=lambda view: (view.started_at, view.run_id)) for tree in trees]

    async def _post(self, stretch: Stretch, text: str) -> Key:
        supervisor = self._retinue.supervisor
        item = Input(key=supervisor.new_id(), text=text)
        await supervisor.post(stretch.run.run_id, item, durable=True)
        return item.key

    async def _new_run(self, text: str, dialects: tuple[str, ...]) -> RunHandle:
        retinue, manners = self._retinue, self._manners
        if self._past is not None:
            past, self._past = self._past, None
            await lay_to_rest(retinue, past)
        if retinue.launch_config is not None:
            retinue.launch_config = replace(retinue.launch_config, dialects=dialects)
        limits = replace(manners.limits, wrap_up=not dialects)
        if not manners.one_run_each:
            limits = replace(limits, max_turns=None, exchange_turns=limits.max_turns)
        return await retinue.spawn(
            text,
            agent=manners.agent,
            limits=limits,
            dialects=dialects,
            tools=manners.tools,
            model=manners.model,
            system=manners.system,
            think=manners.think,
            keep_alive=not manners.one_run_each,
            inherits=await inheritance(retinue, self.runs[-1]) if self.runs else None,
            label=CHAT,
        )

    def at_work(self) -> list[RunId]:
        """Runs below the conversation's that go on although nobody waits for them."""
        live = self._retinue.supervisor.live_runs()
        return [each.run_id for each in live if each.run.accepted.parent_id is not None]

    async def _see_cancelled(self, run_id: RunId) -> None:
        """Children that are cancelled with their parent take a moment to end; others may go on for long."""
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


def _outcome(exchange: Exchange) -> Outcome:
    """The answer of a run that stays, told like the end of one."""
    return Outcome(
        result=exchange.result,
        reason=exchange.reason,
        text=exchange.text,
        error=exchange.error,
        limit=exchange.limit,
    )
