"""Request bodies of the OpenAI Chat Completions API: the conversation and the options."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

import msgspec

from retinue.core.agent import Output, ToolSpec
from retinue.core.messages import AssistantMessage
from retinue.core.ports import Request
from retinue.providers.lenient_json import as_json_object, utf8_safe
from retinue.providers.message_encoder import MessageEncoder, PendingCall, system_prompt, system_prompt_with_format
from retinue.providers.schema_subset import OPENAI_STRICT, complete, restricted
from retinue.providers.unsupported_options import encode_fields, without_unsupported

MEMO = "openai_chat"
"""The key of the encoded conversation in a request's memo."""

# Reasoning models count their reasoning as output and reject `max_tokens`, want the role `developer` instead of
# `system`, and take neither temperature nor `top_p`. Their chat variants differ from other models in `max_tokens` only.
_COUNTS_REASONING = re.compile(r"(?:.*/)?(?:o\d|gpt-5)")
_CHAT_VARIANT = re.compile(r"(?:.*/)?gpt-5(?:\.\d+)?-chat")
_ACCEPTS_NO_EFFORT = re.compile(r"(?:.*/)?gpt-5\.1(?!\d)")

_REASONING = "reasoning"
"""The variant in which a reply's thinking is sent back with its calls."""

_USAGE = {"include_usage": True}
"""A stream ends with usage only on request; some servers reject the option."""


def options(request: Request, unsupported: Collection[str] = (), *, explicit: bool = False) -> dict[str, object]:
    """The options of a request besides the conversation, without unsupported ones; `developer` is the system role.

    With `explicit`, a request to a reasoning model states its defaults: text as the output format, and the effort.

    >>> request = Request(model="o3", system="", messages=[], max_output=9, temperature=0.5, think=True)
    >>> options(request, {"stream_options"})
    {'developer': True, 'max_completion_tokens': 9, 'reasoning_effort': 'high'}
    >>> options(request, {"stream_options", "max_completion_tokens", "reasoning_effort"})
    {'developer': True, 'max_tokens': 9}
    """
    counts_reasoning = _COUNTS_REASONING.match(request.model) is not None
    is_reasoning = counts_reasoning and not _CHAT_VARIANT.match(request.model)
    found: dict[str, object] = {"stream_options": _USAGE}
    if is_reasoning:
        found["developer"] = True
    if request.max_output is not None:
        fields = ("max_tokens", "max_completion_tokens")
        preferred = reversed(fields) if counts_reasoning else fields
        field = next((field for field in preferred if field not in unsupported), None)
        if field is not None:
            found[field] = request.max_output
    if request.temperature is not None and not is_reasoning:
        found["temperature"] = request.temperature
    if request.top_p is not None and not is_reasoning:
        found["top_p"] = request.top_p
    if is_reasoning and (request.think or explicit):
        found["reasoning_effort"] = "high" if request.think or not _ACCEPTS_NO_EFFORT.match(request.model) else "none"
    if request.output is not None:
        found["response_format"] = _response_format(request.output)
    elif is_reasoning and explicit:
        found["response_format"] = {"type": "text"}
    return without_unsupported(found, unsupported)


def encode(
    request: Request, *, sends_reasoning: bool = False, explicit: bool = False, unsupported: Collection[str] = ()
) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}'
    """
    found = options(request, unsupported, explicit=explicit)
    role = "developer" if found.pop("developer", False) else "system"
    prompt = system_prompt(request) if "response_format" in found else system_prompt_with_format(request)
    system = _system(prompt, role)
    messages = Encoder.of(request, MEMO, _REASONING if sends_reasoning else "").body()
    parts = (
        b'{"model":',
        msgspec.json.encode(utf8_safe(request.model)),
        b',"stream":true',
        encode_fields(found),
        b',"messages":[',
        system,
        b"," if system and messages else b"",
        messages,
        b"]",
        _tools(request.tools),
        b"}",
    )
    return b"".join(parts)  # a long conversation is copied here, once


class Encoder(MessageEncoder):
    """The messages of a run as chat messages."""

    __slots__ = ()

    valid_id: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x7f]{1,40}")

    def encode_user(self, text: str) -> bytes:
        return _message("user", text)

    def encode_reply(self, message: AssistantMessage, calls: Sequence[PendingCall]) -> Iterable[bytes]:
        if not calls:
            return (_message("assistant", message.text),)
        reply: dict[str, object] = {"role": "assistant", "content": utf8_safe(message.text) or None}
        reasoning = "".join(block.text for block in message.thinking) if self.variant == _REASONING else ""
        if reasoning:
            reply["reasoning_content"] = utf8_safe(reasoning)
        reply["tool_calls"] = [
            {
                "id": pending.wire_id,
                "type": "function",
                "function": {"name": utf8_safe(pending.call.name), "arguments": as_json_object(pending.call.arguments)},
            }
            for pending in calls
        ]
        return (msgspec.json.encode(reply),)

    def encode_results(self, calls: Sequence[PendingCall]) -> list[bytes]:
        return [
            msgspec.json.encode(
                {"role": "tool", "tool_call_id": pending.wire_id, "content": utf8_safe(pending.result_text)}
            )
            for pending in calls
        ]


def _message(role: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": utf8_safe(text)})


# Cached per text and tools, so that sibling runs with the same ones share the bytes.
@lru_cache(maxsize=256)
def _system(text: str, role: str) -> bytes:
    return _message(role, text) if text else b""


@lru_cache(maxsize=256)
def _response_format(output: Output) -> msgspec.Raw:
    if output.mode == "json_object":
        return msgspec.Raw(b'{"type":"json_object"}')
    schema = {"name": output.name, "schema": restricted(output.schema, OPENAI_STRICT), "strict": True}
    return msgspec.Raw(msgspec.json.encode({"type": "json_schema", "json_schema": schema}))


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b',"tools":[' + b",".join(map(_tool, tools)) + b"]" if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    function = {
        "name": utf8_safe(spec.name),
        "description": utf8_safe(spec.description),
        "parameters": complete(spec.parameters),
    }
    return msgspec.json.encode({"type": "function", "function": function})
