"""Simulated prompt cache of a vendor, to count cached tokens.

A prompt is a sequence of blocks: tools, system text, messages. A token is four characters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

LOOKBACK = 20
"""How many blocks before a cache mark are searched for a cached prefix."""


class Block(NamedTuple):
    """A piece of a prompt; `under` are options that distinguish blocks with the same content."""

    content: bytes
    marked: bool = False
    under: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Tokens of a prompt: all, those read from the cache, and those written to it."""

    total: int
    cached: int = 0
    written: int = 0


class PromptCache:
    """A vendor's cache of prompt prefixes, up to each block; with `wants_marks` up to each marked block.

    With marks, a prefix is found again if a mark is at its end or up to `LOOKBACK` blocks behind it.

    >>> cache = PromptCache()
    >>> cache.read("model", [Block(b"four"), Block(b"and eight")])
    Prompt(total=3, cached=0, written=3)
    >>> cache.read("model", [Block(b"four"), Block(b"or more..")])
    Prompt(total=3, cached=1, written=2)
    """

    def __init__(self, *, wants_marks: bool = False) -> None:
        self._wants_marks = wants_marks
        self._cached: set[bytes] = set()

    def read(self, model: str, blocks: Iterable[Block]) -> Prompt:
        """Look up a prompt for a model and store its prefixes."""
        digest, size = hashlib.sha256(model.encode()), 0
        prefixes: list[tuple[bytes, int]] = []
        marked: list[int] = []
        for block in blocks:
            digest.update(block.under + block.content)
            size += len(block.content)
            if block.marked or not self._wants_marks:
                marked.append(len(prefixes))
            prefixes.append((digest.digest(), size // 4))
        cached = 0
        for end in marked:
            stop = max(-1, end - LOOKBACK)
            hits = (prefixes[at][1] for at in range(end, stop, -1) if prefixes[at][0] in self._cached)
            cached = max(cached, next(hits, 0))
        self._cached.update(prefixes[end][0] for end in marked)
        written = prefixes[marked[-1]][1] - cached if marked else 0
        return Prompt(total=size // 4, cached=cached, written=written)
