"""Texts that go along with an input of a chat: files named with @, and the output of commands that the person ran."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

MAX_FILES = 10
"""Files that one input may add."""

_NAMED = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AT_THE_END = ".,;:!?)]}'\""


class TextAttachment(Struct, frozen=True):
    """A text with the name of its source; `kind` is a file or a shell command."""

    kind: str
    name: str
    text: str


def named_files(text: str) -> list[str]:
    """The paths that an input names with @, each once; a path with blanks is written in quotes.

    >>> named_files('Compare @src/a.py, @"my notes.md" and me@example.com with @src/a.py.')
    ['src/a.py', 'my notes.md']
    """
    found = (quoted or bare.rstrip(_AT_THE_END) for quoted, bare in _NAMED.findall(text))
    return list(dict.fromkeys(filter(None, found)))


def with_attachments(text: str, attachments: Sequence[TextAttachment]) -> str:
    """An input with the attachments below it, each in a tag that names its source.

    >>> print(with_attachments("Why?", [TextAttachment("file", "a.txt", "1: one")]))
    Why?
    <BLANKLINE>
    <file name="a.txt">
    1: one
    </file>
    """
    parts = [f'<{each.kind} name="{each.name}">\n{each.text.rstrip()}\n</{each.kind}>' for each in attachments]
    return "\n\n".join([text, *parts])
