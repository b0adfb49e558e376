"""Notes that a wire stores among a reply's thinking blocks, so that it can send the reply back as it came.

A note is JSON in the opaque part of a `Thinking`, and each wire reads only its own. Some hold the order of a reply's
parts, step by step; the usual order (thinking, text, calls) needs no note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from retinue.core.messages import AssistantMessage, Thinking
from retinue.providers.lenient_json import decode_or_none

Steps: TypeAlias = Sequence[str | int]
"""The order of a reply's parts: `call`, the wire's word for thinking, or a number of characters of text."""

T = TypeVar("T")
C = TypeVar("C")


def make_note(content: Struct, signature: str, text: str = "") -> Thinking:
    """A thinking block that carries a note."""
    return Thinking(text, signature, msgspec.json.encode(content).decode())


def read_note(decode: Callable[[str], T], thinking: Thinking) -> T | None:
    """The note in a thinking block, or None if it has none that this wire wrote."""
    return decode_or_none(decode, thinking.opaque) if thinking.opaque.startswith("{") else None


def order_fits(steps: Steps, message: AssistantMessage, thinking_blocks: int) -> bool:
    """Whether these steps cover the message exactly; it may have been changed since they were noted.

    >>> order_fits(["thought", 2], AssistantMessage("hi"), 1)
    True
    >>> order_fits(["thought", 2, "call"], AssistantMessage("hi"), 1)
    False
    """
    lengths = [step for step in steps if isinstance(step, int)]
    calls = steps.count("call")
    counts = (len(steps) - len(lengths) - calls, calls, sum(lengths))
    return counts == (thinking_blocks, len(message.calls), len(message.text)) and min(lengths, default=1) > 0


def arrange(steps: Steps, text: str, thinking: Iterator[T], calls: Iterator[C]) -> Iterator[T | str | C]:
    """The parts of a reply in the order of `steps`.

    >>> list(arrange([2, "thought", 4], "Hm yes.", iter(["(thinks)"]), iter([])))
    ['Hm', '(thinks)', ' yes']
    """
    start = 0
    for step in steps:
        if isinstance(step, int):
            yield text[start : start + step]
            start += step
        else:
            yield next(calls) if step == "call" else next(thinking)
