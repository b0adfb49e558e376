"""The provider `mcp-sampling`: model requests that the MCP client answers with its own model."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.core.attachments import Attachment, described, text_of
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Message, Reply, Stop, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Publish, Request
from retinue.core.text import NOT_JSON

NAME = "mcp-sampling"
MAX_OUTPUT = 8192
"""Tokens of a reply for which the request sets no limit; the protocol wants a number."""

Sample = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends `sampling/createMessage` with these parameters to the client, and returns its result."""

_STOPS: Mapping[object, Stop] = {"toolUse": "calls", "maxTokens": "length"}


class SamplingProvider:
    """Answers with the model of the client that was connected last; on stdin and stdout there is one."""

    def __init__(self) -> None:
        self._sample: Sample | None = None
        self._has_tools = False

    def use(self, sample: Sample, *, has_tools: bool) -> None:
        """Send requests to this client; `has_tools` says whether it accepts tools."""
        self._sample, self._has_tools = sample, has_tools

    async def answer(self, request: Request, publish: Publish) -> Reply:
        if self._sample is None:
            raise ProviderError("the MCP client offers no sampling: choose another model", fault="bad_request")
        if request.tools and not self._has_tools:
            raise ProviderError("the MCP client's sampling takes no tools: give the agent none", fault="bad_request")
        return _reply(await self._sample(sampling_params(request)))


def sampling_params(request: Request) -> dict[str, Any]:
    """The parameters of `sampling/createMessage` for a request."""
    params: dict[str, Any] = {
        "messages": _messages(request.messages),
        "maxTokens": request.max_output or MAX_OUTPUT,
        "modelPreferences": {"hints": [{"name": request.model}]} if request.model else None,
        "systemPrompt": request.system or None,
        "temperature": request.temperature,
        "tools": [
            {"name": tool.name, "description": tool.description, "inputSchema": msgspec.json.decode(tool.parameters)}
            for tool in request.tools
        ]
        or None,
    }
    return {name: value for name, value in params.items() if value is not None}


def _messages(history: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation: the results of the calls of one reply are one message."""
    found: list[dict[str, Any]] = []
    open_ids: list[str] = []
    for place, message in enumerate(history):
        if isinstance(message, ToolMessage):
            result = _result(message, open_ids.pop(0) if open_ids else message.call_id or f"call_{place}")
            if found and found[-1]["content"] and found[-1]["content"][0]["type"] == "tool_result":
                found[-1]["content"].append(result)
            else:
                found.append({"role": "user", "content": [result]})
            continue
        content: list[dict[str, Any]] = [{"type": "text", "text": message.text}] if message.text else []
        if isinstance(message, UserMessage):
            content += map(_media, message.attachments)
        if isinstance(message, AssistantMessage):
            open_ids = [call.id or f"call_{place}_{index}" for index, call in enumerate(message.calls)]
            content += [_use(call, id) for call, id in zip(message.calls, open_ids, strict=True)]
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        found.append({"role": role, "content": content or [{"type": "text", "text": " "}]})
    return found


def _use(call: ToolCall, id: str) -> dict[str, Any]:
    try:
        arguments: object = msgspec.json.decode(call.understood)
    except NOT_JSON:
        arguments = {}
    return {"type": "tool_use", "id": id, "name": call.name, "input": arguments if isinstance(arguments, dict) else {}}


def _result(message: ToolMessage, id: str) -> dict[str, Any]:
    content = [{"type": "text", "text": message.text}, *map(_media, message.attachments)]
    return {"type": "tool_result", "toolUseId": id, "content": content, "isError": message.failed}


def _media(attachment: Attachment) -> dict[str, Any]:
    """An image or audio as a block; text for a file, and for one that MCP has no block for."""
    kind = attachment.media_type.partition("/")[0]
    if kind in ("image", "audio"):
        data = b64encode(attachment.data).decode()
        return {"type": kind, "data": data, "mimeType": attachment.media_type}
    text = text_of(attachment) or f"[{described([attachment])} is not shown: MCP clients take images and audio]"
    return {"type": "text", "text": text}


def _reply(result: Mapping[str, Any]) -> Reply:
    content: object = result.get("content")
    blocks = cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])
    text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    calls = tuple(_calls(blocks))
    stop = _STOPS.get(result.get("stopReason"), "end")
    return Reply(
        AssistantMessage(text=text, calls=calls),
        usage=None,
        stop="calls" if calls else "end" if stop == "calls" else stop,
        model=str(result.get("model", "")),
    )


def _calls(blocks: Iterable[Mapping[str, Any]]) -> Iterable[ToolCall]:
    for block in blocks:
        if block.get("type") == "tool_use":
            arguments = msgspec.json.encode(block.get("input") or {}).decode()
            yield ToolCall(str(block.get("name", "")), arguments, str(block.get("id", "")))
