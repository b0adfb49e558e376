"""The arguments of a call for a decision about it: a diff for edits and writes, the real lines of a command.

Every line of a text begins with a sign, so that no text of a model looks like a line of retinue's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from retinue.core.text import NOT_JSON
from retinue.core.workspace import WorkspaceUnavailable

MAX_BYTES = 1024 * 1024
"""Bytes of a file that is compared with what is to be written."""

MAX_COMPARISONS = 30_000_000
"""Pairs of equal lines that are looked at, at most, when two texts are compared."""

CONTEXT = 3
"""Unchanged lines around each change of a diff."""

CallArguments: TypeAlias = Mapping[str, Any]


def readable_arguments(tool: str, arguments: str, workspace: str = "") -> str:
    """The arguments in lines for the tools whose arguments are texts; those of other tools as they are.

    `workspace` is the folder of the run, empty if it is not known: a file in it, which no link leads to, is compared
    with what is to be written.

    >>> print(readable_arguments("shell", '{"command":"cd src\\\\nrm -r old","timeout":5}'))
    $ cd src
    $ rm -r old
    timeout: 5
    >>> edit = '{"path":"a.py","old_string":"x = 1\\\\ny = 2","new_string":"x = 1\\\\ny = 3"}'
    >>> print(readable_arguments("file_edit", edit))
    path: "a.py"
      x = 1
    - y = 2
    + y = 3
    """
    show = _TOOLS.get(tool)
    if show is None:
        return arguments
    try:
        given = msgspec.json.decode(arguments, type=dict[str, Any])
        return "\n".join(show(given, workspace))
    except (*NOT_JSON, KeyError, TypeError):  # not the arguments of this tool: the call will say so
        return arguments


def _command(given: CallArguments, workspace: str) -> Iterator[str]:
    yield from _lines("$ ", _string(given, "command"))
    yield from _rest(given, "command")


def _code(given: CallArguments, workspace: str) -> Iterator[str]:
    yield from _lines("| ", _string(given, "code"))
    yield from _rest(given, "code")


def _edit(given: CallArguments, workspace: str) -> Iterator[str]:
    names = ("path", "old_string", "new_string")
    path, old, new = (_string(given, name) for name in names)
    yield f"path: {_json(path)}"
    yield from _diff(old, new, around=CONTEXT)
    yield from _rest(given, *names)


def _write(given: CallArguments, workspace: str) -> Iterator[str]:
    path, content = _string(given, "path"), _string(given, "content")
    before, note = _content(workspace, path)
    yield f"path: {_json(path)}{note}"
    yield from _lines("+ ", content) if before is None else _diff(before, content, around=CONTEXT)
    yield from _rest(given, "path", "content")


_TOOLS: Mapping[str, Callable[[CallArguments, str], Iterator[str]]] = {
    "shell": _command,
    "terminal": _command,
    "python_execute": _code,
    "file_edit": _edit,
    "file_write": _write,
}


def _diff(old: str, new: str, *, around: int) -> Iterator[str]:
    """The changed lines with their signs, and lines around them; `@@` marks lines that are left out."""
    before, after = _split(old), _split(new)
    if (ends := _different_parts(before, after)) is not None:
        yield f"(too many changes to compare; {ends[0]} equal lines before them)"
        yield from (f"- {line}" for line in before[ends[0] : len(before) - ends[1]])
        yield from (f"+ {line}" for line in after[ends[0] : len(after) - ends[1]])
        return
    lines = list(unified_diff(before, after, n=around, lineterm=""))[2:]
    for number, line in enumerate(lines):
        if not line.startswith("@@"):
            yield f"{line[0]} {line[1:]}"
        elif number or not line.startswith(("@@ -1 ", "@@ -1,")):
            yield line
    if not lines:
        yield "(no change)" if old == new else "(the last line end alone changes)"


def _different_parts(before: list[str], after: list[str]) -> tuple[int, int] | None:
    """How many equal lines both begin and end with, where what is between them would take too long to compare.

    A model chooses both texts. `difflib` looks at all pairs of equal lines for each block that it finds.
    """
    shorter = min(len(before), len(after))
    first = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    room = shorter - first
    last = next((at for at in range(room) if before[-1 - at] != after[-1 - at]), room)
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    comparisons = (_equal_pairs(old, new) + len(old)) * min(len(old), len(new))
    return (first, last) if comparisons > MAX_COMPARISONS else None


def _equal_pairs(old: list[str], new: list[str]) -> int:
    """The pairs of equal lines; without those of a line that is in more than a hundredth of a long text, as difflib."""
    counts = Counter(new)
    most = len(new) // 100 + 1 if len(new) >= 200 else len(new)
    return sum(count for line in old if (count := counts[line]) <= most)


def _lines(sign: str, text: str) -> Iterator[str]:
    return (f"{sign}{line}" for line in _split(text))


def _split(text: str) -> list[str]:
    """The lines of a text; the line end of the last one begins no other."""
    return text.removesuffix("\n").split("\n")


def _rest(given: CallArguments, *names: str) -> Iterator[str]:
    for name, value in given.items():
        if name not in names:
            yield f"{_json(name).strip(chr(34))}: {_json(value)}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _string(given: CallArguments, name: str) -> str:
    value = given[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


_NOT_COMPARED = " (not compared with what is there)"


def _content(workspace: str, path: str) -> tuple[str | None, str]:
    """The text of a regular file in the workspace, None if there is none to compare, and a note about what is there.

    The file is opened folder by folder and through no link: an agent can swap both while a question is open.
    """
    from retinue.local.repository_files import opened_folder, read_entry

    if not workspace:
        return None, _NOT_COMPARED
    inside = path.removeprefix(f"{workspace.rstrip('/')}/")
    if inside.startswith("/"):
        return None, " (outside of the workspace)"
    try:
        with opened_folder(Path(workspace)) as folder:
            entry = read_entry(folder, "/".join(part for part in inside.split("/") if part != "."), longest=MAX_BYTES)
    except (OSError, ValueError, WorkspaceUnavailable):
        return None, _NOT_COMPARED
    if entry is None:
        return None, ""
    if entry.mode == "120000":
        return None, " (a link is there)"
    return entry.content.decode(errors="replace"), " (the file exists)"
