"""The blocking API for scripts and notebooks: the methods of `Retinue` without `await`, on a thread with a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast, overload

from retinue.app.handle import RunHandle, event_stream
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue, Which
from retinue.app.run_options import CheckedRunOptions, RunOptions, SpawnOptions
from retinue.app.structured_output import OutputFormat
from retinue.core.agent import Agent, ToolSpec
from retinue.core.attachments import Attachment
from retinue.core.events import Event, TreeEvent
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.messages import Delta
from retinue.core.policy import Policy
from retinue.core.ports import Clock, Hooks, Ids, Provider, Store, ToolLike
from retinue.core.run import Approval, Exchange, Outcome
from retinue.dialects.base import Dialect
from retinue.engine import Approver, RunView
from retinue.mcp_client import McpServer
from retinue.providers.catalog import ProviderConfig
from retinue.tools.dependencies import ToolOptions

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    from retinue.telemetry.exporters import Telemetry
    from retinue.tools.server_tools import ServerTool

    Answer = DefaultTypeVar("Answer", default=Any)
else:
    Answer = TypeVar("Answer")  # defaults of type variables need Python 3.13


class OpenOptions(TypedDict, total=False):
    """The arguments of `retinue.open`, which explains them."""

    model: str
    provider: Provider | str | None
    base_url: str | None
    api_key_env: str | None
    config: str | Path | None
    providers: Mapping[str, Provider] | None
    provider_configs: Sequence[ProviderConfig]
    tools: Iterable[ToolLike | str]
    tool_options: ToolOptions | None
    dialects: Sequence[str | Dialect]
    dialect_settings: Mapping[str, object] | None
    agents: Sequence[Agent]
    policy: Policy | None
    session: SessionId | None
    home: str | Path | None
    store: Store | str | None
    approvals: Approver
    hooks: Sequence[Hooks]
    mcp_servers: Sequence[McpServer]
    server_tools: Sequence[ServerTool]
    telemetry: Telemetry | None
    adopt: bool
    durability: Literal["process", "power"]
    lease: float
    clock: Clock | None
    ids: Ids | None


class ForkOptions(TypedDict, total=False):
    """The arguments of `Retinue.fork` besides the run and the task."""

    policy: Policy | None
    last_turns: int | None
    turn: int | None
    keep_alive: bool


def open_sync(**options: Unpack[OpenOptions]) -> SyncRetinue:
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

    def __init__(self, options: OpenOptions) -> None:
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

    def run_batch(
        self, tasks: Sequence[str | Mapping[str, Any]], *, hours: float = 24.0, **options: Unpack[RunOptions]
    ) -> Sequence[Outcome]:
        """Run many tasks through the batch API of their vendor; see `Retinue.run_batch`."""
        return self._do(self._open_retinue.run_batch(tasks, hours=hours, **options))

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

    def fork(self, run: SyncHandle | RunId, task: str, **options: Unpack[ForkOptions]) -> SyncHandle:
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

    def send(
        self,
        run: SyncHandle | RunId,
        text: str,
        *,
        key: Key | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> None:
        """Send a message to a run; see `RunHandle.send`."""
        self.handle(_run_id(run)).send(text, key=key, attachments=attachments)

    def cancel(self, run: SyncHandle | RunId, note: str = "") -> tuple[RunId, ...]:
        """Cancel a run and all its descendants; see `Retinue.cancel`."""
        return self._do(self._open_retinue.cancel(_which(run), note))

    def handle(self, run_id: RunId) -> SyncHandle:
        """A handle on the run with this id; see `Retinue.handle`."""
        return self._sync_handle(self._open_retinue.handle(run_id))

    def list(
        self, *, everyone: bool = False, session: SessionId | None = None, limit: int | None = None
    ) -> Sequence[RunView]:
        """Views of runs; see `Retinue.list`."""
        return self._do(self._open_retinue.list(everyone=everyone, session=session, limit=limit))

    def tree(self, run: SyncHandle | RunId) -> Sequence[RunView]:
        """Views of a root run and all its descendants; see `Retinue.tree`."""
        return self._do(self._open_retinue.tree(_which(run)))

    def offers(
        self,
        *,
        agent: str | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        ceiling: bool = True,
    ) -> tuple[ToolSpec, ...]:
        """The tools that a run started with these arguments would offer; see `Retinue.offers`."""
        return self._open_retinue.offers(agent=agent, dialects=dialects, tools=tools, ceiling=ceiling)

    @overload
    def events(
        self, run: SyncHandle | RunId, *, tree: Literal[False] = False, after: int = 0
    ) -> Iterator[Event | Delta]: ...
    @overload
    def events(
        self, run: SyncHandle | RunId, *, tree: Literal[True], after: Mapping[RunId, int] | None = None
    ) -> Iterator[TreeEvent]: ...
    def events(
        self, run: SyncHandle | RunId, *, tree: bool = False, after: int | Mapping[RunId, int] | None = None
    ) -> Iterator[Event | Delta] | Iterator[TreeEvent]:
        """The events of a run, and with `tree` of all runs below it; see `Retinue.events`."""
        supervisor = self._open_retinue.supervisor
        stream = cast("AsyncIterator[Any]", event_stream(supervisor, _run_id(run), tree=tree, after=after))
        return self._items(stream)

    def _items(self, stream: AsyncIterator[T]) -> Iterator[T]:
        while (item := self._do(_next(stream))) is not None:
            yield item

    def approvals(self) -> Sequence[Approval]:
        """The tool calls that wait for approval; see `Retinue.approvals`."""
        return self._do(self._open_retinue.approvals())

    def approve(self, question: Approval | str, *, allow: bool = True, note: str = "") -> None:
        """Answer an approval request; see `Retinue.approve`."""
        self._do(self._open_retinue.approve(question, allow=allow, note=note))

    def deny(self, question: Approval | str, *, note: str = "") -> None:
        """Deny an approval request; see `Retinue.deny`."""
        self._do(self._open_retinue.deny(question, note=note))

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

    def ask(
        self, text: str, *, tools: bool = True, key: Key | None = None, attachments: Sequence[Attachment] = ()
    ) -> Exchange:
        """Send the next input and wait for the answer; see `RunHandle.ask`."""
        return self._do(self._handle.ask(text, tools=tools, key=key, attachments=attachments))

    def answer(self, number: int = 1) -> Exchange:
        """The answer to the run's `number`-th input; see `RunHandle.answer`."""
        return self._do(self._handle.answer(number))

    def send(self, text: str, *, key: Key | None = None, attachments: Sequence[Attachment] = ()) -> None:
        """Send a message to the run; see `RunHandle.send`."""
        self._do(self._handle.send(text, key=key, attachments=attachments))

    def close(self) -> Outcome[Answer]:
        """End a run that was started with `keep_alive=True`; see `RunHandle.close`."""
        return self._do(self._handle.close())

    def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Cancel the run and all its descendants; see `RunHandle.cancel`."""
        return self._retinue.cancel(self, note)

    @overload
    def events(self, *, tree: Literal[False] = False, after: int = 0) -> Iterator[Event | Delta]: ...
    @overload
    def events(self, *, tree: Literal[True], after: Mapping[RunId, int] | None = None) -> Iterator[TreeEvent]: ...
    def events(self, *, tree: bool = False, after: Any = None) -> Iterator[Event | Delta] | Iterator[TreeEvent]:
        """The events of the run, and with `tree` of all runs below it; see `Retinue.events`."""
        return (
            self._retinue.events(self, tree=True, after=after) if tree else self._retinue.events(self, after=after or 0)
        )


def _which(run: SyncHandle | RunId) -> Which:
    return run if isinstance(run, str) else run.run_id


def _run_id(run: SyncHandle | RunId) -> RunId:
    return run if isinstance(run, str) else run.run_id


async def _next(stream: AsyncIterator[T]) -> T | None:
    return await anext(stream, None)
