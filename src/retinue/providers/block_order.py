"""Notes that a wire keeps among a reply's thoughts, because the vendor wants things back in the places they came from.

A note is JSON in the part of a thought that nobody reads, and each wire knows its own. Some are of the order in which a
reply said things, step by step: nearly always thoughts, then words, then calls, which needs no note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from retinue.core.messages import AssistantMessage, Thinking
from retinue.providers.lenient_json import if_readable

Steps: TypeAlias = Sequence[str | int]
"""An order: `call`, the wire's word for a thought, or how many characters were said."""

T = TypeVar("T")
C = TypeVar("C")


def note(about: Struct, signature: str, text: str = "") -> Thinking:
    """A thought that carries a note."""
    return Thinking(text, signature, msgspec.json.encode(about).decode())


def noted(decode: Callable[[str], T], thought: Thinking) -> T | None:
    """The note that a thought carries, if it is one of this wire's; another vendor's is nothing to it."""
    return if_readable(decode, thought.opaque) if thought.opaque.startswith("{") else None


def fits(steps: Steps, message: AssistantMessage, thoughts: int) -> bool:
    """Whether a message with so many thoughts can be told in this order: somebody may have changed it since.

    >>> fits(["thought", 2, "call"], AssistantMessage("hi"), 1), fits(["thought", 2], AssistantMessage("hi"), 1)
    (False, True)
    """
    lengths = [step for step in steps if isinstance(step, int)]
    calls = steps.count("call")
    found = (len(steps) - len(lengths) - calls, calls, sum(lengths))
    return found == (thoughts, len(message.calls), len(message.text)) and min(lengths, default=1) > 0


def in_order(steps: Steps, text: str, thoughts: Iterator[T], calls: Iterator[C]) -> Iterator[T | str | C]:
    """What a reply said, step by step.

    >>> list(in_order([2, "thought", 4], "Hm yes.", iter(["(thinks)"]), iter([])))
    ['Hm', '(thinks)', ' yes']
    """
    told = 0
    for step in steps:
        if isinstance(step, int):
            yield text[told : told + step]
            told += step
        else:
            yield next(calls) if step == "call" else next(thoughts)
