"""An answer in the format of Anthropic's messages, put together from its stream.

An answer is a row of numbered blocks (words, thoughts, calls) that begin, grow and end. Events, blocks and fields that
are not known here are passed over: the vendor adds some every year. Thoughts come with a signature, or as data that
nobody can read; both are kept as they are, because the vendor wants them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Delta,
    Reply,
    Stop,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
)
from retinue.core.usage import Usage
from retinue.providers.failures import in_stream

T = TypeVar("T")

_NULL = msgspec.Raw(b"null")
_DONE = b"[DONE]"
_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error"}
)
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_GROWTH = frozenset({"text_delta", "thinking_delta", "signature_delta", "input_json_delta"})
_STOPS: dict[str, Stop] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}

# ---- what comes over the wire ---------------------------------------------------------------------------------------


class _Growth(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Block(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = _NULL


class _Message(Struct, gc=False):
    type: str = ""
    id: str | None = None
    model: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = _NULL
    error: object = None


class _Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Growth | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: msgspec.Raw = _NULL
    error: object = None


class _Kind(Struct, gc=False):
    type: object = None


class _EventKind(_Kind, gc=False):
    delta: _Kind | None = None
    content_block: _Kind | None = None


class _Details(Struct, gc=False):
    thinking_tokens: int | None = None


class _Tokens(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _Details | None = None


_NO_GROWTH = _Growth()
_decode = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Message).decode
_decode_kind = msgspec.json.Decoder(_EventKind).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode

# ---- the answer -----------------------------------------------------------------------------------------------------


class _Thought:
    """A thought as far as it has arrived."""

    __slots__ = ("opaque", "pieces", "signature")

    def __init__(self, opaque: str = "") -> None:
        self.opaque = opaque
        self.pieces: list[str] = []
        self.signature = ""

    def whole(self) -> Thinking:
        return Thinking("".join(self.pieces), self.signature, self.opaque)


class _Call:
    """A call as far as it has arrived; `given` are arguments that came all at once, when it began."""

    __slots__ = ("given", "id", "name", "number", "pieces")

    def __init__(self, number: int, call_id: str, name: str, given: str) -> None:
        self.number = number
        self.id = call_id
        self.name = name
        self.given = given
        self.pieces: list[str] = []

    def whole(self) -> ToolCall:
        return ToolCall(self.name, "".join(self.pieces) or self.given, self.id)


class _Words:
    """Marks a block whose words go to the text of the answer."""


class _Unknown:
    """Marks a block that is passed over."""


_WORDS, _UNKNOWN = _Words(), _Unknown()


class Decoder:
    """Takes the events of one answer and makes a reply of them.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}')
    ()
    >>> decoder.feed(b'{"type":"message_stop"}'), decoder.finish().message.text
    ((), 'hello')
    """

    __slots__ = ("_blocks", "_calls", "_counts", "_id", "_model", "_spoke", "_stop", "_text", "_thoughts", "done")

    def __init__(self, *, model: str = "") -> None:
        self.done = False
        """Whether the answer said that nothing more will come."""
        self._model = model
        self._id = ""
        self._spoke = False
        self._text: list[str] = []
        self._thoughts: list[_Thought] = []
        self._calls: list[_Call] = []
        self._blocks: dict[int, _Thought | _Call | _Words | _Unknown] = {}
        self._stop = ""
        self._counts: _Tokens | None = None

    @property
    def partial(self) -> str:
        """The words so far."""
        return "".join(self._text)

    def feed(self, payload: bytes) -> Sequence[Delta]:
        """What the data of one event adds; raises `ProviderError` for nonsense, and for an error told in the stream."""
        if self.done:
            return ()
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if payload.strip() == _DONE or _is_unknown(payload):
                return ()
            event = _mended(payload, _decode)
        match event.type:
            case "content_block_delta":
                return self._grow(event.index, event.delta or _NO_GROWTH)
            case "content_block_start" if event.content_block is not None:
                return self._begin(event.index, event.content_block)
            case "content_block_stop":
                return self._end(event.index)
            case "message_start" if event.message is not None:
                self._hear_about(event.message)
            case "message_delta":
                self._stop = (event.delta or _NO_GROWTH).stop_reason or self._stop
                self._count(event.usage)
            case "message_stop":
                self._spoke = self.done = True
            case "error":
                raise in_stream({"error": event.error})
            case "" if event.error:
                raise in_stream({"error": event.error})
            case _:
                pass
        return ()

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        """What an answer says that came as one JSON object instead of a stream."""
        try:
            message = _decode_whole(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            message = _mended(body, _decode_whole)
        if message.type == "error" or message.error:
            raise in_stream({"error": message.error})
        self.done = True
        if message.content is None:
            return ()
        self._hear_about(message)
        self._stop = message.stop_reason or ""
        deltas: list[Delta] = []
        for index, block in enumerate(message.content):
            deltas += self._begin(index, block)
            deltas += self._end(index)
        return deltas

    def finish(self) -> Reply:
        """The whole reply; raises `ProviderError` with fault `cut` if the stream ended before it was whole."""
        if not self._spoke:
            raise ProviderError("the stream ended without an answer", fault="cut")
        if not self.done and not self._stop:
            raise ProviderError("the stream ended in the middle of the answer", fault="cut", partial=self.partial)
        calls = tuple(call.whole() for call in self._calls)
        thoughts = tuple(thought for part in self._thoughts if (thought := part.whole()) != Thinking())
        return Reply(
            message=AssistantMessage(self.partial, calls, thoughts),
            usage=_usage(self._counts),
            stop=_STOPS.get(self._stop, "calls" if calls else "end"),
            model=self._model,
            response_id=self._id,
        )

    def _hear_about(self, message: _Message) -> None:
        self._spoke = True
        self._id = message.id or self._id
        self._model = message.model or self._model
        self._count(message.usage)

    def _begin(self, index: int, block: _Block) -> Sequence[Delta]:
        self._spoke = True
        match block.type:
            case "text":
                self._blocks[index] = _WORDS
                return self._grow(index, _Growth(type="text_delta", text=block.text))
            case "thinking":
                thought = self._blocks[index] = _Thought()
                self._thoughts.append(thought)
                thought.signature = block.signature or ""
                return self._grow(index, _Growth(type="thinking_delta", thinking=block.thinking))
            case "redacted_thinking":
                thought = self._blocks[index] = _Thought(block.data or "")
                self._thoughts.append(thought)
                return ()
            case "tool_use":
                call = _Call(len(self._calls), block.id or "", block.name or "", _arguments(block.input))
                self._blocks[index] = call
                self._calls.append(call)
                return (CallDelta(call.number, call.name),)
            case _:
                self._blocks[index] = _UNKNOWN
                return ()

    def _grow(self, index: int, growth: _Growth) -> Sequence[Delta]:
        """More of a block; one that nobody announced is what its growth says, except a call, which would lack a name."""
        part = self._blocks.get(index)
        match growth.type:
            case "text_delta" if growth.text and part is not _UNKNOWN:
                self._spoke = True
                self._text.append(growth.text)
                return (TextDelta(growth.text),)
            case "thinking_delta" if growth.thinking and part is not _UNKNOWN:
                self._thought(index).pieces.append(growth.thinking)
                return (ThinkingDelta(growth.thinking),)
            case "signature_delta" if growth.signature and part is not _UNKNOWN:
                self._thought(index).signature = growth.signature
            case "input_json_delta" if growth.partial_json and isinstance(part, _Call):
                part.pieces.append(growth.partial_json)
                return (CallDelta(part.number, "", growth.partial_json),)
            case _:
                pass
        return ()

    def _end(self, index: int) -> Sequence[Delta]:
        """A call that nothing was said about has the arguments it began with, if only `{}`."""
        call = self._blocks.get(index)
        if not isinstance(call, _Call) or call.pieces:
            return ()
        call.pieces.append(call.given)
        return (CallDelta(call.number, "", call.given),)

    def _thought(self, index: int) -> _Thought:
        self._spoke = True
        part = self._blocks.get(index)
        if not isinstance(part, _Thought):
            part = self._blocks[index] = _Thought()
            self._thoughts.append(part)
        return part

    def _count(self, raw: msgspec.Raw) -> None:
        """Counts are told at the beginning and again, complete, at the end: they only ever grow."""
        try:
            new = _decode_tokens(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        old = self._counts or _Tokens()
        self._counts = _Tokens(
            _most(old.input_tokens, new.input_tokens),
            _most(old.output_tokens, new.output_tokens),
            _most(old.cache_read_input_tokens, new.cache_read_input_tokens),
            _most(old.cache_creation_input_tokens, new.cache_creation_input_tokens),
            new.output_tokens_details or old.output_tokens_details,
        )


def _most(one: int | None, other: int | None) -> int | None:
    return max((number for number in (one, other) if number is not None), default=None)


def _usage(counts: _Tokens | None) -> Usage | None:
    """Tokens by kind; None if the server did not count. The vendor counts what it had cached apart from the rest."""
    if counts is None or (counts.input_tokens is None and counts.output_tokens is None):
        return None
    cached, output = max(0, counts.cache_read_input_tokens or 0), max(0, counts.output_tokens or 0)
    fresh = max(0, counts.input_tokens or 0) + max(0, counts.cache_creation_input_tokens or 0)
    thought = (counts.output_tokens_details and counts.output_tokens_details.thinking_tokens) or 0
    return Usage(input=fresh + cached, output=output, cached=cached, reasoning=min(max(0, thought), output))


def _arguments(given: msgspec.Raw) -> str:
    text = bytes(given).decode("utf-8", "replace").strip()
    return text if text.startswith("{") else "{}"


def _is_unknown(payload: bytes) -> bool:
    """Whether an event that does not fit is one that need not: of a kind, or about a block of a kind, unknown here."""
    try:
        kind = _decode_kind(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return (
        kind.type not in _EVENTS
        or (kind.type == "content_block_delta" and kind.delta is not None and kind.delta.type not in _GROWTH)
        or (kind.type == "content_block_start" and kind.content_block is not None and kind.content_block.type not in _BLOCKS)
    )


def _mended(payload: bytes, decode: Callable[[bytes], T]) -> T:
    """A second look at data that is not quite JSON: half a character should not cost the whole answer."""
    try:
        value = json.loads(payload.decode("utf-8", "replace"))
        return decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        what = "is not what was expected" if isinstance(error, msgspec.ValidationError) else "cannot be read"
        beginning = payload[:120].decode("utf-8", "replace")
        raise ProviderError(f"an event of the stream {what}: {beginning}", fault="cut") from None
