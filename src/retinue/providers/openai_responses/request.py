"""Request bodies of the OpenAI Responses API: the conversation as a flat list of items, and the options.

The whole conversation is sent with every request: the vendor stores nothing, so encrypted reasoning items go back byte
for byte, before what they led to. Where the vendor does store responses, only what came after the last one is sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.agent import Output, ToolSpec
from retinue.core.attachments import IMAGE_TYPES, PDF, Attachment
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Message, Thinking
from retinue.core.model_options import NO_REQUEST_OPTIONS
from retinue.core.ports import Request
from retinue.core.text import utf8_safe
from retinue.providers import message_encoder
from retinue.providers.effort import openai_effort
from retinue.providers.unsupported_options import encode_fields, is_supported, without_unsupported
from retinue.providers.wire_json import OPENAI_STRICT, as_json_object, complete, restricted

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

MEMO = "openai_responses"

MEDIA_TYPES = frozenset((*IMAGE_TYPES, PDF))
"""The key of the encoded conversation in a request's memo."""

EFFORT = "reasoning.effort"

Spelling: TypeAlias = Literal["function_call", "tool_call"]
"""The names of tool items: `function_call` and `function_call_output` as OpenAI, or `tool_call` and `tool_result`."""

# Models without reasoning; OpenAI rejects a request for their encrypted reasoning.
_NO_REASONING = re.compile(r"(?:.*/)?(?:gpt-3|gpt-4|chatgpt-|gpt-5(?:\.\d+)?-chat)")

OrderStep: TypeAlias = Literal["reasoning", "call"] | int
"""One item of a reply: reasoning, a call, or a message by its number of characters."""


SEPARATOR = "\n\n"
"""What stands between the texts of two messages of one reply."""


class ItemOrder(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="responses.order"):
    """The items of a reply, where they were not reasoning, then one message, then calls, or where messages had a phase.

    `phases` has the phase of each message (`commentary`, `final_answer`), empty if it had none. The characters of a
    message include the `separator` before it; replies that were stored by older versions have none.
    """

    items: tuple[OrderStep, ...]
    phases: tuple[str, ...] = ()
    separator: str = ""


class _Part(Struct, gc=False):
    text: str | None = None


class Reasoning(Struct, gc=False, tag_field="type", tag="reasoning"):
    """The fields of a reasoning item that decide whether it can be sent back."""

    encrypted_content: str | None = None
    content: list[_Part] | None = None


SERVER_ITEM = "openai-responses.item"
"""The signature of an item of a server tool, which is kept in `opaque` as it came; its step is that of reasoning."""

_WITH_SERVER_TOOLS = " server tools"
"""The end of the encoder's variant where items of server tools are sent: only with those tools."""

_decode_opaque = msgspec.json.Decoder(ItemOrder | Reasoning).decode


class LastReply(Struct, frozen=True):
    """The last reply of a conversation, its id at the vendor, and the encoder of that conversation."""

    response_id: str
    message: AssistantMessage
    encoder: object

    def precedes(self, request: Request) -> bool:
        """Whether a request continues from this reply; the history may have been rewritten since."""
        return request.memo.get(MEMO) is self.encoder and _last_reply(request.messages) == self.message


def options(
    request: Request,
    unsupported: Collection[str] = (),
    *,
    explicit: bool = False,
    last: LastReply | None = None,
    cache_key: bool = False,
) -> dict[str, object]:
    """The options of a request besides the conversation, without unsupported ones.

    With `explicit`, the reasoning effort is always stated, and encrypted reasoning is not requested. With `cache_key`,
    requests of runs that begin in the same way have the same `prompt_cache_key`.

    >>> request = Request(model="o3", system="", messages=[], max_output=9, think=True)
    >>> options(request, {"include"})
    {'stream': True, 'max_output_tokens': 9, 'reasoning.effort': 'high', 'reasoning.summary': 'detailed'}
    >>> options(request, {"include", "reasoning"}, explicit=True)
    {'stream': True, 'max_output_tokens': 9}
    """
    found: dict[str, object] = {"stream": True}
    if last is not None and last.precedes(request):
        found["previous_response_id"] = last.response_id
    if not explicit and not _NO_REASONING.match(request.model):
        found["include"] = ["reasoning.encrypted_content"]
    if request.withheld_tools and not request.tools:
        found["tool_choice"] = "none"
    if request.max_output is not None:
        found["max_output_tokens"] = request.max_output
    if request.temperature is not None:
        found["temperature"] = request.temperature
    if request.top_p is not None:
        found["top_p"] = request.top_p
    # A model without a reasoning effort has no reasoning to summarize.
    if is_supported("reasoning.effort", unsupported):
        effort = request.effort or ("high" if request.think else None)
        step = None if effort is None else openai_effort(request.model, effort, EFFORT, unsupported)
        if step is not None and not (request.effort and _NO_REASONING.match(request.model)):
            found[EFFORT] = step
            if effort != "none":
                found["reasoning.summary"] = "detailed"
        elif explicit:
            found[EFFORT] = "none"
    if cache_key and request.cache_key:
        found["prompt_cache_key"] = request.cache_key
    if request.options is not NO_REQUEST_OPTIONS:
        _add_request_options(found, request)
    if request.output is not None:
        found["text.format"] = _text_format(request.output)
    return without_unsupported(found, unsupported)


def _add_request_options(found: dict[str, object], request: Request) -> None:
    given = request.options
    if given.stream is False:
        found.pop("stream", None)
    if given.service_tier:
        found["service_tier"] = given.service_tier
    if request.tools:
        if given.parallel_tool_calls is not None:
            found["parallel_tool_calls"] = given.parallel_tool_calls
        if forced := request.forced_tool:
            found["tool_choice"] = forced if forced == "required" else {"type": "function", "name": forced}
        elif given.tool_choice == "none":
            found["tool_choice"] = "none"


def encode(
    request: Request,
    *,
    cache_key: bool = False,
    spelling: Spelling = "function_call",
    explicit: bool = False,
    last: LastReply | None = None,
    unsupported: Collection[str] = (),
) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    If the vendor has stored the `last` reply, only what came after it is sent.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="gpt-4o", system="", messages=[UserMessage("hi")])).decode()
    '{"model":"gpt-4o","stream":true,"store":false,"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}'
    """
    server_tools = request.server_tools
    variant = spelling + _WITH_SERVER_TOOLS if server_tools else spelling
    encoder = Encoder.of(request, MEMO, variant, unsupported)
    found = options(request, unsupported, explicit=explicit, last=last, cache_key=cache_key)
    has_format = request.output is None or "text.format" in found
    prompt = message_encoder.system_prompt if has_format else message_encoder.system_prompt_with_format
    has_choice = "tool_choice" in found
    withheld = request.withheld_tools if has_choice else ()
    return b"".join(
        (
            b'{"model":',
            msgspec.json.encode(utf8_safe(request.model)),
            b',"stream":true,"store":false' if found.pop("stream", False) else b',"store":false',
            encode_fields(found, request.options),
            _instructions(prompt(request)),
            _tools(request.tools or withheld, is_strict_unset=explicit)
            if not server_tools
            else _tools_with(server_tools, request.tools or withheld, is_strict_unset=explicit),
            b',"tool_choice":"auto"' if (request.tools or server_tools) and not has_choice else b"",
            b',"input":[',
            encoder.since_reply() if "previous_response_id" in found else encoder.body(),
            b"]}",
        )
    )


def _last_reply(messages: Sequence[Message]) -> AssistantMessage | None:
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage):
            return message
    return None


def _attachment(attachment: Attachment) -> dict[str, str]:
    if attachment.media_type in IMAGE_TYPES:
        return {"type": "input_image", "detail": "auto", "image_url": message_encoder.data_url(attachment)}
    name = utf8_safe(attachment.name) or "file.pdf"
    return {"type": "input_file", "filename": name, "file_data": message_encoder.data_url(attachment)}


class Encoder(message_encoder.MessageEncoder):
    """The messages of a run as input items."""

    __slots__ = ()

    valid_id: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x7f]{1,64}")
    batches_results: ClassVar[bool] = True
    wire: ClassVar[str] = "openai-responses"
    media_types: ClassVar[frozenset[str]] = MEDIA_TYPES
    result_media_types: ClassVar[frozenset[str]] = MEDIA_TYPES

    def encode_user(self, text: str, attachments: Sequence[Attachment] = ()) -> bytes:
        content: list[dict[str, str]] = [{"type": "input_text", "text": utf8_safe(text)}]
        if attachments:
            content += map(_attachment, attachments)
        return msgspec.json.encode({"role": "user", "content": content})

    def encode_reply(self, message: AssistantMessage, calls: Sequence[message_encoder.PendingCall]) -> Iterable[bytes]:
        sends_all = self.variant.endswith(_WITH_SERVER_TOOLS)
        reasoning = list(_reasoning_items(message.thinking, sends_all=sends_all)) if message.thinking else []
        order = _noted_order(message, len(reasoning)) if message.thinking else None
        call_items = (self._call(call) for call in calls)
        if order is not None:
            items = message_encoder.arrange(order.items, message.text, iter(reasoning), call_items)
            return list(self._ordered(items, order))
        texts = [self._message(message.text)] if message.text else []
        if not texts and not calls:
            # The API rejects reasoning that nothing follows.
            return [self._message("")]
        return [*filter(None, reasoning), *texts, *call_items]

    def _ordered(self, items: Iterator[bytes | str], order: ItemOrder) -> Iterator[bytes]:
        number = 0
        for item in items:
            if isinstance(item, str):
                text = item.removeprefix(order.separator) if number else item
                yield self._message(text, number, order.phases[number] if number < len(order.phases) else "")
                number += 1
            elif item:
                yield item

    def _message(self, text: str, number: int = 0, phase: str = "") -> bytes:
        """A message of the model as a whole item, as other servers than OpenAI's require it.

        The id is not the vendor's: with its own ids, the API insists on the reasoning that preceded each message.
        """
        return b'{"type":"message","id":"msg_%d_%d","role":"assistant","status":"completed",%b"content":[%b]}' % (
            self._replies,
            number,
            b'"phase":%b,' % msgspec.json.encode(phase) if phase else b"",
            b'{"type":"output_text","text":%b,"annotations":[]}' % msgspec.json.encode(utf8_safe(text)),
        )

    def encode_results(self, calls: Sequence[message_encoder.PendingCall]) -> list[bytes]:
        return [self._result(call) for call in calls]

    def _call(self, pending: message_encoder.PendingCall) -> bytes:
        name, arguments = utf8_safe(pending.call.name), as_json_object(pending.call.arguments)
        if self.variant.startswith("tool_call"):
            return msgspec.json.encode(
                {"type": "tool_call", "id": pending.wire_id, "name": name, "arguments": arguments}
            )
        return msgspec.json.encode(
            {"type": "function_call", "call_id": pending.wire_id, "name": name, "arguments": arguments}
        )

    def _result(self, pending: message_encoder.PendingCall) -> bytes:
        output: object = utf8_safe(pending.result_text)
        if pending.attachments:
            texts = [{"type": "input_text", "text": output}] if output else []
            output = [*texts, *map(_attachment, pending.attachments)]
        if self.variant.startswith("tool_call"):
            return msgspec.json.encode({"type": "tool_result", "tool_call_id": pending.wire_id, "content": output})
        return msgspec.json.encode({"type": "function_call_output", "call_id": pending.wire_id, "output": output})


def _reasoning_items(thinking: Sequence[Thinking], *, sends_all: bool) -> Iterator[bytes]:
    """The items of this API that are neither messages nor calls, as they came, empty for those that do not go back.

    A reasoning item with an id alone is not stored; items of server tools go back with `sends_all`.
    """
    for block in thinking:
        if block.signature == SERVER_ITEM:
            yield utf8_safe(block.opaque).encode() if sends_all else b""
            continue
        item = message_encoder.read_note(_decode_opaque, block)
        if isinstance(item, Reasoning):
            yield utf8_safe(block.opaque).encode() if item.encrypted_content or item.content else b""


def _noted_order(message: AssistantMessage, reasoning_items: int) -> ItemOrder | None:
    """The order that was noted with a reply, if it still fits."""
    notes = (message_encoder.read_note(_decode_opaque, block) for block in message.thinking)
    order = next((note for note in notes if isinstance(note, ItemOrder)), None)
    return order if order is not None and message_encoder.order_fits(order.items, message, reasoning_items) else None


# Cached per text and tools, so that sibling runs with the same ones share the bytes.
@lru_cache(maxsize=256)
def _instructions(text: str) -> bytes:
    return b',"instructions":' + msgspec.json.encode(utf8_safe(text)) if text else b""


@lru_cache(maxsize=256)
def _text_format(output: Output) -> msgspec.Raw:
    if output.mode == "json_object":
        return msgspec.Raw(b'{"type":"json_object"}')
    restricted_schema = restricted(output.schema, OPENAI_STRICT)
    schema = {"type": "json_schema", "name": output.name, "schema": restricted_schema, "strict": True}
    return msgspec.Raw(msgspec.json.encode(schema))


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...], *, is_strict_unset: bool) -> bytes:
    if not tools:
        return b""
    # Where `strict` is missing, the API takes it as true: every optional property becomes required.
    strict: dict[str, object] = {} if is_strict_unset else {"strict": False}
    return b',"tools":[' + b",".join(msgspec.json.encode(_tool(spec) | strict) for spec in tools) + b"]"


def _tools_with(server: tuple[ServerToolSpec, ...], tools: tuple[ToolSpec, ...], *, is_strict_unset: bool) -> bytes:
    """The server tools, and the other tools behind them."""
    limits = [spec.max_uses for spec in server if spec.max_uses is not None]
    # The API has one limit for all of its tools together; it is no option that a server may go without.
    encoded = b',"max_tool_calls":%d' % sum(limits) if len(limits) == len(server) else b""
    encoded += b',"tools":[' + b",".join(msgspec.json.encode(_server_tool(spec)) for spec in server)
    others = _tools(tools, is_strict_unset=is_strict_unset).removeprefix(b',"tools":[')
    return encoded + (b"," + others if others else b"]")


def _server_tool(spec: ServerToolSpec) -> dict[str, object]:
    match spec.kind:
        case "web_search":
            search: dict[str, object] = {"type": "web_search"}
            return search | {"filters": {"allowed_domains": spec.allowed_domains}} if spec.allowed_domains else search
        case "code_execution":
            return {"type": "code_interpreter", "container": {"type": "auto"}}
        case "file_search":
            return {"type": "file_search", "vector_store_ids": spec.stores}
        case "mcp":
            tool: dict[str, object] = {
                "type": "mcp",
                "server_label": spec.name,
                "server_url": spec.url,
                "require_approval": "never",  # the policy of the run has allowed every call
            }
            if token := spec.token():
                tool["authorization"] = token
            return tool | {"allowed_tools": spec.allow} if spec.allow else tool
        case _:
            raise ProviderError(f"{spec.full_name}: the wire openai-responses does not have it", fault="bad_request")


def _tool(spec: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "name": utf8_safe(spec.name),
        "description": utf8_safe(spec.description),
        "parameters": complete(spec.parameters),
    }
