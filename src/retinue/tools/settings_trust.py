"""Which settings files and modules are obeyed where agents may write: those that a person has accepted, by content.

A settings file decides what agents may do, and its modules run with all rights of the user. Folders in which agents may
write are recorded in the state folder before the first write. A file in such a folder is obeyed only if its path and
the digest of its content are recorded as accepted: the content that it had before agents could write there, or one that
a person has accepted since (`retinue trust`). Times, owners and inodes say nothing: a folder can be moved, and a write
through a mapping changes no time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from retinue.core.errors import ConfigError, Problem
from retinue.core.log_context import logger
from retinue.core.settings_file_names import SETTINGS_FILES
from retinue.local.private_folder import create_private

log = logger("retinue.tools.settings")

FOLDER = "programs"
"""The folder of the records, in the state folder."""
MAX_RECORDS = 1000
"""Recorded folders above which those that are gone are removed."""
MAX_DIGESTS = 32
"""Contents of one path that stay accepted, so that two branches of a project need no acceptance at each change."""
MAX_FILE = 16 << 20
MAX_FILES = 2000
"""Bytes of one module, and modules beside a tool module, that are recorded when agents first get a folder."""
MAX_LINKS = 40
LOCK_SECONDS, LOCK_PAUSE = 10.0, 0.005


class WritableRoot(Struct, frozen=True):
    """A folder in which agents may write."""

    root: str


class AcceptedPath(Struct, frozen=True):
    """The contents of one path that are obeyed, the latest last; `content` is the latest, to show what has changed."""

    path: str
    digests: tuple[str, ...] = ()
    content: bytes = b""

    def with_content(self, content: bytes) -> AcceptedPath:
        digest = digest_of(content)
        others = tuple(each for each in self.digests if each != digest)
        return AcceptedPath(self.path, (*others, digest)[-MAX_DIGESTS:], content)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def link_content(target: str) -> bytes:
    """What is compared of a symbolic link."""
    return b"link to " + os.fsencode(target)


# ---- where it is recorded --------------------------------------------------------------------------------------------


class Records(Protocol):
    """Recorded folders and accepted files. Those of other processes may change between calls, unless it is locked."""

    def locked(self) -> contextlib.AbstractContextManager[None]: ...
    def is_root(self, folder: str) -> bool: ...
    def add_root(self, folder: str) -> None: ...
    def roots(self) -> list[str]: ...
    def accepted(self, path: str) -> AcceptedPath | None: ...
    def accept(self, accepted: AcceptedPath) -> None: ...


class MemoryRecords:
    """The records of a process without a state folder."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._roots: set[str] = set()
        self._accepted: dict[str, AcceptedPath] = {}

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        with self._lock:
            yield

    def is_root(self, folder: str) -> bool:
        return folder in self._roots

    def add_root(self, folder: str) -> None:
        if len(self._roots) >= MAX_RECORDS:
            self._roots = {root for root in self._roots if os.path.lexists(root)}
        self._roots.add(folder)

    def roots(self) -> list[str]:
        return list(self._roots)

    def accepted(self, path: str) -> AcceptedPath | None:
        return self._accepted.get(path)

    def accept(self, accepted: AcceptedPath) -> None:
        self._accepted[accepted.path] = accepted


class DiskRecords:
    """Records in the state folder, each in a file that is named after the path.

    A link that is named after device and inode of a folder leads to its record, too: the folder may be renamed or
    mounted elsewhere.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    @property
    def is_used(self) -> bool:
        return os.path.isdir(self.folder)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        import fcntl

        create_private(self.folder.parent)
        create_private(self.folder)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise TimeoutError(f"another process keeps {self.folder}/lock: stop that process") from error
                    time.sleep(LOCK_PAUSE)
            yield
        finally:
            os.close(lock)

    def is_root(self, folder: str) -> bool:
        return any(os.path.lexists(self.folder / name) for name in _root_names(folder))

    def add_root(self, folder: str) -> None:
        name, *others = _root_names(folder)
        if not os.path.lexists(self.folder / name):
            self._prune()
        self._write(name, WritableRoot(folder))
        for other in others:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / other)
            os.symlink(name, self.folder / other)

    def accepted(self, path: str) -> AcceptedPath | None:
        try:
            return msgspec.json.decode((self.folder / _name(path, "trust")).read_bytes(), type=AcceptedPath)
        except (OSError, msgspec.DecodeError):  # what cannot be read accepts nothing
            return None

    def accept(self, accepted: AcceptedPath) -> None:
        self._write(_name(accepted.path, "trust"), accepted)

    def _write(self, name: str, value: Struct) -> None:
        temporary = self.folder / f"{name}.{secrets.token_hex(4)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(value))
        os.replace(temporary, self.folder / name)

    def roots(self) -> list[str]:
        return [root for name in self._names(".root") if (root := self._root(name))]

    def _names(self, *endings: str) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.endswith(endings)]

    def _root(self, name: str) -> str:
        try:
            return msgspec.json.decode((self.folder / name).read_bytes(), type=WritableRoot).root
        except (OSError, msgspec.DecodeError):
            return ""

    def _prune(self) -> None:
        """Remove records of folders that are gone, if there are many."""
        names = self._names(".root", ".link")
        if len(names) < MAX_RECORDS:
            return
        for name in names:
            if (root := self._root(name)) and not os.path.lexists(root):
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / name)


def _name(path: str, kind: str) -> str:
    return f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.{kind}"


def _root_names(folder: str) -> list[str]:
    names = [_name(folder, "root")]
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        names.append(f"{found.st_dev:x}-{found.st_ino:x}.link")
    return names


_IN_MEMORY = MemoryRecords()
_ON_DISK: dict[str, DiskRecords] = {}
_ENTERED: set[tuple[str, str, int, int]] = set()
"""Folders that this process has recorded, each with the state folder, its device and its inode."""


def _records(home: Path | None) -> Records:
    if home is None or sys.platform == "win32":
        return _IN_MEMORY
    path = os.path.abspath(home)
    return _ON_DISK.setdefault(path, DiskRecords(Path(path)))


def _used_records(home: Path | None) -> list[Records]:
    """The records of this process, and those of a state folder if it has some."""
    records = _records(home)
    if not isinstance(records, DiskRecords):
        return [records]
    return [_IN_MEMORY, *([records] if records.is_used else [])]


# ---- when agents get a folder ----------------------------------------------------------------------------------------


def record_roots(roots: Iterable[str], files: Sequence[Path], home: Path | None) -> None:
    """Record folders in which agents may write from now on; raises `OSError`.

    What is in them by now, and was in no recorded folder before, is accepted: `files`, which are the settings and the
    modules of this process, the modules beside these, and the settings files directly in the folders. A process does
    this once for each folder.
    """
    state = "" if home is None else os.path.abspath(home)
    new = {root: key for root in roots if (key := _key(state, root)) not in _ENTERED}
    if not new:
        return
    records = _records(home)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(records.locked())
        except TimeoutError:
            raise
        except OSError as error:
            # A program that has its store elsewhere need not have a state folder.
            log.warning("folders of agents cannot be recorded for other processes: %s", error)
            records = _IN_MEMORY
        usual = [Path(root, name) for root in new for name in SETTINGS_FILES]
        for path in _with_modules((*files, *usual)):
            for place, content in _places(path):
                if any(_is_below(place, root) for root in new) and not _root_above(records, place):
                    records.accept((records.accepted(place) or AcceptedPath(place)).with_content(content))
        for root in new:
            records.add_root(root)
    _ENTERED.update(new.values())


def recorded_roots(home: Path | None) -> tuple[str, ...]:
    """The recorded folders, of every configuration: programs in them are not started outside of a sandbox."""
    return tuple(sorted({root for records in _used_records(home) for root in records.roots()}))


def _key(state: str, root: str) -> tuple[str, str, int, int]:
    try:
        found = os.stat(root)
    except OSError:
        return state, root, 0, 0
    return state, root, found.st_dev, found.st_ino


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _with_modules(files: Iterable[Path]) -> Iterator[Path]:
    """The files, and next to each Python file the others that it can import."""
    folders: set[Path] = set()
    for file in files:
        yield file
        if file.suffix == ".py" and file.parent not in folders:
            folders.add(file.parent)
            yield from modules_in(file.parent)


def modules_in(folder: Path) -> list[Path]:
    """The Python files in a folder and in the packages in it, at most `MAX_FILES`."""
    found: list[Path] = []
    folders = [folder]
    while folders and len(found) < MAX_FILES:
        here = folders.pop()
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    found.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False) and os.path.lexists(os.path.join(entry.path, "__init__.py")):
                    folders.append(Path(entry.path))
    return found[:MAX_FILES]


def _places(path: Path) -> Iterator[tuple[str, bytes]]:
    """The links on a path and the file that they lead to, each with its content; nothing if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE + 1)
        if len(content) <= MAX_FILE:
            yield from _links(path)
            yield _path_of(descriptor, path), content
    finally:
        os.close(descriptor)


# ---- when a file is loaded -------------------------------------------------------------------------------------------


def check_trusted(path: Path, descriptor: int, content: bytes, home: Path | None) -> None:
    """Raise `ConfigError` if an open file, or a link on the way to it, lies where agents may write and is not accepted.

    `content` is what was read of it, and what is used of it afterwards. What comes out of a pipe cannot be compared: a
    pipe with a name is refused where agents may write. One without a name, such as the shell's `<(...)`, is not.
    """
    opened = _path_of(descriptor, path)
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    for records in _used_records(home):
        if not is_file:
            if opened.startswith("/") and (root := _root_above(records, opened)):
                complaint = f"it is no file, and agents may write in {root}; expected a file"
                raise ConfigError(Problem(file=str(path), complaint=complaint))
            continue
        for place, found in (*_links(path), (opened, content)):
            root = _root_above(records, place)
            if not root:
                continue
            accepted = records.accepted(place)
            if accepted is None or digest_of(found) not in accepted.digests:
                raise ConfigError(
                    Problem(file=str(path), complaint=_refusal(path, root, is_known=accepted is not None))
                )


def accept_content(path: Path, content: bytes, home: Path | None) -> None:
    """Accept a content of a file, and the links on the way to it as they are; raises `OSError`."""
    for records in _used_records(home):
        with records.locked():
            for place, found in (*_links(path), (os.path.realpath(path), content)):
                records.accept((records.accepted(place) or AcceptedPath(place)).with_content(found))


def last_accepted(path: Path, home: Path | None) -> bytes | None:
    """The content of a file that was accepted last, or None."""
    places = [records.accepted(os.path.realpath(path)) for records in _used_records(home)]
    return next((found.content for found in places if found is not None), None)


def is_accepted(path: Path, content: bytes, home: Path | None) -> bool:
    """Whether `check_trusted` lets a file with this content pass."""
    for records in _used_records(home):
        for place, found in (*_links(path), (os.path.realpath(path), content)):
            accepted = records.accepted(place)
            if _root_above(records, place) and (accepted is None or digest_of(found) not in accepted.digests):
                return False
    return True


def _root_above(records: Records, path: str) -> str:
    """The nearest recorded folder above a path; empty if there is none."""
    folder = path
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        if records.is_root(folder):
            return folder
    return ""


def _links(path: Path) -> list[tuple[str, bytes]]:
    """The symbolic links on a path, each with its own folder resolved and its content."""
    links: list[tuple[str, bytes]] = []
    ahead = [part for part in reversed(os.path.abspath(path).split("/")) if part]
    here = "/"
    while ahead and len(links) < MAX_LINKS:
        part = ahead.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, part)
        try:
            target = os.readlink(entry)
        except OSError:
            here = entry
            continue
        links.append((entry, link_content(target)))
        if target.startswith("/"):
            here = "/"
        ahead += [part for part in reversed(target.split("/")) if part not in ("", ".")]
    return links


def _path_of(descriptor: int, path: Path) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    except OSError:
        return os.path.realpath(path)


def _refusal(path: Path, root: str, *, is_known: bool) -> str:
    what = "it is not as you accepted it" if is_known else "you have not accepted it"
    return f"agents may write in {root}, and {what}: read it, then accept it with: retinue trust {_argument(path)}"


def _argument(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
