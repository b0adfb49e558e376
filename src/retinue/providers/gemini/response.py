"""Provider for the Gemini API (`streamGenerateContent`) and its response decoder.

Each event is a response with a few more parts, and only the end of the stream marks the last one. Calls come whole.
Signatures are kept together with the position that they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from retinue.providers.gemini import GROUNDED_ANSWER
from retinue.providers.gemini.request import (
    LEVEL,
    NOTE_SIGNATURE,
    ServerPart,
    SignaturePosition,
    encode,
    options,
)
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.http_errors import EndpointInfo, stream_error
from retinue.providers.message_encoder import make_note
from retinue.providers.stream_decoder import (
    MAX_CITATIONS,
    MAX_USES,
    NULL,
    StreamDecoder,
    decode_counts,
    normalized_usage,
)
from retinue.providers.wire_json import decode_lenient, decode_or_none

if TYPE_CHECKING:
    from retinue.providers.batch import BatchApi

_REFUSALS = (
    *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
)
_STOPS: dict[str, Stop | None] = {
    "STOP": None,
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), "length"),
    **dict.fromkeys(_REFUSALS, "refusal"),
}
"""Finish reasons of a complete answer (None), and of one that was cut or refused."""

# The model wrote something that its own server could not read; another attempt mostly succeeds.
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "OTHER"})
_SLIPS = {
    "MALFORMED_FUNCTION_CALL": "the function call was malformed.",
    "UNEXPECTED_TOOL_CALL": "a function was called that was not offered.",
}
"""Mistakes of the model, in words for the model."""
_BAD_REQUEST = frozenset({"MISSING_THOUGHT_SIGNATURE", "TOO_MANY_TOOL_CALLS"})
_UNSPECIFIED = frozenset({"FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"})

# ---- events ---------------------------------------------------------------------------------------------------------


class _FunctionCall(Struct, gc=False):
    name: str | None = None
    args: msgspec.Raw = NULL
    id: str | None = None


class _Part(Struct, gc=False, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None

    def is_of_another_kind(self) -> bool:
        """Whether the part is neither text nor a call, as those that server tools make."""
        return self.text is None and self.function_call is None


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = 0
    grounding_metadata: object = None


class _Source(Struct, gc=False):
    uri: str | None = None
    title: str | None = None


class _GroundingChunk(Struct, gc=False, rename="camel"):
    web: _Source | None = None
    retrieved_context: _Source | None = None


class _Segment(Struct, gc=False, rename="camel"):
    """A range of the text, in bytes of UTF-8."""

    start_index: int | None = None
    end_index: int | None = None
    text: str | None = None


class _Support(Struct, gc=False, rename="camel"):
    segment: _Segment | None = None
    grounding_chunk_indices: list[int] | None = None


class _Grounding(Struct, gc=False, rename="camel"):
    web_search_queries: list[str] | None = None
    grounding_chunks: list[_GroundingChunk] | None = None
    grounding_supports: list[_Support] | None = None


class _Feedback(Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class _Chunk(Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: msgspec.Raw = NULL
    prompt_feedback: _Feedback | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: object = None


class _Tokens(Struct, gc=False, rename="camel"):
    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class _RawContent(Struct, gc=False):
    parts: list[msgspec.Raw] | None = None


class _RawCandidate(Struct, gc=False):
    content: _RawContent | None = None


class _RawChunk(Struct, gc=False):
    """An event with its parts as they came."""

    candidates: list[_RawCandidate] | None = None

    def part(self, number: int) -> msgspec.Raw:
        content = self.candidates[0].content if self.candidates else None
        return (content.parts or ())[number] if content is not None else NULL


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_raw = msgspec.json.Decoder(_RawChunk).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_OF_SERVER_TOOLS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")

_BILLED_BY_PROMPT = re.compile(r"(?:.*/)?gemini-[12]\b")
"""Models for which the vendor charges a grounded answer, however many searches it took."""

# ---- the decoder ----------------------------------------------------------------------------------------------------


class Decoder(StreamDecoder):
    """Decodes the events of one response.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"candidates":[{"content":{"parts":[{"text":"hello"}]},"finishReason":"STOP"}]}')
    (TextDelta(text='hello'),)
    >>> decoder.finish().message.text, decoder.finish().usage
    ('hello', None)
    """

    # fmt: off
    __slots__ = (
        "_blocked", "_calls", "_grounding", "_length", "_server_uses", "_stop", "_stop_message", "_thinking_parts",
        "_usage",
    )
    # fmt: on

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._length = 0
        self._thinking_parts: list[Thinking | list[str]] = []
        """Thinking with a signature, and the pieces of thinking without one."""
        self._calls: list[ToolCall] = []
        self._grounding: list[object] = []
        self._server_uses: dict[str, int] = {}
        self._blocked = False
        self._stop = ""
        self._stop_message = ""
        self._usage = NULL

    def feed(self, payload: bytes) -> Sequence[Delta]:
        if self.done:
            return ()
        try:
            chunk = _decode(payload)
        except NOT_JSON:
            chunk = self._decode_damaged(_decode, payload, is_complete=bool(self._stop))
            if chunk is None:
                return ()
        if chunk.error:
            raise stream_error({"error": chunk.error})
        self._id = chunk.response_id or self._id
        self._model = chunk.model_version or self._model
        if len(chunk.usage_metadata) > len(NULL):
            self._usage = chunk.usage_metadata
        if chunk.prompt_feedback is not None:
            self._blocked = self._blocked or chunk.prompt_feedback.block_reason not in (None, "", *_UNSPECIFIED)
        if not chunk.candidates:
            return ()
        candidate = chunk.candidates[0]
        if candidate.index:  # the request asked for one candidate
            return ()
        self._begun = True
        if candidate.finish_reason and candidate.finish_reason not in _UNSPECIFIED:
            self._stop = candidate.finish_reason
            self._stop_message = candidate.finish_message or ""
        if candidate.grounding_metadata is not None and len(self._grounding) < MAX_CITATIONS:
            self._grounding.append(candidate.grounding_metadata)
        parts = candidate.content.parts if candidate.content is not None else None
        if not parts:
            return ()
        if len(parts) == 1:  # nearly every event, and nearly always text
            part = parts[0]
            if part.text and not part.thought and part.thought_signature is None and part.function_call is None:
                self._length += len(part.text)
                self._text.append(part.text)
                return (TextDelta(part.text),)
            if part.text is not None or part.function_call is not None:
                return self._add(part)
        deltas: list[Delta] = []
        raw: _RawChunk | None = None  # decoded once: an event can have any number of such parts
        for number, part in enumerate(parts):
            if part.is_of_another_kind():
                raw = raw or decode_lenient(_decode_raw, payload)
                if self._add_server_part(raw.part(number)):
                    continue
            deltas += self._add(part)
        return deltas

    def finish(self) -> Reply:
        if not self._blocked and not (self._begun and (self.done or self._stop)):
            raise self._cut_error(begun=self._begun)
        if self._stop in _BROKEN or self._stop in _BAD_REQUEST:
            detail = f": {self._stop_message}" if self._stop_message else ""
            message = f"the server gave up the model's answer ({self._stop}){detail}"
            if self._stop in _BAD_REQUEST:
                raise ProviderError(message, fault="bad_request", partial=self.partial)
            slip = " ".join(filter(None, (_SLIPS[self._stop], self._stop_message))) if self._stop in _SLIPS else ""
            raise ProviderError(message, fault="cut", partial=self.partial, slip=slip)
        if self._stop and self._stop not in _STOPS:
            raise self._incomplete_error(self._stop)
        reply = self._reply(
            tuple(self._calls),
            [_thinking(part) for part in self._thinking_parts],
            usage=self.usage(),
            stop="refusal" if self._blocked else _STOPS.get(self._stop),
        )
        if not self._grounding and not self._server_uses:
            return reply
        found = [each for value in self._grounding if (each := _grounding_of(value)) is not None]
        citations = tuple(_citations(found, reply.message.text))
        return replace(
            reply, message=replace(reply.message, citations=citations), server_tools=tuple(self._uses(found).items())
        )

    def _uses(self, found: Sequence[_Grounding]) -> dict[str, int]:
        """How often the server has used each of its tools, as far as it says so."""
        queries = {query for each in found for query in each.web_search_queries or ()}
        if not queries:
            return self._server_uses
        if _BILLED_BY_PROMPT.match(self._model):
            return self._server_uses | {GROUNDED_ANSWER: 1}
        return self._server_uses | {"web_search": min(len(queries), MAX_USES)}

    def usage(self) -> Usage | None:
        return _usage(self._usage)

    def _add(self, part: _Part) -> Sequence[Delta]:
        signature, text = part.thought_signature or "", part.text or ""
        if part.function_call is not None:
            return (self._add_call(part.function_call, signature),)
        if part.thought:
            if signature:
                self._thinking_parts.append(make_note(SignaturePosition("thought"), signature, text))
            elif text:
                self._unsigned_pieces().append(text)
            return (ThinkingDelta(text),) if text else ()
        start, self._length = self._length, self._length + len(text)
        if signature:
            self._thinking_parts.append(make_note(SignaturePosition("text", start, self._length), signature))
        if not text:
            return ()
        self._text.append(text)
        return (TextDelta(text),)

    def _add_server_part(self, raw: msgspec.Raw) -> bool:
        """Keep a part that a server tool made, as it came; whether it is one."""
        fields = decode_or_none(_decode_fields, raw) or {}
        if not any(name in fields for name in _OF_SERVER_TOOLS):
            return False
        if "executableCode" in fields:
            self._server_uses["code_execution"] = min(self._server_uses.get("code_execution", 0) + 1, MAX_USES)
        self._thinking_parts.append(make_note(ServerPart(self._length, raw), NOTE_SIGNATURE))
        return True

    def _unsigned_pieces(self) -> list[str]:
        last = self._thinking_parts[-1] if self._thinking_parts else None
        if not isinstance(last, list):
            last = list[str]()
            self._thinking_parts.append(last)
        return last

    def _add_call(self, function: _FunctionCall, signature: str) -> Delta:
        index = len(self._calls)
        arguments = bytes(function.args).decode("utf-8", "replace") if len(function.args) > len(NULL) else ""
        call = ToolCall(function.name or "", arguments or "{}", function.id or "")
        self._calls.append(call)
        self._check_calls(len(self._calls))
        if signature:
            self._thinking_parts.append(make_note(SignaturePosition("call", index), signature))
        return CallDelta(index, call.name, call.arguments, call.id)


def _grounding_of(value: object) -> _Grounding | None:
    try:
        return msgspec.convert(value, _Grounding)
    except msgspec.ValidationError:
        return None


def _citations(found: Sequence[_Grounding], text: str) -> Iterator[Citation]:
    """The citations of a text, whose ranges come in bytes."""
    every = ((grounding, support) for grounding in found for support in grounding.grounding_supports or ())
    supports = list(islice(every, MAX_CITATIONS))
    ranges = [_range_of(support) for _, support in supports]
    characters = _characters_before({place for pair in ranges for place in pair}, text.encode(errors="replace"))
    count = 0
    for (grounding, support), (start, end) in zip(supports, ranges, strict=True):
        chunks = grounding.grounding_chunks or ()
        for index in (support.grounding_chunk_indices or ())[: MAX_CITATIONS - count]:
            chunk = chunks[index] if 0 <= index < len(chunks) else _GroundingChunk()
            source = chunk.web or chunk.retrieved_context
            count += 1
            if source is not None:
                first, last = characters[start], characters[end]
                yield Citation(source.uri or "", source.title or "", "", first, max(first, last))


def _range_of(support: _Support) -> tuple[int, int]:
    segment = support.segment or _Segment()
    return max(0, segment.start_index or 0), max(0, segment.end_index or 0)


def _characters_before(places: Iterable[int], data: bytes) -> dict[int, int]:
    """How many whole characters lie before each place in UTF-8; the data are read once, however many places there are.

    >>> _characters_before([0, 1, 2, 3, 9], "aé".encode())
    {0: 0, 1: 1, 2: 1, 3: 2, 9: 2}
    """
    found: dict[int, int] = {}
    begin = count = 0
    for place in sorted(places):
        count += len(data[begin:place].translate(None, _CONTINUE_A_CHARACTER))
        begin = place
        found[place] = count - (place < len(data) and data[place] in _CONTINUE_A_CHARACTER)
    return found


_CONTINUE_A_CHARACTER = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that begin no character."""


def _thinking(part: Thinking | list[str]) -> Thinking:
    return part if isinstance(part, Thinking) else Thinking("".join(part))


def _usage(raw: msgspec.Raw) -> Usage | None:
    """The usage; None if not counted or in an unknown format. Thinking is counted apart from the rest of the output."""
    tokens = decode_counts(_Tokens, raw)
    if tokens is None:
        return None
    if tokens.prompt_token_count is None and tokens.candidates_token_count is None:
        return None
    reasoning = max(0, tokens.thoughts_token_count or 0)
    return normalized_usage(
        max(0, tokens.prompt_token_count or 0) + max(0, tokens.tool_use_prompt_token_count or 0),
        max(0, tokens.candidates_token_count or 0) + reasoning,
        cached=tokens.cached_content_token_count,
        reasoning=reasoning,
    )


VERSION = "/v1beta"


class GeminiProvider(HttpProvider):
    """A provider for the Gemini API at `base_url`, such as `https://generativelanguage.googleapis.com`.

    The key is sent as `x-goog-api-key`. A model is its name, such as `gemini-2.5-flash`, or the whole
    `tunedModels/NAME`. `HttpProvider` describes the arguments.

    >>> GeminiProvider("https://generativelanguage.googleapis.com", "GEMINI_API_KEY")
    <GeminiProvider https://generativelanguage.googleapis.com>
    """

    effort_option: ClassVar[str] = LEVEL

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._base_url = _without_version(base_url)
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._endpoints: dict[tuple[str, bool], Endpoint] = {}
        self._versions = self._new_endpoint(VERSION, streams=False)  # raises now if the address is unusable

    @property
    def base_url(self) -> str:
        return self.info.base_url

    @property
    def info(self) -> EndpointInfo:
        return self._versions.info

    def secrets(self) -> tuple[str, ...]:
        return self._versions.secrets()

    def batch_api(self, headers: dict[str, str]) -> BatchApi | None:
        from retinue.providers.batch import GeminiBatches  # imported late: few runs wait for batches

        return GeminiBatches(self._versions, headers)

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str, *, streams: bool = True) -> Endpoint:
        endpoint = self._endpoints.get((model, streams))
        if endpoint is None:
            name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
            method = "streamGenerateContent" if streams else "generateContent"
            endpoint = self._new_endpoint(f"{VERSION}/{name}:{method}", streams=streams)
            self._endpoints[model, streams] = endpoint
        return endpoint

    def _new_endpoint(self, path: str, *, streams: bool = True) -> Endpoint:
        base_url = self._base_url
        if streams:
            base_url += ("&" if "?" in base_url else "?") + "alt=sse"
        return Endpoint(
            base_url,
            path,
            api_key_env=self._api_key_env,
            headers=self._headers,
            http=self._http,
            key_header="x-goog-api-key",
            key_prefix="",
        )


def _without_version(base_url: str) -> str:
    """The address without the version, which is part of every request's path."""
    address, mark, query = base_url.partition("#")[0].partition("?")
    return address.rstrip("/").removesuffix(VERSION) + mark + query
