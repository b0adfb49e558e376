"""Provider for the OpenAI Responses API, which OpenAI recommends for its reasoning models, and its response decoder.

A response is a list of items (reasoning, messages and calls), each announced, streamed in pieces and then repeated as a
whole. Servers differ in what of this they send and how they name it (`function_call` here is `tool_call` elsewhere);
whatever arrives first counts, every field is optional, and unknown events, items and fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ProviderError
from retinue.core.messages import CallDelta, Citation, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.ports import Publish, Request
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.http_errors import stream_error
from retinue.providers.message_encoder import make_note
from retinue.providers.openai_responses import RESPONSES_PATH
from retinue.providers.openai_responses.request import (
    EFFORT,
    MEMO,
    SEPARATOR,
    SERVER_ITEM,
    ItemOrder,
    LastReply,
    OrderStep,
    Spelling,
    encode,
    options,
)
from retinue.providers.stream_decoder import (
    EMPTY,
    MAX_CITATIONS,
    MAX_USES,
    NO_DETAILS,
    NULL,
    StreamDecoder,
    TokenDetails,
    decode_counts,
    normalized_usage,
    stated_cost,
)
from retinue.providers.wire_json import decode_lenient, decode_or_none, json_text, repair_json, unreadable_event

if TYPE_CHECKING:
    from retinue.providers.batch import BatchApi


class Event(Struct, gc=False):
    type: str = ""
    delta: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    summary_index: int | None = None
    arguments: str | dict[str, object] | None = None
    item: msgspec.Raw = NULL
    response: msgspec.Raw = NULL
    error: object = None


class EventType(Struct, gc=False):
    """The type of an event whose other fields have unexpected types."""

    type: str = ""


class Part(Struct, gc=False):
    text: str | None = None
    refusal: str | None = None
    annotations: msgspec.Raw = NULL


class _Annotation(Struct, gc=False):
    """A citation of a page, or of a file, which has one place in place of a range."""

    url: str | None = None
    title: str | None = None
    filename: str | None = None
    start_index: int | None = None
    end_index: int | None = None
    index: int | None = None


class _Action(Struct, gc=False):
    type: str = ""


class _SearchCall(Struct, gc=False):
    action: _Action | None = None


class OutputItem(Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, object] | None = None
    content: list[Part] | str | None = None
    summary: list[Part] | None = None
    phase: str | None = None


class IncompleteDetails(Struct, gc=False):
    reason: str | None = None


class Response(Struct, gc=False):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = NULL
    error: object = None
    incomplete_details: IncompleteDetails | None = None


class _Tokens(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None
    cost: msgspec.Raw = EMPTY
    cost_in_usd_ticks: int | None = None


decode_event: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode
decode_type: Callable[[bytes], EventType] = msgspec.json.Decoder(EventType).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_annotation = msgspec.json.Decoder(_Annotation).decode
_decode_search = msgspec.json.Decoder(_SearchCall).decode
_decode_item = msgspec.json.Decoder(OutputItem).decode
_decode_response = msgspec.json.Decoder(Response | None).decode


def decode_item(raw: msgspec.Raw) -> OutputItem:
    """Decode an item; raises `ProviderError` if it is unreadable."""
    return decode_lenient(_decode_item, bytes(raw))


def decode_response(body: bytes | msgspec.Raw) -> Response:
    """Decode a response, empty for null; raises `ProviderError` if it is unreadable."""
    return decode_lenient(_decode_response, bytes(body)) or Response()


def decode_usage(raw: msgspec.Raw) -> Usage | None:
    """The usage; None if the server did not count, or in an unknown format."""
    tokens = decode_counts(_Tokens, raw)
    if tokens is None:
        return None
    input_details = tokens.input_tokens_details or NO_DETAILS
    output_details = tokens.output_tokens_details or NO_DETAILS
    return normalized_usage(
        tokens.input_tokens,
        tokens.output_tokens,
        cached=input_details.cached_tokens,
        reasoning=output_details.reasoning_tokens,
        written=input_details.cache_write_tokens,
    )


def decode_cost(raw: msgspec.Raw) -> int | None:
    """The cost that a server states with its counts, in nanodollars; None if it states none."""
    tokens = decode_counts(_Tokens, raw) if b'"cost' in bytes(raw) else None
    return None if tokens is None else stated_cost(tokens.cost, tokens.cost_in_usd_ticks)


_INCOMPLETE: dict[str | None, Stop] = {
    **dict.fromkeys((None, "max_output_tokens", "max_tokens", "length"), "length"),
    "content_filter": "refusal",
}
"""Why a response is incomplete."""

NOTE_SIGNATURE = "openai-responses"
"""The signature of notes, and of reasoning without an id of the vendor's."""

ItemKind = Literal["message", "reasoning", "call", "server"]
"""`server` is an item of a tool that the vendor ran."""

_KINDS: dict[str, ItemKind] = {
    "message": "message",
    "reasoning": "reasoning",
    "function_call": "call",
    "tool_call": "call",
    **dict.fromkeys(
        (
            *("web_search_call", "file_search_call", "code_interpreter_call"),
            *("mcp_call", "mcp_list_tools", "mcp_approval_request"),
        ),
        "server",
    ),
}
_USES = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_execution",
    "mcp_call": "mcp",
}
"""The items that are uses of server tools, and the kinds of the tools."""
_LETTERS: dict[ItemKind, str] = {"reasoning": "r", "server": "r", "message": "m", "call": "c"}
_USUAL_ORDER = re.compile("r*m?c*")
"""Reasoning and server tools, then text, then calls: an order that needs no note."""

_DELTA_KINDS: dict[str, ItemKind] = {
    "response.output_text.delta": "message",
    "response.refusal.delta": "message",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "call",
    "response.tool_call_arguments.delta": "call",
}
_KNOWN_EVENTS = {
    *_DELTA_KINDS,
    "response.output_item.added",
    "response.output_item.done",
    "response.function_call_arguments.done",
    "response.tool_call_arguments.done",
    "response.created",
    "response.completed",
    "response.incomplete",
    "response.failed",
}


class _Item:
    # fmt: off
    __slots__ = (
        "annotations", "call_index", "done", "id", "kind", "lead", "name", "phase", "pieces", "raw", "summary_index",
    )
    # fmt: on

    def __init__(self, kind: ItemKind, call_index: int) -> None:
        self.kind: ItemKind = kind
        self.call_index = call_index
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.raw = ""
        self.summary_index: int | None = None
        self.lead = ""
        """What separates a message from the one before it."""
        self.phase = ""
        self.annotations: list[tuple[int, msgspec.Raw]] = []
        """The lists of annotations of a message's parts, each with the place where its part begins."""
        self.done = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, piece: str) -> Delta:
        pieces, kind = self.pieces, self.kind
        pieces.append(piece)
        if kind == "message":
            return TextDelta(self.lead + piece if len(pieces) == 1 else piece)
        return ThinkingDelta(piece) if kind == "reasoning" else CallDelta(self.call_index, "", piece)

    def step(self) -> OrderStep:
        if self.kind == "message":
            return len(self.lead) + len(self.text)
        return "call" if self.kind == "call" else "reasoning"


class Decoder(StreamDecoder):
    """Decodes the events of one response.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"type":"response.output_text.delta","delta":"hello"}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"type":"response.completed"}'), decoder.done
    ((), True)
    >>> decoder.finish().message.text, decoder.finish().usage
    ('hello', None)
    """

    # fmt: off
    __slots__ = (
        "_by_id", "_by_index", "_calls", "_has_sources", "_has_text", "_items", "_open_items", "_refused", "_stop",
        "_texts", "_usage",
    )
    # fmt: on

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_index: dict[int, _Item] = {}
        self._open_items: dict[ItemKind, list[_Item]] = {"message": [], "reasoning": [], "call": [], "server": []}
        """The items of each kind; those at the end that are done are dropped when the last open one is asked for."""
        self._calls = 0
        self._has_text = False
        self._has_sources = False
        """Whether any item has citations, or is one of the vendor's tools."""
        self._texts: dict[str, _Item] = {}
        """The messages whose text has begun, by their ids."""
        self._refused = False
        self._stop: Stop | None = None
        self._usage = NULL

    @property
    def partial(self) -> str:
        return "".join(item.lead + item.text for item in self._items if item.kind == "message" and item.pieces)

    def feed(self, payload: bytes) -> Sequence[Delta]:
        if self.done:
            return ()
        try:
            event = decode_event(payload)
        except NOT_JSON:
            event = self._decode_unusual(payload)
            if event is None:
                self.done = self.done and bool(self._items)  # an end mark before any item does not count
                return ()
        if event.type == "response.output_text.delta" and event.delta:  # nearly every event
            item = self._texts.get(event.item_id or "")
            if item is not None:
                item.pieces.append(event.delta)
                return (TextDelta(event.delta),)
        kind = _DELTA_KINDS.get(event.type)
        if kind is not None:
            return self._add_piece(kind, event)
        match event.type:
            case "response.output_item.added":
                return self._add_announced(event)
            case "response.output_item.done":
                return self._add_whole(event.item, event.output_index)
            case "response.function_call_arguments.done" | "response.tool_call_arguments.done":
                return self._set_arguments(self._item_of("call", event), json_text(event.arguments))
            case "response.created":
                self._begin(decode_response(event.response))
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._end(decode_response(event.response), event.type.removeprefix("response."))
            case "" | "error":
                if event.error or event.type:
                    raise stream_error(msgspec.json.decode(repair_json(payload) or b"null"))
            case _:
                pass
        return ()

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        response = decode_response(body)
        if response.output is None and not response.error:
            raise unreadable_event(body, is_json=True)
        return self._end(response, "failed" if response.error else response.status or "completed")

    def finish(self) -> Reply:
        if not self.done:
            raise self._cut_error(begun=bool(self._items))
        calls = tuple(ToolCall(item.name, item.text, item.id) for item in self._items if item.kind == "call")
        stop = "refusal" if self._refused else self._stop
        reply = self._reply(calls, tuple(self._thinking()), usage=self.usage(), stop=stop)
        if (cost := self.cost()) is not None:
            reply = replace(reply, cost=cost)
        if not self._has_sources:
            return reply
        citations, uses = self._citations(), self._uses()
        return replace(reply, message=replace(reply.message, citations=citations), server_tools=tuple(uses.items()))

    def _citations(self) -> tuple[Citation, ...]:
        found: list[Citation] = []
        start = 0
        for item in self._items:
            if item.kind == "message" and item.pieces:
                start += len(item.lead)
                for place, annotations in item.annotations:
                    found += _citations_in(annotations, start + place)
                start += len(item.text)
        return tuple(found[:MAX_CITATIONS])

    def _uses(self) -> dict[str, int]:
        """How often the server has used each of its tools; opening a page that was found is no search."""
        uses: dict[str, int] = {}
        for item in self._items:
            kind = _USES.get(item.name) if item.kind == "server" else None
            if kind is None or (kind == "web_search" and _is_page_visit(item.raw)):
                continue
            uses[kind] = min(uses.get(kind, 0) + 1, MAX_USES)
        return uses

    def usage(self) -> Usage | None:
        return decode_usage(self._usage)

    def cost(self) -> int | None:
        return decode_cost(self._usage)

    def _decode_unusual(self, payload: bytes) -> Event | None:
        """Decode data that is damaged JSON, or an event of an unknown type."""
        try:
            return self._decode_damaged(decode_event, payload, is_complete=False)
        except ProviderError:
            known = decode_or_none(decode_type, repair_json(payload) or b"")
            if known is None or not known.type or known.type in _KNOWN_EVENTS:
                raise
            return Event(known.type)  # an unknown type, to be ignored

    # ---- the beginning and the end ----------------------------------------------------------------------------------

    def _begin(self, response: Response) -> None:
        self._id = response.id or self._id
        self._model = response.model or self._model

    def _end(self, response: Response, status: str) -> Sequence[Delta]:
        self._begin(response)
        self._usage = response.usage
        if status in ("failed", "cancelled"):
            if response.error:
                raise stream_error({"error": response.error})
            raise ProviderError("the server gave up in the middle of the answer", fault="overloaded", busy=False)
        deltas: list[Delta] = []
        streamed = bool(self._items)
        for index, raw in enumerate(response.output or ()):
            item = self._by_index.get(index)
            if not streamed or (item is not None and not item.done):
                deltas += self._add_whole(raw, index)
        if status == "incomplete":
            reason = (response.incomplete_details or IncompleteDetails()).reason
            if reason not in _INCOMPLETE:
                raise self._incomplete_error(str(reason))
            self._stop = _INCOMPLETE[reason]
        elif status != "completed":
            raise self._incomplete_error(status)
        self.done = True
        return tuple(deltas)

    # ---- items ------------------------------------------------------------------------------------------------------

    def _add_piece(self, kind: ItemKind, event: Event) -> Sequence[Delta]:
        piece = event.delta
        if not piece:
            return ()
        item = self._item_of(kind, event)
        if kind == "message":
            if event.type == "response.refusal.delta":
                self._refused = True
            elif event.item_id:
                self._texts[event.item_id] = item
            return (self._add_to(item, piece),)
        if item.done:
            return ()
        if kind == "reasoning":
            if item.pieces and event.summary_index != item.summary_index:
                piece = "\n\n" + piece  # a summary has several parts
            item.summary_index = event.summary_index
        return (item.add(piece),)

    def _add_to(self, item: _Item, piece: str) -> Delta:
        if item.kind == "message" and not item.pieces:
            item.lead = SEPARATOR if self._has_text else ""
            self._has_text = True
        return item.add(piece)

    def _add_announced(self, event: Event) -> Sequence[Delta]:
        output = decode_item(event.item)
        kind = _KINDS.get(output.type)
        if kind is None or kind == "server":  # which counts when it is whole
            return ()
        ids = (output.id, output.call_id)
        # The index is not used here: some servers give every item the same.
        item = self._by_ids(kind, ids)
        if item is None or item.done:
            item = self._new(kind, ids, event.output_index)
        item.phase = output.phase or item.phase
        return self._set_name(item, output) if kind == "call" else ()

    def _add_whole(self, raw: msgspec.Raw, index: int | None) -> Sequence[Delta]:
        """Add an item that was sent as a whole, or what it adds to the streamed one."""
        output = decode_item(raw)
        kind = _KINDS.get(output.type)
        if kind is None:
            return ()
        ids = (output.id, output.call_id)
        item = self._by_ids(kind, ids)
        if item is None:
            item = self._at(kind, index) or (None if any(ids) and index is not None else self._open(kind))
            if item is None or item.done:
                item = self._new(kind, ids, index)
        if item.done:
            return ()
        item.done = True
        item.phase = output.phase or item.phase
        match kind:
            case "call":
                return (*self._set_name(item, output), *self._set_arguments(item, json_text(output.arguments)))
            case "message":
                parts = [Part(output.content)] if isinstance(output.content, str) else output.content or []
                self._refused = self._refused or any(part.refusal for part in parts)
                place = 0
                for part in parts:
                    if len(part.annotations) > len(b"[]"):
                        item.annotations.append((place, part.annotations))
                        self._has_sources = True
                    place += len(part.text or part.refusal or "")
                text = "".join(part.text or part.refusal or "" for part in parts)
            case "reasoning":
                item.id, item.raw = output.id or "", bytes(raw).decode("utf-8", "replace")
                parts = output.summary or (output.content if isinstance(output.content, list) else None) or []
                text = "\n\n".join(part.text for part in parts if part.text)
            case "server":
                item.id, item.raw = output.id or "", bytes(raw).decode("utf-8", "replace")
                item.name = output.type
                self._has_sources = True
                return ()
        return self._complete_text(item, text)

    def _complete_text(self, item: _Item, text: str) -> Sequence[Delta]:
        """Add what a whole item has and its deltas had not; a text that the deltas contradict wins if it is longer."""
        streamed = item.text
        if len(text) <= len(streamed):
            return ()
        if text.startswith(streamed):
            return (self._add_to(item, text[len(streamed) :]),)
        item.pieces[:] = [text]
        return ()

    def _set_name(self, item: _Item, output: OutputItem) -> Sequence[Delta]:
        item.id = output.call_id or output.id or item.id
        if item.name or not output.name:
            return ()
        item.name = output.name
        return (CallDelta(item.call_index, item.name, "", item.id),)

    def _set_arguments(self, item: _Item, arguments: str) -> Sequence[Delta]:
        """Set the arguments of a call, whatever was streamed before; the rest of them is published."""
        if not arguments:
            return ()
        before = item.text
        if arguments == before:
            return ()
        item.pieces[:] = [arguments]
        rest = arguments[len(before) :] if arguments.startswith(before) else ""
        return (CallDelta(item.call_index, "", rest),) if rest else ()

    def _item_of(self, kind: ItemKind, event: Event) -> _Item:
        item = self._by_id.get(event.item_id or "")
        if item is not None and item.kind == kind:  # nearly always
            return item
        item = self._at(kind, event.output_index) or self._open(kind)
        return item or self._new(kind, (event.item_id,), event.output_index)

    def _by_ids(self, kind: ItemKind, ids: Iterable[str | None]) -> _Item | None:
        items = (self._by_id.get(item_id) for item_id in ids if item_id)
        return next((item for item in items if item is not None and item.kind == kind), None)

    def _at(self, kind: ItemKind, index: int | None) -> _Item | None:
        item = None if index is None else self._by_index.get(index)
        return item if item is not None and item.kind == kind else None

    def _open(self, kind: ItemKind) -> _Item | None:
        items = self._open_items[kind]
        while items and items[-1].done:
            items.pop()
        return items[-1] if items else None

    def _new(self, kind: ItemKind, ids: Iterable[str | None], index: int | None) -> _Item:
        item = _Item(kind, self._calls)
        self._calls += kind == "call"
        self._check_calls(self._calls)
        self._items.append(item)
        self._open_items[kind].append(item)
        for item_id in ids:
            if item_id:
                self._by_id[item_id] = item
                self._texts.pop(item_id, None)
        if index is not None:
            self._by_index[index] = item
        return item

    def _thinking(self) -> Iterator[Thinking]:
        """Thinking blocks, each with its id and the item as it came, and a note of an unusual order."""
        for item in self._items:
            if item.kind == "server" and item.raw:
                yield Thinking("", SERVER_ITEM, item.raw)
            elif item.kind == "reasoning" and (item.raw or item.pieces):
                yield Thinking(item.text, item.id or NOTE_SIGNATURE if item.raw else "", item.raw)
        kept = [
            item for item in self._items if item.kind == "call" or item.raw or (item.kind == "message" and item.pieces)
        ]
        if any(item.phase for item in kept) or not _USUAL_ORDER.fullmatch(
            "".join(_LETTERS[item.kind] for item in kept)
        ):
            phases = tuple(item.phase for item in kept if item.kind == "message")
            steps: tuple[OrderStep, ...] = tuple(item.step() for item in kept)
            separator = SEPARATOR if len(phases) > 1 else ""
            yield make_note(ItemOrder(steps, phases if any(phases) else (), separator), NOTE_SIGNATURE)


def _citations_in(annotations: msgspec.Raw, start: int) -> Iterator[Citation]:
    """The citations in the annotations of a part that begins at `start`."""
    for raw in (decode_or_none(_decode_list, annotations) or ())[:MAX_CITATIONS]:
        found = decode_or_none(_decode_annotation, raw)
        if found is None or not (found.url or found.filename):
            continue
        first = found.start_index if found.start_index is not None else found.index or 0
        last = found.end_index if found.end_index is not None else first
        begin = start + max(0, first)
        yield Citation(found.url or "", found.title or found.filename or "", "", begin, max(begin, start + last))


def _is_page_visit(raw: str) -> bool:
    found = decode_or_none(_decode_search, raw)
    return found is not None and found.action is not None and found.action.type not in ("", "search")


Continuation: TypeAlias = Literal["whole", "previous"]
"""What each request carries: the whole conversation, or the id of the previous response and what is new."""

LAST_REPLY = "openai_responses.last"
"""The key of the last reply in a request's memo."""


class OpenAIResponsesProvider(HttpProvider):
    """A provider for responses at `base_url`, such as `https://api.openai.com/v1`.

    Each request carries the whole conversation, and the vendor stores nothing. With `continues="previous"` it carries
    the id of the last response and what came after it, as long as this process made that request and the server knows
    the id; otherwise the whole conversation again. Tool calls and results are read in either spelling, and written as
    OpenAI does, or with `spelling="tool_call"` as `tool_call` and `tool_result`. With `explicit`, requests state the
    reasoning effort even if the caller set none, and with `cache_key` they have a `prompt_cache_key`. `HttpProvider`
    describes the other arguments.

    >>> OpenAIResponsesProvider("https://api.openai.com/v1", "OPENAI_API_KEY")
    <OpenAIResponsesProvider https://api.openai.com/v1>
    """

    effort_option: ClassVar[str] = EFFORT

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        spelling: Spelling = "function_call",
        continues: Continuation = "whole",
        explicit: bool = False,
        cache_key: bool = False,
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._cache_key = cache_key
        self._spelling: Spelling = spelling
        self._continues: Continuation = continues
        self._explicit = explicit
        path = "" if full_url else RESPONSES_PATH
        self._endpoint = Endpoint(base_url, path, api_key_env=api_key_env, headers=headers or {}, http=self._http)

    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await super().answer(request, publish)
        if self._continues == "previous" and reply.response_id:
            request.memo[LAST_REPLY] = LastReply(reply.response_id, reply.message, request.memo.get(MEMO))
        return reply

    def batch_api(self, headers: dict[str, str]) -> BatchApi | None:
        from retinue.providers.batch import OpenAIBatches  # imported late: few runs wait for batches

        return None if self.info.full_url else OpenAIBatches(self._endpoint, headers, path=RESPONSES_PATH)

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(
            request,
            spelling=self._spelling,
            explicit=self._explicit,
            last=self._last_reply(request),
            cache_key=self._cache_key,
            unsupported=unsupported,
        )

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return options(
            request,
            unsupported,
            explicit=self._explicit,
            last=self._last_reply(request),
            cache_key=self._cache_key,
        )

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    def _last_reply(self, request: Request) -> LastReply | None:
        last = request.memo.get(LAST_REPLY)
        return last if isinstance(last, LastReply) else None
