"""The order of a reply's content blocks, noted among its thinking: the API wants them back in their places.

A reply in the usual order (thinking, text, calls) needs no note. Some models think again between text or calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.messages import AssistantMessage, Thinking, ToolCall
from retinue.providers import thinking_notes

Step: TypeAlias = Literal["thought", "call"] | int
"""One block of a reply; text is its number of characters."""

NOTE_SIGNATURE = "anthropic"
"""The signature of a note; the API's own signatures are much longer."""


class BlockOrder(Struct, frozen=True, tag_field="type", tag="anthropic.order"):
    """The blocks of a reply, in order."""

    blocks: tuple[Step, ...]


_decode = msgspec.json.Decoder(BlockOrder).decode


def order_note(steps: Iterable[Step]) -> Thinking | None:
    """A note of this order, or None if it is the usual one or there is no thinking to keep in its place.

    >>> order_note(["thought", 3, "call", "call"]) is None
    True
    >>> order_note([3, "thought", "call"]).opaque
    '{"type":"anthropic.order","blocks":[3,"thought","call"]}'
    """
    steps = tuple(steps)
    rank = [0 if step == "thought" else 2 if step == "call" else 1 for step in steps]
    if rank == sorted(rank) or 0 not in rank:
        return None
    return thinking_notes.make_note(BlockOrder(steps), NOTE_SIGNATURE)


def ordered_blocks(message: AssistantMessage) -> Iterable[Thinking | str | ToolCall]:
    """The blocks of a reply, in the order in which the model produced them."""
    thinking = [block for block in message.thinking if block.signature != NOTE_SIGNATURE]
    notes = (
        thinking_notes.read_note(_decode, block) for block in message.thinking if block.signature == NOTE_SIGNATURE
    )
    order = next(filter(None, notes), None)
    if order is None or not thinking_notes.order_fits(order.blocks, message, len(thinking)):
        return (*thinking, message.text, *message.calls)
    return thinking_notes.arrange(order.blocks, message.text, iter(thinking), iter(message.calls))
