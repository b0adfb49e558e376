"""In which order a reply said things, kept among its thoughts: the vendor wants them back in their places.

Nearly every reply is thoughts, then words, then calls, and needs no such note. Some think again between words or calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.messages import AssistantMessage, Thinking, ToolCall

Step: TypeAlias = Literal["thought", "call"] | int
"""One block of a reply; words are told by how many characters they have."""

MADE_HERE = "anthropic"
"""The signature of a note; the vendor's own are much longer."""


class Order(Struct, frozen=True, tag_field="type", tag="anthropic.order"):
    """The blocks of a reply, in order."""

    blocks: tuple[Step, ...]


_decode = msgspec.json.Decoder(Order).decode


def note_of(steps: Iterable[Step]) -> Thinking | None:
    """A note of this order, or None if it is the usual one, or there are no thoughts to be kept in their places.

    >>> note_of(["thought", 3, "call", "call"]) is None
    True
    >>> note_of([3, "thought", "call"]).opaque
    '{"type":"anthropic.order","blocks":[3,"thought","call"]}'
    """
    steps = tuple(steps)
    rank = [0 if step == "thought" else 2 if step == "call" else 1 for step in steps]
    if rank == sorted(rank) or 0 not in rank:
        return None
    return Thinking(signature=MADE_HERE, opaque=msgspec.json.encode(Order(steps)).decode())


def in_order(message: AssistantMessage) -> Iterator[Thinking | str | ToolCall]:
    """What a reply said, in the order in which it did."""
    thoughts = [thought for thought in message.thinking if thought.signature != MADE_HERE]
    order = _order(message)
    if order is None or not _fits(order, thoughts, message):
        yield from thoughts
        yield message.text
        yield from message.calls
        return
    thought, call, at = iter(thoughts), iter(message.calls), 0
    for step in order.blocks:
        if step == "thought":
            yield next(thought)
        elif step == "call":
            yield next(call)
        else:
            yield message.text[at : at + step]
            at += step


def _order(message: AssistantMessage) -> Order | None:
    for thought in message.thinking:
        if thought.signature == MADE_HERE:
            try:
                return _decode(thought.opaque)
            except (msgspec.DecodeError, UnicodeError):
                continue  # another wire's note
    return None


def _fits(order: Order, thoughts: Sequence[Thinking], message: AssistantMessage) -> bool:
    """Whether a note is about this message: somebody may have changed it since."""
    counted = (order.blocks.count("thought"), order.blocks.count("call"))
    letters = sum(step for step in order.blocks if isinstance(step, int))
    return (*counted, letters) == (len(thoughts), len(message.calls), len(message.text))
