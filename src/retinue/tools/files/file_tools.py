"""The file tools; each opens paths through `FileAccess`, which applies the policy.

Reading is `pure`, and writing a whole file is `idempotent`. An edit does not find its text a second time, so it is
`once`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files.atomic_write import blocks, replace, write_lock
from retinue.tools.files.excerpt import excerpt
from retinue.tools.files.file_ops import file_ops_tool
from retinue.tools.files.paths import AccessDenied, FileAccess, UnusablePath
from retinue.tools.function import as_text, tool
from retinue.tools.pagination import page_text

SECONDS = 60.0
"""Deadline of a call; only a very large file takes long."""

ROOM = 40_000
"""Characters of a file that one call returns."""

MAX_EDIT = 16 * 1024 * 1024
"""Bytes of a file that is edited in memory."""

FromZero: TypeAlias = Annotated[int, Meta(ge=0)]
FromOne: TypeAlias = Annotated[int, Meta(ge=1)]


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`file_read`, `file_write`, `file_edit`, `file_ops` and `bash_read`."""

    @tool(kind="pure", timeout=SECONDS)
    def file_read(path: str, context: CallContext, offset: FromOne = 1, limit: FromZero = 0) -> str:
        """Read a text file. Lines come numbered; a long file comes in parts, and the last line says how to go on.

        Args:
            path: the file, relative to the workspace or absolute
            offset: the first line to show, counted from 1
            limit: how many lines to show; 0 shows as many as fit
        """
        return numbered(FileAccess.of(context, dependencies), path, offset=offset, limit=limit)

    @tool(kind="idempotent", risk="medium", acts=True, timeout=SECONDS)
    def file_write(path: str, content: str, context: CallContext) -> str:
        """Write a text file. An existing file is replaced as a whole; missing folders are made.

        Args:
            path: the file, relative to the workspace or absolute
            content: everything that the file will hold
        """
        with FileAccess.of(context, dependencies).target(path, "write", parents=True) as target, write_lock(target):
            return f"Written {replace(target, (content.encode(),))} bytes to {path}"

    @tool(kind="once", risk="medium", acts=True, timeout=SECONDS)
    def file_edit(path: str, old_string: str, new_string: str, context: CallContext, replace_all: bool = False) -> str:
        """Replace a piece of text in a file. The piece must match exactly, spaces included, and occur only once.

        Args:
            path: the file, relative to the workspace or absolute
            old_string: the text to replace, without line numbers; take in lines around it until it is unique
            new_string: the text to put there; empty deletes the piece
            replace_all: replace every occurrence instead of the only one
        """
        return edited(FileAccess.of(context, dependencies), path, old_string, new_string, replace_all=replace_all)

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

    return (file_read, file_write, file_edit, file_ops_tool(dependencies), bash_read)


def numbered(access: FileAccess, path: str, *, offset: int, limit: int) -> str:
    """Lines of a file with their numbers, and a notice on how to read on."""
    with access.file(path) as file:
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


def edited(access: FileAccess, path: str, old: str, new: str, *, replace_all: bool) -> str:
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
