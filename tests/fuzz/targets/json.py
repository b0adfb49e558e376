"""Answers of model servers: any bytes are a reply that can be stored and sent back, or a provider error.

The first byte of an input chooses the wire and whether the answer is a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from retinue.core.errors import ProviderError
from retinue.core.messages import MAX_CALLS, Reply, UserMessage
from retinue.core.ports import Request
from retinue.core.usage import MAX_TOKENS
from retinue.net.sse import EventReader
from retinue.providers.anthropic.request import encode as encode_anthropic
from retinue.providers.anthropic.response import Decoder as AnthropicDecoder
from retinue.providers.bedrock.request import encode as encode_bedrock
from retinue.providers.bedrock.response import Decoder as BedrockDecoder
from retinue.providers.gemini.request import encode as encode_gemini
from retinue.providers.gemini.response import Decoder as GeminiDecoder
from retinue.providers.openai_chat.request import encode as encode_chat
from retinue.providers.openai_chat.response import Decoder as ChatDecoder
from retinue.providers.openai_responses.request import encode as encode_responses
from retinue.providers.openai_responses.response import Decoder as ResponsesDecoder
from retinue.providers.stream_decoder import StreamDecoder
from retinue.providers.wire_json import as_json_object, repair_json
from tests.fuzz.target import Target

WIRES: tuple[tuple[Callable[[], StreamDecoder], Callable[[Request], bytes]], ...] = (
    (ChatDecoder, encode_chat),
    (ResponsesDecoder, encode_responses),
    (AnthropicDecoder, encode_anthropic),
    (GeminiDecoder, encode_gemini),
)

BEDROCK: tuple[Callable[[], StreamDecoder], Callable[[Request], bytes]] = (BedrockDecoder, encode_bedrock)
"""Its streams come in frames, which the target `event_stream` makes; here their events are those of a stream."""


def check(data: bytes) -> None:
    """The answer `data[1:]` is a reply or a `ProviderError`."""
    kind, body = data[0] if data else 0, data[1:]
    new_decoder, encode = BEDROCK if kind & 8 else WIRES[kind % 4]
    decoder = new_decoder()
    try:
        if kind & 4:
            decoder.feed_whole(body)
        else:
            reader = EventReader()
            for payload in (*reader.feed(body), *reader.end()):
                decoder.feed(payload)
        reply = decoder.finish()
    except ProviderError:
        return
    check_reply(reply)
    for call in reply.message.calls:
        assert isinstance(json.loads(as_json_object(call.arguments)), dict)
    # The text of a lone surrogate cannot be stored as it is; everything that decoders return can.
    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply
    assert json.loads(encode(Request(model="m", system="", messages=[UserMessage("a"), reply.message])))
    repaired = repair_json(body)
    assert repaired is None or repair_json(repaired) is not None


def check_reply(reply: Reply) -> None:
    """Numbers are within bounds."""
    assert len(reply.message.calls) <= MAX_CALLS
    if (usage := reply.usage) is not None:
        numbers = (usage.input, usage.output, usage.cached, usage.reasoning, usage.written)
        assert all(0 <= number <= MAX_TOKENS for number in numbers)
        assert usage.cached + usage.written <= usage.input
        assert usage.reasoning <= usage.output


TARGET = Target(
    check=check,
    seeds=(
        b'\x00data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}\n\n',
        b'\x01data: {"type":"response.output_text.delta","delta":"a"}\n\ndata: {"type":"response.completed"}\n\n',
        b'\x03data: {"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}\n\n',
        b'\x04{"choices":[{"message":{"content":"a","tool_calls":[{"id":1,"function":{"name":"f"}}]}}]}',
        b'\x05{"output":[{"type":"message","content":"a"},{"type":"reasoning","summary":[{"text":"x"}]}],"usage":{}}',
        b'\x06{"content":[{"type":"text","text":"a"},{"type":"tool_use","name":"f","input":{}}],"usage":{}}',
        b'\x07{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":1}}}]},"finishReason":"STOP"}]}',
        b'\x08data: {"messageStart":{"role":"assistant"}}\n\ndata: {"contentBlockDelta":{"contentBlockIndex":0,"delta":'
        b'{"text":"a"}}}\n\ndata: {"messageStop":{"stopReason":"end_turn"}}\n\n'
        b'data: {"metadata":{"usage":{"inputTokens":1}}}\n\n',
        b'\x08data: {"contentBlockStart":{"contentBlockIndex":0,"start":{"toolUse":{"toolUseId":"t","name":"f"}}}}\n\n'
        b'data: {"contentBlockDelta":{"contentBlockIndex":0,"delta":{"toolUse":{"input":"{}"}}}}\n\n'
        b'data: {"messageStop":{"stopReason":"tool_use"}}\n\n',
        b'\x0c{"output":{"message":{"content":[{"text":"a"},{"toolUse":{"toolUseId":"t","name":"f","input":{}}},'
        b'{"reasoningContent":{"reasoningText":{"text":"x","signature":"y"}}}]}},"stopReason":"end_turn","usage":{}}',
    ),
    words=(
        *(b"data: ", b"\n\n", b"null", b"true", b"[]", b"{}", b'""', b"0", b"-1", b"1e999", b'"\\ud83d"', b"[DONE]"),
        *(b'"choices":', b'"delta":', b'"message":', b'"tool_calls":', b'"index":', b'"function":', b'"arguments":'),
        *(b'"usage":', b'"prompt_tokens":', b'"completion_tokens":', b'"finish_reason":', b'"error":', b'"content":'),
        *(b'"type":', b'"response.completed"', b'"item":', b'"output_index":', b'"response":', b'"output":', b'"id":'),
        *(b'"content_block_start"', b'"content_block":', b'"input_json_delta"', b'"partial_json":', b'"message_stop"'),
        *(b'"candidates":', b'"parts":', b'"functionCall":', b'"usageMetadata":', b'"thoughtSignature":', b'"text":'),
        *(b'"contentBlockStart":', b'"contentBlockDelta":', b'"contentBlockIndex":', b'"toolUse":', b'"messageStop":'),
        *(b'"stopReason":', b'"metadata":', b'"reasoningContent":', b'"redactedContent":', b'"inputTokens":'),
    ),
)
