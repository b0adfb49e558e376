"""In which order a reply said things, kept among its thoughts: the vendor wants them back in their places.

Nearly every reply is thoughts, then words, then calls, and needs no such note. Some think again between words or calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.messages import AssistantMessage, Thinking, ToolCall
from retinue.providers import block_order

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
    return block_order.note(Order(steps), MADE_HERE)


def in_order(message: AssistantMessage) -> Iterable[Thinking | str | ToolCall]:
    """What a reply said, in the order in which it did."""
    thoughts = [thought for thought in message.thinking if thought.signature != MADE_HERE]
    orders = (block_order.noted(_decode, thought) for thought in message.thinking if thought.signature == MADE_HERE)
    order = next(filter(None, orders), None)
    if order is None or not block_order.fits(order.blocks, message, len(thoughts)):
        return (*thoughts, message.text, *message.calls)
    return block_order.in_order(order.blocks, message.text, iter(thoughts), iter(message.calls))
