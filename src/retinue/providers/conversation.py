"""A conversation in a vendor's format, encoded once and then only appended to; the format itself is the wire's.

Vendors refuse what a real history may hold: calls without an id or with one that was used before, a result without its
call, a call without its result. All of that is repaired here, by position alone, so that the same history always gives
the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self, assert_never

from retinue.core.history import UNFINISHED
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request


class Slot:
    """A call of the last reply, the id we gave it, and its result once there is one."""

    __slots__ = ("call", "failed", "text", "wire_id")

    def __init__(self, call: ToolCall, wire_id: str) -> None:
        self.call = call
        self.wire_id = wire_id
        self.text: str | None = None
        self.failed = False

    @property
    def told(self) -> str:
        """The result, or that there is none."""
        return UNFINISHED if self.text is None else self.text


class Conversation(ABC):
    """The messages of a run as far as they were encoded, and what is needed to go on from there.

    The results of a reply's calls are written together, in the order of the calls, when the last of them is there.
    """

    __slots__ = ("_count", "_encoded", "_first", "_last", "_replies", "_slots", "_used", "_way")

    longest_id: ClassVar[int]
    """Longer call ids are refused; another vendor may have made them."""
    needs_ids: ClassVar[bool]
    """Whether a call without an id is refused."""

    def __init__(self, way: str = "") -> None:
        self._way = way
        self._encoded = bytearray()
        self._count = 0
        self._first: Message | None = None
        self._last: Message | None = None
        self._replies = 0
        self._used: set[str] = set()
        self._slots: list[Slot] = []

    @classmethod
    def of(cls, request: Request, name: str, way: str = "") -> Self:
        """The conversation of a request, going on from what its memo has under `name`, if it was written this `way`."""
        kept = request.memo.get(name)
        if not (isinstance(kept, cls) and kept._is_beginning_of(request.messages, way)):
            kept = request.memo[name] = cls(way)
        kept._add(request.messages)
        return kept

    @property
    def way(self) -> str:
        """In which of the wire's ways it is written."""
        return self._way

    def written(self) -> bytes:
        """All of it, with commas between its parts; a call that has no result yet is told to have none."""
        # The real result may still come, so the makeshift is not kept.
        missing = self.results(self._slots) if self._slots else []
        return b",".join((self._encoded, *missing)) if self._encoded else b",".join(missing)

    @abstractmethod
    def words(self, text: str) -> bytes:
        """Words for the model."""

    @abstractmethod
    def reply(self, message: AssistantMessage, slots: Sequence[Slot]) -> Iterable[bytes]:
        """What the model said."""

    @abstractmethod
    def results(self, slots: Sequence[Slot]) -> list[bytes]:
        """What the calls of a reply came to."""

    def _is_beginning_of(self, messages: Sequence[Message], way: str) -> bool:
        """Whether these messages begin with the encoded ones; a summary may have taken their place."""
        if not 0 < self._count <= len(messages) or self._way != way:
            return False
        return messages[0] is self._first and messages[self._count - 1] is self._last

    def _add(self, messages: Sequence[Message]) -> None:
        if self._count == len(messages):
            return
        for message in messages[self._count :]:
            for piece in self._pieces(message):
                if self._encoded:
                    self._encoded += b","
                self._encoded += piece
        self._count = len(messages)
        self._first, self._last = messages[0], messages[-1]

    def _pieces(self, message: Message) -> list[bytes]:
        match message:
            case ToolMessage():
                return self._answered(message)
            case UserMessage(text=text):
                return [*self._closed(), self.words(text)]
            case AssistantMessage():
                closed = self._closed()
                self._replies += 1
                self._slots = [Slot(call, self._id(call, index)) for index, call in enumerate(message.calls)]
                return [*closed, *self.reply(message, self._slots)]
            case _:
                assert_never(message)

    def _closed(self) -> list[bytes]:
        """The results of the last reply's calls, before somebody else speaks."""
        slots, self._slots = self._slots, []
        return self.results(slots) if slots else []

    def _id(self, call: ToolCall, index: int) -> str:
        wire_id = call.id
        if not wire_id and not self.needs_ids:
            return ""
        if not wire_id or len(wire_id) > self.longest_id or not wire_id.isascii() or wire_id in self._used:
            wire_id = f"call_{self._replies}_{index}"
            while wire_id in self._used:
                wire_id += "_"
        self._used.add(wire_id)
        return wire_id

    def _answered(self, message: ToolMessage) -> list[bytes]:
        """A result goes to the call with its id and name; else to one with its name; else to the next one waiting."""
        waiting = [slot for slot in self._slots if slot.text is None]
        if not waiting:
            return [self.words(f"[result of a call of {message.name} that is no longer shown]\n{message.text}")]
        named = [slot for slot in waiting if slot.call.name == message.name]
        slot = next((slot for slot in named if slot.call.id == message.call_id), (named or waiting)[0])
        slot.text, slot.failed = message.text, message.failed
        return self._closed() if len(waiting) == 1 else []
