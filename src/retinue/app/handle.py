"""`RunHandle`: wait for one run, send it input, read its events, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

from retinue.core.attachments import Attachment, checked
from retinue.core.errors import BadInput, RunIsOver, UnknownName
from retinue.core.events import Event, TreeEvent
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Close, Input, TextMessage
from retinue.core.messages import Delta
from retinue.core.run import Exchange, Outcome
from retinue.engine import RunView, Supervisor

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")  # defaults of type variables need Python 3.13


def _unchanged(outcome: Outcome) -> Outcome:
    return outcome


class RunHandle(Generic[T]):
    """A handle on one run, whichever process started it; of a run with `output=Person` it is a `RunHandle[Person]`.

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

    def __init__(
        self, supervisor: Supervisor, run_id: RunId, convert: Callable[[Outcome], Outcome] | None = None
    ) -> None:
        self.run_id = run_id
        self._supervisor = supervisor
        self._convert = convert or _unchanged

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    async def wait(self, timeout: float | None = None) -> Outcome[T]:
        """Wait for the end of the run and return its outcome. A wait that is cancelled leaves the run as it is.

        Raises `TimeoutError` if the run has not ended after `timeout` seconds; the run continues.
        """
        ended = await self._supervisor.wait([self.run_id], timeout=timeout, durable=True)
        if self.run_id not in ended:
            raise TimeoutError(f"run {self.run_id} has not ended within {timeout:g} s")
        return cast("Outcome[T]", self._convert(ended[self.run_id]))

    async def look(self) -> RunView:
        """The current view of the run: its state, usage and task. Raises `UnknownName` if there is no such run."""
        view = await self._supervisor.look(self.run_id)
        if view is None:
            raise UnknownName("run", self.run_id)
        (view,) = await self._supervisor.with_tasks([view])
        return view

    async def send(self, text: str, *, key: Key | None = None, attachments: Sequence[Attachment] = ()) -> None:
        """Send a message to the run: an active run reads it at its next turn, an idle one starts an exchange with it.

        A message with a `key` that was used before is not sent again. Raises `RunIsOver` if the run has ended.
        """
        item = TextMessage(key=key or self._supervisor.new_id(), text=text, attachments=checked(attachments))
        await self._supervisor.post(self.run_id, item, durable=True)

    async def ask(
        self, text: str, *, tools: bool = True, key: Key | None = None, attachments: Sequence[Attachment] = ()
    ) -> Exchange:
        """Send the next input to a run that was started with `keep_alive=True`, and wait for the answer.

        With `tools=False` the model may not call tools for this input. A `key` that was used before returns the answer
        to the earlier input. Raises `BadInput` if the run was not started with `keep_alive=True`.
        """
        run = await self._supervisor.replay(self.run_id)
        if not run.accepted.lifecycle.keep_alive:
            raise BadInput(f"run {self.run_id} takes no more input: start it with keep_alive=True, or use send()")
        item = Input(key=key or self._supervisor.new_id(), text=text, tools=tools, attachments=checked(attachments))
        if item.key not in run.inputs:  # a repeated key was posted already
            await self._supervisor.post(self.run_id, item, durable=True)
        return await self._supervisor.reply_to(self.run_id, item.key, durable=True)

    async def answer(self, number: int = 1) -> Exchange:
        """The answer to the run's `number`-th input, counted from 1; waits for it.

        If the run ended before that input, the exchange carries its outcome.
        """
        return await self._supervisor.exchange(self.run_id, number, durable=True)

    async def close(self) -> Outcome[T]:
        """End a run that was started with `keep_alive=True` after its current input, and wait for its outcome."""
        with suppress(RunIsOver):
            await self._supervisor.post(self.run_id, Close(key="close"), durable=True)
        return await self.wait()

    async def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Cancel the run and all its descendants; returns the ids of the runs that were cancelled."""
        return await self._supervisor.cancel(self.run_id, note=note)

    @overload
    def events(self, *, tree: Literal[False] = False, after: int = 0) -> AsyncIterator[Event | Delta]: ...
    @overload
    def events(self, *, tree: Literal[True], after: Mapping[RunId, int] | None = None) -> AsyncIterator[TreeEvent]: ...
    def events(
        self, *, tree: bool = False, after: int | Mapping[RunId, int] | None = None
    ) -> AsyncIterator[Event | Delta] | AsyncIterator[TreeEvent]:
        """The events of the run from start to end, and the deltas of replies that stream in this process.

        With `tree`, the events of all runs below it too; see `Retinue.events`.
        """
        return event_stream(self._supervisor, self.run_id, tree=tree, after=after)


def event_stream(
    supervisor: Supervisor, run_id: RunId, *, tree: bool, after: int | Mapping[RunId, int] | None
) -> AsyncIterator[Event | Delta] | AsyncIterator[TreeEvent]:
    """The events of one run, or of the tree below it; raises `BadInput` for a position of the other kind."""
    if tree:
        if isinstance(after, int):
            raise BadInput(f"after={after}: with tree=True give the number of the last event of each run, by its id")
        return supervisor.tree_events(run_id, after=after)
    if after is not None and not isinstance(after, int):
        raise BadInput("after is a mapping: without tree=True give the number of the last event")
    return supervisor.events(run_id, after=after or 0)
