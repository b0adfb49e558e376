"""Atomic replacement of files: a reader sees the old file or the new one, and a failure leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Generator, Iterable, Iterator

from retinue.tools.files.paths import PathTarget, UnusablePath

BLOCK = 1024 * 1024
TAKEN = "something of that name is there already; delete it first or choose another name"

# Calls of one turn run concurrently. Two edits of one file would start from the same text, and one would be lost.
_LOCKS = tuple(threading.Lock() for _ in range(64))


@contextlib.contextmanager
def write_lock(target: PathTarget) -> Generator[None]:
    """Exclude other writers of the same path in this process."""
    with _LOCKS[hash((target.steps[-1].id, target.name)) % len(_LOCKS)]:
        yield


def replace(
    target: PathTarget,
    content: Iterable[bytes],
    *,
    seen: os.stat_result | None = None,
    new: bool = False,
    like: os.stat_result | None = None,
) -> int:
    """Write a file with this content to the target path, all or nothing; returns the number of bytes.

    An existing file keeps its permissions; a new one gets those of `like`. `seen` is the status of the file that the
    content was derived from: if the file has changed since, nothing is written. With `new`, the path must be free.
    """
    before = target.stat()
    _check(target, before, new)
    temporary = f".{secrets.token_hex(8)}.retinue.tmp"
    has_mode = like is not None or (before is not None and stat.S_ISREG(before.st_mode))
    mode = 0o600 if has_mode else 0o666  # until it has the mode of the other file, only the owner reads the content
    try:
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=target.fd
        )
        try:
            with open(fd, "wb") as file:
                written = sum(file.write(block) for block in content)
                if before is not None:
                    _keep_permissions(fd, before)
                elif like is not None:
                    os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
            _check_unchanged(target, seen)
            if new:
                _check(target, target.stat(), new)
            os.rename(temporary, target.name, src_dir_fd=target.fd, dst_dir_fd=target.fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=target.fd)
            raise
    except OSError as error:
        raise UnusablePath.because(error, target.path) from error
    return written


def blocks(fd: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, in blocks; another process may append faster than this reads.

    Some system files report size 0 and are not empty: of those, one block is read.
    """
    at, end = 0, size or BLOCK
    while at < end and (block := os.pread(fd, min(BLOCK, end - at), at)):
        at += len(block)
        yield block


def _check(target: PathTarget, found: os.stat_result | None, new: bool) -> None:
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode):
        raise UnusablePath(target.path, os.strerror(errno.EISDIR), code=errno.EISDIR)
    if new:
        raise UnusablePath(target.path, TAKEN)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        raise UnusablePath(target.path, "not a regular file (a pipe, socket or device)")


def _check_unchanged(target: PathTarget, seen: os.stat_result | None) -> None:
    if seen is None:
        return
    now = target.stat()
    if now is None or (now.st_ino, now.st_size, now.st_mtime_ns) != (seen.st_ino, seen.st_size, seen.st_mtime_ns):
        raise UnusablePath(target.path, "the file was changed by another program meanwhile; read it again")


def _keep_permissions(fd: int, before: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):  # only root may change the owner; otherwise the file becomes ours
            os.fchown(fd, before.st_uid, before.st_gid)
    if stat.S_ISREG(before.st_mode):
        os.fchmod(fd, stat.S_IMODE(before.st_mode) & 0o777)
