"""Minimal stream decoders, one per wire: typed structs with the fields that text needs, and nothing else.

They handle no errors, no tool calls and no unusual servers. The real decoders are measured against them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

E = TypeVar("E")


class ChatDelta(Struct):
    content: str | None = None


class ChatChoice(Struct):
    delta: ChatDelta
    finish_reason: str | None = None


class ChatUsage(Struct):
    completion_tokens: int = 0


class Chat(Struct):
    choices: list[ChatChoice]
    usage: ChatUsage | None = None


class ResponsesUsage(Struct):
    output_tokens: int = 0


class ResponsesWhole(Struct):
    usage: ResponsesUsage | None = None


class Responses(Struct):
    type: str
    delta: str = ""
    response: ResponsesWhole | None = None


class AnthropicDelta(Struct):
    type: str = ""
    text: str = ""


class AnthropicUsage(Struct):
    output_tokens: int = 0


class Anthropic(Struct):
    type: str
    delta: AnthropicDelta | None = None
    usage: AnthropicUsage | None = None


class GeminiPart(Struct):
    text: str = ""


class GeminiContent(Struct):
    parts: list[GeminiPart] = []


class GeminiCandidate(Struct):
    content: GeminiContent | None = None


class GeminiUsage(Struct, rename="camel"):
    candidates_token_count: int = 0


class Gemini(Struct, rename="camel"):
    candidates: list[GeminiCandidate]
    usage_metadata: GeminiUsage | None = None


class BareDecoder(Generic[E]):
    """Decodes a stream piece by piece, and publishes each piece of text."""

    def __init__(self, kind: type[E], text_of: Callable[[E], str | None], publish: Callable[[str], object]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._text_of = text_of
        self._publish = publish
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Decode the events in the next bytes."""
        *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
        for block in blocks:
            payload = block[block.index(b"data: ") + 6 :]
            if payload != b"[DONE]" and (text := self._text_of(self._decode(payload))):
                self._publish(text)


def _chat_text(event: Chat) -> str | None:
    return event.choices[0].delta.content if event.choices else None


def _gemini_text(event: Gemini) -> str | None:
    content = event.candidates[0].content
    return content.parts[0].text if content is not None and content.parts else None


def _responses_text(event: Responses) -> str | None:
    return event.delta if event.type == "response.output_text.delta" else None


def _anthropic_text(event: Anthropic) -> str | None:
    return event.delta.text if event.type == "content_block_delta" and event.delta else None


BARE_DECODERS: dict[str, Callable[[Callable[[str], object]], BareDecoder[Any]]] = {
    "openai-chat": lambda publish: BareDecoder(Chat, _chat_text, publish),
    "openai-responses": lambda publish: BareDecoder(Responses, _responses_text, publish),
    "anthropic": lambda publish: BareDecoder(Anthropic, _anthropic_text, publish),
    "vertexai-anthropic": lambda publish: BareDecoder(Anthropic, _anthropic_text, publish),
    "gemini": lambda publish: BareDecoder(Gemini, _gemini_text, publish),
}
"""Makes a decoder for one answer, by the name of the wire."""
