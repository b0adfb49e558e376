"""Answers of five vendors as raw event streams, with any finish reason, and the providers that read them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from retinue.core.messages import ToolCall
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.bedrock.response import BedrockProvider
from retinue.providers.gemini.response import GeminiProvider
from retinue.providers.http import HttpProvider
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.testing.fake_chat import DONE, EVENTS, event
from retinue.testing.fake_server import FakeResponse
from tests.providers.fakes.bedrock import FRAMES
from tests.providers.fakes.bedrock import event as frame_of

PROVIDERS: dict[str, Callable[[str], HttpProvider]] = {
    "chat": lambda url: OpenAIChatProvider(f"{url}/v1"),
    "responses": lambda url: OpenAIResponsesProvider(f"{url}/v1"),
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "bedrock": BedrockProvider,
}
"""The provider of each wire, for the address of a server."""

ENDS = {"chat": "stop", "responses": "", "anthropic": "end_turn", "gemini": "STOP", "bedrock": "end_turn"}
"""The finish reason of a complete answer."""


def answer(
    wire: str, text: str = "", *calls: ToolCall, stop: str | None = None, usage: tuple[int, int] | None = None
) -> FakeResponse:
    """A streamed answer; `stop` is its finish reason, by default that of a complete answer."""
    reason = ENDS[wire] if stop is None else stop
    if wire == "bedrock":
        return FakeResponse(headers=FRAMES, pieces=tuple(_bedrock(text, calls, reason, usage)))
    events = {"chat": _chat, "responses": _responses, "anthropic": _anthropic, "gemini": _gemini}[wire]
    pieces = tuple(map(event, events(text, calls, reason, usage)))
    return FakeResponse(headers=EVENTS, pieces=(*pieces, DONE) if wire == "chat" else pieces)


def _bedrock(text: str, calls: tuple[ToolCall, ...], stop: str, usage: tuple[int, int] | None) -> Iterator[bytes]:
    yield frame_of("messageStart", role="assistant")
    if text:
        yield frame_of("contentBlockDelta", contentBlockIndex=0, delta={"text": text})
    for index, call in enumerate(calls, start=1):
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        yield frame_of("contentBlockStart", contentBlockIndex=index, start=start)
        delta = {"toolUse": {"input": call.arguments}}
        yield frame_of("contentBlockDelta", contentBlockIndex=index, delta=delta)
    yield frame_of("messageStop", stopReason=stop)
    if usage is not None:
        counts = {"inputTokens": usage[0], "outputTokens": usage[1], "totalTokens": sum(usage)}
        yield frame_of("metadata", usage=counts, metrics={"latencyMs": 5})


def _chat(text: str, calls: tuple[ToolCall, ...], stop: str, usage: tuple[int, int] | None) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"content": text}] if text else []
    for index, call in enumerate(calls):
        function = {"name": call.name, "arguments": call.arguments}
        deltas.append({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
    chunks = [{"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end: dict[str, Any] = {"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]}
    if usage is not None:
        end["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return [*chunks, end]


def _responses(
    text: str, calls: tuple[ToolCall, ...], stop: str, usage: tuple[int, int] | None
) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if text:
        content = [{"type": "output_text", "text": text, "annotations": list[object]()}]
        output.append({"type": "message", "id": "msg_9", "role": "assistant", "content": content})
    for call in calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        output.append({"type": "function_call", "id": f"fc_{call.id}"} | named)
    items = [{"type": "response.output_item.done", "output_index": i, "item": item} for i, item in enumerate(output)]
    status = "incomplete" if stop else "completed"
    response: dict[str, Any] = {"id": "r1", "model": "m1", "status": status, "output": output}
    if stop:
        response["incomplete_details"] = {"reason": stop}
    if usage is not None:
        response["usage"] = {"input_tokens": usage[0], "output_tokens": usage[1]}
    return [*items, {"type": f"response.{status}", "response": response}]


def _anthropic(
    text: str, calls: tuple[ToolCall, ...], stop: str, usage: tuple[int, int] | None
) -> list[dict[str, Any]]:
    counted = {} if usage is None else {"usage": {"input_tokens": usage[0], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "r1", "model": "m1"} | counted}]
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": text}))
    for call in calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": dict[str, object]()}
        blocks.append((block, {"type": "input_json_delta", "partial_json": call.arguments}))
    for index, (block, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": stop}}
    if usage is not None:
        end["usage"] = {"output_tokens": usage[1]}
    return [*events, end, {"type": "message_stop"}]


def _gemini(text: str, calls: tuple[ToolCall, ...], stop: str, usage: tuple[int, int] | None) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"text": text}] if text else []
    parts += [
        {"functionCall": {"name": call.name, "args": json.loads(call.arguments), "id": call.id}} for call in calls
    ]
    chunk: dict[str, Any] = {"candidates": [{"content": {"role": "model", "parts": parts}}], "responseId": "r1"}
    end: dict[str, Any] = {"candidates": [{"finishReason": stop}], "responseId": "r1", "modelVersion": "m1"}
    if usage is not None:
        end["usageMetadata"] = {"promptTokenCount": usage[0], "candidatesTokenCount": usage[1]}
    return [chunk, end]
