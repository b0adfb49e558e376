"""The gate before model requests and tool calls: closed while this process drains, or past its lease by its own clock.

A driver that was suspended, or cut off from the store, may have been declared dead. The store refuses its writes, but
not its requests: so it sends none until a heartbeat was committed again.
"""

from __future__ import annotations

import asyncio

from retinue.engine.journal_writer import CommitFuture, Journal
from retinue.engine.timeouts import KnownLoop

LOOK_INTERVAL = 0.05
"""Seconds between two looks whether a heartbeat was committed."""


class RequestGate:
    """Open while requests may be sent. `close` closes it for good; a heartbeat keeps it open for the lease."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lease: float | None = None
        self._renewed_at = 0.0
        self._renewals: list[tuple[float, CommitFuture]] = []
        self._closed = False
        self.requests = 0
        """Model requests that are being answered."""
        self.calls = 0
        """Tool calls at work, without those that wait for other runs."""
        self._clock = KnownLoop()

    def begin_lease(self, seconds: float) -> None:
        """Count the lease from now on; without a lease the gate is open until it is closed."""
        self._lease = seconds
        self._renewed_at = self._clock.time()

    def renew(self, heartbeat: CommitFuture) -> None:
        """The lease counts from now on, once this heartbeat is committed."""
        self._renewals.append((self._clock.time(), heartbeat))

    def close(self) -> None:
        """Let nothing pass any more: this process is about to leave."""
        self._closed = True

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_open(self) -> bool:
        if self._closed:
            return False
        return self._lease is None or self.seconds_since_renewal() < self._lease

    def seconds_since_renewal(self) -> float:
        """The seconds since the last committed heartbeat was sent, by this process's own clock."""
        if self._renewals:
            self._count_renewals()
        return self._clock.time() - self._renewed_at

    def _count_renewals(self) -> None:
        waiting: list[tuple[float, CommitFuture]] = []
        for at, heartbeat in self._renewals:
            if not heartbeat.is_done:
                waiting.append((at, heartbeat))
            elif heartbeat.is_committed:
                self._renewed_at = at
        self._renewals = waiting

    async def wait(self) -> None:
        """Wait until the gate is open; raises the error of a broken journal. For ever, once the gate was closed."""
        while not self.is_open:
            if self._journal.broken is not None:
                raise self._journal.broken
            await asyncio.sleep(LOOK_INTERVAL)
