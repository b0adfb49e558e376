"""Request bodies of Converse, the API of Amazon Bedrock: the conversation, the options, and fields of models.

Converse has one form for all models; what only some have goes into `additionalModelRequestFields`, as the model's
vendor spells it. Blocks of a conversation follow the same rules as at Anthropic, whose encoder writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import ClassVar

import msgspec

from retinue.core.agent import Output, ToolSpec
from retinue.core.attachments import IMAGE_TYPES, PDF, Attachment
from retinue.core.messages import Thinking
from retinue.core.model_options import NO_REQUEST_OPTIONS, THINKING_TOKENS, Effort
from retinue.core.ports import Request
from retinue.core.text import utf8_safe
from retinue.providers import anthropic, message_encoder
from retinue.providers.effort import ADAPTIVE_STEPS, nearest_step, openai_effort
from retinue.providers.unsupported_options import encode_fields, without_unsupported
from retinue.providers.wire_json import ANTHROPIC_OUTPUT, as_json_object, complete, raw_json, restricted

MEMO = "bedrock"
"""The key of the encoded conversation in a request's memo."""

CACHE_POINT = "cachePoint"
TOOL_CHOICE = "toolConfig.toolChoice"
FORMAT = "outputConfig.textFormat"
EFFORT = "additionalModelRequestFields.output_config.effort"
_OUTPUT_CONFIG = "additionalModelRequestFields.output_config"
_THINKING = "additionalModelRequestFields.thinking"
_REASONING_EFFORT = "additionalModelRequestFields.reasoning_effort"
_REASONING_CONFIG = "additionalModelRequestFields.reasoningConfig"
_NOT_IN_BODY = (CACHE_POINT, TOOL_CHOICE, EFFORT)

_CLAUDE = re.compile(r"(?:.*[./])?anthropic\.claude")
_NOVA = re.compile(r"(?:.*[./])?amazon\.nova")
_NOVA_2 = re.compile(r"(?:.*[./])?amazon\.nova-2")
_GPT = re.compile(r"(?:.*[./])?openai\.")
_CACHES_TOOLS, _CACHES = _CLAUDE, re.compile(f"{_CLAUDE.pattern}|{_NOVA.pattern}")

_POINT = b'},{"cachePoint":{"type":"default"}'
_HOUR_POINT = b'},{"cachePoint":{"type":"default","ttl":"1h"}'
"""What ends a block and begins a mark after it; the brace that closed the block closes the mark."""

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg", "audio/aac": "aac"}

MAX_TOKENS_THINKING = 32_000
MIN_THINKING_BUDGET = 1024
"""The reply of a model with a budget for thinking where no limit is set, and the smallest budget."""

_NO_TOOL = ToolSpec("no_tool", "A placeholder: there are no tools now. Do not call it.")
_NOT_IN_TOOL_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9()\[\]-]+")
_NOVA_STEPS: tuple[Effort, ...] = ("low", "medium", "high")


def encode(request: Request, *, unsupported: Collection[str] = ()) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'
    """
    encoder = Encoder.of(request, MEMO, "", unsupported)
    found = options(request, unsupported)
    mark = _mark_of(request, found)
    choice = found.get(TOOL_CHOICE)
    fields = {name: value for name, value in found.items() if name not in _NOT_IN_BODY}
    if EFFORT in found:
        fields[_OUTPUT_CONFIG] = {"effort": found[EFFORT]}
    has_format = request.output is None or FORMAT in found
    prompt = message_encoder.system_prompt if has_format else message_encoder.system_prompt_with_format
    # Converse has no choice that forbids calls: a request that wants none has no tools. It rejects calls in messages
    # where no tool is declared.
    offered = () if request.options.tool_choice == "none" else request.tools or request.withheld_tools
    tools = offered or ((_NO_TOOL,) if encoder.has_calls else ())
    return b"".join(
        (
            b'{"messages":[',
            encoder.marked_body(mark) if mark else encoder.body(),
            b"]",
            _system(prompt(request), mark),
            _tools(tools, mark if _CACHES_TOOLS.match(request.model) else b"", choice),
            encode_fields(fields, request.options),
            b"}",
        )
    )


def options(request: Request, unsupported: Collection[str] = ()) -> dict[str, object]:
    """The options of a request besides the conversation, without unsupported ones, by their paths in the body.

    >>> request = Request(model="us.anthropic.claude-sonnet-4-5", system="", messages=[], temperature=0.5)
    >>> options(request, {"cachePoint"})
    {'inferenceConfig.temperature': 0.5}
    >>> options(Request(model="openai.gpt-oss-120b-1:0", system="", messages=[], effort="max"))
    {'additionalModelRequestFields.reasoning_effort': 'high'}
    """
    found: dict[str, object] = {}
    max_output = request.max_output
    effort = request.chosen_effort
    if effort is not None:
        found |= _effort_options(request, effort, unsupported)
    if _THINKING in found and max_output is None and "budget_tokens" in str(found[_THINKING]):
        max_output = MAX_TOKENS_THINKING
    if max_output is not None:
        found["inferenceConfig.maxTokens"] = max_output
    # Claude takes neither of them together with thinking, and newer models of Claude take neither at all.
    if _THINKING not in found and not _is_adaptive(request.model):
        chosen = {"inferenceConfig.temperature": request.temperature, "inferenceConfig.topP": request.top_p}
        found |= {name: value for name, value in chosen.items() if value is not None}
    if request.options is not NO_REQUEST_OPTIONS:
        _add_request_options(found, request)
    if request.output is not None and request.output.mode == "json_schema":
        found[FORMAT] = _text_format(request.output)
    if _CACHES.match(request.model):
        found[CACHE_POINT] = True
    return without_unsupported(found, unsupported)


def _effort_options(request: Request, effort: Effort, unsupported: Collection[str]) -> dict[str, object]:
    """The fields in which a model takes an effort, as its vendor spells them; none for a vendor that is not known."""
    model = request.model
    if _CLAUDE.match(model):
        return _claude_thinking(request, effort, unsupported)
    if _GPT.match(model):
        step = openai_effort(model.rpartition("openai.")[2], effort, _REASONING_EFFORT, unsupported)
        return {} if step is None else {_REASONING_EFFORT: step}
    if _NOVA_2.match(model):
        if effort == "none":
            return {_REASONING_CONFIG: {"type": "disabled"}}
        step = nearest_step(effort, _NOVA_STEPS, _REASONING_CONFIG, unsupported)
        return {_REASONING_CONFIG: {"type": "enabled", "maxReasoningEffort": step}}
    return {}


def _claude_thinking(request: Request, effort: Effort, unsupported: Collection[str]) -> dict[str, object]:
    is_adaptive = _is_adaptive(request.model)
    if effort == "none":
        return {_THINKING: {"type": "disabled"}} if is_adaptive else {}
    if request.forced_tool:  # thinking is rejected where a call is required
        return {}
    if is_adaptive:
        found: dict[str, object] = {_THINKING: {"type": "adaptive", "display": "summarized"}}
        if request.effort and (step := nearest_step(effort, ADAPTIVE_STEPS, EFFORT, unsupported)) is not None:
            found[EFFORT] = step
        return found
    encoder = Encoder.of(request, MEMO, "", unsupported)
    # A smaller allowance is shared out in the same proportion; the answer needs a part of it.
    share = (request.max_output or MAX_TOKENS_THINKING) * 3 // 4
    budget = min(THINKING_TOKENS[effort], share)
    if not encoder.may_think or budget < MIN_THINKING_BUDGET:
        return {}
    return {_THINKING: {"type": "enabled", "budget_tokens": budget}}


def _is_adaptive(model: str) -> bool:
    return _CLAUDE.match(model) is not None and anthropic.has_adaptive_thinking(model)


def _add_request_options(found: dict[str, object], request: Request) -> None:
    given = request.options
    if given.stop:
        found["inferenceConfig.stopSequences"] = given.stop
    if given.service_tier and given.service_tier != "auto":  # the service chooses where it is told nothing
        found["serviceTier"] = {"type": given.service_tier}
    if not request.tools:
        return
    nothing: dict[str, object] = {}
    if forced := request.forced_tool:
        found[TOOL_CHOICE] = {"any": nothing} if forced == "required" else {"tool": {"name": _tool_name(forced)}}
    elif given.tool_choice == "auto":
        found[TOOL_CHOICE] = {"auto": nothing}


def _mark_of(request: Request, found: dict[str, object]) -> bytes:
    """The mark of what the service shall cache, with the time for which it is kept; empty where it does not."""
    if CACHE_POINT not in found:
        return b""
    return _HOUR_POINT if request.options.cache_ttl == "1h" else _POINT


# ---- blocks ---------------------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    return msgspec.json.encode({"text": utf8_safe(text)})


def _thinking(thinking: Thinking) -> bytes:
    """A block of thinking as Claude signed it, or nothing: other models take none back."""
    match thinking:
        case Thinking(signature="", opaque=data) if data and not thinking.text and not data.startswith("{"):
            return msgspec.json.encode({"reasoningContent": {"redactedContent": data}})
        case Thinking(text=text, signature=signature, opaque="") if signature:
            block = {"text": utf8_safe(text), "signature": signature}
            return msgspec.json.encode({"reasoningContent": {"reasoningText": block}})
        case _:
            return b""


def _call(pending: message_encoder.PendingCall) -> bytes:
    arguments = raw_json(as_json_object(pending.call.arguments))
    call = {"toolUseId": pending.wire_id, "name": _tool_name(pending.call.name), "input": arguments}
    return msgspec.json.encode({"toolUse": call})


def _result(pending: message_encoder.PendingCall) -> bytes:
    text = pending.result_text
    blocks: list[msgspec.Raw] = []
    if text.strip() or not pending.attachments:
        blocks.append(msgspec.Raw(_text(text if text.strip() else "[no output]")))
    blocks += [msgspec.Raw(_attachment(each)) for each in pending.attachments]
    result: dict[str, object] = {"toolUseId": pending.wire_id, "content": blocks}
    if pending.failed or pending.text is None:
        result["status"] = "error"  # success is the default, and some models reject the field
    return msgspec.json.encode({"toolResult": result})


def _attachment(attachment: Attachment) -> bytes:
    source = {"bytes": message_encoder.base64_of(attachment)}
    if attachment.media_type in IMAGE_TYPES:
        return msgspec.json.encode({"image": {"format": attachment.media_type.partition("/")[2], "source": source}})
    if attachment.media_type == PDF:
        name = _NOT_IN_NAME.sub(" ", attachment.name.removesuffix(".pdf")).strip()[:200] or "document"
        return msgspec.json.encode({"document": {"format": "pdf", "name": name, "source": source}})
    return msgspec.json.encode({"audio": {"format": _AUDIO_FORMATS[attachment.media_type], "source": source}})


def _tool_name(name: str) -> str:
    return _NOT_IN_TOOL_NAME.sub("_", name)[:64] or "_"


class Encoder(anthropic.Encoder):
    """The messages of a run as content blocks; successive blocks of one role are one message."""

    __slots__ = ()

    id_prefix: ClassVar[str] = "tooluse"
    wire: ClassVar[str] = "bedrock"
    media_types: ClassVar[frozenset[str]] = frozenset((*IMAGE_TYPES, PDF, *_AUDIO_FORMATS))
    result_media_types: ClassVar[frozenset[str]] = frozenset((*IMAGE_TYPES, PDF))

    text_block = staticmethod(_text)
    thinking_block = staticmethod(_thinking)
    call_block = staticmethod(_call)
    result_block = staticmethod(_result)
    attachment_block = staticmethod(_attachment)

    def body(self) -> bytes:
        """All messages, without cache marks."""
        return b"".join((self.encoded, self._ending(), b"]}"))


# Cached per text and tools, so that sibling runs with the same ones share the bytes.
@lru_cache(maxsize=256)
def _system(text: str, mark: bytes) -> bytes:
    return b',"system":[' + _text(text)[:-1] + mark + b"}]" if text.strip() else b""


def _tools(tools: tuple[ToolSpec, ...], mark: bytes, choice: object) -> bytes:
    if not tools:
        return b""
    chosen = b"" if choice is None else b',"toolChoice":' + msgspec.json.encode(choice)
    return b"".join((b',"toolConfig":{"tools":[', _tool_list(tools, mark), b"]", chosen, b"}"))


@lru_cache(maxsize=256)
def _tool_list(tools: tuple[ToolSpec, ...], mark: bytes) -> bytes:
    return b",".join(map(_tool, tools))[:-1] + mark + b"}"


def _tool(spec: ToolSpec) -> bytes:
    tool: dict[str, object] = {"name": _tool_name(spec.name)}
    if spec.description.strip():
        tool["description"] = utf8_safe(spec.description)
    return msgspec.json.encode({"toolSpec": tool | {"inputSchema": {"json": complete(spec.parameters)}}})


@lru_cache(maxsize=256)
def _text_format(output: Output) -> msgspec.Raw:
    schema = msgspec.json.encode(restricted(output.schema, ANTHROPIC_OUTPUT)).decode()
    structure = {"jsonSchema": {"schema": schema, "name": output.name}}
    return msgspec.Raw(msgspec.json.encode({"type": "json_schema", "structure": structure}))
