"""Message history of a run: append-only, shared with forks instead of copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage

STILL_OPEN = (
    "[you are a fork of the conversation above: a sub-agent with a task of your own, which follows. This call goes on "
    "in the original conversation; its result is not available here]"
)
NOT_MADE = "[this call was not made: a limit was reached]"
NOT_OFFERED = "[this call was not made: no tool was offered]"
UNFINISHED = "[the run ended before this call returned; it may or may not have happened]"
LEFT_OUT = "[earlier parts of this conversation were left out]"


class History(Sequence[Message]):
    """A sequence of messages: segments inherited from other runs, then this run's own.

    A fork refers to its parent's list and the number of inherited messages, so the parent can append without affecting
    the fork. The segments of a fork's fork are kept side by side instead of nested, so a conversation continued a
    thousand times is read in one pass. A shared list is changed only by appending.
    """

    __slots__ = ("_inherited", "_own", "_pieces")

    def __init__(self, base: History | None = None) -> None:
        self._pieces: tuple[tuple[Sequence[Message], int], ...] = ()
        self._inherited = 0
        self._own: list[Message] = []
        if base is not None:
            self._pieces = (*base._pieces, (base._own, len(base._own))) if base._own else base._pieces
            self._inherited = len(base)

    def append(self, message: Message) -> None:
        self._own.append(message)

    def replace_first(self, count: int, by: Sequence[Message]) -> None:
        """Replace the first `count` messages by `by`; existing forks are not affected."""
        kept = self[count:]
        self._pieces, self._inherited = ((tuple(by), len(by)),), len(by)
        self._own = kept

    @property
    def inherited(self) -> int:
        return self._inherited

    def __len__(self) -> int:
        return self._inherited + len(self._own)

    def __iter__(self) -> Iterator[Message]:
        if not self._pieces:
            return iter(self._own)
        return chain(chain.from_iterable(islice(piece, length) for piece, length in self._pieces), self._own)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if not self._pieces:
            return self._own[index]
        if isinstance(index, slice):
            return self._slice(index)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        for piece, length in self._pieces:
            if index < length:
                return piece[index]
            index -= length
        return self._own[index]

    def _slice(self, wanted: slice) -> list[Message]:
        start, stop, step = wanted.indices(len(self))
        if start >= self._inherited and step > 0:  # only own messages: skip the walk through inherited ones
            return self._own[start - self._inherited : max(start, stop) - self._inherited : step]
        return list(self)[wanted]


def forked(parent: History, *, last_turns: int | None = None) -> History:
    """A history that begins with the current messages of `parent`, with a placeholder result for each open call.

    Providers reject a conversation with a tool call that has no result; the placeholder says that the call continues
    in the original conversation.
    """
    child = History(parent) if last_turns is None else _recent(parent, last_turns)
    for repair in unanswered(child, STILL_OPEN):
        child.append(repair)
    return child


def unanswered(history: Sequence[Message], text: str) -> list[ToolMessage]:
    """A failed result with `text` for each call of the last message, if that is a reply."""
    last = history[-1] if history else None
    return not_made(last.calls, text) if isinstance(last, AssistantMessage) else []


def not_made(calls: Sequence[ToolCall], text: str) -> list[ToolMessage]:
    return [ToolMessage(name=call.name, call_id=call.id, text=text, failed=True) for call in calls]


def _recent(parent: History, turns: int) -> History:
    """The last `turns` turns, beginning with a user message and never with a result without its call."""
    starts = [i for i, message in enumerate(parent) if isinstance(message, AssistantMessage)]
    child = History()
    if turns > 0:
        start = starts[-turns] if len(starts) >= turns else 0
        while start > 0 and isinstance(parent[start - 1], UserMessage):
            start -= 1
        if start > 0 and not isinstance(parent[start], UserMessage):
            child.append(UserMessage(text=LEFT_OUT, origin="engine"))
        for message in parent[start:]:
            child.append(message)
    return child
