"""An answer in the format of Gemini's generateContent, put together from its stream.

Each event is an answer of its own with a few more parts, and nothing but the end of the stream says that it was the
last. Calls come whole. Signatures are kept together with the place that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.messages import CallDelta, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.providers.block_order import note
from retinue.providers.gemini.request import Place
from retinue.providers.http_errors import in_stream
from retinue.providers.lenient_json import if_readable
from retinue.providers.stream_decoder import NULL, AnswerDecoder
from retinue.providers.vendor_usage import counted

_STOPS: dict[str, Stop] = {
    "MAX_TOKENS": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "LANGUAGE": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
    "MODEL_ARMOR": "refusal",
}
# The model wrote something that its own server could not read: asked again, it mostly does better.
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "OTHER"})
_WRONG = frozenset({"MISSING_THOUGHT_SIGNATURE", "TOO_MANY_TOOL_CALLS"})
_UNSAID = frozenset({"FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"})

# ---- what comes over the wire ---------------------------------------------------------------------------------------


class _FunctionCall(Struct, gc=False):
    name: str | None = None
    args: msgspec.Raw = NULL
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


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode

# ---- the answer -----------------------------------------------------------------------------------------------------


class Decoder(AnswerDecoder):
    """Takes the events of one answer and makes a reply of them.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"candidates":[{"content":{"parts":[{"text":"hello"}]},"finishReason":"STOP"}]}')
    (TextDelta(text='hello'),)
    >>> decoder.finish().message.text, decoder.finish().usage
    ('hello', None)
    """

    __slots__ = ("_blocked", "_calls", "_length", "_spoke", "_stop", "_text", "_thoughts", "_usage", "_why")

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._spoke = False
        self._text: list[str] = []
        self._length = 0
        self._thoughts: list[Thinking | list[str]] = []
        """Those with a signature, and the pieces of the others."""
        self._calls: list[ToolCall] = []
        self._blocked = False
        self._stop = ""
        self._why = ""
        self._usage = NULL

    @property
    def partial(self) -> str:
        return "".join(self._text)

    def feed(self, payload: bytes) -> Sequence[Delta]:
        if self.done:
            return ()
        try:
            chunk = _decode(payload)
        except NOT_JSON:
            chunk = self._look_again(_decode, payload, is_whole=bool(self._stop))
            if chunk is None:
                return ()
        if chunk.error:
            raise in_stream({"error": chunk.error})
        self._id = chunk.response_id or self._id
        self._model = chunk.model_version or self._model
        if len(chunk.usage_metadata) > len(NULL):
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

    def finish(self) -> Reply:
        if not self._blocked and not (self._spoke and (self.done or self._stop)):
            raise self._cut(begun=self._spoke)
        if self._stop in _BROKEN or self._stop in _WRONG:
            message = f"the model's answer was given up ({self._stop}){': ' if self._why else ''}{self._why}"
            fault = "cut" if self._stop in _BROKEN else "bad_request"
            raise ProviderError(message, fault=fault, partial=self.partial)
        return self._reply(
            tuple(self._calls),
            [_thinking(thought) for thought in self._thoughts],
            usage=_usage(self._usage),
            stop="refusal" if self._blocked else _STOPS.get(self._stop),
        )

    def _hear(self, part: _Part) -> Sequence[Delta]:
        signature, text = part.thought_signature or "", part.text or ""
        if part.function_call is not None:
            return (self._called(part.function_call, signature),)
        if part.thought:
            if signature:
                self._thoughts.append(note(Place("thought"), signature, text))
            elif text:
                self._unsigned().append(text)
            return (ThinkingDelta(text),) if text else ()
        start, self._length = self._length, self._length + len(text)
        if signature:
            self._thoughts.append(note(Place("text", start, self._length), signature))
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
        arguments = bytes(function.args).decode("utf-8", "replace") if len(function.args) > len(NULL) else ""
        call = ToolCall(function.name or "", arguments or "{}", function.id or "")
        self._calls.append(call)
        if signature:
            self._thoughts.append(note(Place("call", index), signature))
        return CallDelta(index, call.name, call.arguments, call.id)


def _thinking(thought: Thinking | list[str]) -> Thinking:
    return thought if isinstance(thought, Thinking) else Thinking("".join(thought))


def _usage(raw: msgspec.Raw) -> Usage | None:
    """Tokens by kind; None if the server did not count, or in a way that nobody knows. Thoughts are counted apart from
    the rest of the output."""
    tokens = if_readable(_decode_tokens, raw)
    if tokens is None:
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
