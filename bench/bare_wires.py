"""What decoding a stream costs at least: each wire's events as typed structs with the fields that words need, no more.

No errors, no calls, no odd servers. They are what the real decoders are measured against.
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


class Bare(Generic[E]):
    """Takes a stream piece by piece, and hands on each word."""

    def __init__(self, kind: type[E], word: Callable[[E], str | None], publish: Callable[[str], object]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._word = word
        self._publish = publish
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Go on with some bytes."""
        *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
        for block in blocks:
            payload = block[block.index(b"data: ") + 6 :]
            if payload != b"[DONE]" and (text := self._word(self._decode(payload))):
                self._publish(text)


def _chat_word(event: Chat) -> str | None:
    return event.choices[0].delta.content if event.choices else None


def _gemini_word(event: Gemini) -> str | None:
    content = event.candidates[0].content
    return content.parts[0].text if content is not None and content.parts else None


def _responses_word(event: Responses) -> str | None:
    return event.delta if event.type == "response.output_text.delta" else None


def _anthropic_word(event: Anthropic) -> str | None:
    return event.delta.text if event.type == "content_block_delta" and event.delta else None


BARE: dict[str, Callable[[Callable[[str], object]], Bare[Any]]] = {
    "openai-chat": lambda publish: Bare(Chat, _chat_word, publish),
    "openai-responses": lambda publish: Bare(Responses, _responses_word, publish),
    "anthropic": lambda publish: Bare(Anthropic, _anthropic_word, publish),
    "vertexai-anthropic": lambda publish: Bare(Anthropic, _anthropic_word, publish),
    "gemini": lambda publish: Bare(Gemini, _gemini_word, publish),
}
"""A new one for each answer, by the name of its wire."""
