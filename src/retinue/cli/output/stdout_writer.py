"""Writes from a thread of its own, so that whoever reads slowly, or pauses, holds up nobody but themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue


class Outlet:
    """Takes pieces of text at once and writes them one after the other; `close` waits until all are written.

    >>> import asyncio
    >>> async def main() -> list[str]:
    ...     written: list[str] = []
    ...     outlet = Outlet(written.append)
    ...     outlet.write("a")
    ...     outlet.write("b")
    ...     await outlet.close()
    ...     return written
    >>> asyncio.run(main())
    ['a', 'b']
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[OSError | None] = self._loop.create_future()
        # It is nobody's duty to wait for a reader that never comes back: the process may leave without this thread.
        threading.Thread(target=self._run, name="retinue-outlet", daemon=True).start()

    def write(self, text: str) -> None:
        """Have this written; what cannot be any more is dropped."""
        self._pieces.put(text)

    async def gone(self) -> None:
        """Wait until nobody reads any more, and raise what writing raised."""
        trouble = await asyncio.shield(self._over)
        if trouble is not None:
            raise trouble

    async def close(self) -> None:
        """Wait until everything is written; raises what writing raised."""
        self._pieces.put(None)
        await self.gone()

    def _run(self) -> None:
        trouble: OSError | None = None
        try:
            while (text := self._pieces.get()) is not None:
                self._write(text)
        except OSError as error:
            trouble = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits to hear of it
            self._loop.call_soon_threadsafe(self._over.set_result, trouble)
