"""The blocking API for scripts and notebooks: the methods of `Retinue` without `await`, on a thread with a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from retinue.app.handle import RunHandle
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue, Which
from retinue.app.run_options import CheckedRunOptions, SpawnOptions
from retinue.app.structured_output import OutputFormat
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.core.messages import Delta
from retinue.core.run import Approval, Exchange, Outcome
from retinue.engine import RunView

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    Answer = DefaultTypeVar("Answer", default=Any)
else:
    Answer = TypeVar("Answer")  # defaults of type variables need Python 3.13


def open_sync(**options: Any) -> SyncRetinue:
    """Open a retinue for use in a plain `with` block; takes the arguments of `retinue.open`.

    >>> import retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> model = ScriptedProvider(Script().play("main", says("Four.")))
    >>> with retinue.open_sync(provider=model, home=retinue.MEMORY, dialects=()) as r:
    ...     r.run("What is two and two?").text
    'Four.'
    """
    return SyncRetinue(options)


class SyncRetinue:
    """An open retinue whose methods block until they are done; may be used from any thread.

    Created by `retinue.open_sync` and used in a `with` block. Its methods are those of `Retinue` without `await`.

    >>> import retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> model = ScriptedProvider(Script().play("main", says("Four.")))
    >>> with retinue.open_sync(provider=model, home=retinue.MEMORY) as r:
    ...     outcome = r.spawn("What is two and two?").wait()
    >>> outcome.text
    'Four.'
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retinue", daemon=True)
        self._retinue: Retinue | None = None

    def __enter__(self) -> SyncRetinue:
        self._thread.start()
        try:
            self._retinue = self._do(self._enter())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._do(self._open_retinue.__aexit__(*error))
        finally:
            self._stop()

    async def _enter(self) -> Retinue:
        return await open_retinue(**self._options).__aenter__()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def _open_retinue(self) -> Retinue:
        if self._retinue is None:
            raise RuntimeError("this retinue is not open: use it in a `with` block")
        return self._retinue

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the caller's thread: of `run` it cancels the run, else it ends the wait alone
            raise

    @overload
    def run(self, task: str, *, output: None = None, **options: Unpack[CheckedRunOptions]) -> Outcome[str]: ...
    @overload
    def run(
        self, task: str, *, output: type[dict[Any, Any]], **options: Unpack[CheckedRunOptions]
    ) -> Outcome[dict[str, Any]]: ...
    @overload
    def run(self, task: str, *, output: type[T], **options: Unpack[CheckedRunOptions]) -> Outcome[T]: ...
    @overload
    def run(self, task: str, *, output: OutputFormat | None, **options: Unpack[CheckedRunOptions]) -> Outcome: ...
    def run(self, task: str, *, output: OutputFormat | None = None, **options: Any) -> Outcome:
        """Start a run, wait for its end and return the outcome; see `Retinue.run`."""
        return self._do(self._open_retinue.run(task, output=output, **options))

    @overload
    def spawn(self, task: str, *, output: None = None, **options: Unpack[SpawnOptions]) -> SyncHandle[str]: ...
    @overload
    def spawn(
        self, task: str, *, output: type[dict[Any, Any]], **options: Unpack[SpawnOptions]
    ) -> SyncHandle[dict[str, Any]]: ...
    @overload
    def spawn(self, task: str, *, output: type[T], **options: Unpack[SpawnOptions]) -> SyncHandle[T]: ...
    @overload
    def spawn(self, task: str, *, output: OutputFormat | None, **options: Unpack[SpawnOptions]) -> SyncHandle: ...
    def spawn(self, task: str, *, output: OutputFormat | None = None, **options: Any) -> SyncHandle:
        """Start a run in the background; see `Retinue.spawn`."""
        return self._sync_handle(self._do(self._open_retinue.spawn(task, output=output, **options)))

    def fork(self, run: SyncHandle | RunId, task: str, **options: Any) -> SyncHandle:
        """Start a new run that continues from another run's history; see `Retinue.fork`."""
        return self._sync_handle(self._do(self._open_retinue.fork(_which(run), task, **options)))

    def resume(self, run: SyncHandle | RunId) -> SyncHandle:
        """Continue an interrupted run in this process; see `Retinue.resume`."""
        return self._sync_handle(self._do(self._open_retinue.resume(_which(run))))

    def wait(
        self, *runs: SyncHandle | RunId, mode: Literal["all", "any"] | int = "all", timeout: float | None = None
    ) -> dict[RunId, Outcome]:
        """Wait for runs to end; see `Retinue.wait`."""
        return self._do(self._open_retinue.wait(*map(_which, runs), mode=mode, timeout=timeout))

    def send(self, run: SyncHandle | RunId, text: str) -> None:
        """Send a message to a run; see `RunHandle.send`."""
        self._do(self._open_retinue.send(_which(run), text))

    def cancel(self, run: SyncHandle | RunId, note: str = "") -> tuple[RunId, ...]:
        """Cancel a run and all its descendants; see `Retinue.cancel`."""
        return self._do(self._open_retinue.cancel(_which(run), note))

    def list(self, **options: Any) -> list[RunView]:
        """Views of runs; see `Retinue.list`."""
        return self._do(self._open_retinue.list(**options))

    def events(self, run: SyncHandle | RunId) -> Iterator[Event | Delta]:
        """The events of a run, until its end; see `RunHandle.events`."""
        stream = self._open_retinue.events(_which(run))
        while (item := self._do(_next(stream))) is not None:
            yield item

    def approvals(self) -> Sequence[Approval]:
        """The tool calls that wait for approval; see `Retinue.approvals`."""
        return self._do(self._open_retinue.approvals())

    def approve(self, question: Approval | str, *, allow: bool = True, note: str = "") -> None:
        """Answer an approval request; see `Retinue.approve`."""
        self._do(self._open_retinue.approve(question, allow=allow, note=note))

    def _sync_handle(self, handle: RunHandle[T]) -> SyncHandle[T]:
        return SyncHandle(self, handle, self._do)


class SyncHandle(Generic[Answer]):
    """A handle on one run, with the methods of `RunHandle` as blocking calls; `SyncRetinue.spawn` returns it.

    >>> import retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> model = ScriptedProvider(Script().play("main", says("The pool."), says("Since Tuesday.")))
    >>> with retinue.open_sync(provider=model, home=retinue.MEMORY) as r:
    ...     run = r.spawn("Why is it slow?", keep_alive=True)
    ...     print(run.ask("Since when?").text, run.close().exchanges)
    Since Tuesday. 2
    """

    def __init__(self, retinue: SyncRetinue, handle: RunHandle[Answer], do: Any) -> None:
        self.run_id = handle.run_id
        self._retinue = retinue
        self._handle = handle
        self._do = do

    def wait(self, timeout: float | None = None) -> Outcome[Answer]:
        """Wait for the end of the run; see `RunHandle.wait`."""
        return self._do(self._handle.wait(timeout))

    def look(self) -> RunView:
        """The current view of the run; see `RunHandle.look`."""
        return self._do(self._handle.look())

    def ask(self, text: str, *, tools: bool = True) -> Exchange:
        """Send the next input and wait for the answer; see `RunHandle.ask`."""
        return self._do(self._handle.ask(text, tools=tools))

    def send(self, text: str) -> None:
        """Send a message to the run; see `RunHandle.send`."""
        self._do(self._handle.send(text))

    def close(self) -> Outcome[Answer]:
        """End a run that was started with `keep_alive=True`; see `RunHandle.close`."""
        return self._do(self._handle.close())

    def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Cancel the run and all its descendants; see `RunHandle.cancel`."""
        return self._retinue.cancel(self, note)

    def events(self) -> Iterator[Event | Delta]:
        """The events of the run, until its end; see `RunHandle.events`."""
        return self._retinue.events(self)


def _which(run: SyncHandle | RunId) -> Which:
    return run if isinstance(run, str) else run.run_id


async def _next(stream: AsyncIterator[Event | Delta]) -> Event | Delta | None:
    return await anext(stream, None)
