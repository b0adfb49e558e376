"""What a fake vendor remembers of prompts, so that it can count the tokens that need not be read again.

A prompt is a row of blocks: tools first, then the system text, then the messages. A token is four characters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

LOOKBACK = 20
"""How many blocks before a mark a vendor that wants marks looks for something that it remembers."""


class Block(NamedTuple):
    """A piece of a prompt; `under` are circumstances that make it another one although its words are the same."""

    content: bytes
    marked: bool = False
    under: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The tokens of a prompt: all, those that the vendor remembered, and those that it will remember from now on."""

    total: int
    cached: int = 0
    written: int = 0


class PromptCache:
    """What a vendor remembers: the beginnings of prompts, up to each block; with `wants_marks` up to each marked one.

    There, a beginning is found again if a mark is at its end, or up to twenty blocks behind it.

    >>> cache = PromptCache()
    >>> cache.read("model", [Block(b"four"), Block(b"and eight")])
    Prompt(total=3, cached=0, written=3)
    >>> cache.read("model", [Block(b"four"), Block(b"or more..")])
    Prompt(total=3, cached=1, written=2)
    """

    def __init__(self, *, wants_marks: bool = False) -> None:
        self._wants_marks = wants_marks
        self._kept: set[bytes] = set()

    def read(self, whom: str, blocks: Iterable[Block]) -> Prompt:
        """How much of a prompt is remembered; afterwards more is."""
        digest, size = hashlib.sha256(whom.encode()), 0
        beginnings: list[tuple[bytes, int]] = []
        marked: list[int] = []
        for block in blocks:
            digest.update(block.under + block.content)
            size += len(block.content)
            if block.marked or not self._wants_marks:
                marked.append(len(beginnings))
            beginnings.append((digest.digest(), size // 4))
        cached = 0
        for end in marked:
            reach = max(-1, end - LOOKBACK)
            found = (beginnings[at][1] for at in range(end, reach, -1) if beginnings[at][0] in self._kept)
            cached = max(cached, next(found, 0))
        self._kept.update(beginnings[end][0] for end in marked)
        written = beginnings[marked[-1]][1] - cached if marked else 0
        return Prompt(total=size // 4, cached=cached, written=written)
