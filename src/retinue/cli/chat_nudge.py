"""Makes sure that Ctrl-C is heard while a line is read.

Python's line editor notices a signal only if it comes while it waits. One that comes a moment earlier, when the prompt
is on the screen already, would lie there until the next line is typed. So somebody looks from outside, and a signal
that nobody has taken for a while is sent again.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

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
