"""Rules by which Anthropic's servers reject requests, for the fake server."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, cast

from retinue.testing.fake_server import ReceivedRequest

Block = dict[str, Any]

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_BUDGETLESS = re.compile(r"claude-(opus-4-[78]|[a-z]+-5)")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MARKS = 4


SERVER_TOOLS = {
    "web_search_20250305": "web_search",
    "web_fetch_20250910": "web_fetch",
    "code_execution_20250825": "code_execution",
}


def signature_of(thinking: str) -> str:
    """The signature of a thinking block, by which the fake server recognizes its own."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def rejection_of(heard: ReceivedRequest) -> str | None:
    """The reason for which the vendor would reject this request, or None."""
    return (
        _envelope(heard)
        or _options(heard.body)
        or _marks(heard.body)
        or _tools(heard.body)
        or _check_messages(heard.body)
    )


def _envelope(heard: ReceivedRequest) -> str | None:
    body = heard.body
    if heard.path.endswith(":streamRawPredict"):
        if "model" in body:
            return "model: Extra inputs are not permitted"
        return None if body.get("anthropic_version") == "vertex-2023-10-16" else "anthropic_version: Field required"
    if "anthropic-version" not in heard.headers:
        return "anthropic-version: header is required"
    if "mcp_servers" in body and "mcp-client-2025-11-20" not in heard.headers.get("anthropic-beta", "").split(","):
        return "mcp_servers: Extra inputs are not permitted"
    if "anthropic_version" in body:
        return "anthropic_version: Extra inputs are not permitted"
    return None if isinstance(body.get("model"), str) and body["model"] else "model: Field required"


def _options(body: Block) -> str | None:
    most, thinking = body.get("max_tokens"), body.get("thinking")
    if not isinstance(most, int) or most < 1:
        return "max_tokens: Field required"
    if thinking is not None:
        if "temperature" in body and body["temperature"] != 1:
            return "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
        if thinking["type"] == "enabled":
            if _BUDGETLESS.match(body.get("model", "")):
                return '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"'
            if not 1024 <= thinking["budget_tokens"] < most:
                return "`max_tokens` must be greater than `thinking.budget_tokens`, which must be 1024 or more"
    return None


def _marks(body: Block) -> str | None:
    contents: list[Any] = [body.get("tools", []), body.get("system", [])]
    contents += [message["content"] for message in body.get("messages", [])]
    blocks = [
        cast("Block", block) for content in contents if isinstance(content, list) for block in cast("Any", content)
    ]
    marked = [block for block in blocks if "cache_control" in block]
    if any(block.get("type") in ("thinking", "redacted_thinking") for block in marked):
        return "cache_control cannot be set for thinking blocks"
    if len(marked) > MARKS:
        return f"A maximum of {MARKS} blocks with cache_control may be provided. Found {len(marked)}."
    return None


def _tools(body: Block) -> str | None:
    for number, tool in enumerate(cast("list[Block]", body.get("tools", []))):
        if tool.get("type") == "mcp_toolset":
            if tool["mcp_server_name"] not in [server["name"] for server in body.get("mcp_servers", [])]:
                return f"tools.{number}.mcp_server_name: MCP server not found in mcp_servers"
            continue
        if (kind := tool.get("type", "custom")) != "custom":
            if kind not in SERVER_TOOLS or tool["name"] != SERVER_TOOLS[kind]:
                return f"tools.{number}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
            continue
        if not _NAME.fullmatch(tool["name"]):
            return f"tools.{number}.name: String should match pattern"
        if tool["input_schema"].get("type") != "object":
            return f"tools.{number}.input_schema.type: Field required"
    return None


def _check_messages(body: Block) -> str | None:
    """The rules about the order of roles, and about tool results."""
    messages = cast("list[Block]", body.get("messages") or [])
    if not messages:
        return "messages: at least one message is required"
    if any(not _has_text(block) for block in _content({"content": body.get("system", [])})):
        return "system: text content blocks must contain non-whitespace text"
    if messages[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    if messages[-1]["role"] != "user" and not _unanswered(messages[-1:]):
        return "This model does not support assistant message prefill. The conversation must end with a user message."
    if unanswered := _unanswered(messages[:-1]):
        return f"`{unanswered[0]}`: server tool uses were found without a corresponding result block"
    used: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(messages):
        problem = _check_results(message, waiting) if number and waiting else None
        waiting = []
        for block in _content(message):
            problem = problem or _check_block(block, message["role"])
            if block["type"] == "tool_use":
                if block["id"] in used:
                    problem = problem or "`tool_use` ids must be unique"
                used.add(block["id"])
                waiting.append(block["id"])
            elif block["type"] == "tool_result" and block["tool_use_id"] not in used:
                problem = problem or "unexpected `tool_use_id` found in `tool_result` blocks"
        if not _content(message):
            problem = "all messages must have non-empty content"
        if message["role"] == "assistant" and _content(message)[-1]["type"] in ("thinking", "redacted_thinking"):
            problem = "The final block in an assistant message cannot be `thinking`."
        if problem:
            return f"messages.{number}: {problem}"
    return _check_thinking(body, messages)


def _unanswered(messages: list[Block]) -> list[str]:
    """The uses of server tools without a result; the server answers those of the last message itself."""
    blocks = [block for message in messages for block in _content(message)]
    uses = [block["id"] for block in blocks if block["type"] in ("server_tool_use", "mcp_tool_use")]
    results = [block["tool_use_id"] for block in blocks if block["type"] in _SERVER_RESULTS]
    return [use for use in uses if use not in results]


_SERVER_RESULTS = ("web_search_tool_result", "web_fetch_tool_result", "mcp_tool_result")


def _check_results(message: Block, waiting: list[str]) -> str | None:
    """Every call needs its result at the beginning of the next message."""
    given: list[str] = []
    for block in _content(message):
        if block["type"] != "tool_result":
            break
        given.append(block["tool_use_id"])
    if message["role"] != "user" or sorted(given) != sorted(waiting):
        return f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(waiting)}"
    return None


def _check_block(block: Block, role: str) -> str | None:
    match block["type"], role:
        case "text", _:
            return None if _has_text(block) else "text content blocks must contain non-whitespace text"
        case "tool_result", "user":
            if block.get("is_error") and not block.get("content"):
                return "content cannot be empty if `is_error` is true"
            inner = block.get("content")
            if not isinstance(inner, list):
                return None
            problems = (_check_block(each, role) for each in cast("list[Block]", inner))
            return next(filter(None, problems), None)
        case ("image" | "document") as kind, "user":
            types = _IMAGES if kind == "image" else ("application/pdf",)
            source = block["source"]
            if source["type"] != "base64" or source["media_type"] not in types:
                return f"{kind}.source.base64.media_type: Input should be one of {types}"
            return None if base64.b64decode(source["data"]) else f"{kind}.source.base64: cannot be empty"
        case "tool_use", "assistant":
            if not _ID.fullmatch(block["id"]) or not _NAME.fullmatch(block["name"]):
                return "tool_use: String should match pattern '^[a-zA-Z0-9_-]+$'"
            return None if isinstance(block["input"], dict) else "tool_use.input: Input should be a valid dictionary"
        case "server_tool_use", "assistant":
            if not re.fullmatch(r"srvtoolu_[a-zA-Z0-9_]+", block["id"]):
                return "server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'"
            return None if isinstance(block["input"], dict) else "server_tool_use.input: Input should be an object"
        case "web_search_tool_result", "assistant":
            good = all(found["encrypted_content"] == signature_of(found["url"]) for found in block["content"])
            return None if good else "Invalid `encrypted_content` in `search_result` block"
        case (("mcp_tool_use" | "mcp_tool_result"), "assistant"):
            return None
        case "thinking", "assistant":
            good = block["signature"] == signature_of(block["thinking"])
            return None if good else "Invalid `signature` in `thinking` block"
        case "redacted_thinking", "assistant":
            return None if block["data"] else "redacted_thinking.data: Field required"
        case kind, _:
            return f"{role} messages cannot contain {kind} blocks"


def _check_thinking(body: Block, messages: list[Block]) -> str | None:
    """With a thinking budget, the reply whose calls were just answered must begin with thinking."""
    if body.get("thinking", {}).get("type") != "enabled" or len(messages) < 2:
        return None
    amid_calls = any(block["type"] == "tool_result" for block in _content(messages[-1]))
    first = _content(messages[-2])[0]["type"]
    if amid_calls and first not in ("thinking", "redacted_thinking"):
        return f"messages.{len(messages) - 2}: Expected `thinking` or `redacted_thinking`, but found `{first}`."
    return None


def _content(message: Block) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _has_text(block: Block) -> bool:
    return block["type"] != "text" or bool(block["text"].strip())
