"""Keep settings files that programs of agents have written from being obeyed.

A program cannot write a settings file that was there when it started: the file is mounted read-only. It can create one
where there was none, or write one that a person replaces while the program runs, which detaches the mount. A registry
therefore has a record for each folder in which programs may write: when programs ran there, which run now, and the
settings files that no program could have written. The records are in the state folder, so that all processes share them
and a process that was killed leaves them behind.

- When a program starts or ends, other settings files directly in its folders are renamed, never deleted.
- When a settings file or a tool module is loaded, it is refused if it was last changed while a program ran in a folder
  above it. The kernel sets that time (`st_ctime`), and a program in the sandbox cannot change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from retinue.core.errors import ConfigError, Problem, ToolError
from retinue.core.log_context import logger
from retinue.core.settings_file_names import REPLACED, SETTINGS_FILES
from retinue.local.private_folder import create_private
from retinue.tools.path_walk import real_folder
from retinue.tools.threads import in_thread

log = logger("retinue.tools.settings")

FOLDER = "programs"
"""The folder of the records, in the state folder."""
MADE = ".made-by-an-agent"
"""Appended to the name of a settings file that a program created."""
MAX_SPANS = 256
"""Spans of time in one record; beyond that the two with the shortest gap become one."""
MAX_RECORDS = 1000
"""Records above which those of folders that are gone are removed."""
FILE_CLOCK = 5
"""CLOCK_REALTIME_COARSE of Linux, which the kernel uses for the times of files: it is up to 10 ms late."""
LOCK_SECONDS, LOCK_PAUSE = 10.0, 0.005
MAX_BYTES = 1 << 20
"""Size from which a file is not hashed; a settings file of that size is not loaded."""
MAX_LINKS = 40


class FileIdentity(Struct, frozen=True, array_like=True):
    """A file at one moment; a symbolic link is not followed, and its content is its target."""

    device: int
    inode: int
    changed: int
    digest: str

    def is_file(self, other: FileIdentity) -> bool:
        return (self.device, self.inode) == (other.device, other.inode)

    def is_unchanged(self, other: FileIdentity) -> bool:
        return self.digest == other.digest or (self.is_file(other) and self.changed == other.changed)


class Running(Struct, frozen=True, array_like=True):
    """A program that runs: its process, and the time of its start by two clocks, of which one is never set."""

    process: str
    began: int
    steady: int


class Record(Struct):
    """What is known of one folder in which programs may write; times are in nanoseconds."""

    root: str
    known: dict[str, FileIdentity] = {}
    """Settings files and tool modules that no program could have written, by path."""
    running: dict[str, Running] = {}
    spans: list[tuple[int, int]] = []
    """When programs ran that have ended."""

    def covers(self, changed: int) -> bool:
        """Whether a program ran at this time."""
        if any(running.began <= changed for running in self.running.values()):
            return True
        return any(began <= changed <= ended for began, ended in self.spans)

    def close(self, token: str) -> None:
        """Note that a program has ended by now."""
        running = self.running.pop(token)
        # If the clock was set back meanwhile, files have later times than it shows now.
        ended = max(time.time_ns(), running.began + time.monotonic_ns() - running.steady)
        self.spans = _merged([*self.spans, (running.began, ended)])


def _file_time() -> int:
    """The time that a file changed now would get, or an earlier one."""
    return time.clock_gettime_ns(FILE_CLOCK) if sys.platform == "linux" else time.time_ns() - 1_000_000_000


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, overlapping ones as one, and not more than `MAX_SPANS`.

    >>> _merged([(5, 9), (1, 3), (2, 4)])
    [(1, 4), (5, 9)]
    """
    merged: list[tuple[int, int]] = []
    for began, ended in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    while len(merged) > MAX_SPANS:
        at = min(range(1, len(merged)), key=lambda at: merged[at][0] - merged[at - 1][1])
        merged[at - 1 : at + 1] = [(merged[at - 1][0], merged[at][1])]
    return merged


# ---- where records are kept ------------------------------------------------------------------------------------------


class Records(Protocol):
    """Records by folder. All but `locked` is used while they are locked."""

    def locked(self) -> contextlib.AbstractContextManager[None]: ...
    def read(self, folder: str) -> Record | None: ...
    def write(self, record: Record) -> None: ...
    def hold(self) -> str:
        """The name of this process, by which others see that it is alive."""
        ...

    def is_alive(self, process: str) -> bool: ...


class MemoryRecords:
    """The records of this process, for programs of every state folder and of none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        with self._lock:
            yield

    def read(self, folder: str) -> Record | None:
        return self._records.get(folder)

    def write(self, record: Record) -> None:
        if record.root not in self._records and len(self._records) >= MAX_RECORDS:
            self._records = {root: each for root, each in self._records.items() if each.running or os.path.exists(root)}
        self._records[record.root] = record

    def hold(self) -> str:
        return ""

    def is_alive(self, process: str) -> bool:
        return True


class DiskRecords:
    """Records in the state folder, each in a file that is named after the path of its folder.

    A link that is named after the folder's device and inode leads to the record too: the folder may be renamed or
    mounted elsewhere. A process is alive as long as the kernel keeps its lock on the file that is named after it.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._held = -1
        self._pid = 0
        self._process = ""

    @property
    def is_used(self) -> bool:
        return os.path.isdir(self._folder)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        import fcntl

        create_private(self._folder.parent)
        create_private(self._folder)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise TimeoutError(f"another process keeps {self._folder}/lock: stop that process") from error
                    time.sleep(LOCK_PAUSE)
            yield
        finally:
            os.close(lock)

    def hold(self) -> str:
        import fcntl

        if self._pid == os.getpid() and self._held >= 0:
            return self._process
        for name in os.listdir(self._folder):
            if name.endswith(".process"):
                self.is_alive(name)  # which removes the file of one that is not
        # A forked process gets a file of its own.
        self._pid, self._process = os.getpid(), f"{secrets.token_hex(8)}.process"
        self._held = os.open(self._folder / self._process, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._process

    def is_alive(self, process: str) -> bool:
        import fcntl

        if process == self._process and self._pid == os.getpid():
            return True
        try:
            lock = os.open(self._folder / os.path.basename(process), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._folder / os.path.basename(process))
            return False
        finally:
            os.close(lock)

    def read(self, folder: str) -> Record | None:
        for name in self._names(folder):
            try:
                return msgspec.json.decode((self._folder / name).read_bytes(), type=Record)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except msgspec.DecodeError:
                # Not written by this version: every file below may have been made by a program.
                return Record(root=folder, spans=[(0, 1 << 63)])
        return None

    def write(self, record: Record) -> None:
        name, *others = self._names(record.root)
        if not (self._folder / name).exists():
            self._prune()
        temporary = self._folder / f"{name}.{secrets.token_hex(4)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(record))
        os.replace(temporary, self._folder / name)
        for other in others:
            if _link_target(self._folder / other) != name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._folder / other)
                os.symlink(name, self._folder / other)

    def _names(self, folder: str) -> list[str]:
        names = [f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.root"]
        with contextlib.suppress(OSError):
            found = os.stat(folder)
            names.append(f"{found.st_dev:x}-{found.st_ino:x}.link")
        return names

    def _prune(self) -> None:
        """Remove records of folders that are gone, if there are many."""
        names = os.listdir(self._folder)
        if len(names) < MAX_RECORDS:
            return
        for name in names:
            path = self._folder / name
            if name.endswith(".root"):
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    record = msgspec.json.decode(path.read_bytes(), type=Record)
                    if not record.running and not os.path.lexists(record.root):
                        path.unlink()
        for name in names:
            if name.endswith(".link") and not (self._folder / name).exists():
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()


def _link_target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


_IN_MEMORY = MemoryRecords()
_ON_DISK: dict[str, DiskRecords] = {}


def _records(home: Path | None) -> list[Records]:
    """Where programs with this state folder are recorded: in this process, and on disk if there is a state folder."""
    if home is None or sys.platform == "win32":
        return [_IN_MEMORY]
    path = os.path.abspath(home)
    return [_IN_MEMORY, _ON_DISK.setdefault(path, DiskRecords(Path(path)))]


# ---- what is trusted -------------------------------------------------------------------------------------------------


class _OpenRecords:
    """The records of one place while they are locked: each is read once, without programs whose process is gone."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._read: dict[str, Record | None] = {}
        self._changed: list[Record] = []

    def get(self, folder: str) -> Record | None:
        if folder not in self._read:
            record = self._read[folder] = self._records.read(folder)
            for token, running in list(record.running.items()) if record is not None else ():
                if record is not None and not self._records.is_alive(running.process):
                    record.close(token)
                    self.change(record)
        return self._read[folder]

    def get_or_new(self, folder: str) -> Record:
        record = self.get(folder) or Record(root=folder)
        self._read[folder] = record
        return record

    def change(self, record: Record) -> None:
        self._changed.append(record)

    def write(self) -> None:
        for record in {id(record): record for record in self._changed}.values():
            self._records.write(record)
        self._changed.clear()

    def distrust(self, path: str, found: FileIdentity) -> Record | None:
        """The record by which a program may have written this file; None if there is none."""
        above = list(self._above(os.path.dirname(path)))
        if any(path in record.known and record.known[path].is_unchanged(found) for _, record in above):
            return None
        for folder, record in above:
            known = record.known.get(path)
            # If it was there when the programs started, each has it mounted read-only, and its inode is held open.
            if record.running and known is not None and known.is_file(found):
                continue
            is_new = bool(record.running) and folder == os.path.dirname(path)
            if is_new or record.covers(found.changed):
                return record
        return None

    def has_programs_above(self, path: str) -> bool:
        """Whether programs ran in a folder above the path."""
        return any(True for _ in self._above(os.path.dirname(path)))

    def _above(self, folder: str) -> Iterator[tuple[str, Record]]:
        """The records of a folder and of those above it."""
        while True:
            record = self.get(folder)
            if record is not None:
                yield folder, record
            parent = os.path.dirname(folder)
            if parent == folder:
                return
            folder = parent

    def sweep(self, record: Record, protected: Sequence[str] = ()) -> list[str]:
        """Rename settings files that a program may have written, update the known files, and return messages."""
        messages: list[str] = []
        known: dict[str, FileIdentity] = {}
        settings = [os.path.join(record.root, name) for name in SETTINGS_FILES]
        others = [path for path in (*protected, *record.known) if _is_below(path, record.root)]
        for path in dict.fromkeys((*settings, *others)):
            found = identify(path)
            if found is None:
                continue
            if self.distrust(path, found) is None:
                known[path] = found
            elif path in settings:
                messages.append(_put_aside(path, REPLACED if path in record.known else MADE))
        if known != record.known:
            record.known = known
            self.change(record)
        return messages


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def identify(path: str, descriptor: int | None = None) -> FileIdentity | None:
    """What has this path now, or the open file; None if there is nothing. Links are not followed."""
    try:
        found, digest = os.lstat(path) if descriptor is None else os.fstat(descriptor), ""
        if stat.S_ISLNK(found.st_mode):
            digest = "link " + os.readlink(path)
        elif stat.S_ISREG(found.st_mode):
            with contextlib.suppress(PermissionError), contextlib.ExitStack() as stack:
                if descriptor is None:
                    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                    stack.callback(os.close, descriptor)
                content = os.pread(descriptor, MAX_BYTES, 0)
                digest = hashlib.sha256(content).hexdigest() if len(content) < MAX_BYTES else ""
                found = os.fstat(descriptor)
    except FileNotFoundError:
        return None
    except OSError:  # it is being replaced, or is in a folder that cannot be read
        return FileIdentity(0, 0, time.time_ns(), secrets.token_hex(16))
    # Without a digest, such as of a folder, it is like no other file.
    return FileIdentity(found.st_dev, found.st_ino, found.st_ctime_ns, digest or secrets.token_hex(16))


def _put_aside(path: str, suffix: str) -> str:
    """Rename a file, and return a message that says so."""
    name = os.path.basename(path)
    aside = suffix if not os.path.lexists(path + suffix) else f"{suffix}-{secrets.token_hex(4)}"
    try:
        if os.rename in os.supports_dir_fd:
            # A program may have put a link in the place of the folder: the file behind it is a person's.
            with real_folder(os.path.dirname(path)) as folder:
                os.rename(name, name + aside, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.rename(path, path + aside)
    except FileNotFoundError:
        return f"{name} was there while this ran, and is gone"
    except OSError as error:
        log.warning("%s may have been written by a program of an agent and cannot be renamed: %s", path, error)
        return f"{name} could not be renamed ({error.strerror}): what agents may do is settled by people"
    log.warning("%s may have been written by a program of an agent; it was renamed to %s%s", path, name, aside)
    if suffix == REPLACED:
        return (
            f"{name} was replaced while a program ran, which could write it from then on; it was renamed to "
            f"...{aside}: a person has to check it"
        )
    return f"{name} was renamed to ...{aside}: what agents may do is settled by people"


# ---- around a program ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ProgramWatch:
    """A program in its folders; `messages` says what was renamed."""

    roots: tuple[str, ...]
    protected: tuple[Path, ...]
    home: Path | None
    messages: list[str] = field(default_factory=list[str])
    known: set[str] = field(default_factory=set[str])
    """Files that count as a person's, because the program has them mounted read-only."""
    is_home_new: bool = False
    _token: str = field(default_factory=lambda: secrets.token_hex(8))
    _pins: list[int] = field(default_factory=list[int])
    _recorded: list[Records] = field(default_factory=list["Records"])

    def begin(self) -> None:
        """Record the program in each of its folders, and rename settings files there that a program made."""
        protected = [os.path.realpath(path) for path in self.protected]
        self.is_home_new = self.home is not None and not os.path.lexists(self.home)
        for records in _records(self.home):
            with contextlib.ExitStack() as stack:
                try:
                    locked = stack.enter_context(_locked(records))
                except TimeoutError:
                    raise
                except OSError as error:
                    # A program that has its store elsewhere need not have a state folder.
                    log.warning("programs cannot be recorded for other processes: %s", error)
                    continue
                for root in self.roots:
                    record = locked.get_or_new(root)
                    self.messages += locked.sweep(record, protected)
                    self.known.update(record.known)
                    self._pins += [pin for path in record.known if (pin := _pin(path)) is not None]
                    record.running[self._token] = Running(records.hold(), _file_time(), time.monotonic_ns())
                    locked.change(record)
                self._recorded.append(records)

    def needs_new_mounts(self, readable: Collection[str]) -> bool:
        """Whether mounts that were made before `begin`, with these read-only paths, do not protect every file now.

        A file may have been created or renamed meanwhile, or the state folder, which is hidden.
        """
        return bool(self.messages) or self.is_home_new or not self.known <= set(readable)

    def end(self) -> None:
        """Record that the program has ended, and rename the settings files that it may have written."""
        try:
            for records in self._recorded:
                with _locked(records) as locked:
                    for root in self.roots:
                        record = locked.get(root)
                        if record is not None and self._token in record.running:
                            self.messages += locked.sweep(record)
                            record.close(self._token)
                            locked.change(record)
        finally:
            for pin in self._pins:
                os.close(pin)
            self._pins.clear()


@contextlib.contextmanager
def _locked(records: Records) -> Generator[_OpenRecords]:
    with records.locked():
        opened = _OpenRecords(records)
        try:
            yield opened
        finally:
            opened.write()


def _pin(path: str) -> int | None:
    """A descriptor that keeps the inode of a path from being used for another file."""
    try:
        return os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


@contextlib.asynccontextmanager
async def watch_settings(
    roots: Sequence[str], protected: Sequence[Path], home: Path | None
) -> AsyncGenerator[ProgramWatch]:
    """Around a program that may write to `roots`; `protected` are files that are mounted read-only for it.

    The work is finished even if the caller is cancelled.
    """
    watch = ProgramWatch(tuple(dict.fromkeys(roots)), tuple(protected), home)
    if not watch.roots:
        yield watch
        return
    try:
        await _finish(watch.begin)
        yield watch
    finally:
        await _finish(watch.end)


async def _finish(work: Callable[[], None]) -> None:
    working = asyncio.ensure_future(in_thread(work))
    try:
        await asyncio.shield(working)
    except OSError as error:
        raise ToolError(f"the settings files cannot be protected: {error}") from error
    finally:
        await asyncio.wait((working,))


# ---- when a file is loaded -------------------------------------------------------------------------------------------


def sweep_folder(folder: Path, home: Path | None) -> None:
    """Rename settings files in a folder that a program left there when its process was killed."""
    for records in _used_records(home):
        try:
            with _locked(records) as locked:
                record = locked.get(os.path.realpath(folder))
                if record is not None:
                    locked.sweep(record)
        except OSError as error:
            log.warning("settings files in %s cannot be checked: %s", folder, error)


def check_unwritten(path: Path, descriptor: int, home: Path | None) -> None:
    """Raise `ConfigError` if a program of an agent may have written the open file, or a link that `path` leads through.

    What comes out of a pipe cannot be checked: a pipe with a name is refused in a folder in which programs ran. One
    without a name, such as the shell's `<(...)`, is not.
    """
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    seen = [(link, identify(link)) for link in _links(path)]
    opened = _path_of(descriptor, path)
    if is_file:
        seen.append((opened, identify(opened, descriptor)))
    for records in _used_records(home):
        with contextlib.ExitStack() as stack:
            try:
                locked = stack.enter_context(_locked(records))
            except OSError:  # a state folder that cannot be written: programs are not recorded there either
                locked = _OpenRecords(records)
            if not is_file and opened.startswith("/") and locked.has_programs_above(opened):
                complaint = "it is no file, and a program of an agent may write to it; expected a file"
                raise ConfigError(Problem(file=str(path), complaint=complaint))
            for link, found in seen:
                record = locked.distrust(link, found) if found is not None else None
                if found is not None and record is not None:
                    raise ConfigError(Problem(file=str(path), complaint=_refusal(found, record)))


def _used_records(home: Path | None) -> list[Records]:
    """The records of a state folder, without those on disk if there are none."""
    return [each for each in _records(home) if not isinstance(each, DiskRecords) or each.is_used]


def _links(path: Path) -> list[str]:
    """The symbolic links from a path to its file, each with its folder resolved."""
    links: list[str] = []
    step = os.path.abspath(path)
    while len(links) < MAX_LINKS and os.path.islink(step):
        step = os.path.join(os.path.realpath(os.path.dirname(step)), os.path.basename(step))
        links.append(step)
        step = os.path.join(os.path.dirname(step), os.readlink(step))
    return links


def _path_of(descriptor: int, path: Path) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    except OSError:
        return os.path.realpath(path)


def _refusal(found: FileIdentity, record: Record) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.changed / 1e9))
    return (
        f"a program of an agent may have written it: it was changed at {when}, while one ran in {record.root}. "
        "Read it, and save it again (or touch it) to accept it"
    )
