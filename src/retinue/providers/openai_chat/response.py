"""An answer in the format of OpenAI's chat completions, put together from its stream.

Many servers speak this format with an accent: ids that are missing or repeat, calls without an index or all with the
same one, whole calls in one event, thoughts in fields of various names, no usage, no reason for stopping. What can be
understood is understood; unknown fields are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.messages import CallDelta, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.providers.http_errors import in_stream
from retinue.providers.lenient_json import if_readable, json_text
from retinue.providers.stream_decoder import NULL, AnswerDecoder
from retinue.providers.vendor_usage import NO_DETAILS, Details, counted

_STOPS: dict[str, Stop] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
}

# ---- what comes over the wire ---------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


_NO_FUNCTION = _Function()


class _CallPart(Struct, gc=False):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None


class _Part(Struct, gc=False):
    text: str | None = None
    thinking: str | list[_Part] | None = None


class _Said(Struct, gc=False):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPart] | None = None


class _Choice(Struct, gc=False):
    delta: _Said | None = None
    message: _Said | None = None
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
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    prompt_cache_hit_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_first = msgspec.json.Decoder(_FirstChunk).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode

# ---- the answer -----------------------------------------------------------------------------------------------------


class _Call:
    """A call as far as it has arrived."""

    __slots__ = ("id", "name", "pieces")

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def is_complete(self) -> bool:
        """Whether the arguments are a whole JSON object, so that nothing can follow."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        return if_readable(_decode_object, self.arguments) is not None


class Decoder(AnswerDecoder):
    """Takes the events of one answer and makes a reply of them.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"choices":[{"delta":{"content":"hello"}}]}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"choices":[{"delta":{},"finish_reason":"stop"}]}'), decoder.feed(b"[DONE]")
    ((), ())
    >>> decoder.finish().message.text, decoder.finish().usage
    ('hello', None)
    """

    __slots__ = ("_by_id", "_by_index", "_calls", "_refused", "_spoke", "_stop", "_text", "_thoughts", "_usage")

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._spoke = False
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._refused = False
        self._stop = ""
        self._usage = NULL

    @property
    def partial(self) -> str:
        return "".join(self._text)

    def feed(self, payload: bytes) -> Sequence[Delta]:
        if self.done:
            return ()
        try:
            chunk = _decode(payload) if self._id else self._begin(_decode_first(payload))
        except NOT_JSON:
            chunk = self._look_again(_decode, payload, is_whole=bool(self._stop))
            if chunk is None:
                return ()
        if chunk.error:
            raise in_stream({"error": chunk.error})
        if chunk.usage is not NULL and len(chunk.usage) > len(b"null"):
            self._usage = chunk.usage
        if not chunk.choices:
            return ()
        choice = chunk.choices[0]
        if choice.index:  # one answer was asked for
            return ()
        said = choice.delta
        if said is None and not self._spoke:
            said = choice.message
        self._spoke = True
        if choice.finish_reason:
            self._stop = choice.finish_reason
        if said is None:
            return ()
        content = said.content
        if said.tool_calls or said.reasoning_content or said.reasoning or said.refusal or not isinstance(content, str):
            return tuple(self._hear(said))
        # Nearly every event is a few words and nothing else.
        if not content:
            return ()
        self._text.append(content)
        return (TextDelta(content),)

    def finish(self) -> Reply:
        if not self._spoke or not (self.done or self._stop):
            raise self._cut(begun=self._spoke)
        if self._stop == "error":
            raise ProviderError("the server gave up in the middle of the answer", fault="overloaded", busy=False)
        calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in self._calls)
        thoughts = "".join(self._thoughts)
        return self._reply(
            calls,
            (Thinking(thoughts),) if thoughts else (),
            usage=_usage(self._usage),
            stop="refusal" if self._refused else _STOPS.get(self._stop),
        )

    def _begin(self, chunk: _FirstChunk) -> _Chunk:
        self._id = chunk.id or ""
        self._model = chunk.model or self._model
        return chunk

    def _hear(self, said: _Said) -> list[Delta]:
        """Thoughts, words and calls, in this order: so models produce them."""
        deltas: list[Delta] = []
        thoughts, words = said.reasoning_content or said.reasoning or "", ""
        if isinstance(said.content, str):
            words = said.content
        elif said.content:
            thoughts += "".join(_thoughts(part) for part in said.content)
            words = "".join(part.text or "" for part in said.content)
        if said.refusal:
            self._refused = True
            words += said.refusal
        if thoughts:
            self._thoughts.append(thoughts)
            deltas.append(ThinkingDelta(thoughts))
        if words:
            self._text.append(words)
            deltas.append(TextDelta(words))
        here: list[_Call] = []
        for part in said.tool_calls or ():
            delta = self._hear_call(part, here)
            if delta.name or delta.arguments:
                deltas.append(delta)
        return deltas

    def _hear_call(self, part: _CallPart, here: list[_Call]) -> CallDelta:
        """A piece of a call; `here` are the calls that this event has spoken of before."""
        function = part.function or _NO_FUNCTION
        call_id, name, piece = (
            "" if part.id is None else str(part.id),
            function.name or "",
            json_text(function.arguments),
        )
        call = self._known(part.index, call_id, here)
        begins = call is None or (bool(name) and _is_another(call, call_id, name, piece, here))
        if call is None or begins:
            call = _Call(call_id, name)
            self._calls.append(call)
        else:
            call.id = call.id or call_id
            begins = bool(name) and not call.name
            call.name = call.name or name
        if part.index is not None:
            self._by_index[part.index] = call
        if call_id:
            self._by_id[call_id] = call
        here.append(call)
        if piece:
            call.pieces.append(piece)
        return CallDelta(self._calls.index(call), name if begins else "", piece, call.id if begins else "")

    def _known(self, index: int | None, call_id: str, here: list[_Call]) -> _Call | None:
        """The call that a piece with this index and id goes on with, if it is one that began before."""
        if index is not None:
            return self._by_index.get(index)
        if call_id:
            return self._by_id.get(call_id)
        return self._calls[-1] if self._calls and not here else None


def _is_another(call: _Call, call_id: str, name: str, piece: str, here: list[_Call]) -> bool:
    """Whether a piece with a name begins a call of its own, although its index or id is that of `call`.

    Some servers repeat name and id with every piece, others give every call the same index or id.
    """
    if call in here or (call_id and call.id and call_id != call.id) or (call.name and call.name != name):
        return True
    return piece.lstrip().startswith("{") and call.is_complete()


def _thoughts(part: _Part) -> str:
    if isinstance(part.thinking, str):
        return part.thinking
    return "".join(inner.text or "" for inner in part.thinking or ())


def _usage(raw: msgspec.Raw) -> Usage | None:
    """Tokens by kind; None if the server did not count, or in a way that nobody knows."""
    tokens = if_readable(_decode_tokens, raw)
    if tokens is None:
        return None
    given, made = tokens.prompt_tokens, tokens.completion_tokens
    read, thought = tokens.prompt_tokens_details or NO_DETAILS, tokens.completion_tokens_details or NO_DETAILS
    reasoning = thought.reasoning_tokens or 0
    if reasoning > 0 and tokens.total_tokens == (given or 0) + (made or 0) + reasoning:
        made = (made or 0) + reasoning  # a vendor that counts thoughts apart from the rest of the output
    return counted(
        given,
        made,
        cached=read.cached_tokens or tokens.prompt_cache_hit_tokens,
        reasoning=reasoning,
        written=read.cache_write_tokens or tokens.cache_creation_input_tokens,
    )
