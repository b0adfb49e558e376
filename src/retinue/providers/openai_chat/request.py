"""A conversation in the format of OpenAI's chat completions, and the options that go along with it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

import msgspec

from retinue.core.agent import Output, ToolSpec
from retinue.core.messages import AssistantMessage
from retinue.core.ports import Request
from retinue.providers.lenient_json import as_object, sound, verbatim
from retinue.providers.message_encoder import Conversation, Slot
from retinue.providers.output_prompt import told, told_in_words
from retinue.providers.unsupported_options import fields, only_wanted

MEMO = "openai_chat"
"""Where in a request's memo the conversation is kept."""

# These think before they answer: they count that as output and refuse the older field, have their own word for whoever
# gives orders, and no temperature. The chatting ones among them are like all others but for the field.
_COUNTS_THINKING = re.compile(r"(?:.*/)?(?:o\d|gpt-5)")
_CHATS = re.compile(r"(?:.*/)?gpt-5(?:\.\d+)?-chat")
_MAY_THINK_NOTHING = re.compile(r"(?:.*/)?gpt-5\.1(?!\d)")

_REASONING = "reasoning"
"""The way of writing in which thoughts go back with the calls they led to."""

_COUNTED = {"include_usage": True}
"""What was used is told at the end of a stream only to those who ask for it; some servers refuse the question."""

_OLDER_FIELD_FIRST = ("max_tokens", "max_completion_tokens")


def options(request: Request, unwanted: Collection[str] = (), *, explicit: bool = False) -> dict[str, object]:
    """What goes into a request besides the conversation, of what the model wants; `developer` is who gives the orders.

    With `explicit`, a model that thinks is also told what nobody asked for: that its answer is a text, and how much to
    think.

    >>> question = Request(model="o3", system="", messages=[], max_output=9, temperature=0.5, think=True)
    >>> options(question, {"stream_options"})
    {'developer': True, 'max_completion_tokens': 9, 'reasoning_effort': 'high'}
    >>> options(question, {"stream_options", "max_completion_tokens", "reasoning_effort"})
    {'developer': True, 'max_tokens': 9}
    """
    counts = _COUNTS_THINKING.match(request.model) is not None
    thinks = counts and not _CHATS.match(request.model)
    wanted: dict[str, object] = {"stream_options": _COUNTED}
    if thinks:
        wanted["developer"] = True
    if request.max_output is not None:
        either = ("max_completion_tokens", "max_tokens") if counts else _OLDER_FIELD_FIRST
        field = next((field for field in either if field not in unwanted), None)
        if field is not None:
            wanted[field] = request.max_output
    if request.temperature is not None and not thinks:
        wanted["temperature"] = request.temperature
    if thinks and (request.think or explicit):
        wanted["reasoning_effort"] = "high" if request.think or not _MAY_THINK_NOTHING.match(request.model) else "none"
    if request.output is not None:
        wanted["response_format"] = _response_format(request.output)
    elif thinks and explicit:
        wanted["response_format"] = {"type": "text"}
    return only_wanted(wanted, unwanted)


def encode(
    request: Request, *, sends_reasoning: bool = False, explicit: bool = False, unwanted: Collection[str] = ()
) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}'
    """
    wanted = options(request, unwanted, explicit=explicit)
    orders = "developer" if wanted.pop("developer", False) else "system"
    system = _system(told(request) if "response_format" in wanted else told_in_words(request), orders)
    said = Messages.of(request, MEMO, _REASONING if sends_reasoning else "").written()
    parts = (
        b'{"model":',
        msgspec.json.encode(sound(request.model)),
        b',"stream":true',
        fields(wanted),
        b',"messages":[',
        system,
        b"," if system and said else b"",
        said,
        b"]",
        _tools(request.tools),
        b"}",
    )
    return b"".join(parts)  # a long conversation is copied here, once


class Messages(Conversation):
    """The messages of a run as chat messages."""

    __slots__ = ()

    usable_id: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x7f]{1,40}")

    def words(self, text: str) -> bytes:
        return _words("user", text)

    def reply(self, message: AssistantMessage, slots: Sequence[Slot]) -> Iterable[bytes]:
        if not slots:
            return (_words("assistant", message.text),)
        reply: dict[str, object] = {"role": "assistant", "content": sound(message.text) or None}
        thoughts = "".join(thought.text for thought in message.thinking) if self.way == _REASONING else ""
        if thoughts:
            reply["reasoning_content"] = sound(thoughts)
        reply["tool_calls"] = [
            {
                "id": slot.wire_id,
                "type": "function",
                "function": {"name": sound(slot.call.name), "arguments": as_object(slot.call.arguments)},
            }
            for slot in slots
        ]
        return (msgspec.json.encode(reply),)

    def results(self, slots: Sequence[Slot]) -> list[bytes]:
        return [
            msgspec.json.encode({"role": "tool", "tool_call_id": slot.wire_id, "content": sound(slot.told)})
            for slot in slots
        ]


def _words(role: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": sound(text)})


# Shared by all runs with the same system text and tools: a thousand siblings keep them once.
@lru_cache(maxsize=256)
def _system(text: str, role: str) -> bytes:
    return _words(role, text) if text else b""


@lru_cache(maxsize=256)
def _response_format(output: Output) -> msgspec.Raw:
    if output.mode == "json_object":
        return msgspec.Raw(b'{"type":"json_object"}')
    demand = {"name": output.name, "schema": verbatim(output.schema), "strict": True}
    return msgspec.Raw(msgspec.json.encode({"type": "json_schema", "json_schema": demand}))


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b',"tools":[' + b",".join(map(_tool, tools)) + b"]" if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    function = {
        "name": sound(spec.name),
        "description": sound(spec.description),
        "parameters": verbatim(spec.parameters),
    }
    return msgspec.json.encode({"type": "function", "function": function})
