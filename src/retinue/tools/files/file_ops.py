"""The tool `file_ops`: one tool for all operations on files and folders, selected by its argument `operation`.

Operations that read have a low risk; all others are actions. Some of them (append, move) do harm when repeated, so the
kind is `once`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Annotated, Literal, TypeAlias, assert_never

import msgspec

from retinue.core.errors import ToolError
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, CallRisk, PreparedCall, Tool
from retinue.tools.arguments import Misfit
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files.atomic_write import TAKEN, blocks, replace, write_lock
from retinue.tools.files.excerpt import excerpt
from retinue.tools.files.paths import FileAccess, PathTarget, UnusablePath
from retinue.tools.function import FunctionTool, as_text
from retinue.tools.pagination import NOTICE, that_fit

SECONDS = 60.0
ROOM = 40_000
MAX_COPY = 256 * 1024 * 1024
"""Bytes of a file that is copied or appended to; an append rewrites the whole file, so that it is atomic."""

MAX_ENTRIES = 1000

Operation: TypeAlias = Literal["read", "write", "append", "list", "delete", "move", "copy", "mkdir", "exists", "info"]
READING = frozenset({"read", "list", "exists", "info"})

FromZero: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Operation(msgspec.Struct):
    operation: str = ""


class _FileOps(FunctionTool[..., str]):
    """The tool `file_ops`; its arguments are decoded once, before the call is permitted."""

    def prepare(self, arguments: str) -> PreparedCall:
        """Low risk for operations that only read; anything else, also arguments that cannot be read, is an action."""
        decoded = self.decode(arguments)
        operation = _operation_in(arguments) if isinstance(decoded, Misfit) else getattr(decoded, "operation", "")
        risk = CallRisk(Risk.LOW) if operation in READING else CallRisk(self.risk, self.acts)
        return PreparedCall(arguments, risk, partial(self.call_decoded, decoded))


def _operation_in(arguments: str) -> str:
    """The operation in arguments of which another one does not fit."""
    try:
        return msgspec.json.decode(arguments, type=_Operation).operation
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ""


def file_ops_tool(dependencies: ToolDependencies) -> Tool:
    """The tool `file_ops`."""

    def file_ops(
        operation: Operation,
        path: str,
        context: CallContext,
        content: str | None = None,
        destination: str | None = None,
        offset: FromZero = 0,
        limit: FromZero = 0,
    ) -> str:
        """Work with files and folders.

        read and list come in parts when they are long, and say how to go on. write replaces a whole file and makes
        missing folders. delete removes a file or an empty folder. move and copy never overwrite.

        Args:
            operation: what to do
            path: the file or folder, relative to the workspace or absolute
            content: the text, for write and append
            destination: the new path, for move and copy
            offset: how many lines or entries to skip, for read and list
            limit: how many lines or entries to show, for read and list; 0 shows as many as fit
        """
        access = FileAccess.of(context, dependencies)
        match operation:
            case "read":
                return _read(access, path, offset, limit)
            case "list":
                return _list(access, path, offset, limit, dependencies.max_result - NOTICE)
            case "exists":
                found = _stat(access, path)
                return f"{path} does not exist" if found is None else f"{path} exists: {_kind(found)}"
            case "info":
                return _info(access, path)
            case "write":
                text = _given(content, "content", operation)
                with access.target(path, "write", parents=True) as target, write_lock(target):
                    return f"Written {replace(target, (text.encode(),))} bytes to {path}"
            case "append":
                return _append(access, path, _given(content, "content", operation).encode())
            case "delete":
                return _delete(access, path)
            case "move":
                return _move(access, path, _given(destination, "destination", operation))
            case "copy":
                return _copy(access, path, _given(destination, "destination", operation))
            case "mkdir":
                return _mkdir(access, path)
            case _:
                assert_never(operation)

    return _FileOps(file_ops, kind="once", risk="medium", acts=True, timeout=SECONDS)


def _given(value: str | None, name: str, operation: str) -> str:
    if value is None:
        raise ToolError(f"file_ops: {operation} needs the argument {name!r}")
    return value


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read(access: FileAccess, path: str, offset: int, limit: int) -> str:
    with access.file(path) as file:
        part = excerpt(file, skip=offset, limit=limit, room=ROOM)
    last = offset + len(part.lines)
    if last >= part.total or not part.lines:
        return "\n".join(part.lines)
    return "\n".join([*part.lines, f"[Lines {offset + 1}-{last} of {part.total}; go on with offset={last}]"])


def _list(access: FileAccess, path: str, offset: int, limit: int, room: int) -> str:
    with access.folder(path) as folder:
        try:
            with os.scandir(folder.fd) as found:
                entries = sorted(
                    f"{entry.name}{'/' if entry.is_dir(follow_symlinks=False) else '@' if entry.is_symlink() else ''}"
                    for entry in found
                    if not access.is_closed((*folder.names, entry.name), None)
                )
        except OSError as error:
            raise UnusablePath.because(error, path) from error
    if not entries:
        return f"[{path} is empty]"
    asked = entries[offset : offset + min(limit or MAX_ENTRIES, MAX_ENTRIES)]
    shown = that_fit([as_text(entry) for entry in asked], room)
    last = offset + len(shown)
    if last < len(entries):
        shown = [*shown, f"[Entries {offset + 1}-{last} of {len(entries)}; go on with offset={last}]"]
    return "\n".join(shown) or f"[No entries in range: {path} has {len(entries)}]"


def _stat(access: FileAccess, path: str) -> os.stat_result | None:
    """Status of a path, without following a link at its end; None if nothing is there."""
    try:
        with access.target(path, "read", follow=False) as target:
            return target.stat()
    except UnusablePath as trouble:
        if trouble.code in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _info(access: FileAccess, path: str) -> str:
    found = _stat(access, path)
    if found is None:
        raise UnusablePath(path, os.strerror(errno.ENOENT), code=errno.ENOENT)
    return as_text(
        {
            "path": path,
            "type": _kind(found),
            "size": found.st_size,
            "mode": stat.filemode(found.st_mode),
            "modified": _timestamp(found.st_mtime),
        }
    )


def _timestamp(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a file system may report any year
        return f"{seconds:.0f} seconds after 1970"


def _kind(found: os.stat_result) -> str:
    mode = found.st_mode
    return (
        "file"
        if stat.S_ISREG(mode)
        else "folder"
        if stat.S_ISDIR(mode)
        else "symbolic link"
        if stat.S_ISLNK(mode)
        else "special file"
    )


# ---- changing --------------------------------------------------------------------------------------------------------


def _append(access: FileAccess, path: str, more: bytes) -> str:
    with access.target(path, "write", parents=True) as target, write_lock(target):
        if target.stat() is None:
            size = replace(target, (more,), new=True)
        else:
            with access.file(path) as file:
                _check_size(file.stat.st_size, path)
                size = replace(target, chain(blocks(file.fd, file.stat.st_size), (more,)), seen=file.stat)
    return f"Appended {len(more)} bytes to {path} ({size} bytes now)"


def _delete(access: FileAccess, path: str) -> str:
    with access.target(path, "write", follow=False) as target, write_lock(target):
        found = _existing(target)
        try:
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(target.name, dir_fd=target.fd)
            else:
                os.unlink(target.name, dir_fd=target.fd)
        except OSError as error:
            raise UnusablePath.because(error, path) from error
    return f"Deleted {path}"


def _move(access: FileAccess, path: str, destination: str) -> str:
    # Moving a file to a readable folder would make it readable, so the source must be readable.
    with access.target(path, "read", follow=False), access.target(path, "write", follow=False) as source:
        found = _existing(source)
        if stat.S_ISDIR(found.st_mode) and access.has_closed_below(source.names):
            raise UnusablePath(
                path, "something in this folder is forbidden or belongs to retinue; it stays where it is"
            )
        with access.target(destination, "write", follow=False, parents=True) as target, write_lock(target):
            _check_free(target)
            try:
                os.rename(source.name, target.name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
            except OSError as error:
                if error.errno != errno.EXDEV or not stat.S_ISREG(found.st_mode):
                    raise UnusablePath.because(error, path) from error
                _copy_into(access, path, target)
                _remove(source, or_else=target)
    return f"Moved {path} to {destination}"


def _remove(source: PathTarget, *, or_else: PathTarget) -> None:
    """Remove a file after copying it; if that fails, remove the copy, so that the file is in one place."""
    try:
        os.unlink(source.name, dir_fd=source.fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(or_else.name, dir_fd=or_else.fd)
        raise UnusablePath.because(error, source.path) from error


def _copy(access: FileAccess, path: str, destination: str) -> str:
    with access.file(path):  # raises for an unusable source before folders are created
        pass
    with access.target(destination, "write", follow=False, parents=True) as target, write_lock(target):
        _check_free(target)
        size = _copy_into(access, path, target)
    return f"Copied {path} to {destination} ({size} bytes)"


def _copy_into(access: FileAccess, path: str, target: PathTarget) -> int:
    with access.file(path) as file:
        _check_size(file.stat.st_size, path)
        return replace(target, blocks(file.fd, file.stat.st_size), new=True, like=file.stat)


def _mkdir(access: FileAccess, path: str) -> str:
    if _is_folder(access, path):
        return f"{path} exists already"
    with access.target(path, "write", follow=False, parents=True) as target:
        try:
            os.mkdir(target.name, dir_fd=target.fd)
        except OSError as error:
            raise UnusablePath.because(error, path) from error
    return f"Made folder {path}"


def _is_folder(access: FileAccess, path: str) -> bool:
    try:
        with access.folder(path):
            return True
    except ToolError:
        return False


def _existing(target: PathTarget) -> os.stat_result:
    found = target.stat()
    if found is None:
        raise UnusablePath(target.path, os.strerror(errno.ENOENT), code=errno.ENOENT)
    return found


def _check_free(target: PathTarget) -> None:
    if target.stat() is not None:
        raise UnusablePath(target.path, TAKEN)


def _check_size(size: int, path: str) -> None:
    if size > MAX_COPY:
        raise UnusablePath(path, f"too large ({size} bytes; at most {MAX_COPY})")
