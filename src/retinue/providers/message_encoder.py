"""A conversation in a vendor's format, encoded once and then only appended to; the format itself is the wire's.

Vendors refuse what a real history may hold: calls without an id or with one that was used before, a result without its
call, a call without its result. All of that is repaired here, by position alone, so that the same history always gives
the same bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, Self, TypeAlias, assert_never

from retinue.core.history import UNFINISHED
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request

Speaker: TypeAlias = Literal["user", "assistant"]


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
    """The messages of a run as far as they were encoded, and what is needed to go on from there."""

    __slots__ = (
        "_count",
        "_first",
        "_last",
        "_replies",
        "_reply_end",
        "_slots",
        "_used",
        "_way",
        "encoded",
        "has_calls",
    )

    usable_id: ClassVar[re.Pattern[str]]
    """Other call ids are refused; another vendor may have made them."""
    made_id: ClassVar[str] = "call"
    """How an id begins that is made here."""
    needs_ids: ClassVar[bool] = True
    """Whether a call without an id is refused."""
    results_wait: ClassVar[bool] = False
    """Whether the results of a reply's calls are written together, in the order of the calls, once all are there."""

    def __init__(self, way: str = "") -> None:
        self._way = way
        self.encoded: bytearray = bytearray()
        """What was written for good."""
        self.has_calls = False
        """Whether the model has ever called a tool in it."""
        self._count = 0
        self._first: Message | None = None
        self._last: Message | None = None
        self._replies = 0
        self._reply_end = 0
        """Where the last reply ends."""
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
        missing = self.missing()
        return b",".join((self.encoded, *missing)) if self.encoded else b",".join(missing)

    def since_reply(self) -> bytes:
        """What was said after the last reply, in the same way."""
        said = bytes(self.encoded[self._reply_end :]).removeprefix(b",")
        return b",".join((said, *self.missing()) if said else self.missing())

    def missing(self) -> list[bytes]:
        """Results for the calls at the end that have none. The real ones may still come, so these are not kept."""
        return self.results(self._slots) if self._slots else []

    @abstractmethod
    def words(self, text: str) -> bytes:
        """Words for the model."""

    @abstractmethod
    def reply(self, message: AssistantMessage, slots: Sequence[Slot]) -> Iterable[bytes]:
        """What the model said."""

    @abstractmethod
    def results(self, slots: Sequence[Slot]) -> list[bytes]:
        """What the calls of a reply came to."""

    def put(self, speaker: Speaker, pieces: Iterable[bytes]) -> None:
        """Write what somebody said."""
        for piece in pieces:
            if self.encoded:
                self.encoded += b","
            self.encoded += piece

    def _is_beginning_of(self, messages: Sequence[Message], way: str) -> bool:
        """Whether these messages begin with the encoded ones; a summary may have taken their place."""
        if not 0 < self._count <= len(messages) or self._way != way:
            return False
        return messages[0] is self._first and messages[self._count - 1] is self._last

    def _add(self, messages: Sequence[Message]) -> None:
        if self._count == len(messages):
            return
        for message in messages[self._count :]:
            match message:
                case ToolMessage():
                    self._answer(message)
                case UserMessage(text=text):
                    self._close()
                    self.put("user", (self.words(text),))
                case AssistantMessage():
                    self._close()
                    self._replies += 1
                    self._slots = [Slot(call, self._id(call, index)) for index, call in enumerate(message.calls)]
                    self.has_calls = self.has_calls or bool(message.calls)
                    self.put("assistant", self.reply(message, self._slots))
                    self._reply_end = len(self.encoded)
                case _:
                    assert_never(message)
        self._count = len(messages)
        self._first, self._last = messages[0], messages[-1]

    def _close(self) -> None:
        """Write the results of the last reply's calls, before somebody else speaks."""
        slots, self._slots = self._slots, []
        if slots:
            self.put("user", self.results(slots))

    def _id(self, call: ToolCall, index: int) -> str:
        wire_id = call.id
        if not wire_id and not self.needs_ids:
            return ""
        if wire_id in self._used or not self.usable_id.fullmatch(wire_id):
            wire_id = f"{self.made_id}_{self._replies}_{index}"
            while wire_id in self._used:
                wire_id += "_"
        self._used.add(wire_id)
        return wire_id

    def _answer(self, message: ToolMessage) -> None:
        """A result goes to the call with its id and name; else to one with its name; else to the next one waiting."""
        waiting = [slot for slot in self._slots if slot.text is None]
        if not waiting:
            lost = f"[result of a call of {message.name} that is no longer shown]\n{message.text}"
            self.put("user", (self.words(lost),))
            return
        named = [slot for slot in waiting if slot.call.name == message.name]
        slot = next((slot for slot in named if slot.call.id == message.call_id), (named or waiting)[0])
        slot.text, slot.failed = message.text, message.failed
        if not self.results_wait:
            self._slots.remove(slot)
            self.put("user", self.results((slot,)))
        elif len(waiting) == 1:
            self._close()
