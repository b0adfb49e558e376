"""Request bodies of the Anthropic Messages API: the conversation and the options.

The API rejects more of what a real history may hold than others do: a result away from its call, empty texts, a
conversation that begins or ends with the model. That is repaired here, by position alone, so that the same history
always gives the same bytes. The content blocks of a reply go back in the order in which they came; a reply in another
than the usual order (thinking, text, calls) has a note of it among its thinking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.attachments import IMAGE_TYPES, PDF, Attachment
from retinue.core.messages import AssistantMessage, Thinking, ToolCall
from retinue.core.model_options import NO_REQUEST_OPTIONS, THINKING_TOKENS, RequestOptions
from retinue.core.ports import Request
from retinue.core.state import LEFT_OUT
from retinue.core.text import utf8_safe
from retinue.providers import message_encoder
from retinue.providers.effort import ADAPTIVE_STEPS, nearest_step
from retinue.providers.pricing import listed_windows
from retinue.providers.unsupported_options import encode_fields, is_supported, without_unsupported
from retinue.providers.wire_json import ANTHROPIC_OUTPUT, as_json_object, complete, raw_json, restricted

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

OrderStep: TypeAlias = Literal["thought", "call"] | int
"""One block of a reply; text is its number of characters."""

NOTE_SIGNATURE = "anthropic"
"""The signature of a note; the API's own signatures are much longer."""


class BlockOrder(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="anthropic.order"):
    """The blocks of a reply in their order; blocks of server tools count as thoughts.

    `citations` has the citations of text blocks by the numbers of their steps, as they came. The server has `paused`
    its turn, and goes on with the reply when it is sent back; `container` is the container of its programs.
    """

    blocks: tuple[OrderStep, ...]
    citations: dict[int, tuple[msgspec.Raw, ...]] = {}
    paused: bool = False
    container: str = ""


_decode_order = msgspec.json.Decoder(BlockOrder).decode

SERVER_BLOCK = "anthropic.block"
"""The signature of a block of a server tool, which is kept as it came in `opaque`."""

MCP_BETA = "mcp-client-2025-11-20"
"""The feature of the API that requests with MCP servers have to name."""


def order_note(steps: Iterable[OrderStep]) -> Thinking | None:
    """A note of this order, or None if it is the usual one or there is no thinking to keep in its place.

    >>> order_note(["thought", 3, "call", "call"]) is None
    True
    >>> order_note([3, "thought", "call"]).opaque
    '{"type":"anthropic.order","blocks":[3,"thought","call"]}'
    """
    steps = tuple(steps)
    rank = [0 if step == "thought" else 2 if step == "call" else 1 for step in steps]
    if rank == sorted(rank) or 0 not in rank:
        return None
    return message_encoder.make_note(BlockOrder(steps), NOTE_SIGNATURE)


def ordered_blocks(message: AssistantMessage) -> Iterable[Thinking | str | ToolCall]:
    """The blocks of a reply, in the order in which the model produced them."""
    thinking = [block for block in message.thinking if block.signature != NOTE_SIGNATURE]
    order = _order_of(message)
    if order is None or not message_encoder.order_fits(order.blocks, message, len(thinking)):
        return (*thinking, message.text, *message.calls)
    return message_encoder.arrange(order.blocks, message.text, iter(thinking), iter(message.calls))


def _order_of(message: AssistantMessage) -> BlockOrder | None:
    notes = (
        message_encoder.read_note(_decode_order, block)
        for block in message.thinking
        if block.signature == NOTE_SIGNATURE
    )
    return next(filter(None, notes), None)


MEDIA_TYPES = frozenset((*IMAGE_TYPES, PDF))

MEMO = "anthropic"
"""The key of the encoded conversation in a request's memo."""

MAX_TOKENS = 8192
MAX_TOKENS_THINKING = 32000
THINKING_BUDGET = 24000
"""Limits sent when neither the request nor the table of models has one: the API requires `max_tokens`."""

BYTES_PER_TOKEN = 3
"""Bytes of a conversation in a token, at least: models reject a request whose input and `max_tokens` together are
larger than their context window."""

MIN_THINKING_BUDGET = 1024
"""The API rejects smaller thinking budgets."""

_RESERVED = 16_384
"""Tokens that are kept free for the tools and the system prompt, whose size is not looked at."""

EMPTY = "[an empty message]"
GO_ON = "[go on]"
NO_REASON = "[no reason given]"
"""Texts where the API requires one and the history has none."""

_INVALID_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_VERSION = re.compile(r"claude-[a-z]+-(\d+)(?:[-.](\d{1,2})(?!\d))?")

CACHE_CONTROL = "cache_control"
"""The name of cache marks in the errors of servers that reject them."""
_MARK = b',"cache_control":{"type":"ephemeral"}'
_HOUR_MARK = b',"cache_control":{"type":"ephemeral","ttl":"1h"}'
TOOL_CHOICE = "tool_choice"
_NO_CALLS = b',"tool_choice":{"type":"none"}'

_BUDGET, _ADAPTIVE, _DISABLED = _THINKING = (
    "thinking.type.enabled",
    "thinking.type.adaptive",
    "thinking.type.disabled",
)
"""The modes of thinking, as the API names them when it rejects one."""

EFFORT = "output_config.effort"

_OPENING: dict[message_encoder.MessageRole, bytes] = {
    "user": b'{"role":"user","content":[',
    "assistant": b'{"role":"assistant","content":[',
}


def encode(request: Request, *, version: str = "", unsupported: Collection[str] = ()) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    With `version`, as on Google Cloud, the body has `anthropic_version` and no model.

    The API caches what comes before a mark for later requests that begin in the same way; marks of earlier requests
    make no difference. Four are allowed: the tools, the system text, where the request before this one ended (so that
    the next turn and all forks find it, however much one turn added), and the end.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()[:48]
    '{"model":"m","max_tokens":8192,"stream":true,"me'
    """
    encoder = Encoder.of(request, MEMO, _variant(request), unsupported)
    fields = options(request, unsupported, encoder)
    has_format = request.output is None or "output_config.format" in fields
    mark = _mark_of(request, unsupported)
    key, value = ("anthropic_version", version) if version else ("model", utf8_safe(request.model))
    return b"".join(
        (
            b'{"%b":%b,"max_tokens":%d' % (key.encode(), msgspec.json.encode(value), _max_tokens(request, encoder)),
            b',"stream":true' if request.options.stream is not False else b"",
            _encode_options(fields, request.options),
            _tools_field(request, unsupported, mark),
            _mcp_servers(request.server_tools) if request.server_tools else b"",
            b',"container":%b' % msgspec.json.encode(encoder.container) if encoder.container else b"",
            _system(
                message_encoder.system_prompt(request)
                if has_format
                else message_encoder.system_prompt_with_format(request),
                mark,
            ),
            b',"messages":[',
            encoder.marked_body(mark),
            b"]}",
        )
    )


def options(request: Request, unsupported: Collection[str] = (), encoder: Encoder | None = None) -> dict[str, object]:
    """The options of a request besides the conversation and `max_tokens`, without unsupported ones.

    `encoder` is that of the request, if there is one already.

    >>> request = Request(model="claude-opus-4-1", system="", messages=[], temperature=0.5, think=True)
    >>> options(request)
    {'thinking.type.enabled': {'type': 'enabled', 'budget_tokens': 24000}}
    >>> options(request, {"thinking"})
    {'temperature': 0.5}
    """
    is_adaptive = has_adaptive_thinking(request.model)
    found: dict[str, object] = {}
    effort = request.chosen_effort
    if effort == "none":
        if is_adaptive:
            found[_DISABLED] = {"type": "disabled"}
    elif effort is not None and not request.forced_tool:  # the API rejects thinking where a call is required
        # An unknown model may reject the one mode of thinking and accept the other.
        modes = (_ADAPTIVE, _BUDGET) if is_adaptive else (_BUDGET, _ADAPTIVE)
        mode = next((mode for mode in modes if is_supported(mode, unsupported)), None)
        encoder = encoder or Encoder.of(request, MEMO, _variant(request), unsupported)
        if mode == _ADAPTIVE:
            found[_ADAPTIVE] = {"type": "adaptive", "display": "summarized"}
            if request.effort and (step := nearest_step(effort, ADAPTIVE_STEPS, EFFORT, unsupported)) is not None:
                found[EFFORT] = step
        elif mode == _BUDGET and encoder.may_think:
            # An allowance smaller than usual is shared out in the same proportion; the answer needs a part of it.
            share = _max_tokens(request, encoder) * THINKING_BUDGET // MAX_TOKENS_THINKING
            budget = min(THINKING_TOKENS[effort], share)
            if budget >= MIN_THINKING_BUDGET:
                found[_BUDGET] = {"type": "enabled", "budget_tokens": budget}
    # Thinking excludes a temperature and most values of `top_p`, and newer models reject both in any case.
    if request.options is not NO_REQUEST_OPTIONS:
        _add_request_options(found, request)
    if not is_adaptive and found.keys().isdisjoint(_THINKING):
        if request.temperature is not None:
            found["temperature"] = request.temperature
        if request.top_p is not None:
            found["top_p"] = request.top_p
    if request.output is not None and request.output.mode == "json_schema":
        schema = restricted(request.output.schema, ANTHROPIC_OUTPUT)
        found["output_config.format"] = {"type": "json_schema", "schema": schema}
    return without_unsupported(found, unsupported)


def _add_request_options(found: dict[str, object], request: Request) -> None:
    given = request.options
    if given.stop:
        found["stop_sequences"] = given.stop
    if given.service_tier:
        found["service_tier"] = given.service_tier
    if not request.tools:
        return
    choice: dict[str, object] = {}
    if forced := request.forced_tool:
        choice = {"type": "any"} if forced == "required" else {"type": "tool", "name": forced}
    elif given.tool_choice in ("auto", "none"):
        choice = {"type": given.tool_choice}
    if given.parallel_tool_calls is not None and choice.get("type") != "none":
        choice = (choice or {"type": "auto"}) | {"disable_parallel_tool_use": not given.parallel_tool_calls}
    if choice:
        found[TOOL_CHOICE] = choice


def _mark_of(request: Request, unsupported: Collection[str]) -> bytes:
    """The mark of what the API shall cache, with the time for which it is kept."""
    if not is_supported(CACHE_CONTROL, unsupported):
        return b""
    return _HOUR_MARK if request.options.cache_ttl == "1h" else _MARK


def sent_options(request: Request, unsupported: Collection[str]) -> dict[str, object]:
    """What a server may reject in a request: options, cache marks, and the ban on calls."""
    sent = options(request, unsupported)
    if is_supported(CACHE_CONTROL, unsupported):
        sent[CACHE_CONTROL] = True
    if _forbids_calls(request, unsupported):
        sent[TOOL_CHOICE] = True
    return sent


def _encode_options(found: Mapping[str, object], extra: RequestOptions) -> bytes:
    """The options as fields; the modes of thinking share one field."""
    if not found and not extra.extra_body:
        return b""
    fields = {"thinking" if option in _THINKING else option: value for option, value in found.items()}
    return encode_fields(fields, extra)


def _max_tokens(request: Request, encoder: Encoder) -> int:
    """The limit of the reply: the one asked for, else the longest reply of the model that its window has room for."""
    if request.max_output is not None:
        return request.max_output
    least = MAX_TOKENS_THINKING if request.thinks else MAX_TOKENS
    longest, window = _sizes(request.model)
    if longest is None:
        return least
    if window is not None:
        longest = min(longest, max(least, window - len(encoder.encoded) // BYTES_PER_TOKEN - _RESERVED))
    return longest


@lru_cache(maxsize=256)
def _sizes(model: str) -> tuple[int | None, int | None]:
    """The longest reply and the context window of a model, if they are known."""
    return listed_windows().longest_reply(model), listed_windows().window(model)


def _tools_field(request: Request, unsupported: Collection[str], mark: bytes) -> bytes:
    """The tools of a request.

    A turn without tools repeats the tools of earlier turns and forbids calls: otherwise the vendor's cache would miss,
    and some servers reject calls without declared tools.
    """
    server = request.server_tools
    if _forbids_calls(request, unsupported):
        return _tools(request.withheld_tools, mark, server) + _NO_CALLS
    return _tools(request.tools, mark, server)


def _forbids_calls(request: Request, unsupported: Collection[str]) -> bool:
    return bool(request.withheld_tools) and not request.tools and is_supported(TOOL_CHOICE, unsupported)


_WITH_SERVER_TOOLS = "server tools"


def _variant(request: Request) -> str:
    """The variant of the encoded messages: blocks of server tools are sent only with those tools."""
    return _WITH_SERVER_TOOLS if request.server_tools else ""


_SERVER_TOOL_TYPES = {
    "web_search": "web_search_20250305",
    "web_fetch": "web_fetch_20250910",
    "code_execution": "code_execution_20250825",
}


def _server_tool(spec: ServerToolSpec) -> dict[str, object]:
    if spec.kind == "mcp":
        if not spec.allow:
            return {"type": "mcp_toolset", "mcp_server_name": spec.name}
        return {
            "type": "mcp_toolset",
            "mcp_server_name": spec.name,
            "default_config": {"enabled": False},
            "configs": {name: {"enabled": True} for name in spec.allow},
        }
    tool: dict[str, object] = {"type": _SERVER_TOOL_TYPES[spec.kind], "name": spec.kind}
    if spec.kind == "web_fetch":
        tool["citations"] = {"enabled": True}
    options = {name: getattr(spec, name) for name in ("max_uses", "allowed_domains", "blocked_domains")}
    return tool | {name: value for name, value in options.items() if value}


def _mcp_servers(tools: Sequence[ServerToolSpec]) -> bytes:
    """The addresses and tokens of the MCP servers; the tokens are in no cached text."""
    servers = [
        {"type": "url", "name": tool.name, "url": tool.url} | ({"authorization_token": token} if token else {})
        for tool in tools
        if tool.kind == "mcp"
        for token in [tool.token()]
    ]
    return b',"mcp_servers":' + msgspec.json.encode(servers) if servers else b""


def has_adaptive_thinking(model: str) -> bool:
    """Whether a model decides itself how long to think: Claude from 4.7 on, which rejects a budget.

    >>> [has_adaptive_thinking(name) for name in ("claude-opus-4-7", "claude-sonnet-5", "claude-sonnet-4-5@20250929")]
    [True, True, False]
    """
    version = _VERSION.search(model)
    return version is not None and (int(version[1]), int(version[2] or 0)) >= (4, 7)


class _ServerUse(Struct):
    type: str = ""
    id: str = ""
    tool_use_id: str = ""


_decode_use = msgspec.json.Decoder(_ServerUse).decode


def _end_of_answered(blocks: Sequence[tuple[bytes, bool]]) -> int:
    """The number of blocks before the first use of a server tool that has no result, and before its thinking."""
    found = [_decode_use(block) for block, _ in blocks]
    answered = {block.tool_use_id for block in found}
    uses = (index for index, block in enumerate(found) if block.type in SERVER_USES and block.id not in answered)
    end = next(uses, len(blocks))
    while end and blocks[end - 1][1]:
        end -= 1
    return end


SERVER_USES = ("server_tool_use", "mcp_tool_use")


def _text(text: str, citations: tuple[msgspec.Raw, ...] = ()) -> bytes:
    block: dict[str, object] = {"type": "text", "text": utf8_safe(text)}
    return msgspec.json.encode(block | {"citations": citations} if citations else block)


def _attachment(attachment: Attachment) -> bytes:
    source = {
        "type": "base64",
        "media_type": attachment.media_type,
        "data": message_encoder.base64_of(attachment),
    }
    if attachment.media_type in IMAGE_TYPES:
        return msgspec.json.encode({"type": "image", "source": source})
    title = {"title": utf8_safe(attachment.name)} if attachment.name else {}
    return msgspec.json.encode({"type": "document", "source": source} | title)


def _thinking(thinking: Thinking) -> bytes:
    """A thinking block as this API made it, or nothing if another vendor did: it would be rejected."""
    match thinking:
        case Thinking(signature="", opaque=data) if data and not thinking.text and not data.startswith("{"):
            return msgspec.json.encode({"type": "redacted_thinking", "data": data})
        case Thinking(text=text, signature=signature, opaque="") if signature:
            return msgspec.json.encode({"type": "thinking", "thinking": utf8_safe(text), "signature": signature})
        case _:
            return b""


def _call(pending: message_encoder.PendingCall) -> bytes:
    name = _INVALID_IN_NAME.sub("_", pending.call.name)[:128] or "_"
    arguments = raw_json(as_json_object(pending.call.arguments))
    return msgspec.json.encode({"type": "tool_use", "id": pending.wire_id, "name": name, "input": arguments})


def _result(pending: message_encoder.PendingCall) -> bytes:
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": pending.wire_id}
    failed, text = pending.failed or pending.text is None, pending.result_text
    if failed:
        result["is_error"] = True
    if pending.attachments:
        blocks = [msgspec.Raw(_text(text))] if text.strip() else []
        result["content"] = blocks + [msgspec.Raw(_attachment(each)) for each in pending.attachments]
    elif failed or text.strip():
        result["content"] = utf8_safe(text) if text.strip() else NO_REASON
    return msgspec.json.encode(result)


class Encoder(message_encoder.MessageEncoder):
    """The messages of a run as content blocks; successive blocks of one role are one message.

    A wire with other blocks and the same rules is a subclass with other functions for the blocks.
    """

    __slots__ = ("_began_with_thinking", "_paused", "_role", "_sent_end", "container", "may_think")

    valid_id: ClassVar[re.Pattern[str]] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    id_prefix: ClassVar[str] = "toolu"
    wire: ClassVar[str] = "anthropic"
    media_types: ClassVar[frozenset[str]] = MEDIA_TYPES
    result_media_types: ClassVar[frozenset[str]] = MEDIA_TYPES

    text_block: Callable[[str], bytes] = staticmethod(_text)
    thinking_block: Callable[[Thinking], bytes] = staticmethod(_thinking)
    call_block: Callable[[message_encoder.PendingCall], bytes] = staticmethod(_call)
    result_block: Callable[[message_encoder.PendingCall], bytes] = staticmethod(_result)
    attachment_block: Callable[[Attachment], bytes] = staticmethod(_attachment)

    def __init__(self, variant: str = "") -> None:
        super().__init__(variant)
        # `encoded` lacks the end of the last message, which may still grow.
        self.may_think = True
        """Whether the API accepts thinking now: not after calls of a reply without thinking."""
        self._began_with_thinking = False
        self._role: message_encoder.MessageRole | None = None
        self._sent_end = 0
        """Where the last block before the last reply ends: up to here an earlier request was sent."""
        self._paused: list[tuple[bytes, bool]] | None = None
        """The blocks at the end of a reply in which the server has paused; they go back only if it goes on with it."""
        self.container = ""
        """The container of the paused reply."""

    def marked_body(self, mark: bytes = _MARK) -> bytes:
        """All messages, with cache marks; what is missing at the end is added, and not kept: it may still come."""
        if self._paused is not None:
            opening = b"," if self._role == "assistant" else b"]}," + _OPENING["assistant"]
            rest = opening + b",".join(block for block, _ in self._paused) if self._paused else b""
            before = self._sent_end
            return b"".join((self.encoded[:before], mark if before else b"", self.encoded[before:], rest, b"]}"))
        whole = bytes(self.encoded) + self._ending()
        before, last = self._sent_end, len(whole) - 1
        if not before:
            return b"".join((whole[:last], mark, b"}]}"))
        return b"".join((whole[:before], mark, whole[before:last], mark, b"}]}"))

    def _ending(self) -> bytes:
        """Placeholder results for calls without one, or a user message if the model spoke last."""
        blocks = self.placeholder_results()
        if self._role == "user":
            return b"".join(b"," + block for block in blocks)
        return (b"]}," if self._role else b"") + _OPENING["user"] + b",".join(blocks or [self.text_block(GO_ON)])

    def append(self, role: message_encoder.MessageRole, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if role == self._role:
                self.encoded += b","
            else:
                self._begin_message(role)
            self.encoded += piece

    def _begin_message(self, role: message_encoder.MessageRole) -> None:
        if self._role is None and role == "assistant":
            self.append("user", (self.text_block(LEFT_OUT),))
        if self._role == "user":
            self._sent_end = len(self.encoded) - 1
        if self._role is not None:
            self.encoded += b"]},"
        self.encoded += _OPENING[role]
        self._role = role

    def encode_user(self, text: str, attachments: Sequence[Attachment] = ()) -> bytes:
        self._paused, self.container = None, ""
        block = self.text_block(text if text.strip() else EMPTY)
        return b",".join((*map(self.attachment_block, attachments), block)) if attachments else block

    def encode_reply(self, message: AssistantMessage, calls: Sequence[message_encoder.PendingCall]) -> Iterable[bytes]:
        if not (message.thinking or self._paused):
            return self._encode_plain(message, calls)
        next_call = iter(calls)
        order = _order_of(message) if self.variant else None
        citations = {} if order is None else order.citations
        blocks: list[tuple[bytes, bool]] = []
        """Each with whether it is thinking."""
        for step, part in enumerate(ordered_blocks(message)):
            match part:
                case Thinking(signature=signature, opaque=opaque) if signature == SERVER_BLOCK:
                    blocks.append((utf8_safe(opaque).encode() if self.variant else b"", False))
                case str() if step in citations and part.strip():
                    blocks.append((_text(part, citations[step]), False))
                case Thinking():
                    blocks.append((self.thinking_block(part), True))
                case ToolCall():
                    blocks.append((self.call_block(next(next_call)), False))
                case _:
                    blocks.append((self.text_block(part) if part.strip() else b"", False))
        blocks = [(block, is_thinking) for block, is_thinking in blocks if block]
        held, self._paused = self._paused, None
        self.container = ""
        if order is not None and order.paused and blocks:
            # Uses without results are answered by the server only if it goes on with this very reply.
            self.container = order.container
            end = _end_of_answered(blocks)
            blocks, self._paused = blocks[:end], blocks[end:]
        while blocks and blocks[-1][1]:
            blocks.pop()  # the API rejects thinking that nothing follows
        blocks = [*(held or ()), *blocks]
        if blocks:
            if self._role != "assistant":
                self._began_with_thinking = blocks[0][1]
            self.may_think = self._began_with_thinking or not message.calls
        return [block for block, _ in blocks]

    def _encode_plain(self, message: AssistantMessage, calls: Sequence[message_encoder.PendingCall]) -> Sequence[bytes]:
        """A reply without thinking and notes: its text and its calls."""
        self._paused, self.container = None, ""
        blocks = [self.text_block(message.text)] if message.text.strip() else []
        if calls:
            blocks += map(self.call_block, calls)
        if blocks:
            if self._role != "assistant":
                self._began_with_thinking = False
            self.may_think = self._began_with_thinking or not calls
        return blocks

    def encode_results(self, calls: Sequence[message_encoder.PendingCall]) -> list[bytes]:
        return [self.result_block(call) for call in calls]


# Cached per text and tools, so that sibling runs with the same ones share the bytes.
@lru_cache(maxsize=256)
def _system(text: str, mark: bytes) -> bytes:
    return b',"system":[' + _text(text)[:-1] + mark + b"}]" if text.strip() else b""


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...], mark: bytes, server: tuple[ServerToolSpec, ...] = ()) -> bytes:
    encoded = (*map(msgspec.json.encode, map(_server_tool, server)), *map(_tool, tools))
    return b',"tools":[' + b",".join(encoded)[:-1] + mark + b"}]" if encoded else b""


def _tool(spec: ToolSpec) -> bytes:
    tool = {
        "name": utf8_safe(spec.name),
        "description": utf8_safe(spec.description),
        "input_schema": complete(spec.parameters),
    }
    return msgspec.json.encode(tool)
