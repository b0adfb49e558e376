"""An answer in the format of Anthropic's messages, put together from its stream.

An answer is a row of numbered blocks (words, thoughts, calls) that begin, grow and end. Thoughts come with a signature,
or as data that nobody can read; both are kept as they are, because the vendor wants them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from retinue.core.messages import CallDelta, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.text import NOT_JSON
from retinue.providers.anthropic.content_order import Step, note_of
from retinue.providers.anthropic.events import Block, Growth, Message, Tokens, decode_event, read_event, read_message
from retinue.providers.http_errors import in_stream
from retinue.providers.stream_decoder import AnswerDecoder

_NO_GROWTH = Growth()
_STOPS: dict[str, Stop] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class _Thought:
    """A thought as far as it has arrived."""

    __slots__ = ("opaque", "pieces", "signature")

    def __init__(self, opaque: str = "") -> None:
        self.opaque = opaque
        self.pieces: list[str] = []
        self.signature = ""

    def __bool__(self) -> bool:
        return bool(self.pieces or self.signature or self.opaque)

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
    """How much of the answer's text is from one block."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class _Unknown:
    """A block that is passed over."""

    __slots__ = ()


_Part: TypeAlias = _Thought | _Call | _Words | _Unknown
P = TypeVar("P", _Thought, _Call, _Words, _Unknown)


class Decoder(AnswerDecoder):
    """Takes the events of one answer and makes a reply of them.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}')
    ()
    >>> decoder.feed(b'{"type":"message_stop"}'), decoder.finish().message.text
    ((), 'hello')
    """

    __slots__ = ("_blocks", "_calls", "_counts", "_parts", "_spoke", "_stop", "_text")

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._spoke = False
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._blocks: dict[int, _Part] = {}
        self._parts: list[_Part] = []
        """The blocks in the order in which they began."""
        self._stop = ""
        self._counts = Tokens()

    @property
    def partial(self) -> str:
        return "".join(self._text)

    def feed(self, payload: bytes) -> Sequence[Delta]:
        if self.done:
            return ()
        try:
            event = decode_event(payload)
        except NOT_JSON:
            event = read_event(payload)
        if event.type == "content_block_delta":
            growth = event.delta or _NO_GROWTH
            text, part = growth.text, self._blocks.get(event.index)
            if text and type(part) is _Words and growth.type == "text_delta":  # nearly every event
                part.size += len(text)
                self._text.append(text)
                return (TextDelta(text),)
            return self._grow(event.index, growth)
        match event.type:
            case "content_block_start" if event.content_block is not None:
                return self._begin(event.index, event.content_block)
            case "content_block_stop":
                return self._end(event.index)
            case "message_start" if event.message is not None:
                self._hear_about(event.message)
            case "message_delta":
                self._stop = (event.delta or _NO_GROWTH).stop_reason or self._stop
                self._counts = self._counts.updated(event.usage)
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
        message = read_message(body)
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
        if not self._spoke or not (self.done or self._stop):
            raise self._cut(begun=self._spoke)
        calls = tuple(call.whole() for call in self._calls)
        thoughts = [part.whole() for part in self._parts if isinstance(part, _Thought) and part]
        note = note_of(self._steps())
        return self._reply(
            calls, [*thoughts, note] if note else thoughts, usage=self._counts.usage(), stop=_STOPS.get(self._stop)
        )

    def _hear_about(self, message: Message) -> None:
        self._spoke = True
        self._id = message.id or self._id
        self._model = message.model or self._model
        self._counts = self._counts.updated(message.usage)

    def _begin(self, index: int, block: Block) -> Sequence[Delta]:
        self._spoke = True
        match block.type:
            case "text":
                self._new(index, _Words())
                return self._grow(index, Growth(type="text_delta", text=block.text))
            case "thinking":
                self._new(index, _Thought()).signature = block.signature or ""
                return self._grow(index, Growth(type="thinking_delta", thinking=block.thinking))
            case "redacted_thinking":
                self._new(index, _Thought(block.data or ""))
                return ()
            case "tool_use":
                number = len(self._calls)
                call = self._new(index, _Call(number, block.id or "", block.name or "", _arguments(block.input)))
                self._calls.append(call)
                return (CallDelta(number, call.name, "", call.id),)
            case _:
                self._new(index, _Unknown())
                return ()

    def _grow(self, index: int, growth: Growth) -> Sequence[Delta]:
        """More of a block; one that nobody announced is what its growth says, but no call: it would lack a name."""
        part = self._blocks.get(index)
        if isinstance(part, _Unknown):
            return ()
        match growth.type:
            case "text_delta" if growth.text:
                self._spoke = True
                words = part if isinstance(part, _Words) else self._new(index, _Words())
                words.size += len(growth.text)
                self._text.append(growth.text)
                return (TextDelta(growth.text),)
            case "thinking_delta" if growth.thinking:
                self._spoke = True
                thought = part if isinstance(part, _Thought) else self._new(index, _Thought())
                thought.pieces.append(growth.thinking)
                return (ThinkingDelta(growth.thinking),)
            case "signature_delta" if growth.signature and isinstance(part, _Thought):
                part.signature = growth.signature
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

    def _new(self, index: int, part: P) -> P:
        self._blocks[index] = part
        self._parts.append(part)
        return part

    def _steps(self) -> Iterator[Step]:
        for part in self._parts:
            match part:
                case _Thought() if part:
                    yield "thought"
                case _Words(size=size) if size:
                    yield size
                case _Call():
                    yield "call"
                case _:
                    pass


def _arguments(given: msgspec.Raw) -> str:
    text = bytes(given).decode("utf-8", "replace").strip()
    return text if text.startswith("{") else "{}"
