"""Provider for the OpenAI Chat Completions API, which most vendors and local servers speak too, and its decoder.

Many servers deviate from the format: ids that are missing or repeat, calls without an index or all with the same one,
whole calls in one event, reasoning in fields of various names, no usage, no finish reason. The decoder accepts all of
these and ignores unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ProviderError
from retinue.core.messages import CallDelta, Citation, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.ports import Request
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.http_errors import ErrorResponse, stream_error
from retinue.providers.message_encoder import make_note
from retinue.providers.openai_chat import COMPLETIONS_PATH
from retinue.providers.openai_chat.quirks import EFFORT, OPENAI, ChatQuirks
from retinue.providers.openai_chat.reasoning import ThinkTags, block_text, merged_blocks
from retinue.providers.openai_chat.request import (
    CALL_IDS,
    NOTE_SIGNATURE,
    REASONING_FIELDS,
    ROLE_ORDER,
    LongestReply,
    SentReasoning,
    encode,
    encoder_of,
    options,
)
from retinue.providers.stream_decoder import (
    DONE,
    EMPTY,
    MAX_CITATIONS,
    NO_DETAILS,
    NULL,
    StreamDecoder,
    TokenDetails,
    decode_counts,
    normalized_usage,
    stated_cost,
)
from retinue.providers.wire_json import decode_or_none, json_text

if TYPE_CHECKING:
    from retinue.providers.batch import BatchApi

_STOPS: dict[str, Stop | None] = {
    **dict.fromkeys(("stop", "tool_calls", "function_call", "eos", "eos_token", "end", "complete", "completed")),
    **dict.fromkeys(("end_turn", "stop_sequence", "tool_use", "tool_call")),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), "length"),
    **dict.fromkeys(("content_filter", "refusal", "sensitive", "safety"), "refusal"),
}
"""Finish reasons of a complete answer (None), and of one that was cut or refused; servers vary in spelling."""

_GAVE_UP = frozenset({"error", "network_error", "insufficient_system_resource"})
"""Finish reasons of servers that failed or had no capacity in the middle of an answer."""

_NULL_BYTES = len(b"null")

# ---- events ---------------------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


_NO_FUNCTION = _Function()


class _CallPart(Struct, gc=False):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None
    extra_content: msgspec.Raw = EMPTY


class _Part(Struct, gc=False):
    text: str | None = None
    thinking: str | list[_Part] | None = None


class _ChoiceMessage(Struct, gc=False):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPart] | None = None
    reasoning_details: msgspec.Raw = EMPTY
    thinking_blocks: msgspec.Raw = EMPTY
    annotations: object = None
    executed_tools: object = None


class _Choice(Struct, gc=False):
    delta: _ChoiceMessage | None = None
    message: _ChoiceMessage | None = None
    finish_reason: str | None = None
    index: int | None = 0


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = NULL
    error: object = None


class _FirstChunk(_Chunk, gc=False):
    id: str | None = None
    model: str | None = None


class _Tokens(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    num_cached_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cost: msgspec.Raw = EMPTY
    cost_in_usd_ticks: int | None = None


def _cost(tokens: _Tokens | None) -> int | None:
    return None if tokens is None else stated_cost(tokens.cost, tokens.cost_in_usd_ticks)


class _CountedChoice(Struct, gc=False):
    usage: msgspec.Raw = NULL


class _LastChunk(Struct, gc=False):
    """The event with the finish reason, where some servers put their counts: Moonshot in the choice, Groq apart."""

    choices: list[_CountedChoice] | None = None
    x_groq: _CountedChoice | None = None


class _UrlCitation(Struct, gc=False):
    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _Annotation(Struct, gc=False):
    url_citation: _UrlCitation | None = None


class _Source(Struct, gc=False):
    url: str | None = None
    title: str | None = None


class _Found(Struct, gc=False):
    results: list[_Source] | None = None


class _ExecutedTool(Struct, gc=False):
    """A tool that Groq ran; it may come twice, at first without results."""

    index: int | None = None
    type: str | None = None
    search_results: _Found | None = None
    browser_results: list[_Source] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_first = msgspec.json.Decoder(_FirstChunk).decode
_decode_last = msgspec.json.Decoder(_LastChunk).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_CALL_ID = re.compile(r"\btool[ _]call[ _]id\b|\btool_calls(?:\[\d+\])?\.id\b", re.IGNORECASE)

_ROLE_ORDER = re.compile(r"unexpected role .?user.? after role|roles must alternate", re.IGNORECASE)


MAX_EXAMINED = 16 * 1024 * 1024
"""How many characters of arguments are decoded in one reply to find out where calls end."""

# ---- the decoder ----------------------------------------------------------------------------------------------------


class _Call:
    __slots__ = ("id", "index", "name", "pieces", "size")

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.index = index
        self.id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.size = 0
        """The characters of the arguments."""

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def is_complete(self) -> bool:
        """Whether the arguments are a complete JSON object, so that nothing can follow."""
        return self.ends_like_an_object() and decode_or_none(_decode_object, self.arguments) is not None

    def is_named_in_pieces(self, call_id: str, name: str, in_event: set[int]) -> bool:
        """Whether `name` is the next piece of this call's name: nothing else of it came yet, and nothing repeats it."""
        return bool(name and self.name) and not (self.pieces or call_id or name == self.name or self.index in in_event)

    def ends_like_an_object(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].rstrip().endswith("}")


class Decoder(StreamDecoder):
    """Decodes the events of one response.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"choices":[{"delta":{"content":"hello"}}]}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"choices":[{"delta":{},"finish_reason":"stop"}]}'), decoder.feed(b"[DONE]")
    ((), ())
    >>> decoder.finish().message.text, decoder.finish().usage
    ('hello', None)
    """

    # fmt: off
    __slots__ = (
        "_annotations", "_blocks", "_by_id", "_by_index", "_calls", "_details", "_examined", "_executed", "_extras",
        "_field", "_last", "_refused", "_stop", "_tags", "_thinking", "_usage",
    )
    # fmt: on

    def __init__(self, *, model: str = "", think_tags: bool = False) -> None:
        super().__init__(model=model)
        self._thinking: list[str] = []
        self._tags = ThinkTags() if think_tags else None
        """Present until the text of the answer has begun, if its thinking may come in tags."""
        self._field = ""
        """The field in which the server sends thinking as text."""
        self._annotations: list[object] = []
        self._executed: list[object] = []
        """The tools that the vendor has run, as they came with each event."""
        self._details: list[bytes] = []
        self._blocks: list[bytes] = []
        """The lists of reasoning details and of thinking blocks, as they came with each event."""
        self._calls: list[_Call] = []
        self._extras: dict[int, msgspec.Raw] = {}
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._examined = 0
        """How many characters of arguments were looked at to tell whether a call is complete."""
        self._refused = False
        self._stop = ""
        self._last = b""
        """The event with the finish reason."""
        self._usage = NULL

    def feed(self, payload: bytes) -> Sequence[Delta]:
        if self.done:
            return ()
        if payload == DONE:  # not decoded: an error of the decoder costs more than an event
            self.done = True
            return ()
        try:
            chunk = _decode(payload) if self._id else self._begin(_decode_first(payload))
        except NOT_JSON:
            chunk = self._decode_damaged(_decode, payload, is_complete=bool(self._stop))
            if chunk is None:
                return ()
        usage = chunk.usage
        if usage is not NULL and len(usage) > _NULL_BYTES:
            self._usage = usage
        choices = chunk.choices
        if not choices or choices[0].index:  # the request asked for one choice
            _check_error(chunk)
            return ()
        choice = choices[0]
        if choice.finish_reason:
            self._stop, self._last = choice.finish_reason, payload
            _check_error(chunk)
        message = choice.delta
        if message is None and (self._begun or self._text or (message := choice.message) is None):
            _check_error(chunk)
            self._begun = True
            return ()
        text, calls, thinking = message.content, message.tool_calls, message.reasoning_content
        has_more = message.reasoning or message.refusal or message.annotations or message.executed_tools
        is_plain = text and not (calls or thinking or has_more or message.reasoning_details)
        if is_plain and self._tags is None and type(text) is str:  # nearly every event
            self._text.append(text)
            return (TextDelta(text),)
        if chunk.error:
            raise stream_error({"error": chunk.error})
        self._begun = True
        if not text:  # most other events have a piece of thinking or of calls, and nothing else
            is_usual = not (has_more or message.reasoning_details or message.thinking_blocks)
            if is_usual and thinking and not calls:
                self._field = REASONING_FIELDS[0]
                self._thinking.append(thinking)
                return (ThinkingDelta(thinking),)
            if is_usual and not thinking:
                return self._add_calls(calls) if calls else ()
        return tuple(self._add(message))

    def finish(self) -> Reply:
        begun = self._begun or bool(self._text)
        if not begun or not (self.done or self._stop):
            raise self._cut_error(begun=begun)
        stop = self._stop.lower()
        if stop in _GAVE_UP:
            reason = "" if stop == "error" else f" ({self._stop})"
            raise ProviderError(
                f"the server gave up in the middle of the answer{reason}", fault="overloaded", busy=False
            )
        if stop and stop not in _STOPS:
            raise self._incomplete_error(self._stop)
        if self._tags is not None:
            for pieces, rest in zip((self._thinking, self._text), self._tags.rest(), strict=True):
                if rest:
                    pieces.append(rest)
        calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in self._calls)
        tokens = self._tokens()
        reply = self._reply(
            calls,
            self._noted_thinking(),
            usage=_usage(tokens),
            stop="refusal" if self._refused else _STOPS.get(stop),
        )
        if self._annotations or self._executed:
            executed = _executed_tools(self._executed)
            found = dict.fromkeys((*_citations(self._annotations), *_sources(executed)))
            citations = tuple(islice(found, MAX_CITATIONS))
            reply = replace(reply, message=replace(reply.message, citations=citations), server_tools=_uses(executed))
        cost = _cost(tokens)
        return reply if cost is None else replace(reply, cost=cost)

    def usage(self) -> Usage | None:
        return _usage(self._tokens())

    def cost(self) -> int | None:
        return _cost(self._tokens())

    def _tokens(self) -> _Tokens | None:
        """The counts of the server, from wherever it puts them."""
        if self._usage is NULL and self._last:
            last = decode_or_none(_decode_last, self._last) or _LastChunk()
            counted = (*(last.choices or ())[:1], *((last.x_groq,) if last.x_groq else ()))
            self._usage = next((each.usage for each in counted if len(each.usage) > len(NULL)), NULL)
        return decode_counts(_Tokens, self._usage)

    def _noted_thinking(self) -> tuple[Thinking, ...]:
        """The thinking, with a note of the form in which the server sent it."""
        text = "".join(self._thinking)
        if not (self._field or self._details or self._blocks or self._extras):
            return (Thinking(text),) if text else ()
        sent = SentReasoning(self._field, merged_blocks(self._details), merged_blocks(self._blocks), self._extras)
        return (make_note(sent, NOTE_SIGNATURE, text),)

    def _begin(self, chunk: _FirstChunk) -> _Chunk:
        self._id = chunk.id or ""
        self._model = chunk.model or self._model
        return chunk

    def _add(self, message: _ChoiceMessage) -> list[Delta]:
        """Add thinking, text and calls, in this order, which is the one in which models produce them."""
        deltas: list[Delta] = []
        thinking, text = message.reasoning_content or message.reasoning or "", ""
        if thinking:
            self._field = REASONING_FIELDS[0 if message.reasoning_content else 1]
        if message.reasoning_details or message.thinking_blocks:
            thinking += self._collect_blocks(message)
        if isinstance(message.content, str):
            text = message.content
        elif message.content:
            thinking += "".join(_thinking_text(part) for part in message.content)
            text = "".join(part.text or "" for part in message.content)
        if self._tags is not None and text:
            tagged, text = self._tags.feed(text)
            thinking += tagged
            if self._tags.is_done:
                self._tags = None
        if message.annotations:
            self._annotations.append(message.annotations)
        if message.executed_tools:
            self._executed.append(message.executed_tools)
        if message.refusal:
            self._refused = True
            text += message.refusal
        if thinking:
            self._thinking.append(thinking)
            deltas.append(ThinkingDelta(thinking))
        if text:
            self._text.append(text)
            deltas.append(TextDelta(text))
        if message.tool_calls:
            deltas += self._add_calls(message.tool_calls)
        return deltas

    def _add_calls(self, parts: Sequence[_CallPart]) -> Sequence[Delta]:
        in_event: set[int] = set()
        if len(parts) == 1:
            delta = self._add_call(parts[0], in_event)
            return (delta,) if delta.name or delta.arguments else ()
        deltas = [self._add_call(part, in_event) for part in parts]
        return tuple(delta for delta in deltas if delta.name or delta.arguments)

    def _collect_blocks(self, message: _ChoiceMessage) -> str:
        """Keep the blocks of an event; returns their text, unless the server sends it in a field of its own as well."""
        text = ""
        for raw, collected in ((message.reasoning_details, self._details), (message.thinking_blocks, self._blocks)):
            if len(raw) > len(NULL):  # not null, and no empty list
                collected.append(bytes(raw))
                text += "" if self._field else block_text(collected[-1])
        return text

    def _add_call(self, part: _CallPart, in_event: set[int]) -> CallDelta:
        """Add a piece of a call; `in_event` are the indexes of the calls that this event has had before."""
        function = part.function or _NO_FUNCTION
        call_id, name, piece = (
            "" if part.id is None else str(part.id),
            function.name or "",
            json_text(function.arguments),
        )
        call = self._find_call(part.index, call_id, in_event)
        if name and call is not None and part.index is not None and call.is_named_in_pieces(call_id, name, in_event):
            call.name += name
            in_event.add(call.index)
            return CallDelta(call.index, name, "")
        begins = call is None or (bool(name) and self._is_new_call(call, call_id, name, piece, in_event))
        if call is None or begins:
            call = _Call(len(self._calls), call_id, name)
            self._calls.append(call)
            self._check_calls(len(self._calls))
        else:
            call.id = call.id or call_id
            begins = bool(name) and not call.name
            call.name = call.name or name
        if part.index is not None:
            self._by_index[part.index] = call
        if call_id:
            self._by_id[call_id] = call
        in_event.add(call.index)
        if part.extra_content:
            self._extras[call.index] = part.extra_content
        if piece:
            call.add(piece)
        return CallDelta(call.index, name if begins else "", piece, call.id if begins else "")

    def _find_call(self, index: int | None, call_id: str, in_event: set[int]) -> _Call | None:
        if index is not None:
            return self._by_index.get(index)
        if call_id:
            return self._by_id.get(call_id)
        return self._calls[-1] if self._calls and not in_event else None

    def _is_new_call(self, call: _Call, call_id: str, name: str, piece: str, in_event: set[int]) -> bool:
        """Whether a piece with a name begins a new call, although its index or id is that of `call`.

        Some servers repeat name and id with every piece, others give every call the same index or id.
        """
        is_other = (call_id and call.id and call_id != call.id) or (call.name and call.name != name)
        if is_other or call.index in in_event:
            return True
        if not piece.lstrip().startswith("{") or not call.ends_like_an_object():
            return False
        # All of the arguments are decoded for each such piece; in a reply that has very many, the rest belongs to the
        # call that it names.
        self._examined += call.size
        return self._examined <= MAX_EXAMINED and call.is_complete()


def _check_error(chunk: _Chunk) -> None:
    if chunk.error:
        raise stream_error({"error": chunk.error})


def _thinking_text(part: _Part) -> str:
    if isinstance(part.thinking, str):
        return part.thinking
    return "".join(inner.text or "" for inner in part.thinking or ())


def _usage(tokens: _Tokens | None) -> Usage | None:
    """The usage; None if the server did not count, or in an unknown format."""
    if tokens is None:
        return None
    prompt, completion = tokens.prompt_tokens, tokens.completion_tokens
    prompt_details = tokens.prompt_tokens_details or NO_DETAILS
    reasoning = (tokens.completion_tokens_details or NO_DETAILS).reasoning_tokens or 0
    if reasoning > 0 and tokens.total_tokens == (prompt or 0) + (completion or 0) + reasoning:
        completion = (completion or 0) + reasoning  # a vendor that counts reasoning apart from the rest of the output
    return normalized_usage(
        prompt,
        completion,
        cached=prompt_details.cached_tokens or tokens.prompt_cache_hit_tokens or tokens.num_cached_tokens,
        reasoning=reasoning,
        written=prompt_details.cache_write_tokens or tokens.cache_creation_input_tokens,
    )


def _rejects_role_order(error: ProviderError) -> bool:
    """Whether the server takes no user message after the result of a call."""
    return isinstance(error, ErrorResponse) and _ROLE_ORDER.search(error.server_message) is not None


def _rejects_call_ids(error: ProviderError) -> bool:
    """Whether a server rejects the ids of calls, because of their length or characters.

    >>> _rejects_call_ids(ErrorResponse("Tool call id was x but must be a-z", fault="bad_request", status=400))
    True
    """
    if not isinstance(error, ErrorResponse) or error.status not in (400, 422):
        return False
    return _CALL_ID.search(f"{error.param} {error.server_message}") is not None


class OpenAIChatProvider(HttpProvider):
    """A provider for chat completions at `base_url`, such as `https://api.openai.com/v1`.

    Thinking goes back in the form in which the server sent it, unless the server rejects that. With `sends_reasoning`,
    thinking that came from elsewhere is sent back too, together with the calls of its reply. With `explicit`, requests
    to reasoning models state their defaults: text as the output format, and the reasoning effort. `quirks` are those of
    the server, and with `cache_key` requests have a `prompt_cache_key`. `longest_reply` knows the longest replies of
    models. The key is sent in `key_header`, after `key_prefix`. `HttpProvider` describes the other arguments.

    >>> OpenAIChatProvider("http://localhost:11434/v1")
    <OpenAIChatProvider http://localhost:11434/v1>
    """

    effort_option: ClassVar[str] = EFFORT

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        sends_reasoning: bool = False,
        explicit: bool = False,
        quirks: ChatQuirks = OPENAI,
        cache_key: bool = False,
        longest_reply: LongestReply | None = None,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._longest_reply = longest_reply
        self._sends_reasoning = sends_reasoning
        self._explicit = explicit
        self._quirks = quirks
        self._cache_key = cache_key
        path = "" if full_url else COMPLETIONS_PATH
        self._endpoint = Endpoint(
            base_url,
            path,
            api_key_env=api_key_env,
            headers=headers or {},
            http=self._http,
            key_header=key_header,
            key_prefix=key_prefix,
        )

    def batch_api(self, headers: dict[str, str]) -> BatchApi | None:
        from retinue.providers.batch import OpenAIBatches  # imported late: few runs wait for batches

        return None if self.info.full_url else OpenAIBatches(self._endpoint, headers, path=COMPLETIONS_PATH)

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(
            request,
            sends_reasoning=self._sends_reasoning,
            explicit=self._explicit,
            quirks=self._quirks,
            cache_key=self._cache_key,
            longest_reply=self._longest_reply,
            unsupported=unsupported,
        )

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        encoder = encoder_of(request, unsupported, sends_reasoning=self._sends_reasoning, explicit=self._explicit)
        own = options(
            request,
            unsupported,
            explicit=self._explicit,
            quirks=self._quirks,
            cache_key=self._cache_key,
            longest_reply=self._longest_reply,
        )
        return own | encoder.sent

    def rejected(self, request: Request, unsupported: Collection[str], error: ProviderError) -> str | None:
        for rejects, part in ((_rejects_call_ids, CALL_IDS), (_rejects_role_order, ROLE_ORDER)):
            if rejects(error) and part in self.options(request, unsupported):
                self._unsupported.add(request.model, part)
                return part
        return super().rejected(request, unsupported, error)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model, think_tags=self._quirks.think_tags)


def _executed_tools(events: Sequence[object]) -> list[_ExecutedTool]:
    """The tools that a vendor has run, each in its last form."""
    executed: dict[int, _ExecutedTool] = {}
    for each in events[:MAX_CITATIONS]:
        try:
            tools = msgspec.convert(each, list[_ExecutedTool])
        except msgspec.ValidationError:
            continue
        for tool in tools[:MAX_CITATIONS]:
            executed[len(executed) if tool.index is None else tool.index] = tool
    return list(executed.values())


def _sources(executed: Sequence[_ExecutedTool]) -> Iterator[Citation]:
    """What the vendor's searches have found, which belongs to the answer as a whole."""
    for tool in executed:
        found = tool.search_results.results if tool.search_results is not None else None
        for source in (*(found or ())[:MAX_CITATIONS], *(tool.browser_results or ())[:MAX_CITATIONS]):
            if source.url:
                yield Citation(source.url, source.title or "")


def _uses(executed: Sequence[_ExecutedTool]) -> tuple[tuple[str, int], ...]:
    """How often each kind of tool was used."""
    searches = sum("search" in (tool.type or "") or "browser" in (tool.type or "") for tool in executed)
    programs = sum("code" in (tool.type or "") or "python" in (tool.type or "") for tool in executed)
    return tuple((name, uses) for name, uses in (("web_search", searches), ("code_execution", programs)) if uses)


def _citations(annotations: Sequence[object]) -> Iterator[Citation]:
    """The citations of an answer, each once: a server may repeat those of earlier events."""
    seen: set[Citation] = set()
    for each in annotations[:MAX_CITATIONS]:
        try:
            found = msgspec.convert(each, list[_Annotation])
        except msgspec.ValidationError:
            continue
        for annotation in found[:MAX_CITATIONS]:
            place = annotation.url_citation
            if place is None or not place.url or len(seen) >= MAX_CITATIONS:
                continue
            start = max(0, place.start_index or 0)
            citation = Citation(place.url, place.title or "", "", start, max(start, place.end_index or 0))
            if citation not in seen:
                seen.add(citation)
                yield citation
