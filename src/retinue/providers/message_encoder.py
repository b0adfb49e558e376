"""Encoder of a run's messages in a vendor's format: system prompt, notes on thinking, and an append-only body.

Vendors reject what a real history may hold: calls without an id or with a repeated one, a result without its call, a
call without its result. `MessageEncoder` repairs all of that by position alone, so that the same history always gives
the same bytes. Images and files of a result are part of the result where the wire's format has a place for them there,
and else follow the results in a user message that says where they come from; what a wire cannot send at all is named in
the text of the result. The format itself is the wire's.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import ClassVar, Literal, Self, TypeAlias, TypeVar, assert_never

import msgspec
from msgspec import Struct

from retinue.core.attachments import Attachment, described, text_of, with_labels
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.core.state import UNFINISHED
from retinue.providers.unsupported_options import RESULT_MEDIA
from retinue.providers.wire_json import decode_or_none


def system_prompt(request: Request) -> str:
    """The system prompt for a wire that has a request field for schemas; `json_object` is described in words as well.

    OpenAI rejects a request for a JSON object if no message mentions JSON, and Anthropic has no field for it.
    """
    if request.output is None or request.output.mode == "json_schema":
        return request.system
    return system_prompt_with_format(request)


def system_prompt_with_format(request: Request) -> str:
    """The system prompt for a wire without such a field: it ends with the output format in words.

    >>> from retinue.core.agent import Output
    >>> system_prompt_with_format(Request(model="m", system="Be brief.", messages=[], output=Output()))
    'Be brief.\\n\\nGive your final answer as one JSON object, and nothing else.'
    """
    if request.output is None:
        return request.system
    return f"{request.system}\n\n{request.output.in_words}" if request.system else request.output.in_words


# ---- notes that a wire stores among a reply's thinking, to send the reply back as it came ----------------------------
# A note is JSON in the opaque part of a `Thinking`, and each wire reads only its own. Some hold the order of a reply's
# parts, step by step; the usual order (thinking, text, calls) needs no note.

Steps: TypeAlias = Sequence[str | int]
"""The order of a reply's parts: `call`, the wire's word for thinking, or a number of characters of text."""

T = TypeVar("T")
C = TypeVar("C")


def make_note(content: Struct, signature: str, text: str = "") -> Thinking:
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


def with_text_files(text: str, attachments: Sequence[Attachment]) -> tuple[str, Sequence[Attachment]]:
    """A text with the text files behind it, and the other attachments."""
    if not attachments:
        return text, ()
    texts = [found for each in attachments if (found := text_of(each)) is not None]
    return "\n\n".join((text, *texts)), [each for each in attachments if text_of(each) is None]


def base64_of(attachment: Attachment) -> str:
    return b64encode(attachment.data).decode()


def data_url(attachment: Attachment) -> str:
    return f"data:{attachment.media_type};base64,{base64_of(attachment)}"


NOT_SENT = "[{what} is not shown: the wire {wire} cannot send it]"
NOT_TAKEN = "[{what} is not shown: the server does not take it]"
FOLLOWS = "[{what} follows after the results]"
OF_RESULT = "[part of the result of the call of {tool} ({call_id}), not a message of a person]"
"""What stands in a result for an attachment that is elsewhere or missing, and before those that follow."""


def sends_result_media(request: Request) -> bool:
    """Whether a request was encoded with images or files in results of calls."""
    return any(isinstance(each, MessageEncoder) and each.has_result_media for each in request.memo.values())


MessageRole: TypeAlias = Literal["user", "assistant"]


class PendingCall:
    """A call of the last reply, the id it is sent with, and its result once there is one."""

    __slots__ = ("attachments", "call", "failed", "text", "wire_id")

    def __init__(self, call: ToolCall, wire_id: str) -> None:
        self.call = call
        self.wire_id = wire_id
        self.text: str | None = None
        self.failed = False
        self.attachments: Sequence[Attachment] = ()
        """Images and files that are part of the result on this wire."""

    def fits(self, message: ToolMessage) -> bool:
        """Whether a result has the name and the id of this call."""
        return self.call.name == message.name and self.call.id == message.call_id

    @property
    def result_text(self) -> str:
        """The result, or the text that stands for a missing one."""
        return UNFINISHED if self.text is None else self.text


class MessageEncoder(ABC):
    """The encoded messages of a run, and the state needed to append the next ones."""

    __slots__ = (
        "_answered",
        "_count",
        "_first",
        "_following",
        "_last",
        "_pending",
        "_replies",
        "_reply_end",
        "_used_ids",
        "encoded",
        "has_calls",
        "has_result_media",
        "variant",
        "without_media",
    )

    wire: ClassVar[str]
    """The name of the wire."""
    media_types: ClassVar[frozenset[str]]
    """The types of attachments that the wire can send."""
    result_media_types: ClassVar[frozenset[str]] = frozenset()
    """Those that a result of a call can hold."""

    valid_id: ClassVar[re.Pattern[str]]
    """Call ids that the vendor accepts; others, perhaps made by another vendor, are replaced."""
    id_prefix: ClassVar[str] = "call"
    """The beginning of replacement ids."""
    needs_ids: ClassVar[bool] = True
    """Whether the vendor rejects a call without an id."""
    batches_results: ClassVar[bool] = False
    """Whether the results of a reply's calls are written together, in the order of the calls, once all are there."""

    def __init__(self, variant: str = "") -> None:
        self.variant = variant
        """Which variant of the wire's format it writes."""
        self.without_media = False
        """Whether images and files of results are left out, because the server rejects them."""
        self.has_result_media = False
        """Whether any result so far was sent with images or files."""
        self._following: list[tuple[PendingCall, Sequence[Attachment]]] = []
        """The attachments that follow the results of the pending calls."""
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
        self._answered = 0
        """How many of the pending calls at the beginning have results."""

    @classmethod
    def of(cls, request: Request, name: str, variant: str = "", unsupported: Collection[str] = ()) -> Self:
        """The encoder of a request's messages, continued from the one under `name` in its memo if that still fits.

        `unsupported` is what the server rejected in earlier requests.
        """
        without_media = bool(unsupported) and RESULT_MEDIA in unsupported
        encoder = request.memo.get(name)
        if not (
            isinstance(encoder, cls)
            and encoder.without_media == without_media
            and encoder._is_beginning_of(request.messages, variant)
        ):
            encoder = request.memo[name] = cls(variant)
            encoder.without_media = without_media
        encoder._add(request.messages)
        return encoder

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
    def encode_user(self, text: str, attachments: Sequence[Attachment] = ()) -> bytes:
        """A user message; `attachments` are images and files that are no text."""

    @abstractmethod
    def encode_reply(self, message: AssistantMessage, calls: Sequence[PendingCall]) -> Iterable[bytes]:
        """A reply of the model, with its calls."""

    @abstractmethod
    def encode_results(self, calls: Sequence[PendingCall]) -> list[bytes]:
        """The results of calls."""

    def accepts_id(self, call_id: str) -> bool:
        """Whether the vendor accepts a call id."""
        return self.valid_id.fullmatch(call_id) is not None

    def replacement_id(self, reply: int, index: int) -> str:
        """An id for call `index` of a reply, which is counted from 1."""
        return f"{self.id_prefix}_{reply}_{index}"

    def append(self, role: MessageRole, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if self.encoded:
                self.encoded += b","
            self.encoded += piece

    def _is_beginning_of(self, messages: Sequence[Message], variant: str) -> bool:
        """Whether these messages begin with the encoded ones; a summary may have taken their place."""
        if not 0 < self._count <= len(messages) or self.variant != variant:
            return False
        return messages[0] is self._first and messages[self._count - 1] is self._last

    def _add(self, messages: Sequence[Message]) -> None:
        if self._count == len(messages):
            return
        for message in messages[self._count :]:
            match message:
                case ToolMessage():
                    self._add_result(message)
                case UserMessage(text=text, attachments=attachments):
                    if self._pending or self._following:
                        self._flush_results()
                    if attachments:
                        text, attachments = self._accepted(*with_text_files(text, attachments))
                    self.append("user", (self.encode_user(text, attachments),))
                case AssistantMessage():
                    if self._pending or self._following:
                        self._flush_results()
                    self._replies += 1
                    if message.calls:
                        calls = enumerate(message.calls)
                        self._pending = [PendingCall(call, self._wire_id(call, index)) for index, call in calls]
                        self.has_calls = True
                    self.append("assistant", self.encode_reply(message, self._pending))
                    self._reply_end = len(self.encoded)
                case _:
                    assert_never(message)
        self._count = len(messages)
        self._first, self._last = messages[0], messages[-1]

    def _flush_results(self) -> None:
        """Write the results of the last reply's calls before the next message."""
        calls, self._pending, self._answered = self._pending, [], 0
        if calls:
            self.append("user", self.encode_results(calls))
        if self._following:
            self._flush_following()

    def _flush_following(self) -> None:
        """Write the attachments of the results before them as messages."""
        following, self._following = self._following, []
        for pending, attachments in following:
            text = OF_RESULT.format(tool=pending.call.name, call_id=pending.wire_id or "the last one")
            self.append("user", (self.encode_user(text, attachments),))

    def _accepted(self, text: str, attachments: Sequence[Attachment]) -> tuple[str, Sequence[Attachment]]:
        """The same, if the wire can send these attachments."""
        for each in attachments:
            if each.media_type not in self.media_types:
                taken = ", ".join(sorted(self.media_types))
                raise ProviderError(
                    f"the wire {self.wire} cannot send {described([each])}: it takes text files and {taken}",
                    fault="bad_request",
                )
        return text, attachments

    def _add_media(self, pending: PendingCall, attachments: Sequence[Attachment]) -> None:
        """Give a result its attachments, or lines that stand for them: a result must not end a run."""
        lines: list[str] = []
        held: list[Attachment] = []
        following: list[Attachment] = []
        for each in attachments:
            if (file := text_of(each)) is not None:
                lines.append(file)
            elif each.media_type not in self.media_types:
                lines.append(NOT_SENT.format(what=described([each]), wire=self.wire))
            elif self.without_media:
                lines.append(NOT_TAKEN.format(what=described([each])))
            elif each.media_type in self.result_media_types:
                held.append(each)
            else:
                following.append(each)
                lines.append(FOLLOWS.format(what=described([each])))
        pending.text = "\n".join(filter(None, (pending.text, *lines)))
        pending.attachments = held
        if following:
            self._following.append((pending, following))
        if held or following:
            self.has_result_media = True

    def _wire_id(self, call: ToolCall, index: int) -> str:
        wire_id = call.id
        if not wire_id and not self.needs_ids:
            return ""
        if wire_id in self._used_ids or not self.accepts_id(wire_id):
            wire_id = self.replacement_id(self._replies, index)
            while wire_id in self._used_ids:
                wire_id += "_"
        self._used_ids.add(wire_id)
        return wire_id

    def _add_result(self, message: ToolMessage) -> None:
        """Give a result to the waiting call with its id and name, else with its name, else to the next one."""
        calls = self._pending
        if self._answered < len(calls) and calls[self._answered].fits(message):
            # The usual case, in the order of the calls: no look at the others, of which a reply may have thousands.
            pending = calls[self._answered]
        else:
            waiting = [call for call in calls if call.text is None]
            if not waiting:
                text = with_labels(message.text, message.attachments)
                orphan = f"[result of a call of {message.name} that is no longer shown]\n{text}"
                self.append("user", (self.encode_user(orphan),))
                return
            same_name = [call for call in waiting if call.call.name == message.name]
            same_id = (call for call in same_name if call.call.id == message.call_id)
            pending = next(same_id, (same_name or waiting)[0])
        pending.text, pending.failed = message.text, message.failed
        if message.attachments:
            self._add_media(pending, message.attachments)
        if not self.batches_results:
            calls.remove(pending)
            self.append("user", self.encode_results((pending,)))
            if self._following and not calls:
                self._flush_following()
            return
        while self._answered < len(calls) and calls[self._answered].text is not None:
            self._answered += 1
        if self._answered == len(calls):
            self._flush_results()
