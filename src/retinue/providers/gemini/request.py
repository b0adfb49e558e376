"""Request bodies of the Gemini API: the conversation as contents of parts, and the options.

A thought signature comes with one part of a reply, and has to go back on the same part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.attachments import AUDIO_TYPES, IMAGE_TYPES, PDF, Attachment
from retinue.core.messages import AssistantMessage, Thinking
from retinue.core.model_options import NO_REQUEST_OPTIONS, RequestOptions
from retinue.core.ports import Request
from retinue.core.text import NOT_JSON, utf8_safe
from retinue.providers.effort import GEMINI_BUDGETS, GEMINI_LEVELS, nearest_step
from retinue.providers.message_encoder import (
    MessageEncoder,
    PendingCall,
    base64_of,
    read_note,
    system_prompt_with_format,
)
from retinue.providers.unsupported_options import merged, nested, without_unsupported
from retinue.providers.wire_json import GEMINI, as_json_object, complete, raw_json, restricted

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

MEMO = "gemini"
"""The key of the encoded conversation in a request's memo."""

UNSIGNED_CALL = "skip_thought_signature_validator"
"""The API's signature for a call that another model made: from version 3 on, it rejects calls without one."""

_NEEDS_SIGNATURES = re.compile(r"(?:.*/)?gemini-(?:[3-9]|\d\d|.*latest)")
_NEEDS_BUDGET = re.compile(r"(?:.*/)?gemini-2\.5")

_PRO = re.compile(r"(?:.*/)?gemini-2\.5-pro")

LEVEL = "thinkingConfig.thinkingLevel"
TOOL_CONFIG = "toolConfig"
_WITH_INVOCATIONS = b'"toolConfig":{"includeServerSideToolInvocations":true},'
"""The API takes functions next to its own tools only if it may show the uses of these."""
_NO_CALLS = b'"toolConfig":{"functionCallingConfig":{"mode":"NONE"}},'

_SIGNED, _UNSIGNED = "signed", "unsigned"

_IN_RESULTS = frozenset(("image/png", "image/jpeg", "image/webp", PDF))


class SignaturePosition(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="gemini.signature"):
    """The part that a signature belongs to: its own thinking block, the text from `start` to `end`, or call `start`."""

    on: Literal["thought", "text", "call"]
    start: int = 0
    end: int = 0


class ServerPart(Struct, frozen=True, tag_field="type", tag="gemini.part"):
    """A part that a server tool made, as it came, and how many characters of text precede it."""

    start: int
    part: msgspec.Raw


_decode_position = msgspec.json.Decoder(SignaturePosition).decode
_decode_server_part = msgspec.json.Decoder(ServerPart).decode

NOTE_SIGNATURE = "gemini"
"""The signature of notes that hold a part."""

_WITH_SERVER_TOOLS = " server tools"
"""The end of the encoder's variant where parts of server tools are sent: only with those tools."""


def encode(request: Request, *, unsupported: Collection[str] = ()) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}'
    """
    variant = _SIGNED if _NEEDS_SIGNATURES.match(request.model) else _UNSIGNED
    if request.server_tools:
        variant += _WITH_SERVER_TOOLS
    contents = Encoder.of(request, MEMO, variant, unsupported).body()
    found = options(request, unsupported)
    choice = found.pop(TOOL_CONFIG, None)
    forbids_calls = choice == _NO_CALLS
    output = request.output
    has_format = (
        output is None or ("responseJsonSchema" if output.mode == "json_schema" else "responseMimeType") in found
    )
    return b"".join(
        (
            b"{",
            _system(request.system if has_format else system_prompt_with_format(request)),
            _tools(request.withheld_tools if forbids_calls else request.tools)
            if not request.server_tools
            else _tools_with(request.server_tools, request.withheld_tools if forbids_calls else request.tools),
            choice if isinstance(choice, bytes) else b"",
            _config(found, request.options),
            b'"contents":[',
            contents,
            b"]}",
        )
    )


class Encoder(MessageEncoder):
    """The messages of a run as contents."""

    __slots__ = ()

    valid_id: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x7f]{1,128}")
    batches_results: ClassVar[bool] = True
    needs_ids: ClassVar[bool] = False
    wire: ClassVar[str] = "gemini"
    media_types: ClassVar[frozenset[str]] = frozenset((*IMAGE_TYPES, PDF, *AUDIO_TYPES))

    @property
    def result_media_types(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """From version 3 on, a result may hold images and PDF."""
        return _IN_RESULTS if self.variant == _SIGNED else frozenset()

    def encode_user(self, text: str, attachments: Sequence[Attachment] = ()) -> bytes:
        part = _text(text or " ")  # the API rejects an empty part
        return _content("user", [*map(_attachment, attachments), part] if attachments else (part,))

    def encode_reply(self, message: AssistantMessage, calls: Sequence[PendingCall]) -> Iterable[bytes]:
        if not message.thinking:
            texts = [_text(message.text)] if message.text else []
            parts = [*texts, *self._calls(calls, ())] if calls else texts
            return [_content("model", parts)] if parts else []
        signed = list(_signed(message.thinking))
        server = _server_parts(message.thinking) if self.variant.endswith(_WITH_SERVER_TOOLS) else ()
        parts = [
            *(
                _text(block.text, block.signature, thought=True)
                for block, position in signed
                if position.on == "thought"
            ),
            *(_texts_and_parts(message.text, signed, server) if server else _texts(message.text, signed)),
            *self._calls(calls, signed),
        ]
        return [_content("model", parts)] if parts else []

    def encode_results(self, calls: Sequence[PendingCall]) -> list[bytes]:
        return [_content("user", [_result(call) for call in calls])]

    def _calls(
        self, calls: Sequence[PendingCall], signed: Sequence[tuple[Thinking, SignaturePosition]]
    ) -> Iterator[bytes]:
        signatures = {position.start: block.signature for block, position in signed if position.on == "call"}
        if self.variant.startswith(_SIGNED) and calls:
            signatures.setdefault(0, UNSIGNED_CALL)  # of parallel calls, the first one carries the signature
        for index, pending in enumerate(calls):
            call: dict[str, object] = {"id": pending.wire_id} if pending.wire_id else {}
            call |= {"name": utf8_safe(pending.call.name), "args": raw_json(as_json_object(pending.call.arguments))}
            yield _part({"functionCall": call}, signatures.get(index, ""))


def _signed(thinking: Sequence[Thinking]) -> Iterator[tuple[Thinking, SignaturePosition]]:
    """The thinking blocks with a signature of this API, and the position of each."""
    for block in thinking:
        position = read_note(_decode_position, block)
        if position is not None and block.signature:
            yield block, position


def _texts(text: str, signed: Sequence[tuple[Thinking, SignaturePosition]]) -> Iterator[bytes]:
    """The text in parts, one for each signed range and one for each range between them."""
    end = 0
    for block, position in signed:
        if position.on == "text" and end <= position.start <= position.end <= len(text):
            if end < position.start:
                yield _text(text[end : position.start])
            yield _text(text[position.start : position.end], block.signature)
            end = position.end
    if end < len(text):
        yield _text(text[end:])


def _server_parts(thinking: Sequence[Thinking]) -> Sequence[ServerPart]:
    notes = (read_note(_decode_server_part, block) for block in thinking if block.signature == NOTE_SIGNATURE)
    return [note for note in notes if note is not None]


def _texts_and_parts(
    text: str, signed: Sequence[tuple[Thinking, SignaturePosition]], server: Sequence[ServerPart]
) -> Iterator[bytes]:
    """The text in parts as `_texts`, with the parts of server tools at their places."""
    begin = 0
    for start in (*dict.fromkeys(min(part.start, len(text)) for part in server), len(text)):
        here = [
            (block, msgspec.structs.replace(position, start=position.start - begin, end=position.end - begin))
            for block, position in signed
            if position.on == "text" and begin <= position.start and position.end <= start
        ]
        yield from _texts(text[begin:start], here)
        yield from (bytes(part.part) for part in server if begin <= part.start == start)
        begin = start


def _text(text: str, signature: str = "", *, thought: bool = False) -> bytes:
    part: dict[str, object] = {"text": utf8_safe(text)}
    return _part(part | {"thought": True} if thought else part, signature)


def _attachment(attachment: Attachment) -> bytes:
    return _part({"inlineData": {"mimeType": attachment.media_type, "data": base64_of(attachment)}})


def _result(pending: PendingCall) -> bytes:
    response: dict[str, object] = {"id": pending.wire_id} if pending.wire_id else {}
    response |= {
        "name": utf8_safe(pending.call.name),
        "response": {"error" if pending.failed else "result": utf8_safe(pending.result_text)},
    }
    if pending.attachments:
        response["parts"] = [msgspec.Raw(_attachment(each)) for each in pending.attachments]
    return _part({"functionResponse": response})


def _part(part: dict[str, object], signature: str = "") -> bytes:
    return msgspec.json.encode(part | {"thoughtSignature": utf8_safe(signature)} if signature else part)


def _content(role: Literal["user", "model"], parts: Iterable[bytes]) -> bytes:
    return b'{"role":"%b","parts":[%b]}' % (role.encode(), b",".join(parts))


def _has_format_field(request: Request) -> bool:
    """Whether a request may set the output format: before version 3, not together with tools."""
    return not request.tools or _takes_format_and_tools(request.model)


def _takes_format_and_tools(model: str) -> bool:
    return _NEEDS_SIGNATURES.match(model) is not None


def _forbids_calls(request: Request) -> bool:
    """Whether the tools of earlier turns are sent, and calls forbidden."""
    if request.tools or not request.withheld_tools:
        return False
    return request.output is None or _takes_format_and_tools(request.model)


def options(request: Request, unsupported: Collection[str] = ()) -> dict[str, object]:
    """The generation config of a request, without unsupported options, and `toolConfig` if calls are forbidden.

    >>> request = Request(model="gemini-2.5-flash", system="", messages=[], max_output=9, think=True)
    >>> options(request, {"maxOutputTokens"})
    {'thinkingConfig.includeThoughts': True, 'thinkingConfig.thinkingBudget': -1}
    """
    found: dict[str, object] = {}
    if request.max_output is not None:
        found["maxOutputTokens"] = request.max_output
    if request.temperature is not None:
        found["temperature"] = request.temperature
    if request.top_p is not None:
        found["topP"] = request.top_p
    effort = request.effort or ("high" if request.think else None)
    if effort is not None:
        if effort != "none":
            found["thinkingConfig.includeThoughts"] = True
        if _NEEDS_BUDGET.match(request.model):
            # The smaller models of this version think only with a budget; the largest one always thinks.
            budget = GEMINI_BUDGETS[effort]
            found["thinkingConfig.thinkingBudget"] = (
                max(budget, 128) if budget >= 0 and _PRO.match(request.model) else budget
            )
        elif request.effort and (step := nearest_step(effort, GEMINI_LEVELS, LEVEL, unsupported)) is not None:
            found[LEVEL] = step
    if request.output is not None and _has_format_field(request):
        found["responseMimeType"] = "application/json"
        if request.output.mode == "json_schema":
            found["responseJsonSchema"] = restricted(request.output.schema, GEMINI)
    if _forbids_calls(request):
        found[TOOL_CONFIG] = _NO_CALLS
    elif request.server_tools and request.tools:
        found[TOOL_CONFIG] = _WITH_INVOCATIONS
    if request.options is not NO_REQUEST_OPTIONS:
        _add_request_options(found, request)
    return without_unsupported(found, unsupported)


def _add_request_options(found: dict[str, object], request: Request) -> None:
    given = request.options
    if given.stop:
        found["stopSequences"] = given.stop
    if given.seed is not None:
        found["seed"] = given.seed
    if not request.tools:
        return
    shown = {"includeServerSideToolInvocations": True} if request.server_tools else {}
    if forced := request.forced_tool:
        calling: dict[str, object] = {"mode": "ANY"}
        if forced != "required":
            calling["allowedFunctionNames"] = [forced]
        found[TOOL_CONFIG] = b'"toolConfig":' + msgspec.json.encode({"functionCallingConfig": calling} | shown) + b","
    elif given.tool_choice in ("auto", "none"):
        mode = {"functionCallingConfig": {"mode": given.tool_choice.upper()}} | shown
        found[TOOL_CONFIG] = b'"toolConfig":' + msgspec.json.encode(mode) + b","


def _config(found: Mapping[str, object], extra: RequestOptions) -> bytes:
    """The generation config and the extra fields of a request, each followed by a comma."""
    config = nested(found)
    if not extra.extra_body:
        return b'"generationConfig":' + msgspec.json.encode(config) + b"," if config else b""
    fields = merged({"generationConfig": config} if config else {}, extra.body_fields)
    return msgspec.json.encode(fields)[1:-1] + b","


# Cached per text and tools, so that sibling runs with the same ones share the bytes.
@lru_cache(maxsize=256)
def _system(text: str) -> bytes:
    return b'"systemInstruction":{"parts":[' + _text(text) + b"]}," if text else b""


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b'"tools":[{"functionDeclarations":[' + b",".join(map(_tool, tools)) + b"]}]," if tools else b""


def _tools_with(server: tuple[ServerToolSpec, ...], tools: tuple[ToolSpec, ...]) -> bytes:
    """The server tools, and the functions behind them."""
    encoded = b'"tools":[' + b",".join(msgspec.json.encode(_server_tool(spec)) for spec in server)
    functions = _tools(tools).removeprefix(b'"tools":[')
    return encoded + (b"," + functions if functions else b"],")


def _server_tool(spec: ServerToolSpec) -> dict[str, object]:
    match spec.kind:
        case "web_search":
            return {"googleSearch": {}}
        case "web_fetch":
            return {"urlContext": {}}
        case "code_execution":
            return {"codeExecution": {}}
        case "file_search":
            return {"fileSearch": {"fileSearchStoreNames": spec.stores}}
        case "mcp":
            transport: dict[str, object] = {"url": spec.url}
            if token := spec.token():
                transport["headers"] = {"Authorization": f"Bearer {token}"}
            return {"mcpServers": [{"name": spec.name, "streamableHttpTransport": transport}]}


def _has_parameters(schema: str) -> bool:
    """Whether a schema has properties; the API wants the parameters of a function without any left out."""
    try:
        return bool(msgspec.json.decode(schema, type=dict[str, object]).get("properties"))
    except NOT_JSON:
        return True


def _tool(spec: ToolSpec) -> bytes:
    declaration: dict[str, object] = {"name": utf8_safe(spec.name), "description": utf8_safe(spec.description)}
    if _has_parameters(spec.parameters):
        declaration["parametersJsonSchema"] = restricted(bytes(complete(spec.parameters)).decode(), GEMINI)
    return msgspec.json.encode(declaration)
