"""Incremental encoder of a run's messages in a vendor's format: encoded once, then only appended to.

Vendors reject what a real history may hold: calls without an id or with a repeated one, a result without its call, a
call without its result. All of that is repaired here, by position alone, so that the same history always gives the
same bytes. The format itself is the wire's.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, Self, TypeAlias, assert_never

from retinue.core.history import UNFINISHED
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request

Role: TypeAlias = Literal["user", "assistant"]


class PendingCall:
    """A call of the last reply, the id it is sent with, and its result once there is one."""

    __slots__ = ("call", "failed", "text", "wire_id")

    def __init__(self, call: ToolCall, wire_id: str) -> None:
        self.call = call
        self.wire_id = wire_id
        self.text: str | None = None
        self.failed = False

    @property
    def result_text(self) -> str:
        """The result, or the text that stands for a missing one."""
        return UNFINISHED if self.text is None else self.text


class MessageEncoder(ABC):
    """The encoded messages of a run, and the state needed to append the next ones."""

    __slots__ = (
        "_count",
        "_first",
        "_last",
        "_pending",
        "_replies",
        "_reply_end",
        "_used_ids",
        "_variant",
        "encoded",
        "has_calls",
    )

    valid_id: ClassVar[re.Pattern[str]]
    """Call ids that the vendor accepts; others, perhaps made by another vendor, are replaced."""
    id_prefix: ClassVar[str] = "call"
    """The beginning of replacement ids."""
    needs_ids: ClassVar[bool] = True
    """Whether the vendor rejects a call without an id."""
    batches_results: ClassVar[bool] = False
    """Whether the results of a reply's calls are written together, in the order of the calls, once all are there."""

    def __init__(self, variant: str = "") -> None:
        self._variant = variant
        self.encoded: bytearray = bytearray()
        """What does not change any more."""
        self.has_calls = False
        """Whether any reply so far has tool calls."""
        self._count = 0
        self._first: Message | None = None
        self._last: Message | None = None
        self._replies = 0
        self._reply_end = 0
        """Where the last reply ends in `encoded`."""
        self._used_ids: set[str] = set()
        self._pending: list[PendingCall] = []

    @classmethod
    def of(cls, request: Request, name: str, variant: str = "") -> Self:
        """The encoder of a request's messages, continued from the one under `name` in its memo if that still fits."""
        encoder = request.memo.get(name)
        if not (isinstance(encoder, cls) and encoder._is_beginning_of(request.messages, variant)):
            encoder = request.memo[name] = cls(variant)
        encoder._add(request.messages)
        return encoder

    @property
    def variant(self) -> str:
        """Which variant of the wire's format it writes."""
        return self._variant

    def body(self) -> bytes:
        """All messages, separated by commas; a call without a result gets a placeholder."""
        placeholders = self.placeholder_results()
        return b",".join((self.encoded, *placeholders)) if self.encoded else b",".join(placeholders)

    def since_reply(self) -> bytes:
        """The messages after the last reply, in the same form."""
        added = bytes(self.encoded[self._reply_end :]).removeprefix(b",")
        return b",".join((added, *self.placeholder_results()) if added else self.placeholder_results())

    def placeholder_results(self) -> list[bytes]:
        """Results for calls at the end that have none. The real ones may still come, so these are not kept."""
        return self.encode_results(self._pending) if self._pending else []

    @abstractmethod
    def encode_user(self, text: str) -> bytes:
        """A user message."""

    @abstractmethod
    def encode_reply(self, message: AssistantMessage, calls: Sequence[PendingCall]) -> Iterable[bytes]:
        """A reply of the model, with its calls."""

    @abstractmethod
    def encode_results(self, calls: Sequence[PendingCall]) -> list[bytes]:
        """The results of calls."""

    def append(self, role: Role, pieces: Iterable[bytes]) -> None:
        """Append encoded pieces of one role."""
        for piece in pieces:
            if self.encoded:
                self.encoded += b","
            self.encoded += piece

    def _is_beginning_of(self, messages: Sequence[Message], variant: str) -> bool:
        """Whether these messages begin with the encoded ones; a summary may have taken their place."""
        if not 0 < self._count <= len(messages) or self._variant != variant:
            return False
        return messages[0] is self._first and messages[self._count - 1] is self._last

    def _add(self, messages: Sequence[Message]) -> None:
        if self._count == len(messages):
            return
        for message in messages[self._count :]:
            match message:
                case ToolMessage():
                    self._add_result(message)
                case UserMessage(text=text):
                    self._flush_results()
                    self.append("user", (self.encode_user(text),))
                case AssistantMessage():
                    self._flush_results()
                    self._replies += 1
                    self._pending = [
                        PendingCall(call, self._wire_id(call, index)) for index, call in enumerate(message.calls)
                    ]
                    self.has_calls = self.has_calls or bool(message.calls)
                    self.append("assistant", self.encode_reply(message, self._pending))
                    self._reply_end = len(self.encoded)
                case _:
                    assert_never(message)
        self._count = len(messages)
        self._first, self._last = messages[0], messages[-1]

    def _flush_results(self) -> None:
        """Write the results of the last reply's calls before the next message."""
        calls, self._pending = self._pending, []
        if calls:
            self.append("user", self.encode_results(calls))

    def _wire_id(self, call: ToolCall, index: int) -> str:
        wire_id = call.id
        if not wire_id and not self.needs_ids:
            return ""
        if wire_id in self._used_ids or not self.valid_id.fullmatch(wire_id):
            wire_id = f"{self.id_prefix}_{self._replies}_{index}"
            while wire_id in self._used_ids:
                wire_id += "_"
        self._used_ids.add(wire_id)
        return wire_id

    def _add_result(self, message: ToolMessage) -> None:
        """Give a result to the waiting call with its id and name, else with its name, else to the next one."""
        waiting = [call for call in self._pending if call.text is None]
        if not waiting:
            orphan = f"[result of a call of {message.name} that is no longer shown]\n{message.text}"
            self.append("user", (self.encode_user(orphan),))
            return
        same_name = [pending for pending in waiting if pending.call.name == message.name]
        pending = next(
            (pending for pending in same_name if pending.call.id == message.call_id), (same_name or waiting)[0]
        )
        pending.text, pending.failed = message.text, message.failed
        if not self.batches_results:
            self._pending.remove(pending)
            self.append("user", self.encode_results((pending,)))
        elif len(waiting) == 1:
            self._flush_results()
