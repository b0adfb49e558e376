"""Undo recorded changes of files, within the policy of the calls that made them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from retinue.core.errors import ToolError
from retinue.tools.file_changes import FileChange, FileContent, FoundContent, UnkeptContent, found, same
from retinue.tools.files.atomic_write import replace, write_lock
from retinue.tools.files.paths import PathTarget

UndoResult: TypeAlias = Literal["restored", "removed", "changed since", "not kept"]


class Undone(NamedTuple):
    """A file whose changes were undone, or why they were not."""

    path: str
    result: UndoResult


def undo(changes: Sequence[FileChange]) -> list[Undone]:
    """Undo changes, the last one first; a file that another program has changed since is left as it is."""
    results = dict[str, UndoResult]()
    for change in reversed(changes):
        results[change.path] = _undo(change)
    return [Undone(path, result) for path, result in results.items()]


def _undo(change: FileChange) -> UndoResult:
    if isinstance(change.before, UnkeptContent):
        return "not kept"
    try:
        with change.reopen() as target:
            assert isinstance(target, PathTarget)  # `FileAccess` has recorded it
            return _restore(target, change.before, change.after)
    except (OSError, ToolError):
        return "changed since"


def _restore(target: PathTarget, before: FileContent | None, after: FoundContent) -> UndoResult:
    with write_lock(target):
        now = found(target)
        if same(now, before):
            return "removed" if now is None else "restored"
        if not same(now, after):
            return "changed since"
        if before is None:
            os.unlink(target.name, dir_fd=target.fd)
            return "removed"
        replace(target, (before.data,), like=before.status)
        return "restored"
