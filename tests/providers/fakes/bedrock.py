"""A fake server of Amazon Bedrock on this machine, which plays a script in the format of Converse.

It is as strict as the service: a conversation that Bedrock would reject is rejected here. Streams are frames with
checksums, as AWS sends them.
"""

from __future__ import annotations

import base64
import re
import struct
from binascii import crc32
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, assert_never, cast

import msgspec

from retinue.core.errors import ProviderFault
from retinue.core.messages import Stop, ToolCall
from retinue.providers.scripted import Line, ScriptedFailure, ScriptedHang, ScriptedReply
from retinue.testing.fake_chat import JSON, Playable, PromptBlock, PromptCache, PromptTokens
from retinue.testing.fake_server import HOST, FakeResponse, FakeServer, ReceivedRequest
from tests.providers.fakes.anthropic_rules import signature_of
from tests.providers.fakes.scripted_parts import calls_with_ids, counted

FRAMES = {"Content-Type": "application/vnd.amazon.eventstream"}

_STOPS: dict[Stop, str] = {
    "end": "end_turn",
    "calls": "tool_use",
    "length": "max_tokens",
    "refusal": "content_filtered",
}
_KINDS: dict[ProviderFault, str] = {
    "rate_limited": "throttlingException",
    "overloaded": "serviceUnavailableException",
    "timeout": "modelTimeoutException",
    "bad_request": "validationException",
    "too_long": "validationException",
}
_PATH = re.compile(r"/model/[^/]+/converse(-stream)?")
_BODY = {
    "messages",
    "system",
    "inferenceConfig",
    "toolConfig",
    "additionalModelRequestFields",
    "serviceTier",
    "outputConfig",
}
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DOCUMENT_NAME = re.compile(r"[a-zA-Z0-9()\[\]-]+(?: [a-zA-Z0-9()\[\]-]+)*")
POINTS = 4


class FakeBedrock(FakeServer):
    """The server, open inside an `async with` block; `base_url` is its address for a provider.

    `chunk` sends every answer in pieces of so many bytes. `requests` has all requests, including rejected ones.
    """

    def __init__(self, played: Playable, *, chunk: int | None = None, host: str = HOST, port: int = 0) -> None:
        super().__init__(self._response, host=host, port=port)
        self._played = played
        self._chunk = chunk
        self._cache = PromptCache(wants_marks=True)

    @property
    def base_url(self) -> str:
        """The base URL for a provider."""
        return self.url

    async def __aenter__(self) -> FakeBedrock:
        await self.open()
        return self

    def _response(self, heard: ReceivedRequest) -> FakeResponse:
        if not _PATH.fullmatch(heard.path):
            return failed(404, f"Unknown operation: {heard.method} {heard.path}", kind="UnknownOperationException")
        if problem := rejection_of(heard.body):
            return failed(400, problem)
        played = self._played
        if callable(played):
            played = played(heard)
        if not isinstance(played, FakeResponse):
            played = answer_of(played, heard, self._cache.read(heard.path, _blocks(heard.body)))
        return played if played.chunk else replace(played, chunk=self._chunk)


# ---- rules ----------------------------------------------------------------------------------------------------------


def rejection_of(body: dict[str, Any]) -> str | None:
    """The reason for which the service would reject this request, or None."""
    if unknown := set(body) - _BODY:
        return f"Unexpected field: {min(unknown)}"
    messages = cast("list[dict[str, Any]]", body.get("messages") or [])
    if not messages:
        return "The messages field must not be empty."
    if messages[0]["role"] != "user":
        return "A conversation must start with a user message. Try again with a conversation that starts with one."
    if messages[-1]["role"] != "user":
        return "This model does not support assistant message prefill. The conversation must end with a user message."
    if any(one["role"] == other["role"] for one, other in pairwise(messages)):
        return "A conversation must alternate between user and assistant roles."
    blocks = [block for message in messages for block in message["content"]]
    tools = cast("list[dict[str, Any]]", body.get("toolConfig", {}).get("tools", []))
    if any("toolUse" in block or "toolResult" in block for block in blocks) and not tools:
        return "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    points = [each for each in (*blocks, *body.get("system", []), *tools) if "cachePoint" in each]
    if len(points) > POINTS:
        return f"A maximum of {POINTS} cache points may be provided. Found {len(points)}."
    for tool in tools:
        spec = tool.get("toolSpec")
        if spec and not _NAME.fullmatch(spec["name"]):
            return "The toolSpec name must match [a-zA-Z0-9_-]+"
    if "toolConfig" in body and "none" in body["toolConfig"].get("toolChoice", {}):
        return "Unexpected field: toolConfig.toolChoice.none"
    return _check_calls(messages) or next(filter(None, map(_check_block, blocks)), None)


def _check_calls(messages: list[dict[str, Any]]) -> str | None:
    used: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(messages):
        given = [block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block]
        if sorted(given) != sorted(waiting):
            return (
                f"messages.{number}: the number of toolResult blocks does not fit the toolUse blocks of the turn before"
            )
        waiting = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        if used.intersection(waiting) or len(set(waiting)) < len(waiting):
            return "toolUse ids must be unique"
        used.update(waiting)
    return None


def _check_block(block: dict[str, Any]) -> str | None:
    ((kind, value),) = block.items()
    match kind:
        case "text":
            return None if value.strip() else "The text field in the ContentBlock object is blank."
        case "toolUse":
            fits = _ID.fullmatch(value["toolUseId"]) and _NAME.fullmatch(value["name"])
            return None if fits and isinstance(value["input"], dict) else f"toolUse is not valid: {value}"
        case "toolResult":
            if not value["content"]:
                return "The content field in the ToolResult object is empty."
            return next(filter(None, map(_check_block, value["content"])), None)
        case "image":
            return _check_bytes(value, ("png", "jpeg", "gif", "webp"))
        case "audio":
            return _check_bytes(value, ("wav", "mp3", "flac", "ogg", "aac"))
        case "document":
            if not _DOCUMENT_NAME.fullmatch(value["name"]):
                return "The document file name can only contain alphanumeric characters, whitespace, hyphens, ..."
            return _check_bytes(value, ("pdf",))
        case "reasoningContent":
            thought = value.get("reasoningText")
            if thought is None:
                return None if base64.b64decode(value["redactedContent"]) else "redactedContent is empty"
            good = thought["signature"] == signature_of(thought["text"])
            return None if good else "Invalid `signature` in `thinking` block"
        case "cachePoint":
            return None if value["type"] == "default" else "cachePoint.type must be default"
        case _:
            return f"Unexpected field: {kind}"


def _check_bytes(value: dict[str, Any], formats: tuple[str, ...]) -> str | None:
    if value["format"] not in formats:
        return f"format must be one of {formats}"
    return None if base64.b64decode(value["source"]["bytes"]) else "source.bytes is empty"


def _blocks(body: dict[str, Any]) -> Iterable[PromptBlock]:
    parts: list[tuple[str, list[dict[str, Any]]]] = [
        ("tools", body.get("toolConfig", {}).get("tools", [])),
        ("system", body.get("system", [])),
    ]
    parts += [(message["role"], message["content"]) for message in body["messages"]]
    for part, content in parts:
        for index, block in enumerate(content):
            if "cachePoint" not in block:
                is_marked = index + 1 < len(content) and "cachePoint" in content[index + 1]
                yield PromptBlock(msgspec.json.encode([part, block]), is_marked)


# ---- responses ------------------------------------------------------------------------------------------------------


def frame(payload: bytes, **headers: str) -> bytes:
    """One frame of an event stream; headers as `event_type="messageStop"`."""
    encoded = b""
    for name, value in headers.items():
        key, text = f":{name.replace('_', '-')}".encode(), value.encode()
        encoded += struct.pack(">B", len(key)) + key + b"\x07" + struct.pack(">H", len(text)) + text
    prelude = struct.pack(">II", 16 + len(encoded) + len(payload), len(encoded))
    whole = prelude + struct.pack(">I", crc32(prelude)) + encoded + payload
    return whole + struct.pack(">I", crc32(whole))


def event(kind: str, **fields: object) -> bytes:
    """One event of a stream."""
    return frame(msgspec.json.encode(fields), message_type="event", event_type=kind, content_type="application/json")


def exception(kind: str, message: str) -> bytes:
    """An exception inside a stream."""
    return frame(msgspec.json.encode({"message": message}), message_type="exception", exception_type=kind)


def failed(status: int, message: str, *, kind: str = "ValidationException", **headers: str) -> FakeResponse:
    """An error response of the service; headers as `retry_after="7"`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["x-amzn-ErrorType"] = f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"
    return FakeResponse(status=status, headers=JSON | named, pieces=(msgspec.json.encode({"message": message}),))


def answer_of(line: Line, heard: ReceivedRequest, prompt: PromptTokens) -> FakeResponse:
    """The response to a line, in the format of this wire."""
    match line:
        case ScriptedReply():
            return _streamed(line, heard, prompt) if heard.path.endswith("-stream") else _whole(line, heard, prompt)
        case ScriptedHang(pieces=pieces):
            return FakeResponse(headers=FRAMES, pieces=_words(*pieces), ending="silence")
        case ScriptedFailure(times=times, then=then, error=error):
            if then is not None and heard.attempt > times:
                return answer_of(then, replace(heard, attempt=heard.attempt - times), prompt)
            kind = _KINDS.get(error.fault, "internalServerException")
            if error.status is not None:
                details = {} if error.retry_after is None else {"retry_after": f"{error.retry_after:g}"}
                return failed(error.status, str(error), kind=kind[0].upper() + kind[1:], **details)
            if error.fault == "unreachable":
                return FakeResponse(status=0, ending="cut")
            partial = _words(error.partial) if error.partial else ()
            if error.fault == "cut":
                return FakeResponse(headers=FRAMES, pieces=partial, ending="cut")
            return FakeResponse(headers=FRAMES, pieces=(*partial, exception(kind, str(error))))
        case _:
            assert_never(line)


def _streamed(line: ScriptedReply, heard: ReceivedRequest, prompt: PromptTokens) -> FakeResponse:
    pieces = [event("messageStart", role="assistant")]
    number = 0
    if line.thinking:
        pieces.append(_grow(0, reasoningContent={"text": line.thinking}))
        pieces.append(_grow(0, reasoningContent={"signature": signature_of(line.thinking)}))
        pieces.append(_end(0))
        number += 1
    if line.pieces:
        pieces += [_grow(number, text=piece) for piece in line.pieces]
        pieces.append(_end(number))
        number += 1
    for index, call in enumerate(_calls(line, heard), start=number):
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        pieces.append(event("contentBlockStart", start=start, contentBlockIndex=index))
        arguments = "" if call.arguments == "{}" else call.arguments
        half = len(arguments) // 2
        pieces += [_grow(index, toolUse={"input": part}) for part in ("", arguments[:half], arguments[half:])]
        pieces.append(_end(index))
    pieces.append(event("messageStop", stopReason=_stop(line)))
    usage = _usage(line, prompt)
    counted = {} if usage is None else {"usage": usage}
    pieces.append(event("metadata", metrics={"latencyMs": 5}, **counted))
    return FakeResponse(headers=FRAMES, pieces=tuple(pieces), every=line.every)


def _whole(line: ScriptedReply, heard: ReceivedRequest, prompt: PromptTokens) -> FakeResponse:
    content: list[dict[str, object]] = []
    if line.thinking:
        thought = {"text": line.thinking, "signature": signature_of(line.thinking)}
        content.append({"reasoningContent": {"reasoningText": thought}})
    if line.text:
        content.append({"text": line.text})
    for call in _calls(line, heard):
        made = msgspec.Raw(call.arguments.encode())
        content.append({"toolUse": {"toolUseId": call.id, "name": call.name, "input": made}})
    body: dict[str, object] = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": _stop(line),
        "usage": _usage(line, prompt),
        "metrics": {"latencyMs": 5},
    }
    return FakeResponse(headers=JSON, pieces=(msgspec.json.encode(body),))


def _grow(index: int, **delta: object) -> bytes:
    return event("contentBlockDelta", delta=delta, contentBlockIndex=index)


def _end(index: int) -> bytes:
    return event("contentBlockStop", contentBlockIndex=index)


def _words(*pieces: str) -> tuple[bytes, ...]:
    """The beginning of a response, up to the end of its text."""
    if not pieces:
        return ()
    return (event("messageStart", role="assistant"), *(_grow(0, text=piece) for piece in pieces))


def _calls(line: ScriptedReply, heard: ReceivedRequest) -> list[ToolCall]:
    return calls_with_ids(line, "tooluse_fake", heard.body["messages"])


def _stop(line: ScriptedReply) -> str:
    return _STOPS[line.stop or ("calls" if line.calls else "end")]


def _usage(line: ScriptedReply, prompt: PromptTokens) -> dict[str, object] | None:
    usage, written = counted(line, prompt)
    if usage is None:
        return None
    return {
        "inputTokens": usage.input - usage.cached - written,
        "outputTokens": usage.output,
        "totalTokens": usage.input + usage.output,
        "cacheReadInputTokens": usage.cached,
        "cacheWriteInputTokens": written,
    }
