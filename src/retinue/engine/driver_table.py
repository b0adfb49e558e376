"""Drivers registered in the store, whether their processes still exist, and the gate of a driver past its lease.

A driver that was suspended, or cut off from the store, may have been declared dead. The store refuses its writes, but
not its requests: so it sends none until a heartbeat was committed again.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from retinue.core.commands import Change, Decision, DeclareDead, DriverRow
from retinue.core.ids import DriverId, RunId
from retinue.core.ports import Store
from retinue.engine.journal_writer import CommitFuture, Journal
from retinue.engine.timeouts import KnownLoop

SIGNS_OF_LIFE = "signs-of-life"
"""The key-value namespace with the time of the last heartbeat of each driver, by its id."""

LOOK_INTERVAL = 0.05
"""Seconds between two looks whether a heartbeat was committed."""


def sign_of_life(driver_id: DriverId, at: float) -> Change:
    """The write that goes with a heartbeat: the counter says that a driver lives, this one says until when it did."""
    decision = Decision(b"", puts={driver_id: repr(at).encode()})
    return Change(space=SIGNS_OF_LIFE, decide=lambda _: decision)


def end_of_signs(driver_id: DriverId) -> Change:
    """The write that goes with the end of a driver."""
    decision = Decision(b"", drops=(driver_id,))
    return Change(space=SIGNS_OF_LIFE, decide=lambda _: decision)


INTERRUPTED = "interrupted-trees"
"""The key-value namespace with the roots of trees that their driver left on purpose: a person resumes them."""


def interruption(root_ids: Collection[RunId]) -> Change:
    """The write that goes with the end of a driver whose unfinished trees are left to a person."""
    decision = Decision(b"", puts=dict.fromkeys(root_ids, b""))
    return Change(space=INTERRUPTED, decide=lambda _: decision)


def end_of_interruption(root_ids: Iterable[RunId]) -> Change:
    """The write that goes with the adoption of a tree."""
    decision = Decision(b"", drops=tuple(root_ids))
    return Change(space=INTERRUPTED, decide=lambda _: decision)


MARKING = "interruption-marks"
"""The key-value namespace with the time since when drivers mark the trees that they leave on purpose."""


def begin_of_marking(now: float) -> Change:
    """The write that goes with the start of a driver: the first one in a store notes the time."""

    def decide(content: Mapping[str, bytes]) -> Decision:
        return Decision(b"", puts={} if "since" in content else {"since": repr(now).encode()})

    return Change(space=MARKING, decide=decide)


class DriverTable:
    """Reads and changes the rows of drivers. A driver that is declared dead loses its runs and can write no more."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal = journal
        self._store = store

    async def interrupted(self) -> frozenset[RunId]:
        """The roots of trees that their driver left on purpose, for a person to resume."""
        return frozenset(await self._journal.peek(self._store.key_value, INTERRUPTED))

    async def marking_since(self) -> float:
        """The time since when drivers mark the trees that they leave on purpose; 0 if none has begun here."""
        content = await self._journal.peek(self._store.key_value, MARKING)
        return float(content.get("since", b"0"))

    async def last_beats(self) -> dict[DriverId, float]:
        """When each driver last wrote a heartbeat, by its own clock."""
        signs = await self._journal.peek(self._store.key_value, SIGNS_OF_LIFE)
        return {driver_id: float(at) for driver_id, at in signs.items()}

    async def rows(self) -> list[DriverRow]:
        return await self._journal.peek(self._store.drivers)

    async def find(self, driver_id: DriverId | None) -> DriverRow | None:
        return next((row for row in await self.rows() if row.driver_id == driver_id), None)

    async def living(self) -> frozenset[DriverId]:
        """The drivers that are not known to be dead."""
        return frozenset(
            row.driver_id for row in await self.rows() if not row.dead and not is_gone(row.host, row.process)
        )

    async def declare_dead(self, driver_id: DriverId, *, beat: int | None = None) -> bool:
        """Declare a driver dead; with `beat`, only if its heartbeat counter has that value. Whether it is dead.

        The time since its last sign of life does not count toward the deadlines of its runs.
        """
        death = await self._journal.peek(self.death_of, driver_id, beat)
        (is_dead,) = await self._journal.commit(death)
        if is_dead and death.left_at is not None:
            self._journal.write(end_of_signs(driver_id))
        return bool(is_dead)

    def death_of(self, driver_id: DriverId, beat: int | None = None) -> DeclareDead:
        """The write that declares a driver dead since its last sign of life."""
        left_at = self._store.key_value(SIGNS_OF_LIFE).get(driver_id)
        return DeclareDead(driver_id=driver_id, beat=beat, left_at=None if left_at is None else float(left_at))

    async def reap(self) -> None:
        """Declare those drivers dead whose process no longer exists on this host."""
        for row in await self.rows():
            if row.driver_id != self._journal.driver_id and not row.dead and is_gone(row.host, row.process):
                await self.declare_dead(row.driver_id)


@cache
def this_host() -> str:
    """A name for the scope in which process numbers are comparable: the machine since its last boot.

    Containers have process numbers of their own, so the PID namespace is part of the name.
    """
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return "/".join(filter(None, (platform.node(), boot, space)))


def this_process() -> str:
    """The number of this process and its start time, because process numbers are reused."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> str:
    """A name of a process on this host that no later process with the same number has."""
    return f"{pid}:{_start_time(pid)}"


def is_gone(host: str, process: str) -> bool:
    """Whether a process has certainly ended; nothing is certain about a process of another host."""
    if host != this_host():
        return _is_earlier_boot(host)
    pid = process.partition(":")[0]
    if not pid.isdecimal():
        return False  # written by a retinue version with another format
    return not _exists(int(pid)) or identity_of(int(pid)) != process


def _is_earlier_boot(host: str) -> bool:
    node, _, rest = host.partition("/")
    here, _, rest_here = this_host().partition("/")
    boot, boot_here = rest.partition("/")[0], rest_here.partition("/")[0]
    return node == here and bool(boot and boot_here) and boot != boot_here


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # pragma: no cover
        return True  # os.kill would end the process on Windows; the lease decides instead
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_time(pid: int) -> str:
    """The start time of a process in kernel ticks; empty where the kernel does not provide it."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return ""
    # A zombie has ended; only its parent has not collected its exit status yet.
    return "ended" if fields[0] == "Z" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


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
