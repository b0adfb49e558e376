"""Settings files around a program of an agent: folders are recorded before it starts, and files that it made renamed.

Which settings are obeyed does not depend on this, see `settings_trust`. A program cannot write a settings file that was
there when it started: the file is mounted read-only. One that it created in its folders is renamed when it ends, never
deleted, so that the next start there is not refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retinue.core.errors import ToolError
from retinue.core.log_context import logger
from retinue.core.settings_file_names import SETTINGS_FILES
from retinue.tools.path_walk import real_folder
from retinue.tools.settings_trust import is_accepted, record_roots
from retinue.tools.threads import in_thread

log = logger("retinue.tools.settings")

MADE = ".made-by-an-agent"
"""Appended to the name of a settings file that a program created."""
MAX_BYTES = 1 << 20
"""Size of the largest settings file that is loaded."""


@dataclass(slots=True, eq=False)
class ProgramWatch:
    """A program in its folders; `messages` says what was renamed."""

    roots: tuple[str, ...]
    protected: tuple[Path, ...]
    home: Path | None
    messages: list[str] = field(default_factory=list[str])
    is_home_new: bool = False
    _before: dict[str, int] = field(default_factory=dict[str, int])
    """Settings files that were there when the program started, with a descriptor that keeps each inode in use."""

    def begin(self) -> None:
        """Record the folders of the program, and look which settings files are there."""
        self.is_home_new = self.home is not None and not os.path.lexists(self.home)
        record_roots(self.roots, self.protected, self.home)
        with _LOCK:
            self._put_aside(path for path in self._settings() if any(other.may_have_made(path) for other in _RUNNING))
            _RUNNING.append(self)
        protected = [path for path in map(os.path.realpath, self.protected) if self._is_inside(path)]
        for path in dict.fromkeys((*self._settings(), *protected)):
            with contextlib.suppress(OSError):
                self._before[path] = _pin(path)

    def needs_new_mounts(self, readable: Collection[str]) -> bool:
        """Whether mounts that were made before `begin`, with these read-only paths, do not protect every file now.

        A file may have been created or renamed meanwhile, or the state folder, which is hidden.
        """
        return bool(self.messages) or self.is_home_new or not self._before.keys() <= set(readable)

    def end(self) -> None:
        """Rename the settings files that the program may have created."""
        with _LOCK:
            if self in _RUNNING:
                _RUNNING.remove(self)
        try:
            self._put_aside(path for path in self._settings() if path not in self._before)
            self.messages += map(_replaced, filter(self._is_replaced, self._settings()))
        finally:
            for pin in self._before.values():
                os.close(pin)
            self._before.clear()

    def may_have_made(self, path: str) -> bool:
        """Whether a settings file was not there when this program started."""
        return path in self._settings() and path not in self._before

    def _put_aside(self, paths: Iterable[str]) -> None:
        there = [path for path in paths if os.path.lexists(path)]
        self.messages += [_put_aside(path) for path in there if not _is_accepted(path, self.home)]

    def _is_replaced(self, path: str) -> bool:
        try:
            return path in self._before and not os.path.samestat(os.fstat(self._before[path]), os.lstat(path))
        except OSError:
            return False

    def _settings(self) -> list[str]:
        return [os.path.join(root, name) for root in self.roots for name in SETTINGS_FILES]

    def _is_inside(self, path: str) -> bool:
        return any(path.startswith(root.rstrip("/") + "/") for root in self.roots)


_RUNNING: list[ProgramWatch] = []
"""The programs of this process."""
_LOCK = threading.Lock()


def _pin(path: str) -> int:
    """A descriptor that keeps the inode of a path from being used for another file."""
    return os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_accepted(path: str, home: Path | None) -> bool:
    """Whether a person accepted a file that appeared while a program ran, such as one that `retinue init` wrote."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return is_accepted(Path(path), file.read(MAX_BYTES + 1), home)
    except OSError:
        return False


def _replaced(path: str) -> str:
    log.warning("%s was replaced while a program of an agent ran", path)
    return (
        f"{os.path.basename(path)} was replaced while a program ran, which could write it from then on: it is not "
        "obeyed until a person has accepted it with: retinue trust"
    )


def _put_aside(path: str) -> str:
    """Rename a file, and return a message that says so."""
    name = os.path.basename(path)
    aside = MADE if not os.path.lexists(path + MADE) else f"{MADE}-{secrets.token_hex(4)}"
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
    return f"{name} was renamed to ...{aside}: what agents may do is settled by people"


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
