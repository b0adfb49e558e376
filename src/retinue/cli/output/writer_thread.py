"""Write text from a thread, so that a slow or paused reader does not block the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

CHECK_SECONDS = 1.0
"""Seconds without output after which a writer checks whether its reader is gone."""


class WriterThread:
    """Writes text from a thread of its own, in the order of `write`.

    `is_closed` says whether the reader is gone; it is asked while there is nothing to write.

    >>> import asyncio
    >>> async def main() -> list[str]:
    ...     written: list[str] = []
    ...     writer = WriterThread(written.append, lambda: False)
    ...     writer.write("a")
    ...     writer.write("b")
    ...     await writer.close()
    ...     return written
    >>> asyncio.run(main())
    ['a', 'b']
    """

    def __init__(self, write: Callable[[str], None], is_closed: Callable[[], bool]) -> None:
        self._write = write
        self._is_closed = is_closed
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[OSError | None] = self._loop.create_future()
        # A daemon thread: the process may exit although a reader never comes back.
        threading.Thread(target=self._run, name="retinue-outlet", daemon=True).start()

    def write(self, text: str) -> None:
        """Queue text; it is dropped if the reader is gone."""
        self._pieces.put(text)

    async def closed(self) -> None:
        """Wait until nothing can be written any more; raises what writing raised."""
        trouble = await asyncio.shield(self._over)
        if trouble is not None:
            raise trouble

    async def close(self) -> None:
        """Wait until everything is written; raises what writing raised."""
        self._pieces.put(None)
        await self.closed()

    def _run(self) -> None:
        trouble: OSError | None = None
        try:
            while (text := self._next()) is not None:
                self._write(text)
        except OSError as error:
            trouble = error
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._over.set_result, trouble)

    def _next(self) -> str | None:
        """The next text to write; raises `BrokenPipeError` if the reader is gone before there is any."""
        while True:
            try:
                return self._pieces.get(timeout=CHECK_SECONDS)
            except Empty:
                if self._is_closed():
                    raise BrokenPipeError from None
