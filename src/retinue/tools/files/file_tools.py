"""The file tools; each opens paths through `FileAccess`, which applies the policy.

Reading is `pure`, and writing a whole file is `idempotent`. An edit does not find its text a second time, and some
operations of `file_ops` (append, move) do harm when repeated, so these are `once`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Annotated, BinaryIO, Literal, TypeAlias, assert_never

import msgspec
from msgspec import Meta

from retinue.core.attachments import MAGIC_BYTES, Attachment, recognised
from retinue.core.errors import ToolError
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, CallRisk, PreparedCall, Tool, ToolResult
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files.atomic_write import BLOCK, TAKEN, blocks, replace, write_lock
from retinue.tools.files.paths import AccessDenied, FileAccess, OpenPath, PathTarget, UnusablePath
from retinue.tools.function import FunctionTool, as_text, tool
from retinue.tools.function_schema import Misfit
from retinue.tools.pagination import NOTICE_CHARS, fitting, page_text

SECONDS = 60.0
"""Deadline of a call; only a very large file takes long."""

ROOM = 40_000
"""Characters of a file that one call returns."""

MAX_EDIT = 16 * 1024 * 1024
"""Bytes of a file that is edited in memory."""

MAX_MEDIA = 5 * 1024 * 1024
"""Bytes of an image, a PDF or audio that a model is shown: vendors take no larger image."""

MAX_COPY = 256 * 1024 * 1024
"""Bytes of a file that is copied or appended to; an append rewrites the whole file, so that it is atomic."""

MAX_ENTRIES = 1000

MAX_FILE = 4 * 1024**3
"""Bytes of a file that is read by lines; counting the lines of more would take too long."""

MAX_LINE = 2000
"""Characters of a line that are returned."""

BINARY_IN = 8192
"""A zero byte among this many first bytes makes a file binary."""

FileOperation: TypeAlias = Literal[
    "read", "write", "append", "list", "delete", "move", "copy", "mkdir", "exists", "info"
]
READING = frozenset({"read", "list", "exists", "info"})

FromZero: TypeAlias = Annotated[int, Meta(ge=0)]
FromOne: TypeAlias = Annotated[int, Meta(ge=1)]


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`file_read`, `file_write`, `file_edit`, `file_ops` and `bash_read`."""

    @tool(kind="pure", timeout=SECONDS)
    def file_read(path: str, context: CallContext, offset: FromOne = 1, limit: FromZero = 0) -> str | Attachment:
        """Read a text file, or look at an image or a PDF.

        Lines come numbered; a long file comes in parts, and the last line says how to go on.

        Args:
            path: the file, relative to the workspace or absolute
            offset: the first line to show, counted from 1
            limit: how many lines to show; 0 shows as many as fit
        """
        with FileAccess.of(context, dependencies).file(path) as file:
            return _media(file) or _numbered(file, path, offset=offset, limit=limit)

    @tool(kind="idempotent", risk="medium", acts=True, timeout=SECONDS)
    def file_write(path: str, content: str, context: CallContext) -> str:
        """Write a text file. An existing file is replaced as a whole; missing folders are made.

        Args:
            path: the file, relative to the workspace or absolute
            content: everything that the file will hold
        """
        return _write(FileAccess.of(context, dependencies), path, content)

    @tool(kind="once", risk="medium", acts=True, timeout=SECONDS)
    def file_edit(path: str, old_string: str, new_string: str, context: CallContext, replace_all: bool = False) -> str:
        """Replace a piece of text in a file. The piece must match exactly, spaces included, and occur only once.

        Args:
            path: the file, relative to the workspace or absolute
            old_string: the text to replace, without line numbers; take in lines around it until it is unique
            new_string: the text to put there; empty deletes the piece
            replace_all: replace every occurrence instead of the only one
        """
        return _edit(FileAccess.of(context, dependencies), path, old_string, new_string, replace_all=replace_all)

    @tool(kind="pure", timeout=SECONDS)
    def bash_read(filepath: str, context: CallContext, limit: FromZero = 0, offset: FromZero = 0) -> ToolResult:
        """Read a file of the working directory, line by line.

        Answers {results, total, offset, limit, has_more, returned, content}. While has_more is true, ask again with
        offset increased by returned.

        Args:
            filepath: the file, relative to the working directory
            limit: how many lines to return; 0 returns all that fit
            offset: how many lines to skip from the start
        """
        try:
            with FileAccess.of(context, dependencies).file(filepath) as file:
                part = excerpt(file, skip=offset, limit=limit, room=ROOM)
        except AccessDenied as refusal:
            raise ToolError(f"Path outside CWD not allowed: {filepath}") from refusal
        except UnusablePath as trouble:
            return ToolResult(as_text({"error": f"Failed to read file: {trouble}"}), failed=True)
        room = dependencies.max_result
        return ToolResult(
            page_text(part.lines, total=part.total, offset=offset, limit=limit, room=room, with_content=True)
        )

    return (file_read, file_write, file_edit, _file_ops_tool(dependencies), bash_read)


def _write(access: FileAccess, path: str, content: str) -> str:
    with access.target(path, "write", parents=True) as target, write_lock(target):
        return f"Written {replace(target, (content.encode(),))} bytes to {path}"


def _media(file: OpenPath) -> Attachment | None:
    """The file as an image, a PDF or audio; None if it is none of them."""
    try:
        if recognised(os.pread(file.fd, MAGIC_BYTES, 0)) is None:
            return None
        if file.stat.st_size > MAX_MEDIA:
            raise UnusablePath(file.path, f"too large to look at ({file.stat.st_size} bytes; at most {MAX_MEDIA})")
        return recognised(b"".join(blocks(file.fd, file.stat.st_size)), os.path.basename(file.path))
    except OSError as error:
        raise UnusablePath.because(error, file.path) from error


def _numbered(file: OpenPath, path: str, *, offset: int, limit: int) -> str:
    part = excerpt(file, skip=offset - 1, limit=limit, room=ROOM)
    if not part.lines:
        return f"[{path} is empty]" if part.total == 0 else f"[No lines in range: {path} has {part.total} lines]"
    last = offset - 1 + len(part.lines)
    shown = [f"{number}: {line}" for number, line in enumerate(part.lines, offset)]
    if last < part.total:
        shown.append(f"[Lines {offset}-{last} of {part.total}; go on with offset={last + 1}]")
    elif offset > 1:
        shown.append(f"[Lines {offset}-{last} of {part.total}]")
    return "\n".join(shown)


def _edit(access: FileAccess, path: str, old: str, new: str, *, replace_all: bool) -> str:
    """Replace text in a file and keep all other bytes; raises `ToolError` if the text does not match as it must."""
    if not old:
        raise ToolError("old_string must not be empty; file_write writes a whole file")
    if old == new:
        raise ToolError("old_string and new_string are the same; nothing to do")
    with access.target(path, "write") as target, write_lock(target), access.file(path) as file:
        if file.stat.st_size > MAX_EDIT:
            raise UnusablePath(path, f"too large to edit ({file.stat.st_size} bytes; at most {MAX_EDIT})")
        before = b"".join(blocks(file.fd, file.stat.st_size))
        piece, instead = old.encode(), new.encode()
        if piece not in before and b"\r\n" in before and b"\r" not in piece:
            # Lines are returned without \r, so the model cannot know about it.
            piece, instead = piece.replace(b"\n", b"\r\n"), instead.replace(b"\n", b"\r\n")
        count = before.count(piece)
        if count == 0:
            raise ToolError(f"old_string not found in {path}; read the file again and copy the text exactly")
        if count > 1 and not replace_all:
            raise ToolError(
                f"old_string matches {count} times in {path}; it must match exactly once: "
                "take in more lines around it, or set replace_all"
            )
        size = replace(target, (before.replace(piece, instead),), seen=file.stat)
    return f"Edited {path}: replaced {count} occurrence{'s' if count > 1 else ''} ({size} bytes)"


# ---- file_ops --------------------------------------------------------------------------------------------------------


class _Operation(msgspec.Struct):
    operation: str = ""


class _FileOps(FunctionTool[..., str]):
    """The tool `file_ops`, decoded once, in `prepare`: reading is a low risk; all else, or unreadable, is an action."""

    def prepare(self, arguments: str) -> PreparedCall:
        decoded = self.decode(arguments)
        operation = _operation_in(arguments) if isinstance(decoded, Misfit) else getattr(decoded, "operation", "")
        risk = CallRisk(Risk.LOW) if operation in READING else CallRisk(self.risk, self.acts)
        return PreparedCall(arguments, risk, partial(self.call_decoded, decoded), group=operation)


def _operation_in(arguments: str) -> str:
    """The operation in arguments of which another one does not fit."""
    try:
        return msgspec.json.decode(arguments, type=_Operation).operation
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ""


def _file_ops_tool(dependencies: ToolDependencies) -> Tool:

    def file_ops(
        operation: FileOperation,
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
                return _list(access, path, offset, limit, dependencies.max_result - NOTICE_CHARS)
            case "exists":
                found = _stat(access, path)
                return f"{path} does not exist" if found is None else f"{path} exists: {_kind(found)}"
            case "info":
                return _info(access, path)
            case "write":
                return _write(access, path, _given(content, "content", operation))
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
    shown = fitting([as_text(entry) for entry in asked], room)
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
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link"}
    return kinds.get(stat.S_IFMT(found.st_mode), "special file")


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
    with contextlib.suppress(ToolError), access.folder(path):
        return f"{path} exists already"
    with access.target(path, "write", follow=False, parents=True) as target:
        try:
            os.mkdir(target.name, dir_fd=target.fd)
        except OSError as error:
            raise UnusablePath.because(error, path) from error
    return f"Made folder {path}"


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


# ---- excerpts: lines are counted in blocks, and the file is never held in memory -------------------------------------


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive lines of a file, and how many it has in all."""

    lines: list[str]
    total: int


def excerpt(file: OpenPath, *, skip: int, limit: int, room: int) -> Excerpt:
    """Up to `limit` lines (0: any number) after the first `skip`, with at most `room` characters together.

    There is at least one line, if the file has one, so that paging makes progress. A binary file raises `UnusablePath`.
    """
    if file.stat.st_size > MAX_FILE:
        raise UnusablePath(file.path, f"too large to read by lines ({file.stat.st_size} bytes); search it instead")
    try:
        if b"\0" in os.pread(file.fd, BINARY_IN, 0):
            raise UnusablePath(file.path, f"binary file, {file.stat.st_size} bytes, not shown")
        total, start, end = _count(file, skip)
        lines: list[str] = []
        with open(os.dup(file.fd), "rb") as reader:
            reader.seek(start)
            while skip + len(lines) < total and not (limit and len(lines) == limit):
                line = _next(reader, end)
                if line is None:  # the file has become shorter since it was counted
                    return Excerpt(lines, skip + len(lines))
                room -= len(line) + 1
                if room < 0 and lines:
                    break
                lines.append(line)
    except OSError as error:
        raise UnusablePath.because(error, file.path) from error
    return Excerpt(lines, total)


def _count(file: OpenPath, skip: int) -> tuple[int, int, int]:
    """Number of lines, offset of the line after the first `skip`, and end offset; later appends are ignored."""
    seen, start, at, last = 0, 0, 0, b"\n"
    for block in blocks(file.fd, file.stat.st_size):
        here = block.count(b"\n")
        if seen < skip <= seen + here:
            cut = -1
            for _ in range(skip - seen):
                cut = block.index(b"\n", cut + 1)
            start = at + cut + 1
        seen += here
        at += len(block)
        last = block[-1:]
    return seen + (last != b"\n"), start, at


def _next(reader: BinaryIO, end: int) -> str | None:
    """The next line without its line end, up to offset `end`; a long line is cut and ends with what was left out."""
    head = reader.readline(min(4 * MAX_LINE, end - reader.tell()))
    if not head:
        return None
    ended, left_out = head.endswith(b"\n"), 0
    text = head.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
    while not ended and (piece := reader.readline(min(BLOCK, end - reader.tell()))):
        ended = piece.endswith(b"\n")
        left_out += len(piece) - ended
    if len(text) <= MAX_LINE and not left_out:
        return text
    return f"{text[:MAX_LINE]}… ({len(text[MAX_LINE:]) + left_out} more)"
