"""Two threads for a chat: the person has the main one, where lines are read and Ctrl-C is heard; the runs have another.

So reading a line holds up nobody: children go on working, and other processes see that this one is alive.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from retinue.cli.event_loop import INTERRUPTED, PATIENCE, TOOL_THREAD, TOOL_THREADS, leave_at_once, threads_go_on

EVERY = 0.2
"""Seconds between two looks; a signal that is seen twice is stuck."""


class Unheard:
    """Presses of Ctrl-C that have arrived in the process, and that Python's handler has not taken yet."""

    def __init__(self, inbox: socket.socket) -> None:
        self._inbox = inbox
        self._listener = threading.main_thread().ident

    def take(self) -> None:
        """The handler runs: all that have arrived are heard now."""
        with suppress(BlockingIOError):
            self._inbox.recv(4096)

    def is_any(self) -> bool:
        """Whether one lies there."""
        try:
            return signal.SIGINT in self._inbox.recv(4096, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    async def nudge(self) -> None:
        """Look from time to time, until cancelled."""
        was_there = False
        while True:
            await asyncio.sleep(EVERY)
            is_there = self.is_any()
            if is_there and was_there and self._listener is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._listener, signal.SIGINT)
            was_there = is_there


@contextmanager
def unheard_signals() -> Generator[Unheard]:
    """For as long as the block lasts, in the main thread."""
    inbox, outbox = socket.socketpair()
    with inbox, outbox:
        inbox.setblocking(False)
        outbox.setblocking(False)
        before = signal.set_wakeup_fd(outbox.fileno(), warn_on_full_buffer=False)
        try:
            yield Unheard(inbox)
        finally:
            signal.set_wakeup_fd(before)


T = TypeVar("T")


class Room:
    """Where coroutines of a chat run; used from the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unheard: Unheard) -> None:
        self._loop = loop
        self._unheard = unheard
        self._stop: Callable[[], None] | None = None
        self._typed: Callable[[], str] | None = None
        self._presses = 0
        self.cleared = ""
        self.cannot_close = False
        """Whether something is left that cannot be stopped; Python would wait for it, perhaps for ever."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this to its end; Ctrl-C changes nothing."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def do_until_stopped(self, work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
        """Run this to its end; Ctrl-C sets the event that it is given, and a second one leaves at once."""
        stop = asyncio.Event()
        self._presses = 0

        def ask_to_stop() -> None:
            self._loop.call_soon_threadsafe(stop.set)

        self._stop = ask_to_stop
        try:
            return self.do(work(stop))
        finally:
            self._stop = None

    @contextmanager
    def listening(self, typed: Callable[[], str]) -> Generator[None]:
        """While the block lasts, Ctrl-C raises KeyboardInterrupt in it; `cleared` is then what was typed before."""
        self._typed = typed
        try:
            yield
        finally:
            self._typed = None

    def hear(self, number: int, frame: object) -> None:
        """Ctrl-C was pressed."""
        self._unheard.take()
        if self._stop is not None:
            self._presses += 1
            if self._presses > 1:
                leave_at_once(INTERRUPTED)
            self._stop()
        elif self._typed is not None:
            self.cleared = self._typed()  # asked now: the editor forgets it with the interrupt
            raise KeyboardInterrupt


@contextmanager
def open_room() -> Generator[Room]:
    """A room for as long as the block lasts."""
    loop = asyncio.new_event_loop()
    tools = ThreadPoolExecutor(TOOL_THREADS, TOOL_THREAD)
    loop.set_default_executor(tools)
    thread = threading.Thread(target=loop.run_forever, name="retinue-chat", daemon=True)
    thread.start()
    with unheard_signals() as unheard:
        room = Room(loop, unheard)
        before = signal.signal(signal.SIGINT, room.hear)
        nudging = asyncio.run_coroutine_threadsafe(unheard.nudge(), loop)
        try:
            yield room
        finally:
            nudging.cancel()
            signal.signal(signal.SIGINT, before)
            tools.shutdown(wait=False, cancel_futures=True)
            room.cannot_close = room.do(_tasks_go_on()) or threads_go_on(TOOL_THREAD)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _tasks_go_on() -> bool:
    """Whether a task is left that does not let itself be cancelled."""
    this = asyncio.current_task()
    tasks = {task for task in asyncio.all_tasks() if task is not this}
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, pending = await asyncio.wait(tasks, timeout=PATIENCE)
    return bool(pending)
