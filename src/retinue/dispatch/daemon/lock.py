"""The lock that one daemon holds for a state folder, and the facts about that daemon in the lock's file.

The kernel releases the lock when the process ends, however it ends. The file remains; its content is valid
only while the lock is held.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput, Refused, StoreNotOpened
from retinue.engine import is_gone, this_host, this_process
from retinue.local.private_folder import create_private

FILE = "daemon.lock"
"""The name of the lock's file in the state folder."""

ATTEMPTS = 20
POLL_SECONDS = 0.05
"""Seconds between two attempts: `running_daemon` holds a shared lock for an instant."""

MAX_FACTS = 65_536
"""Bytes of the file that are read."""


class DaemonFacts(Struct, frozen=True, kw_only=True):
    """What a daemon writes about itself. `process` identifies it on `host`; both are empty while it is starting."""

    host: str = ""
    process: str = ""
    since: float = 0.0
    config: str = ""
    stopping: bool = False

    @property
    def pid(self) -> int | None:
        pid = self.process.partition(":")[0]
        return int(pid) if pid.isdecimal() else None


class DaemonAlreadyRunning(Refused):
    """Another daemon has the state folder."""

    def __init__(self, facts: DaemonFacts, home: Path) -> None:
        process = "a process" if facts.pid is None else f"process {facts.pid}"
        super().__init__(f"a daemon runs already for {home}: {process}; see: retinue daemon status")
        self.facts = facts


class DaemonLock:
    """The lock of a state folder, as held by this process; the facts can be changed while it is held."""

    def __init__(self, file: int, facts: DaemonFacts) -> None:
        self._file = file
        self._facts = facts
        self._write()

    @classmethod
    async def take(cls, home: Path, *, since: float, config: str = "") -> DaemonLock:
        """Take the lock; raises `DaemonAlreadyRunning` if another process holds it."""
        _check_platform()
        file = _create(home)
        try:
            for _ in range(ATTEMPTS):
                if _try_lock(file, shared=False):
                    os.ftruncate(file, 0)  # what a killed daemon has left
                    return cls(file, DaemonFacts(host=this_host(), process=this_process(), since=since, config=config))
                await asyncio.sleep(POLL_SECONDS)
            raise DaemonAlreadyRunning(_read(file), home)
        except BaseException:
            os.close(file)
            raise

    def note_stopping(self) -> None:
        """Record that the daemon was asked to stop."""
        self._facts = msgspec.structs.replace(self._facts, stopping=True)
        self._write()

    def release(self) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)

    def _write(self) -> None:
        encoded = msgspec.json.encode(self._facts)
        os.pwrite(self._file, encoded, 0)
        os.ftruncate(self._file, len(encoded))


def _create(home: Path) -> int:
    try:
        create_private(home)
        return os.open(home / FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(home, error) from error


def _unusable(home: Path, error: OSError) -> StoreNotOpened:
    return StoreNotOpened(f"{home}: {error.strerror or error}; choose another place with RETINUE_HOME")


def running_daemon(home: Path) -> DaemonFacts | None:
    """The daemon that has the state folder now; None if there is none. Nothing is created."""
    _check_platform()
    try:
        file = os.open(home / FILE, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(home, error) from error
    try:
        return None if _try_lock(file, shared=True) else _read(file)
    finally:
        os.close(file)


async def stop(home: Path, *, timeout: float) -> DaemonFacts | None:
    """Ask the daemon to stop and wait for its end; the daemon, None if there was none.

    Raises `TimeoutError` if it has not ended after `timeout` seconds, and `BadInput` if it cannot be reached from here.
    """
    facts = running_daemon(home)
    if facts is None:
        return None
    clock = asyncio.get_running_loop().time
    until = clock() + timeout
    asked = facts.stopping  # a second signal would end it at once
    while (now := running_daemon(home)) is not None:
        if not asked and now.pid is not None:
            _terminate(now, now.pid)
            facts, asked = now, True
        if clock() >= until:
            raise TimeoutError
        await asyncio.sleep(POLL_SECONDS)
    return facts


def _terminate(facts: DaemonFacts, pid: int) -> None:
    if facts.host != this_host():
        node = facts.host.partition("/")[0]
        raise BadInput(f"the daemon runs on another host or in another container ({node}): stop it there")
    if is_gone(facts.host, facts.process):
        return  # it has just ended, and its number may belong to another process
    try:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise BadInput(f"the daemon, process {pid}, belongs to another user: stop it as that user") from error


def _read(file: int) -> DaemonFacts:
    try:
        return msgspec.json.decode(os.pread(file, MAX_FACTS, 0), type=DaemonFacts)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return DaemonFacts()  # it is being written


def _try_lock(file: int, *, shared: bool) -> bool:
    if sys.platform == "win32":  # pragma: no cover
        return False
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_platform() -> None:
    if sys.platform == "win32":  # pragma: no cover
        raise BadInput("retinue daemon needs a POSIX system; on this one use: retinue cron daemon")
