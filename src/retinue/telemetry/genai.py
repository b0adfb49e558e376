"""Messages and names as the GenAI conventions of OpenTelemetry want them; tests compare the names with the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from retinue.core.messages import AssistantMessage, Message, Stop, ToolCall, ToolMessage, UserMessage
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The standard variable that lets contents into spans."""

MAX_CONTENT = 256 * 1024
"""Characters of one attribute with contents; of a longer conversation the oldest messages are left out."""

PROVIDERS: Mapping[str, str] = {
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "deepseek": "deepseek",
    "gemini": "gcp.gemini",
    "groq": "groq",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "vertexai-anthropic": "gcp.vertex_ai",
    "vertexai-gemini": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The registered names of providers; any other one keeps its own."""

FAILED = "error"
"""The reason why an output ends that an error has cut."""

FINISH_REASONS: Mapping[Stop, str] = {
    "end": "stop",
    "calls": "tool_call",
    "length": "length",
    "refusal": "content_filter",
}


def captures(environment: Mapping[str, str]) -> bool:
    """Whether the environment lets contents into spans.

    >>> captures({}), captures({CAPTURE: "span_only"}), captures({CAPTURE: "event_only"})
    (False, True, False)
    """
    return environment.get(CAPTURE, "").strip().lower() in ("true", "span_only", "span_and_event")


def provider_name(name: str) -> str:
    """The name of a provider in attributes."""
    return PROVIDERS.get(name, name) or "unknown"


def usage_attributes(usage: Usage) -> dict[str, int]:
    """The counted tokens; numbers that few vendors report are left out where they are 0."""
    counts = {"gen_ai.usage.input_tokens": usage.input, "gen_ai.usage.output_tokens": usage.output}
    rare = {
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.cache_creation.input_tokens": usage.written,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }
    return counts | {name: number for name, number in rare.items() if number}


def messages_text(messages: Iterable[Message]) -> str:
    """Messages in the JSON of the conventions."""
    return bounded([_message(message) for message in messages])


def output_text(message: AssistantMessage, finish_reason: str) -> str:
    """What a model or an agent has answered, in the JSON of the conventions."""
    return bounded([_message(message) | {"finish_reason": finish_reason}])


def instructions_text(system: str) -> str:
    """A system prompt in the JSON of the conventions."""
    return bounded([_text(system)])


def bounded(items: Sequence[object]) -> str:
    """A JSON array with the last items that fit into `MAX_CONTENT` characters."""
    kept: list[str] = []
    left = MAX_CONTENT
    for item in reversed(items):
        text = msgspec.json.encode(item).decode()
        left -= len(text) + 1
        if left < 0:
            break
        kept.append(text)
    return f"[{','.join(reversed(kept))}]"


def _message(message: Message) -> dict[str, object]:
    match message:
        case UserMessage(text=text):
            return {"role": "user", "parts": [_text(text)]}
        case ToolMessage(text=text, call_id=call_id):
            return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call_id or None, "response": text}]}
        case AssistantMessage(text=text, calls=calls, thinking=thinking):
            thoughts = [{"type": "reasoning", "content": block.text} for block in thinking if block.text]
            texts = [_text(text)] if text else []
            return {"role": "assistant", "parts": [*thoughts, *texts, *map(_call, calls)]}


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "content": text}


def _call(call: ToolCall) -> dict[str, object]:
    try:
        arguments: object = msgspec.json.decode(call.arguments)
    except NOT_JSON:
        arguments = call.arguments
    return {"type": "tool_call", "id": call.id or None, "name": call.name, "arguments": arguments}
