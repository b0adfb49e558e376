"""Each vendor's token counts become the same kinds of tokens, each with its own price."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from retinue.core.usage import Usage
from retinue.providers.anthropic import response as anthropic
from retinue.providers.gemini import response as gemini
from retinue.providers.openai_chat import response as openai_chat
from retinue.providers.openai_responses import response as openai_responses
from retinue.providers.pricing import Rates
from retinue.providers.stream_decoder import StreamDecoder

RATES = Rates(input=4.0, output=8.0, cached=1.0, cache_write=5.0)


def counted(decoder: StreamDecoder, *events: dict[str, Any]) -> Usage | None:
    for event in events:
        decoder.feed(msgspec.json.encode(event))
    return decoder.finish().usage


def over_anthropic(usage: dict[str, Any]) -> Usage | None:
    return counted(
        anthropic.Decoder(),
        {"type": "message_start", "message": {"usage": usage}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    )


def over_chat(usage: dict[str, Any]) -> Usage | None:
    text_event = {"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]}
    return counted(openai_chat.Decoder(), text_event, {"choices": [], "usage": usage})


def over_responses(usage: dict[str, Any]) -> Usage | None:
    return counted(openai_responses.Decoder(), {"type": "response.completed", "response": {"usage": usage}})


def over_gemini(usage: dict[str, Any]) -> Usage | None:
    candidate = {"content": {"parts": [{"text": "ok"}]}, "finishReason": "STOP"}
    return counted(gemini.Decoder(), {"candidates": [candidate], "usageMetadata": usage})


@pytest.mark.parametrize(
    ("over", "raw_counts", "usage", "cost"),
    [
        (
            over_anthropic,
            {
                "input_tokens": 100,
                "cache_creation_input_tokens": 200,
                "cache_read_input_tokens": 700,
                "output_tokens": 50,
                "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 0},
            },
            Usage(input=1_000, output=50, cached=700, written=200),
            100 * 4_000 + 200 * 5_000 + 700 * 1_000 + 50 * 8_000,
        ),
        (
            over_anthropic,
            {
                "input_tokens": 100,
                "cache_creation_input_tokens": 200,
                "cache_read_input_tokens": 700,
                "output_tokens": 50,
                "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 150},
            },
            Usage(input=1_000, output=50, cached=700, written=200, written_1h=150),
            100 * 4_000 + 50 * 5_000 + 150 * 8_000 + 700 * 1_000 + 50 * 8_000,
        ),
        (
            over_chat,
            {
                "prompt_tokens": 1_000,
                "completion_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 700},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(input=1_000, output=50, cached=700, reasoning=20),
            300 * 4_000 + 700 * 1_000 + 50 * 8_000,
        ),
        (
            over_chat,
            {
                "prompt_tokens": 1_000,
                "completion_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 700, "cache_write_tokens": 200},
            },
            Usage(input=1_000, output=50, cached=700, written=200),
            100 * 4_000 + 200 * 5_000 + 700 * 1_000 + 50 * 8_000,
        ),
        (
            over_chat,
            {"prompt_tokens": 1_000, "completion_tokens": 50, "prompt_cache_hit_tokens": 700},
            Usage(input=1_000, output=50, cached=700),
            300 * 4_000 + 700 * 1_000 + 50 * 8_000,
        ),
        (
            over_responses,
            {
                "input_tokens": 1_000,
                "output_tokens": 50,
                "input_tokens_details": {"cached_tokens": 700},
                "output_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(input=1_000, output=50, cached=700, reasoning=20),
            300 * 4_000 + 700 * 1_000 + 50 * 8_000,
        ),
        (
            over_gemini,
            {
                "promptTokenCount": 1_000,
                "candidatesTokenCount": 30,
                "thoughtsTokenCount": 20,
                "cachedContentTokenCount": 700,
            },
            Usage(input=1_000, output=50, cached=700, reasoning=20),
            300 * 4_000 + 700 * 1_000 + 50 * 8_000,
        ),
    ],
)
def test_every_kind_of_token_is_counted_once_at_its_price(
    over: Callable[[dict[str, Any]], Usage | None], raw_counts: dict[str, Any], usage: Usage, cost: int
) -> None:
    assert over(raw_counts) == usage
    assert RATES.cost(usage) == cost


@pytest.mark.parametrize("over", [over_anthropic, over_chat, over_responses, over_gemini])
def test_a_response_without_counts_has_usage_none(
    over: Callable[[dict[str, Any]], Usage | None],
) -> None:
    assert over({}) is None
