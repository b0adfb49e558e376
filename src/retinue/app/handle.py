"""One run in your hand: wait for it, talk to it, watch it, stop it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from retinue.core.errors import BadInput, RunIsOver, UnknownName
from retinue.core.events import Event
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Close, Input, TextMessage
from retinue.core.messages import Delta
from retinue.core.run import Exchange, Outcome
from retinue.engine import RunView, Supervisor


class RunHandle:
    """A run that was started, here or elsewhere, in this process or an earlier one.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", says("The pool."), says("Since Tuesday.")))
    ...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
    ...         run = await r.spawn("Why is it slow?", keep_alive=True)
    ...         print((await run.answer()).text, (await run.ask("Since when?")).text)
    ...         print((await run.close()).exchanges)
    >>> asyncio.run(main())
    The pool. Since Tuesday.
    2
    """

    def __init__(self, supervisor: Supervisor, run_id: RunId) -> None:
        self.run_id = run_id
        self._supervisor = supervisor

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    async def wait(self, timeout: float | None = None) -> Outcome:
        """How the run ended; raises TimeoutError if it did not in time, and lets it go on."""
        ended = await self._supervisor.wait([self.run_id], timeout=timeout, durable=True)
        if self.run_id not in ended:
            raise TimeoutError(f"run {self.run_id} has not ended within {timeout:g} s")
        return ended[self.run_id]

    async def look(self) -> RunView:
        """The run as it stands now."""
        view = await self._supervisor.look(self.run_id)
        if view is None:
            raise UnknownName("run", self.run_id)
        return view

    async def send(self, text: str, *, key: Key | None = None) -> None:
        """Say something: a run at work reads it at its next turn, an idle one begins a new exchange with it."""
        item = TextMessage(key=key or self._supervisor.new_id(), text=text)
        await self._supervisor.post(self.run_id, item, durable=True)

    async def ask(self, text: str, *, tools: bool = True, key: Key | None = None) -> Exchange:
        """Give a run that stays its next input, and wait for the answer."""
        run = await self._supervisor.replay(self.run_id)
        if not run.accepted.lifecycle.keep_alive:
            raise BadInput(f"run {self.run_id} does not stay for more input: start it with stays=True, or send() to it")
        item = Input(key=key or self._supervisor.new_id(), text=text, tools=tools)
        if item.key not in run.inputs:  # a repeated one has been asked already
            await self._supervisor.post(self.run_id, item, durable=True)
        return await self._supervisor.reply_to(self.run_id, item.key, durable=True)

    async def answer(self, number: int = 1) -> Exchange:
        """The answer to the run's `number`-th input."""
        return await self._supervisor.exchange(self.run_id, number, durable=True)

    async def close(self) -> Outcome:
        """Tell a run that stays that no more input comes, and wait for its end."""
        with suppress(RunIsOver):
            await self._supervisor.post(self.run_id, Close(key="close"), durable=True)
        return await self.wait()

    async def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Stop the run and everything below it; the runs that this concerned."""
        return await self._supervisor.cancel(self.run_id, note=note)

    def events(self) -> AsyncIterator[Event | Delta]:
        """What happens in the run, from its beginning until its end; deltas while it streams in this process."""
        return self._supervisor.events(self.run_id)
