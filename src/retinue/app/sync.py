"""A retinue for scripts and notebooks: the same verbs without `await`, on one background thread with its own loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from retinue.app.handle import RunHandle
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue, Which
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.core.messages import Delta
from retinue.core.run import Approval, Exchange, Outcome
from retinue.engine import RunView

T = TypeVar("T")


def open_sync(**options: Any) -> SyncRetinue:
    """A retinue to be entered with plain `with`; takes what `retinue.open` takes.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._do(self._opened.__aexit__(kind, error, traceback))
        finally:
            self._stop()

    async def _enter(self) -> Retinue:
        return await open_retinue(**self._options).__aenter__()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def _opened(self) -> Retinue:
        if self._retinue is None:
            raise RuntimeError("this retinue is not open: use it in a `with` block")
        return self._retinue

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the caller's thread stops the waiting, not the run
            raise

    def run(self, task: str, **how: Any) -> Outcome:
        """Start a run and wait for how it ends; see `Retinue.run`."""
        return self._do(self._opened.run(task, **how))

    def spawn(self, task: str, **how: Any) -> SyncHandle:
        """Start a run in the background; see `Retinue.spawn`."""
        return self._hold(self._do(self._opened.spawn(task, **how)))

    def fork(self, run: SyncHandle | RunId, task: str, **how: Any) -> SyncHandle:
        """A new run that begins with another's history; see `Retinue.fork`."""
        return self._hold(self._do(self._opened.fork(_which(run), task, **how)))

    def resume(self, run: SyncHandle | RunId) -> SyncHandle:
        """Go on with a run that nobody drives; see `Retinue.resume`."""
        return self._hold(self._do(self._opened.resume(_which(run))))

    def wait(
        self,
        *runs: SyncHandle | RunId,
        mode: Literal["all", "any"] | int = "all",
        timeout: float | None = None,
    ) -> dict[RunId, Outcome]:
        """How runs ended; see `Retinue.wait`."""
        return self._do(self._opened.wait(*map(_which, runs), mode=mode, timeout=timeout))

    def send(self, run: SyncHandle | RunId, text: str) -> None:
        """Say something to a run."""
        self._do(self._opened.send(_which(run), text))

    def cancel(self, run: SyncHandle | RunId, note: str = "") -> tuple[RunId, ...]:
        """Stop a run and everything below it."""
        return self._do(self._opened.cancel(_which(run), note))

    def list(self, **which: Any) -> list[RunView]:
        """Runs as they stand now; see `Retinue.list`."""
        return self._do(self._opened.list(**which))

    def events(self, run: SyncHandle | RunId) -> Iterator[Event | Delta]:
        """What happens in a run, until its end."""
        stream = self._opened.events(_which(run))
        while (what := self._do(_next(stream))) is not None:
            yield what

    def approvals(self) -> Sequence[Approval]:
        """Calls that wait for a person."""
        return self._do(self._opened.approvals())

    def approve(self, question: Approval | str, *, allow: bool = True, note: str = "") -> None:
        """Answer a question."""
        self._do(self._opened.approve(question, allow=allow, note=note))

    def _hold(self, handle: RunHandle) -> SyncHandle:
        return SyncHandle(self, handle, self._do)


class SyncHandle:
    """A handle on one run, with the methods of `RunHandle` as blocking calls; `SyncRetinue.spawn` returns it.

    >>> import retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> model = ScriptedProvider(Script().play("main", says("The pool."), says("Since Tuesday.")))
    >>> with retinue.open_sync(provider=model, home=retinue.MEMORY) as r:
    ...     run = r.spawn("Why is it slow?", keep_alive=True)
    ...     print(run.ask("Since when?").text, run.close().exchanges)
    Since Tuesday. 2
    """

    def __init__(self, retinue: SyncRetinue, handle: RunHandle, do: Any) -> None:
        self.run_id = handle.run_id
        self._retinue = retinue
        self._handle = handle
        self._do = do

    def wait(self, timeout: float | None = None) -> Outcome:
        """How the run ended."""
        outcome: Outcome = self._do(self._handle.wait(timeout))
        return outcome

    def look(self) -> RunView:
        """The run as it stands now."""
        view: RunView = self._do(self._handle.look())
        return view

    def ask(self, text: str, *, tools: bool = True) -> Exchange:
        """Give a run that stays its next input, and wait for the answer."""
        exchange: Exchange = self._do(self._handle.ask(text, tools=tools))
        return exchange

    def send(self, text: str) -> None:
        """Say something to the run."""
        self._do(self._handle.send(text))

    def close(self) -> Outcome:
        """Tell a run that stays that no more input comes, and wait for its end."""
        outcome: Outcome = self._do(self._handle.close())
        return outcome

    def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Stop the run and everything below it."""
        return self._retinue.cancel(self, note)

    def events(self) -> Iterator[Event | Delta]:
        """What happens in the run, until its end."""
        return self._retinue.events(self)


def _which(run: SyncHandle | RunId) -> Which:
    return run if isinstance(run, str) else run.run_id


async def _next(stream: AsyncIterator[Event | Delta]) -> Event | Delta | None:
    return await anext(stream, None)
