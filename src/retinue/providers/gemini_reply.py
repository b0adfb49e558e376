"""An answer in the format of Gemini's generateContent, put together from its stream.

Each event is an answer of its own with a few more parts, and nothing but the end of the stream says that it was the
last. Calls come whole. Signatures are kept together with the place that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from retinue.providers.counting import counted
from retinue.providers.failures import in_stream
from retinue.providers.gemini_request import Place
from retinue.providers.mending import NOT_JSON, mended, unreadable

_NULL = msgspec.Raw(b"null")
_DONE = b"[DONE]"

_REFUSED = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
    }
)
# The model wrote something that its own server could not read: asked again, it mostly does better.
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "OTHER"})
_WRONG = frozenset({"MISSING_THOUGHT_SIGNATURE", "TOO_MANY_TOOL_CALLS"})
_UNSAID = frozenset({"FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"})

# ---- what comes over the wire ---------------------------------------------------------------------------------------


class _FunctionCall(Struct, gc=False):
    name: str | None = None
    args: msgspec.Raw = _NULL
    id: str | None = None


class _Part(Struct, gc=False, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = 0


class _Feedback(Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class _Chunk(Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: msgspec.Raw = _NULL
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


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode

# ---- the answer -----------------------------------------------------------------------------------------------------


class Decoder:
    """Takes the events of one answer and makes a reply of them.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"candidates":[{"content":{"parts":[{"text":"hello"}]},"finishReason":"STOP"}]}')
    (TextDelta(text='hello'),)
    >>> decoder.finish().message.text, decoder.finish().usage
    ('hello', None)
    """

    __slots__ = (
        "_blocked",
        "_calls",
        "_id",
        "_length",
        "_model",
        "_spoke",
        "_stop",
        "_text",
        "_thoughts",
        "_usage",
        "_why",
        "done",
    )

    def __init__(self, *, model: str = "") -> None:
        self.done = False
        """Whether the answer said that nothing more will come."""
        self._model = model
        self._id = ""
        self._spoke = False
        self._text: list[str] = []
        self._length = 0
        self._thoughts: list[Thinking | list[str]] = []
        """Those with a signature, and the pieces of the others."""
        self._calls: list[ToolCall] = []
        self._blocked = False
        self._stop = ""
        self._why = ""
        self._usage = _NULL

    @property
    def response_id(self) -> str:
        """The vendor's name for the answer, as far as it is known."""
        return self._id

    @property
    def partial(self) -> str:
        """The words so far."""
        return "".join(self._text)

    def feed(self, payload: bytes) -> Sequence[Delta]:
        """What the data of one event adds; raises `ProviderError` for nonsense, and for an error told in the stream."""
        if self.done:
            return ()
        try:
            chunk = _decode(payload)
        except NOT_JSON:
            again = self._look_again(payload)
            if again is None:
                return ()
            chunk = again
        if chunk.error:
            raise in_stream({"error": chunk.error})
        self._id = chunk.response_id or self._id
        self._model = chunk.model_version or self._model
        if len(chunk.usage_metadata) > len(_NULL):
            self._usage = chunk.usage_metadata
        if chunk.prompt_feedback is not None:
            self._blocked = self._blocked or chunk.prompt_feedback.block_reason not in (None, "", *_UNSAID)
        if not chunk.candidates:
            return ()
        candidate = chunk.candidates[0]
        if candidate.index:  # one answer was asked for
            return ()
        self._spoke = True
        if candidate.finish_reason and candidate.finish_reason not in _UNSAID:
            self._stop = candidate.finish_reason
            self._why = candidate.finish_message or ""
        parts = candidate.content.parts if candidate.content is not None else None
        if not parts:
            return ()
        if len(parts) == 1:  # nearly every event, and nearly always words
            part = parts[0]
            if part.text and not part.thought and part.thought_signature is None and part.function_call is None:
                self._length += len(part.text)
                self._text.append(part.text)
                return (TextDelta(part.text),)
            return self._hear(part)
        return tuple(delta for part in parts for delta in self._hear(part))

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        """What an answer says that came as one JSON object instead of a stream."""
        deltas = self.feed(body)
        self.done = True
        return deltas

    def finish(self) -> Reply:
        """The whole reply; raises `ProviderError` with fault `cut` if the stream ended before it was whole."""
        if not self._spoke and not self._blocked:
            raise ProviderError("the stream ended without an answer", fault="cut")
        if not self.done and not self._stop and not self._blocked:
            raise ProviderError("the stream ended in the middle of the answer", fault="cut", partial=self.partial)
        if self._stop in _BROKEN or self._stop in _WRONG:
            message = f"the model's answer was given up ({self._stop}){': ' if self._why else ''}{self._why}"
            fault = "cut" if self._stop in _BROKEN else "bad_request"
            raise ProviderError(message, fault=fault, partial=self.partial)
        return Reply(
            message=AssistantMessage(self.partial, tuple(self._calls), tuple(map(_thinking, self._thoughts))),
            usage=_usage(self._usage),
            stop=self._stopped(),
            model=self._model,
            response_id=self._id,
        )

    def _stopped(self) -> Stop:
        if self._blocked or self._stop in _REFUSED:
            return "refusal"
        if self._stop == "MAX_TOKENS":
            return "length"
        return "calls" if self._calls else "end"

    def _hear(self, part: _Part) -> Sequence[Delta]:
        signature, text = part.thought_signature or "", part.text or ""
        if part.function_call is not None:
            return (self._called(part.function_call, signature),)
        if part.thought:
            if signature:
                self._thoughts.append(_signed(Place("thought"), signature, text))
            elif text:
                self._unsigned().append(text)
            return (ThinkingDelta(text),) if text else ()
        start, self._length = self._length, self._length + len(text)
        if signature:
            self._thoughts.append(_signed(Place("text", start, self._length), signature))
        if not text:
            return ()
        self._text.append(text)
        return (TextDelta(text),)

    def _unsigned(self) -> list[str]:
        """The pieces of the thought that is being told."""
        last = self._thoughts[-1] if self._thoughts else None
        if not isinstance(last, list):
            last = list[str]()
            self._thoughts.append(last)
        return last

    def _called(self, function: _FunctionCall, signature: str) -> Delta:
        index = len(self._calls)
        arguments = bytes(function.args).decode("utf-8", "replace") if len(function.args) > len(_NULL) else ""
        call = ToolCall(function.name or "", arguments or "{}", function.id or "")
        self._calls.append(call)
        if signature:
            self._thoughts.append(_signed(Place("call", index), signature))
        return CallDelta(index, call.name, call.arguments, call.id)

    def _look_again(self, payload: bytes) -> _Chunk | None:
        """What to make of data that is not quite JSON: half a character should not cost the whole answer."""
        data = payload.strip()
        if not data or data == _DONE:
            self.done = bool(data)
            return None
        again = mended(data)
        try:
            if again is not None:
                return _decode(again)
        except NOT_JSON:
            pass
        if self._stop:  # the answer was whole before
            return None
        raise unreadable(data, is_json=again is not None)


def _signed(place: Place, signature: str, text: str = "") -> Thinking:
    return Thinking(text, signature, msgspec.json.encode(place).decode())


def _thinking(thought: Thinking | list[str]) -> Thinking:
    return thought if isinstance(thought, Thinking) else Thinking("".join(thought))


def _usage(raw: msgspec.Raw) -> Usage | None:
    """Tokens by kind; None if the server did not count, or in a way that nobody knows. Thoughts are counted apart from
    the rest of the output."""
    try:
        tokens = _decode_tokens(raw)
    except NOT_JSON:
        return None
    if tokens.prompt_token_count is None and tokens.candidates_token_count is None:
        return None
    thought = max(0, tokens.thoughts_token_count or 0)
    return counted(
        max(0, tokens.prompt_token_count or 0) + max(0, tokens.tool_use_prompt_token_count or 0),
        max(0, tokens.candidates_token_count or 0) + thought,
        cached=tokens.cached_content_token_count,
        reasoning=thought,
    )
