"""Request bodies of the OpenAI Chat Completions API: the conversation and the options."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.agent import Output, ToolSpec
from retinue.core.attachments import IMAGE_TYPES, PDF, Attachment
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Thinking
from retinue.core.model_options import NO_REQUEST_OPTIONS
from retinue.core.ports import Request
from retinue.core.text import utf8_safe
from retinue.providers.message_encoder import (
    MessageEncoder,
    PendingCall,
    base64_of,
    data_url,
    read_note,
    system_prompt,
    system_prompt_with_format,
)
from retinue.providers.openai_chat.quirks import EFFORT, OPENAI, ChatQuirks, effort_options
from retinue.providers.unsupported_options import encode_fields, without_unsupported
from retinue.providers.wire_json import OPENAI_STRICT, as_json_object, complete, restricted

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

LongestReply: TypeAlias = Callable[[str], int | None]

MEMO = "openai_chat"
"""The key of the encoded conversation in a request's memo."""

# Reasoning models count their reasoning as output and reject `max_tokens`, want the role `developer` instead of
# `system`, and take neither temperature nor `top_p`. Their chat variants differ from other models in `max_tokens` only.
_COUNTS_REASONING = re.compile(r"(?:.*/)?(?:o\d|gpt-5)")
_CHAT_VARIANT = re.compile(r"(?:.*/)?gpt-5(?:\.\d+)?-chat")
_ACCEPTS_NO_EFFORT = re.compile(r"(?:.*/)?gpt-5\.1(?!\d)")

NOTE_SIGNATURE = "openai-chat"
"""The signature of thinking with a note of this wire."""

CALL_IDS = "tool_call_id"
"""The name of the call ids in the errors of servers that accept only some; ids are then replaced by short ones."""

TOOL_CHOICE = "tool_choice"
STREAM = "stream"
"""OpenAI streams some models only to verified organizations."""

_SENDS_ALL = "all"
"""The variant in which all thinking of a reply is sent back with its calls, whichever server it came from."""

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The fields in which servers send thinking as text; the text goes back in the same field."""

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}

ROLE_ORDER = "role"
"""The name of the order of roles in errors of servers that take no user message after a result; there, a short message
of the model stands between the two."""

_BETWEEN = b'{"role":"assistant","content":"[goes on]"},'

_DETAILS, _BLOCKS, _EXTRA = "reasoning_details", "thinking_blocks", "extra_content"
_RETURNED = (*REASONING_FIELDS, _DETAILS, _BLOCKS, _EXTRA)
"""The fields in which thinking goes back."""


class SentReasoning(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="chat.reasoning"):
    """How the server sent the thinking of a reply, so that it can go back in the same form.

    `field` is the field of the text. `details` and `blocks` are the lists `reasoning_details` (OpenRouter) and
    `thinking_blocks` (LiteLLM). `extras` has the `extra_content` of calls by their number, such as a thought signature
    of Google.
    """

    field: str = ""
    details: tuple[msgspec.Raw, ...] = ()
    blocks: tuple[msgspec.Raw, ...] = ()
    extras: dict[int, msgspec.Raw] = {}


_decode_reasoning = msgspec.json.Decoder(SentReasoning).decode

_USAGE = {"include_usage": True}
"""A stream ends with usage only on request; some servers reject the option."""


def options(
    request: Request,
    unsupported: Collection[str] = (),
    *,
    explicit: bool = False,
    quirks: ChatQuirks = OPENAI,
    cache_key: bool = False,
    longest_reply: LongestReply | None = None,
) -> dict[str, object]:
    """The options of a request besides the conversation, without unsupported ones; `developer` is the system role.

    With `explicit`, a request to a reasoning model states its defaults: text as the output format, and the effort. With
    `cache_key`, requests of runs that begin in the same way have the same `prompt_cache_key`. `longest_reply` knows the
    longest replies of models, for servers that have to be told.

    >>> request = Request(model="o3", system="", messages=[], max_output=9, temperature=0.5, think=True)
    >>> options(request, {"stream_options"})
    {'stream': True, 'developer': True, 'max_completion_tokens': 9, 'reasoning_effort': 'high'}
    >>> options(request, {"stream_options", "max_completion_tokens", "reasoning_effort"})
    {'stream': True, 'developer': True, 'max_tokens': 9}
    """
    counts_reasoning, is_reasoning = _kind_of(request.model)
    found: dict[str, object] = {STREAM: True, "stream_options": _USAGE}
    if unsupported and STREAM in unsupported:
        found.clear()
    if request.withheld_tools and not request.tools:
        found[TOOL_CHOICE] = "none"
    if is_reasoning:
        found["developer"] = True
    max_output = request.max_output
    if max_output is None and quirks.max_output:
        max_output = longest_reply(request.model) if longest_reply is not None else None
    if max_output is not None:
        fields = ("max_tokens", "max_completion_tokens")
        preferred = reversed(fields) if counts_reasoning else fields
        field = next((field for field in preferred if field not in unsupported), None)
        if field is not None:
            found[field] = max_output
    if request.temperature is not None and not is_reasoning:
        found["temperature"] = request.temperature
    if request.top_p is not None and not is_reasoning:
        found["top_p"] = request.top_p
    effort = request.effort or ("high" if request.think else None)
    if effort is not None and (is_reasoning or quirks.effort != "reasoning_models"):
        found |= effort_options(effort, request.model, quirks, unsupported)
    elif is_reasoning and explicit:
        found[EFFORT] = "none" if _ACCEPTS_NO_EFFORT.match(request.model) else "high"
    if cache_key and request.cache_key:
        found["prompt_cache_key"] = request.cache_key
    if request.options is not NO_REQUEST_OPTIONS:
        _add_request_options(found, request, quirks)
    if request.output is not None:
        found["response_format"] = _response_format(request.output)
    elif is_reasoning and explicit:
        found["response_format"] = {"type": "text"}
    return without_unsupported(found, unsupported)


@lru_cache(maxsize=256)
def _kind_of(model: str) -> tuple[bool, bool]:
    """Whether a model counts its reasoning as output, and whether it is a reasoning model in all other ways too."""
    counts_reasoning = _COUNTS_REASONING.match(model) is not None
    return counts_reasoning, counts_reasoning and not _CHAT_VARIANT.match(model)


def _add_request_options(found: dict[str, object], request: Request, quirks: ChatQuirks) -> None:
    given = request.options
    if given.stream is False:
        found.pop(STREAM, None)
        found.pop("stream_options", None)
    if given.stop:
        found["stop"] = given.stop
    if given.seed is not None:
        found[quirks.seed] = given.seed
    if given.service_tier:
        found["service_tier"] = given.service_tier
    if request.tools:
        if given.parallel_tool_calls is not None:
            found["parallel_tool_calls"] = given.parallel_tool_calls
        if forced := request.forced_tool:
            found[TOOL_CHOICE] = forced if forced == "required" else {"type": "function", "function": {"name": forced}}
        elif given.tool_choice in ("auto", "none"):
            found[TOOL_CHOICE] = given.tool_choice


def encode(
    request: Request,
    *,
    sends_reasoning: bool = False,
    explicit: bool = False,
    quirks: ChatQuirks = OPENAI,
    cache_key: bool = False,
    longest_reply: LongestReply | None = None,
    unsupported: Collection[str] = (),
) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}'
    """
    found = options(
        request,
        unsupported,
        explicit=explicit,
        quirks=quirks,
        cache_key=cache_key,
        longest_reply=longest_reply,
    )
    tools = request.tools or (request.withheld_tools if TOOL_CHOICE in found else ())
    stream = b',"stream":true' if found.pop(STREAM, False) else b""
    role = "developer" if found.pop("developer", False) else "system"
    prompt = system_prompt(request) if "response_format" in found else system_prompt_with_format(request)
    system = _system(prompt, role)
    messages = encoder_of(request, unsupported, sends_reasoning=sends_reasoning, explicit=explicit).body()
    parts = (
        b'{"model":',
        msgspec.json.encode(utf8_safe(request.model)),
        stream,
        encode_fields(found, request.options),
        b',"messages":[',
        system,
        b"," if system and messages else b"",
        messages,
        b"]",
        _tools(tools) if not request.server_tools else _tools_with(_vendor_tools(request.server_tools, quirks), tools),
        b"}",
    )
    return b"".join(parts)  # a long conversation is copied here, once


def encoder_of(
    request: Request, unsupported: Collection[str], *, sends_reasoning: bool = False, explicit: bool = False
) -> Encoder:
    """The encoder of a request's messages; what the server rejected in earlier messages is left out of all.

    With `explicit`, replies have the documented fields alone.
    """
    variant = _SENDS_ALL if sends_reasoning else ""
    if unsupported or explicit:
        left_out = [name for name in _RETURNED if explicit or name in unsupported]
        left_out += [name for name in (CALL_IDS, ROLE_ORDER) if name in unsupported]
        variant = " ".join((variant, *left_out))
    return Encoder.of(request, MEMO, variant, unsupported)


class Encoder(MessageEncoder):
    """The messages of a run as chat messages; `variant` names what is left out, and whether all thinking is sent."""

    __slots__ = ("_field", "_follows_result", "_words", "sent")

    short_id: ClassVar[re.Pattern[str]] = re.compile(r"[a-zA-Z0-9]{9}")
    """Call ids that every server accepts: OpenAI takes 40 characters, Mistral exactly nine letters and digits."""
    wire: ClassVar[str] = "openai-chat"
    media_types: ClassVar[frozenset[str]] = frozenset((*IMAGE_TYPES, PDF, *_AUDIO_FORMATS))

    def __init__(self, variant: str = "") -> None:
        super().__init__(variant)
        self._words = variant.split()
        self.sent: dict[str, None] = {}
        """The fields of messages that a server may reject, as far as they were sent; their order is kept."""
        self._field = ""
        """The field in which the server sent thinking so far."""
        self._follows_result = False
        """Whether the next message follows the result of a call."""

    def encode_user(self, text: str, attachments: Sequence[Attachment] = ()) -> bytes:
        if attachments:
            content = [{"type": "text", "text": utf8_safe(text)}, *map(_attachment, attachments)]
            message = msgspec.json.encode({"role": "user", "content": content})
        else:
            message = _message("user", text)
        if not self._follows_result:
            return message
        self._follows_result = False
        if not self._sends(ROLE_ORDER):
            return _BETWEEN + message
        self.sent[ROLE_ORDER] = None
        return message

    def encode_reply(self, message: AssistantMessage, calls: Sequence[PendingCall]) -> Iterable[bytes]:
        self._follows_result = False
        if not (calls or message.thinking):
            return (_message("assistant", message.text),)
        note = _note(message.thinking) if message.thinking else None
        if not calls and note is None:
            return (_message("assistant", message.text),)
        reply: dict[str, object] = {"role": "assistant", "content": utf8_safe(message.text) or (None if calls else "")}
        if note is not None or self._field or self._words:
            self._add_reasoning(reply, message, note, has_calls=bool(calls))
        if calls:
            extras = note.extras if note is not None and self._sends(_EXTRA) else {}
            reply["tool_calls"] = [self._call(pending, extras.get(index)) for index, pending in enumerate(calls)]
        return (msgspec.json.encode(reply),)

    def _add_reasoning(
        self, reply: dict[str, object], message: AssistantMessage, note: SentReasoning | None, *, has_calls: bool
    ) -> None:
        if note is not None:
            self._field = note.field or self._field
            for name, pieces in ((_DETAILS, note.details), (_BLOCKS, note.blocks)):
                if pieces and self._sends(name):
                    reply[name] = pieces
                    self.sent[name] = None
        sends_all = _SENDS_ALL in self._words
        field = REASONING_FIELDS[0] if sends_all else self._field
        if not has_calls or not field or not self._sends(field) or _DETAILS in reply:
            return
        text = "".join(block.text for block in message.thinking) if sends_all or note is not None else ""
        # A server that wants the reasoning of replies with calls back wants the field also where there was none.
        if text or (field == REASONING_FIELDS[0] and not sends_all):
            reply[field] = utf8_safe(text)
            self.sent[field] = None

    def _call(self, pending: PendingCall, extra: msgspec.Raw | None) -> dict[str, object]:
        function = {"name": utf8_safe(pending.call.name), "arguments": as_json_object(pending.call.arguments)}
        call: dict[str, object] = {"id": utf8_safe(pending.wire_id), "type": "function", "function": function}
        if extra is not None:
            call[_EXTRA] = extra
            self.sent[_EXTRA] = None
        if CALL_IDS not in self.sent and not self.short_id.fullmatch(pending.wire_id):
            self.sent[CALL_IDS] = None
        return call

    def _sends(self, field: str) -> bool:
        return field not in self._words

    def accepts_id(self, call_id: str) -> bool:
        return bool(call_id) and (self._sends(CALL_IDS) or self.short_id.fullmatch(call_id) is not None)

    def replacement_id(self, reply: int, index: int) -> str:
        return super().replacement_id(reply, index) if self._sends(CALL_IDS) else f"{reply % 10**5:05}{index:04}"

    def encode_results(self, calls: Sequence[PendingCall]) -> list[bytes]:
        self._follows_result = True
        return [
            msgspec.json.encode(
                {"role": "tool", "tool_call_id": utf8_safe(pending.wire_id), "content": utf8_safe(pending.result_text)}
            )
            for pending in calls
        ]


def _note(thinking: Sequence[Thinking]) -> SentReasoning | None:
    notes = (read_note(_decode_reasoning, block) for block in thinking)
    return next(filter(None, notes), None)


def _attachment(attachment: Attachment) -> dict[str, object]:
    if attachment.media_type in IMAGE_TYPES:
        return {"type": "image_url", "image_url": {"url": data_url(attachment)}}
    if attachment.media_type in _AUDIO_FORMATS:
        audio = {"data": base64_of(attachment), "format": _AUDIO_FORMATS[attachment.media_type]}
        return {"type": "input_audio", "input_audio": audio}
    name = utf8_safe(attachment.name) or "file.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": data_url(attachment)}}


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


PLUGIN = "web"
"""The vendor's name of a web search that is a plugin and no tool."""


def _vendor_tools(tools: Sequence[ServerToolSpec], quirks: ChatQuirks) -> tuple[str, ...]:
    """The types of the tools that the vendor runs; raises `ProviderError` for one that it does not have."""
    for tool in tools:
        if tool.kind not in quirks.server_tools:
            raise ProviderError(f"{tool.full_name}: the server has no such tool", fault="bad_request")
    return tuple(quirks.server_tools[tool.kind] for tool in tools)


def _tools_with(types: tuple[str, ...], tools: tuple[ToolSpec, ...]) -> bytes:
    """The tools that the vendor runs, and the others; not among the options, which a server may go without."""
    types_of_tools = (each for each in types if each != PLUGIN)
    encoded = [*(msgspec.json.encode({"type": each}) for each in types_of_tools), *map(_tool, tools)]
    plugins = b',"plugins":[{"id":"%b"}]' % PLUGIN.encode() if PLUGIN in types else b""
    return plugins + (b',"tools":[' + b",".join(encoded) + b"]" if encoded else b"")


def _tool(spec: ToolSpec) -> bytes:
    function = {
        "name": utf8_safe(spec.name),
        "description": utf8_safe(spec.description),
        "parameters": complete(spec.parameters),
    }
    return msgspec.json.encode({"type": "function", "function": function})
