"""The event loop of a chat in a thread of its own: reading a line blocks neither background runs nor the heartbeat."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from retinue.cli.event_loop import TOOL_THREAD, TOOL_THREADS, exit_now, tasks_remain, threads_remain
from retinue.cli.output.terminal import INTERRUPTED

EVERY = 0.2
"""Seconds between two checks for a SIGINT that the handler did not receive."""


class PendingSigint:
    """SIGINTs that have arrived in the process, and that Python's handler has not received yet.

    One that arrives just before readline starts to wait is not handled until the next key; it is sent again.
    """

    def __init__(self, inbox: socket.socket) -> None:
        self._inbox = inbox
        self._main_thread = threading.main_thread().ident

    def take(self) -> None:
        """Clear all pending ones; called by the handler."""
        with suppress(BlockingIOError):
            self._inbox.recv(4096)

    def exists(self) -> bool:
        try:
            return signal.SIGINT in self._inbox.recv(4096, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    async def resend(self) -> None:
        """Send a SIGINT again that is pending in two checks; until cancelled."""
        was_pending = False
        while True:
            await asyncio.sleep(EVERY)
            is_pending = self.exists()
            if is_pending and was_pending and self._main_thread is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            was_pending = is_pending


@contextmanager
def pending_sigint() -> Generator[PendingSigint]:
    """Watch for pending SIGINTs for as long as the block lasts; in the main thread."""
    inbox, outbox = socket.socketpair()
    with inbox, outbox:
        inbox.setblocking(False)
        outbox.setblocking(False)
        before = signal.set_wakeup_fd(outbox.fileno(), warn_on_full_buffer=False)
        try:
            yield PendingSigint(inbox)
        finally:
            signal.set_wakeup_fd(before)


T = TypeVar("T")


class LivePrompt(Protocol):
    """A prompt at which a person types while work goes on."""

    def printing_above(self) -> AbstractContextManager[None]:
        """Print what is written to the terminal above the prompt for as long as the block lasts."""
        ...

    def during(self, work: Future[Any], stop: Callable[[], object]) -> None:
        """Read inputs until the work is done; Ctrl-C stops it."""

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""


class LoopThread:
    """Runs coroutines in the event loop of the other thread; used from the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pending: PendingSigint) -> None:
        self._loop = loop
        self._pending = pending
        self._stop: Callable[[], object] | None = None
        self._typed: Callable[[], str] | None = None
        self._interrupt: Callable[[], None] | None = None
        self._presses = 0
        self.cleared = ""
        """What stood in the line when Ctrl-C interrupted `interruptible`."""
        self.cannot_close = False
        """Whether a task or thread cannot be stopped; Python would wait for it at exit, perhaps forever."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; Ctrl-C is ignored."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def run_stoppable(
        self, work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], prompt: LivePrompt | None = None
    ) -> T:
        """Run a coroutine; Ctrl-C sets its event, and a second Ctrl-C ends the process.

        With a `prompt`, a person types meanwhile, and the prompt receives Ctrl-C.
        """
        stop = asyncio.Event()
        self._presses = 0
        self._stop = partial(self._loop.call_soon_threadsafe, stop.set)
        try:
            if prompt is None:
                return self.run(work(stop))
            with prompt.printing_above(), self.interrupting(prompt.interrupt):
                working = asyncio.run_coroutine_threadsafe(work(stop), self._loop)
                prompt.during(working, self._stop)
            return working.result()
        finally:
            self._stop = None

    @contextmanager
    def interruptible(self, typed: Callable[[], str]) -> Generator[None]:
        """Ctrl-C raises KeyboardInterrupt in the block; `cleared` is then what `typed` returned."""
        self._typed = typed
        try:
            yield
        finally:
            self._typed = None

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Generator[None]:
        """A SIGINT calls `interrupt` for as long as the block lasts."""
        self._interrupt = interrupt
        try:
            yield
        finally:
            self._interrupt = None

    def receive(self, number: int, frame: object) -> None:
        self._pending.take()
        if self._interrupt is not None:
            self._interrupt()
        elif self._stop is not None:
            self._presses += 1
            if self._presses > 1:
                exit_now(INTERRUPTED)
            self._stop()
        elif self._typed is not None:
            self.cleared = self._typed()  # read now: the editor clears it with the interrupt
            raise KeyboardInterrupt


@contextmanager
def loop_thread() -> Generator[LoopThread]:
    """A thread with an event loop for as long as the block lasts."""
    loop = asyncio.new_event_loop()
    tools = ThreadPoolExecutor(TOOL_THREADS, TOOL_THREAD)
    loop.set_default_executor(tools)
    thread = threading.Thread(target=loop.run_forever, name="retinue-chat", daemon=True)
    thread.start()
    with pending_sigint() as pending:
        chat_thread = LoopThread(loop, pending)
        before = signal.signal(signal.SIGINT, chat_thread.receive)
        resending = asyncio.run_coroutine_threadsafe(pending.resend(), loop)
        try:
            yield chat_thread
        finally:
            resending.cancel()
            signal.signal(signal.SIGINT, before)
            tools.shutdown(wait=False, cancel_futures=True)
            chat_thread.cannot_close = chat_thread.run(tasks_remain()) or threads_remain(TOOL_THREAD)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
