"""Provider for the Anthropic Messages API, which several vendors of other models speak too, and its response decoder.

A response is a sequence of numbered blocks (text, thinking, calls) that begin, grow and end. Thinking comes with a
signature or as encrypted data; both are kept as they are, because the API wants them back. Unknown events, blocks and
fields are ignored: the vendor adds some every year.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ProviderError
from retinue.core.messages import CallDelta, Citation, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.ports import Request
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.net.http import Http
from retinue.providers.anthropic import API_VERSION, MESSAGES_PATH, VERSION_PATH
from retinue.providers.anthropic.request import (
    EFFORT,
    MCP_BETA,
    NOTE_SIGNATURE,
    SERVER_BLOCK,
    SERVER_USES,
    BlockOrder,
    OrderStep,
    encode,
    order_note,
    sent_options,
)
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.http_errors import stream_error
from retinue.providers.message_encoder import make_note
from retinue.providers.stream_decoder import (
    DONE,
    MAX_CITATIONS,
    MAX_USES,
    NULL,
    StreamDecoder,
    decode_counts,
    normalized_usage,
)
from retinue.providers.wire_json import as_json_object, decode_lenient, decode_or_none, repair_json

if TYPE_CHECKING:
    from retinue.providers.batch import BatchApi

_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error"}
)
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_DELTAS = frozenset({"text_delta", "thinking_delta", "signature_delta", "input_json_delta", "citations_delta"})


def _is_of_server_tool(kind: str) -> bool:
    """Whether a block is of a tool that the vendor ran: its use, its result, or a file of it."""
    if kind in _BLOCKS:
        return False
    return kind in SERVER_USES or kind.endswith("_tool_result") or kind == "container_upload"


class Container(Struct, gc=False):
    """The container in which the vendor ran programs."""

    id: str = ""


class BlockDelta(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Block(Struct, gc=False):
    """A content block (text, thinking or a call), mostly as it begins."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = NULL
    citations: msgspec.Raw = NULL


class _RareDelta(Struct, gc=False):
    """What few deltas have: a citation, or at the end the container."""

    citation: msgspec.Raw = NULL
    container: msgspec.Raw = NULL


class RawEvent(Struct, gc=False):
    """Parts of few events, or of a whole message, as they came."""

    content_block: msgspec.Raw = NULL
    content: list[msgspec.Raw] | None = None
    message: RawEvent | None = None
    delta: _RareDelta | None = None


class _Location(Struct, gc=False):
    """What a citation of any kind says of its source."""

    url: str | None = None
    source: str | None = None
    title: str | None = None
    document_title: str | None = None
    cited_text: str | None = None


class Message(Struct, gc=False):
    """A message: its beginning in a stream, or the whole of it without one."""

    type: str = ""
    id: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = NULL
    error: object = None
    container: msgspec.Raw = NULL


class Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: BlockDelta | None = None
    content_block: Block | None = None
    message: Message | None = None
    usage: msgspec.Raw = NULL
    error: object = None


class _AnyEvent(Struct, gc=False):
    """An event whose fields have unexpected types."""

    type: object = None
    index: object = None
    delta: object = None
    content_block: object = None


class _Details(Struct, gc=False):
    thinking_tokens: int | None = None


class _ServerUses(Struct, gc=False):
    web_search_requests: int | None = None
    web_fetch_requests: int | None = None


class _Written(Struct, gc=False):
    """What was written to the cache, by the time for which it is kept."""

    ephemeral_1h_input_tokens: int | None = None


class TokenCounts(Struct, gc=False):
    """Token counts so far; cached input is counted apart from the rest of the input."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _Details | None = None
    server_tool_use: _ServerUses | None = None
    cache_creation: _Written | None = None

    def updated(self, raw: msgspec.Raw) -> TokenCounts:
        """These counts with newer ones: they are sent at the beginning and again at the end, and only ever grow."""
        new = decode_counts(TokenCounts, raw)
        if new is None:
            return self
        return TokenCounts(
            _larger(self.input_tokens, new.input_tokens),
            _larger(self.output_tokens, new.output_tokens),
            _larger(self.cache_read_input_tokens, new.cache_read_input_tokens),
            _larger(self.cache_creation_input_tokens, new.cache_creation_input_tokens),
            new.output_tokens_details or self.output_tokens_details,
            new.server_tool_use or self.server_tool_use,
            new.cache_creation or self.cache_creation,
        )

    def server_tools(self) -> dict[str, int]:
        """How often the server has used each of its tools."""
        uses = self.server_tool_use
        if uses is None:
            return {}
        counted = {"web_search": uses.web_search_requests, "web_fetch": uses.web_fetch_requests}
        return {name: min(count, MAX_USES) for name, count in counted.items() if count and count > 0}

    def usage(self) -> Usage | None:
        """The usage; None if the server did not count."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        cached, written = max(0, self.cache_read_input_tokens or 0), max(0, self.cache_creation_input_tokens or 0)
        details = self.output_tokens_details
        return normalized_usage(
            max(0, self.input_tokens or 0) + written + cached,
            self.output_tokens,
            cached=cached,
            reasoning=details.thinking_tokens if details is not None else None,
            written=written,
            written_1h=None if self.cache_creation is None else self.cache_creation.ephemeral_1h_input_tokens,
        )


decode_event = msgspec.json.Decoder(Event).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_any = msgspec.json.Decoder(_AnyEvent).decode
_decode_raw = msgspec.json.Decoder(RawEvent).decode
_decode_location = msgspec.json.Decoder(_Location).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_container = msgspec.json.Decoder(Container).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_event(payload: bytes) -> Event:
    """Decode an event; raises `ProviderError` if it is unreadable."""
    if payload.strip() == DONE:  # sent by other vendors that speak this format
        return Event()
    try:
        return decode_lenient(decode_event, payload)
    except ProviderError:
        ignored = _unknown_event(repair_json(payload) or b"")
        if ignored is None:
            raise
        return ignored


def _unknown_event(payload: bytes) -> Event | None:
    """An event to ignore, if `payload` is of an unknown type or about an unknown block; otherwise None."""
    event = decode_or_none(_decode_any, payload)
    if event is None:
        return None
    kind = event.type
    if kind == "content_block_delta":
        return Event() if _is_unknown(_type_of(event.delta), _DELTAS) else None
    if kind == "content_block_start" and _is_unknown(_type_of(event.content_block), _BLOCKS):
        if not isinstance(event.index, int):
            return Event()
        return Event("content_block_start", event.index, content_block=Block("unknown"))
    return Event() if _is_unknown(kind, _EVENTS) else None


def _is_unknown(kind: object, known: frozenset[str]) -> bool:
    return isinstance(kind, str) and kind not in known


def _type_of(part: object) -> object:
    return cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((number for number in (one, other) if number is not None), default=None)


_NO_DELTA = BlockDelta()
_STOPS: dict[str, Stop | None] = {
    **dict.fromkeys(("end_turn", "stop_sequence", "tool_use", "stop")),
    **dict.fromkeys(("max_tokens", "model_context_window_exceeded"), "length"),
    "refusal": "refusal",
    "pause_turn": "pause",
}
"""Stop reasons of a complete answer (None), and of one that was cut, refused or paused."""


class _ThinkingBlock:
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

    def cut(self) -> ToolCall:
        """The call of an answer that ended within it: the empty object of its beginning is not its arguments."""
        return ToolCall(self.name, "".join(self.pieces).removeprefix("{}"), self.id)


class _TextBlock:
    """The number of characters that one block adds to the text, and its citations."""

    __slots__ = ("citations", "size")

    def __init__(self) -> None:
        self.size = 0
        self.citations: list[msgspec.Raw] = []


class _ServerBlock:
    """A block of a tool that the vendor ran, as it came; the pieces are of its input."""

    __slots__ = ("pieces", "raw")

    def __init__(self, raw: msgspec.Raw) -> None:
        self.raw = raw
        self.pieces: list[str] = []

    def finished(self) -> Thinking:
        raw = bytes(self.raw)
        if self.pieces:
            fields = decode_lenient(_decode_fields, raw)
            fields["input"] = msgspec.Raw(as_json_object("".join(self.pieces)).encode())
            raw = msgspec.json.encode(fields)
        return Thinking("", SERVER_BLOCK, raw.decode("utf-8", "replace"))


class _UnknownBlock:
    """A block that is ignored."""

    __slots__ = ()


_Part: TypeAlias = _ThinkingBlock | _CallBlock | _TextBlock | _ServerBlock | _UnknownBlock
P = TypeVar("P", _ThinkingBlock, _CallBlock, _TextBlock, _ServerBlock, _UnknownBlock)


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

    __slots__ = ("_blocks", "_calls", "_container", "_counts", "_is_cited", "_parts", "_stop")

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._calls: list[_CallBlock] = []
        self._blocks: dict[int, _Part] = {}
        self._parts: list[_Part] = []
        """The blocks in the order in which they began."""
        self._is_cited = False
        """Whether any block has citations."""
        self._stop = ""
        self._container = ""
        self._counts = TokenCounts()

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
            if type(part) is _ThinkingBlock and delta.thinking and delta.type == "thinking_delta":
                part.pieces.append(delta.thinking)
                return (ThinkingDelta(delta.thinking),)
            if type(part) is _CallBlock and delta.partial_json and delta.type == "input_json_delta":
                part.pieces.append(delta.partial_json)
                return (CallDelta(part.number, "", delta.partial_json),)
            if delta.type == "citations_delta":
                if type(part) is _TextBlock and len(part.citations) < MAX_CITATIONS:
                    part.citations.append(_rare(payload).citation)
                    self._is_cited = True
                return ()
            return self._grow(event.index, delta)
        match event.type:
            case "content_block_start" if event.content_block is not None:
                if _is_of_server_tool(event.content_block.type):
                    self._add_server_block(event.index, decode_lenient(_decode_raw, payload).content_block)
                    return ()
                return self._begin(event.index, event.content_block)
            case "content_block_stop":
                return self._end(event.index)
            case "message_start" if event.message is not None:
                return self._start(event.message, payload)
            case "message_delta":
                self._stop = (event.delta or _NO_DELTA).stop_reason or self._stop
                if _STOPS.get(self._stop) == "pause":
                    self._container = _container_id(_rare(payload).container) or self._container
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
        message = decode_lenient(_decode_message, body)
        if message.type == "error" or message.error:
            raise stream_error({"error": message.error})
        self.done = True
        if message.content is None:
            return ()
        self._stop = message.stop_reason or ""
        return self._start(message, body)

    def finish(self) -> Reply:
        if not self._begun or not (self.done or self._stop):
            raise self._cut_error(begun=self._begun)
        if self._stop and self._stop not in _STOPS:
            raise self._incomplete_error(self._stop)
        calls = tuple(call.finished() for call in self._calls)
        stop = _STOPS.get(self._stop)
        if stop == "length" and calls:
            calls = (*calls[:-1], self._calls[-1].cut())
        thinking = [
            part.finished()
            for part in self._parts
            if isinstance(part, _ServerBlock) or (isinstance(part, _ThinkingBlock) and part)
        ]
        note = self._note()
        reply = self._reply(calls, [*thinking, note] if note else thinking, usage=self.usage(), stop=stop)
        uses = self._counts.server_tools() if self._counts.server_tool_use is not None else {}
        citations = self._citations() if self._is_cited else ()
        if not uses and not citations:
            return reply
        return replace(reply, message=replace(reply.message, citations=citations), server_tools=tuple(uses.items()))

    def _note(self) -> Thinking | None:
        """The note of the order of blocks, with what else has to go back with them."""
        is_paused = _STOPS.get(self._stop) == "pause"
        if not (is_paused or self._is_cited):
            return order_note(self._steps()) if len(self._parts) > 1 else None
        kept = [part for part in self._parts if _is_step(part)]
        citations = {
            step: tuple(part.citations)
            for step, part in enumerate(kept)
            if isinstance(part, _TextBlock) and part.citations
        }
        order = BlockOrder(tuple(self._steps()), citations, is_paused, self._container if is_paused else "")
        return make_note(order, NOTE_SIGNATURE)

    def _citations(self) -> tuple[Citation, ...]:
        """The citations of all text blocks, each with the range of the block."""
        found: list[Citation] = []
        start = 0
        for part in self._parts:
            if isinstance(part, _TextBlock):
                end = start + part.size
                places = (decode_or_none(_decode_location, raw) for raw in part.citations[:MAX_CITATIONS])
                found += [
                    Citation(
                        place.url or place.source or "",
                        place.title or place.document_title or "",
                        place.cited_text or "",
                        start,
                        end,
                    )
                    for place in places
                    if place is not None
                ]
                start = end
        return tuple(found[:MAX_CITATIONS])

    def usage(self) -> Usage | None:
        return self._counts.usage()

    def _start(self, message: Message, payload: bytes) -> Sequence[Delta]:
        """Begin the message with the blocks that it has; raises `ProviderError` if another one had begun."""
        if message.id and self._id not in ("", message.id):
            raise ProviderError("a second answer began inside the stream", fault="cut", partial=self.partial)
        self._begun = True
        self._id = message.id or self._id
        self._model = message.model or self._model
        self._counts = self._counts.updated(message.usage)
        self._container = _container_id(message.container) or self._container
        if not message.content:
            return ()
        deltas: list[Delta] = []
        for index, block in enumerate(message.content):
            if _is_of_server_tool(block.type):
                whole = decode_lenient(_decode_raw, payload)
                self._add_server_block(index, ((whole.message or whole).content or ())[index])
                continue
            deltas += self._begin(index, block)
            deltas += self._end(index)
        return deltas

    def _add_server_block(self, index: int, raw: msgspec.Raw) -> None:
        self._begun = True
        self._new(index, _ServerBlock(raw))

    def _begin(self, index: int, block: Block) -> Sequence[Delta]:
        self._begun = True
        match block.type:
            case "text":
                begun = self._new(index, _TextBlock())
                if len(block.citations) > len(NULL):
                    begun.citations += decode_or_none(_decode_list, block.citations) or ()
                    self._is_cited = True
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
                self._check_calls(len(self._calls))
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
            case "input_json_delta" if delta.partial_json and isinstance(part, _ServerBlock):
                part.pieces.append(delta.partial_json)
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

    def _steps(self) -> Iterator[OrderStep]:
        for part in self._parts:
            match part:
                case _ServerBlock():
                    yield "thought"
                case _ThinkingBlock() if part:
                    yield "thought"
                case _TextBlock(size=size) if size:
                    yield size
                case _CallBlock():
                    yield "call"
                case _:
                    pass


def _rare(payload: bytes) -> _RareDelta:
    return decode_lenient(_decode_raw, payload).delta or _RareDelta()


def _container_id(raw: msgspec.Raw) -> str:
    container = decode_or_none(_decode_container, raw) if len(raw) > len(NULL) else None
    return "" if container is None else container.id


def _is_step(part: _Part) -> bool:
    """Whether a block is a step of the order."""
    match part:
        case _TextBlock(size=size):
            return size > 0
        case _ThinkingBlock():
            return bool(part)
        case _:
            return not isinstance(part, _UnknownBlock)


def _arguments(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode("utf-8", "replace").strip()
    return text if text.startswith("{") else "{}"


_VERSION_HEADER = "anthropic-version"
_BETA_HEADER = "anthropic-beta"


class AnthropicProvider(HttpProvider):
    """A provider for the Messages API at `base_url`, such as `https://api.anthropic.com`.

    `headers` may set `anthropic-version`. With `bearer`, the key is a token that is sent as `Authorization: Bearer`.
    `HttpProvider` describes the other arguments.

    >>> AnthropicProvider("https://api.anthropic.com", "ANTHROPIC_API_KEY")
    <AnthropicProvider https://api.anthropic.com>
    """

    effort_option: ClassVar[str] = EFFORT

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        bearer: bool = False,
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        headers = dict(headers or {})
        if all(name.lower() != _VERSION_HEADER for name in headers):
            headers[_VERSION_HEADER] = API_VERSION
        self._endpoint = Endpoint(
            # Other vendors' addresses end in /v1, so users write it here too.
            base_url if full_url else base_url.rstrip("/").removesuffix(VERSION_PATH),
            "" if full_url else MESSAGES_PATH,
            api_key_env=api_key_env,
            headers=headers,
            http=self._http,
            key_header="Authorization" if bearer else "x-api-key",
            key_prefix="Bearer " if bearer else "",
        )

    def headers_of(self, request: Request) -> dict[str, str]:
        betas = request.options.betas
        if any(tool.kind == "mcp" for tool in request.server_tools) and MCP_BETA not in betas:
            betas = (*betas, MCP_BETA)
        named = {_BETA_HEADER: ",".join(betas)} if betas else {}
        return {**named, **dict(request.options.extra_headers)}

    def batch_api(self, headers: dict[str, str]) -> BatchApi | None:
        from retinue.providers.batch import AnthropicBatches  # imported late: few runs wait for batches

        return None if self.info.full_url else AnthropicBatches(self._endpoint, headers)

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return sent_options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)
