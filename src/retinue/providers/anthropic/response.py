"""Response decoder of the Anthropic Messages API.

A response is a sequence of numbered blocks (text, thinking, calls) that begin, grow and end. Thinking comes with a
signature or as encrypted data; both are kept as they are, because the API wants them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from retinue.core.messages import CallDelta, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.text import NOT_JSON
from retinue.providers.anthropic.block_order import Step, order_note
from retinue.providers.anthropic.events import (
    Block,
    BlockDelta,
    Message,
    TokenCounts,
    decode_event,
    read_event,
    read_message,
)
from retinue.providers.http_errors import stream_error
from retinue.providers.stream_decoder import StreamDecoder

_NO_DELTA = BlockDelta()
_STOPS: dict[str, Stop] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class _ThinkingBlock:
    """A thinking block as far as it has arrived."""

    __slots__ = ("opaque", "pieces", "signature")

    def __init__(self, opaque: str = "") -> None:
        self.opaque = opaque
        self.pieces: list[str] = []
        self.signature = ""

    def __bool__(self) -> bool:
        return bool(self.pieces or self.signature or self.opaque)

    def finished(self) -> Thinking:
        return Thinking("".join(self.pieces), self.signature, self.opaque)


class _CallBlock:
    """A tool call as far as it has arrived; `initial` are arguments that came with its beginning."""

    __slots__ = ("id", "initial", "name", "number", "pieces")

    def __init__(self, number: int, call_id: str, name: str, initial: str) -> None:
        self.number = number
        self.id = call_id
        self.name = name
        self.initial = initial
        self.pieces: list[str] = []

    def finished(self) -> ToolCall:
        return ToolCall(self.name, "".join(self.pieces) or self.initial, self.id)


class _TextBlock:
    """The number of characters that one block adds to the text."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class _UnknownBlock:
    """A block that is ignored."""

    __slots__ = ()


_Part: TypeAlias = _ThinkingBlock | _CallBlock | _TextBlock | _UnknownBlock
P = TypeVar("P", _ThinkingBlock, _CallBlock, _TextBlock, _UnknownBlock)


class Decoder(StreamDecoder):
    """Decodes the events of one response.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}')
    ()
    >>> decoder.feed(b'{"type":"message_stop"}'), decoder.finish().message.text
    ((), 'hello')
    """

    __slots__ = ("_begun", "_blocks", "_calls", "_counts", "_parts", "_stop", "_text")

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._begun = False
        self._text: list[str] = []
        self._calls: list[_CallBlock] = []
        self._blocks: dict[int, _Part] = {}
        self._parts: list[_Part] = []
        """The blocks in the order in which they began."""
        self._stop = ""
        self._counts = TokenCounts()

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
            delta = event.delta or _NO_DELTA
            text, part = delta.text, self._blocks.get(event.index)
            if text and type(part) is _TextBlock and delta.type == "text_delta":  # nearly every event
                part.size += len(text)
                self._text.append(text)
                return (TextDelta(text),)
            return self._grow(event.index, delta)
        match event.type:
            case "content_block_start" if event.content_block is not None:
                return self._begin(event.index, event.content_block)
            case "content_block_stop":
                return self._end(event.index)
            case "message_start" if event.message is not None:
                self._add_message(event.message)
            case "message_delta":
                self._stop = (event.delta or _NO_DELTA).stop_reason or self._stop
                self._counts = self._counts.updated(event.usage)
            case "message_stop":
                self._begun = self.done = True
            case "error":
                raise stream_error({"error": event.error})
            case "" if event.error:
                raise stream_error({"error": event.error})
            case _:
                pass
        return ()

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        message = read_message(body)
        if message.type == "error" or message.error:
            raise stream_error({"error": message.error})
        self.done = True
        if message.content is None:
            return ()
        self._add_message(message)
        self._stop = message.stop_reason or ""
        deltas: list[Delta] = []
        for index, block in enumerate(message.content):
            deltas += self._begin(index, block)
            deltas += self._end(index)
        return deltas

    def finish(self) -> Reply:
        if not self._begun or not (self.done or self._stop):
            raise self._cut_error(begun=self._begun)
        calls = tuple(call.finished() for call in self._calls)
        thinking = [part.finished() for part in self._parts if isinstance(part, _ThinkingBlock) and part]
        note = order_note(self._steps())
        return self._reply(
            calls, [*thinking, note] if note else thinking, usage=self._counts.usage(), stop=_STOPS.get(self._stop)
        )

    def _add_message(self, message: Message) -> None:
        self._begun = True
        self._id = message.id or self._id
        self._model = message.model or self._model
        self._counts = self._counts.updated(message.usage)

    def _begin(self, index: int, block: Block) -> Sequence[Delta]:
        self._begun = True
        match block.type:
            case "text":
                self._new(index, _TextBlock())
                return self._grow(index, BlockDelta(type="text_delta", text=block.text))
            case "thinking":
                self._new(index, _ThinkingBlock()).signature = block.signature or ""
                return self._grow(index, BlockDelta(type="thinking_delta", thinking=block.thinking))
            case "redacted_thinking":
                self._new(index, _ThinkingBlock(block.data or ""))
                return ()
            case "tool_use":
                number = len(self._calls)
                call = self._new(index, _CallBlock(number, block.id or "", block.name or "", _arguments(block.input)))
                self._calls.append(call)
                return (CallDelta(number, call.name, "", call.id),)
            case _:
                self._new(index, _UnknownBlock())
                return ()

    def _grow(self, index: int, delta: BlockDelta) -> Sequence[Delta]:
        """Add to a block. A block without a start has the type of its delta; a call cannot, as it lacks a name."""
        part = self._blocks.get(index)
        if isinstance(part, _UnknownBlock):
            return ()
        match delta.type:
            case "text_delta" if delta.text:
                self._begun = True
                block = part if isinstance(part, _TextBlock) else self._new(index, _TextBlock())
                block.size += len(delta.text)
                self._text.append(delta.text)
                return (TextDelta(delta.text),)
            case "thinking_delta" if delta.thinking:
                self._begun = True
                block = part if isinstance(part, _ThinkingBlock) else self._new(index, _ThinkingBlock())
                block.pieces.append(delta.thinking)
                return (ThinkingDelta(delta.thinking),)
            case "signature_delta" if delta.signature and isinstance(part, _ThinkingBlock):
                part.signature = delta.signature
            case "input_json_delta" if delta.partial_json and isinstance(part, _CallBlock):
                part.pieces.append(delta.partial_json)
                return (CallDelta(part.number, "", delta.partial_json),)
            case _:
                pass
        return ()

    def _end(self, index: int) -> Sequence[Delta]:
        """End a block; a call without deltas has the arguments it began with, if only `{}`."""
        call = self._blocks.get(index)
        if not isinstance(call, _CallBlock) or call.pieces:
            return ()
        call.pieces.append(call.initial)
        return (CallDelta(call.number, "", call.initial),)

    def _new(self, index: int, part: P) -> P:
        self._blocks[index] = part
        self._parts.append(part)
        return part

    def _steps(self) -> Iterator[Step]:
        for part in self._parts:
            match part:
                case _ThinkingBlock() if part:
                    yield "thought"
                case _TextBlock(size=size) if size:
                    yield size
                case _CallBlock():
                    yield "call"
                case _:
                    pass


def _arguments(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode("utf-8", "replace").strip()
    return text if text.startswith("{") else "{}"
