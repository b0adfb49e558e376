"""The processes that a daemon starts: each is a `retinue` command in a session of its own, and ends with the daemon."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from retinue.app.launch.resume import RETINUE_COMMAND
from retinue.app.open import default_home

NO_VARIABLES: Mapping[str, str] = {}
STOP_SECONDS = 10.0
"""Seconds that processes get to stop."""


class Processes:
    """The processes of one daemon. They survive a daemon that is killed."""

    def __init__(self) -> None:
        self._stopping = False
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(
        self,
        *arguments: str,
        started: Callable[[], None],
        output: int = asyncio.subprocess.DEVNULL,
        environment: Mapping[str, str] = NO_VARIABLES,
    ) -> int:
        """Run a `retinue` command to its end; its exit code. Raises `OSError` if it cannot be started.

        `started` is called once the process exists. `output` is a descriptor for stdout and stderr; without one stderr
        is that of the daemon. `environment` has further variables.
        """
        if self._stopping:
            raise OSError("the daemon was stopping")
        process = await asyncio.create_subprocess_exec(
            *(*RETINUE_COMMAND, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=None if output == asyncio.subprocess.DEVNULL else output,
            env={**os.environ, "RETINUE_HOME": str(default_home().absolute()), **environment},
            start_new_session=True,  # Ctrl-C reaches the daemon alone, which passes it on once
        )
        self._running.add(process)
        if self._stopping:
            process.terminate()
        started()
        code = await process.wait()
        self._running.discard(process)
        return code

    async def stop(self) -> None:
        """Terminate all processes, and kill those that do not end."""
        self._stopping = True
        for process in self._running:
            _signal(process, signal.SIGTERM)
        if self._running:
            ends = [asyncio.ensure_future(process.wait()) for process in self._running]
            await asyncio.wait(ends, timeout=STOP_SECONDS)
            for process in self._running:
                _signal(process, signal.SIGKILL)
            await asyncio.gather(*ends)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        process.send_signal(number)


class Stoppable(Protocol):
    """Work of a daemon that can be stopped."""

    def stop(self) -> None:
        """Start nothing more."""
        ...


async def supervise(
    stop: asyncio.Event,
    processes: Processes,
    *,
    work: Sequence[tuple[Stoppable, Coroutine[Any, Any, None]]],
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Await all work; when `stop` is set, call `on_stop`, and stop the work and its processes."""
    working = [asyncio.ensure_future(each) for _, each in work]
    waiting = asyncio.ensure_future(stop.wait())
    everything = asyncio.gather(*working)
    await asyncio.wait({everything, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not everything.done():
        on_stop()
        for each, _ in work:
            each.stop()
        await processes.stop()
    waiting.cancel()
    await everything
