"""Replacing a file as a whole: a reader sees the old one or the new one, and a failure leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Generator, Iterable, Iterator

from retinue.tools.files.paths import Spot, Unusable

BLOCK = 1024 * 1024

# Calls of one turn run side by side. Two edits of one file would each start from the same old text, and one be lost.
_ONE_AT_A_TIME = tuple(threading.Lock() for _ in range(64))


@contextlib.contextmanager
def alone(spot: Spot) -> Generator[None]:
    """Keep other writers of this process away from the name for the length of the block."""
    with _ONE_AT_A_TIME[hash((spot.steps[-1].id, spot.name)) % len(_ONE_AT_A_TIME)]:
        yield


def replace(
    spot: Spot,
    content: Iterable[bytes],
    *,
    seen: os.stat_result | None = None,
    new: bool = False,
    like: os.stat_result | None = None,
) -> int:
    """Put a file with this content in the spot's place, all or nothing; gives the number of bytes.

    An existing file keeps its permissions; a new one gets those of `like`. `seen` is the file that the content was made
    from: if another one lies there by now, nothing is written. With `new` nothing may lie there.
    """
    before = spot.stat()
    _check(spot, before, new)
    temporary = f".{secrets.token_hex(8)}.retinue.tmp"
    try:
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=spot.fd
        )
        try:
            with open(fd, "wb") as file:
                written = sum(file.write(block) for block in content)
                if before is not None:
                    _keep_rights(fd, before)
                elif like is not None:
                    os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
            _check_unchanged(spot, seen)
            if new:
                _check(spot, spot.stat(), new)
            os.rename(temporary, spot.name, src_dir_fd=spot.fd, dst_dir_fd=spot.fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=spot.fd)
            raise
    except OSError as error:
        raise Unusable.because(error, spot.path) from error
    return written


def blocks(fd: int, size: int) -> Iterator[bytes]:
    """What is in a file, from its start, as long as it was: somebody may be adding to it faster than it is read.

    Some files of the system say that they are empty, and are not: of those, one block is read.
    """
    at, end = 0, size or BLOCK
    while at < end and (block := os.pread(fd, min(BLOCK, end - at), at)):
        at += len(block)
        yield block


def _check(spot: Spot, found: os.stat_result | None, new: bool) -> None:
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode):
        raise Unusable(spot.path, os.strerror(errno.EISDIR), code=errno.EISDIR)
    if new:
        raise Unusable(spot.path, "something of that name is there already; delete it first or choose another name")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        raise Unusable(spot.path, "not a regular file (a pipe, socket or device)")


def _check_unchanged(spot: Spot, seen: os.stat_result | None) -> None:
    if seen is None:
        return
    now = spot.stat()
    if now is None or (now.st_ino, now.st_size, now.st_mtime_ns) != (seen.st_ino, seen.st_size, seen.st_mtime_ns):
        raise Unusable(spot.path, "the file was changed by somebody else meanwhile; read it again")


def _keep_rights(fd: int, before: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):  # only the superuser may give files away; then the file becomes ours
            os.fchown(fd, before.st_uid, before.st_gid)
    if stat.S_ISREG(before.st_mode):
        os.fchmod(fd, stat.S_IMODE(before.st_mode) & 0o777)
