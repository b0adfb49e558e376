"""A conversation in the format of OpenAI's chat completions, encoded once and then only appended to.

Vendors refuse what a real history may hold: calls without an id or with one that was used before, a result without its
call, a call without its result, arguments that are not JSON. All of that is repaired here, by position alone, so that
the same history always gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias, assert_never

import msgspec

from retinue.core.agent import Output, ToolSpec
from retinue.core.history import UNFINISHED
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.providers.demand import told

MEMO = "openai_chat"
"""Where in a request's memo the conversation is kept."""

LONGEST_ID = 40
"""Longer call ids are refused by OpenAI; another vendor may have made them."""

# These think before they answer: they count that as output and refuse the older field, have their own word for whoever
# gives orders, and no temperature. The chatting ones among them are like all others but for the field.
_COUNTS_THINKING = re.compile(r"(?:.*/)?(?:o\d|gpt-5)")
_CHATS = re.compile(r"(?:.*/)?gpt-5(?:\.\d+)?-chat")

Option: TypeAlias = Literal["max_tokens", "max_completion_tokens", "temperature", "reasoning_effort", "developer"]
"""What a request may hold and a server may not want."""

_OLDER_FIELD_FIRST: tuple[Option, ...] = ("max_tokens", "max_completion_tokens")


def options(request: Request, unwanted: Collection[str] = ()) -> dict[Option, object]:
    """What goes into a request besides the conversation, of what the model wants; `developer` is who gives the orders.

    >>> question = Request(model="o3", system="", messages=[], max_output=9, temperature=0.5, think=True)
    >>> options(question)
    {'developer': True, 'max_completion_tokens': 9, 'reasoning_effort': 'high'}
    >>> options(question, {"max_completion_tokens", "reasoning_effort"})
    {'developer': True, 'max_tokens': 9}
    """
    counts = _COUNTS_THINKING.match(request.model) is not None
    thinks = counts and not _CHATS.match(request.model)
    wanted: dict[Option, object] = {}
    if thinks and "developer" not in unwanted:
        wanted["developer"] = True
    if request.max_output is not None:
        fields: tuple[Option, ...] = ("max_completion_tokens", "max_tokens") if counts else _OLDER_FIELD_FIRST
        for field in fields:
            if field not in unwanted:
                wanted[field] = request.max_output
                break
    if request.temperature is not None and not thinks and "temperature" not in unwanted:
        wanted["temperature"] = request.temperature
    if request.think and thinks and "reasoning_effort" not in unwanted:
        wanted["reasoning_effort"] = "high"
    return wanted


def encode(request: Request, *, sends_reasoning: bool = False, unwanted: Collection[str] = ()) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}'
    """
    kept = request.memo.get(MEMO)
    if not (isinstance(kept, Conversation) and kept.is_beginning_of(request.messages, sends_reasoning)):
        kept = request.memo[MEMO] = Conversation(sends_reasoning=sends_reasoning)
    kept.add(request.messages)
    wanted = options(request, unwanted)
    orders = "developer" if wanted.pop("developer", False) else "system"
    extra = b"".join(b',"%b":%b' % (name.encode(), msgspec.json.encode(value)) for name, value in wanted.items())
    if request.output is not None:
        extra += _response_format(request.output)
    parts: list[bytes | bytearray] = [
        b'{"model":',
        msgspec.json.encode(sound(request.model)),
        b',"stream":true,"stream_options":{"include_usage":true}',
        extra,
        b',"messages":[',
    ]
    for said in (_system(told(request), orders), kept.encoded, kept.repairs()):
        if said:
            parts += (said, b",")
    if parts[-1] == b",":
        parts.pop()
    parts += (b"]", _tools(request.tools), b"}")
    return b"".join(parts)  # a long conversation is copied here, once


class Conversation:
    """The messages of a run as far as they were encoded, and what is needed to go on from there."""

    __slots__ = ("_count", "_first", "_last", "_reasoning", "_replies", "_used", "_waiting", "encoded")

    def __init__(self, *, sends_reasoning: bool = False) -> None:
        self.encoded = bytearray()
        """The messages, with commas between them."""
        self._reasoning = sends_reasoning
        self._count = 0
        self._first: Message | None = None
        self._last: Message | None = None
        self._replies = 0
        self._used: set[str] = set()
        self._waiting: list[tuple[ToolCall, str]] = []
        """Calls of the last reply that have no result yet, with the ids we gave them."""

    def is_beginning_of(self, messages: Sequence[Message], sends_reasoning: bool) -> bool:
        """Whether these messages begin with the encoded ones; a summary may have taken their place."""
        if not 0 < self._count <= len(messages) or self._reasoning != sends_reasoning:
            return False
        return messages[0] is self._first and messages[self._count - 1] is self._last

    def add(self, messages: Sequence[Message]) -> None:
        """Encode what is new."""
        if self._count == len(messages):
            return
        for message in messages[self._count :]:
            for piece in self._pieces(message):
                if self.encoded:
                    self.encoded += b","
                self.encoded += piece
        self._count = len(messages)
        self._first, self._last = messages[0], messages[-1]

    def repairs(self) -> bytes:
        """Results for calls that have none at the end; the real ones may still come, so these are not kept."""
        return b",".join(_result(wire_id, UNFINISHED) for _, wire_id in self._waiting)

    def _pieces(self, message: Message) -> list[bytes]:
        match message:
            case ToolMessage():
                return [self._answered(message)]
            case UserMessage(text=text):
                return [*self._closed(), _words("user", text)]
            case AssistantMessage():
                return [*self._closed(), self._reply(message)]
            case _:
                assert_never(message)

    def _closed(self) -> list[bytes]:
        """Results for calls that nobody answered, before somebody else speaks."""
        unfinished = [_result(wire_id, UNFINISHED) for _, wire_id in self._waiting]
        self._waiting.clear()
        return unfinished

    def _reply(self, message: AssistantMessage) -> bytes:
        self._replies += 1
        if not message.calls:
            return _words("assistant", message.text)
        self._waiting = [(call, self._id(call, index)) for index, call in enumerate(message.calls)]
        reply: dict[str, object] = {"role": "assistant", "content": sound(message.text) or None}
        thoughts = "".join(thought.text for thought in message.thinking) if self._reasoning else ""
        if thoughts:
            reply["reasoning_content"] = sound(thoughts)
        reply["tool_calls"] = [
            {"id": wire_id, "type": "function", "function": {"name": sound(call.name), "arguments": _arguments(call)}}
            for call, wire_id in self._waiting
        ]
        return msgspec.json.encode(reply)

    def _id(self, call: ToolCall, index: int) -> str:
        wire_id = call.id
        if not wire_id or len(wire_id) > LONGEST_ID or not wire_id.isascii() or wire_id in self._used:
            wire_id = f"call_{self._replies}_{index}"
            while wire_id in self._used:
                wire_id += "_"
        self._used.add(wire_id)
        return wire_id

    def _answered(self, message: ToolMessage) -> bytes:
        """A result goes to the call with its id and name; else to one with its name; else to the next one waiting."""
        waiting = self._waiting
        if not waiting:
            return _words("user", f"[result of a call of {message.name} that is no longer shown]\n{message.text}")
        by_id = (i for i, (call, _) in enumerate(waiting) if (call.id, call.name) == (message.call_id, message.name))
        by_name = (i for i, (call, _) in enumerate(waiting) if call.name == message.name)
        _, wire_id = waiting.pop(next(by_id, next(by_name, 0)))
        return _result(wire_id, message.text)


def sound(text: str) -> str:
    """The text without halves of characters, which UTF-8 cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _words(role: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": sound(text)})


def _result(wire_id: str, text: str) -> bytes:
    return msgspec.json.encode({"role": "tool", "tool_call_id": wire_id, "content": sound(text)})


def _arguments(call: ToolCall) -> str:
    """The arguments as a JSON object, which servers insist on; the model finds what it wrote instead inside of one."""
    text = call.arguments.strip()
    if not text:
        return "{}"
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return msgspec.json.encode({"not_a_json_object": sound(call.arguments)}).decode()
    return call.arguments


# Shared by all runs with the same system text and tools: a thousand siblings keep them once.
@lru_cache(maxsize=256)
def _system(text: str, role: str) -> bytes:
    return _words(role, text) if text else b""


@lru_cache(maxsize=256)
def _response_format(output: Output) -> bytes:
    if output.mode == "json_object":
        return b',"response_format":{"type":"json_object"}'
    demand = {"name": output.name, "schema": msgspec.Raw(sound(output.schema).encode()), "strict": True}
    return b',"response_format":' + msgspec.json.encode({"type": "json_schema", "json_schema": demand})


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b',"tools":[' + b",".join(map(_tool, tools)) + b"]" if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    function = {
        "name": sound(spec.name),
        "description": sound(spec.description),
        "parameters": msgspec.Raw(sound(spec.parameters).encode()),
    }
    return msgspec.json.encode({"type": "function", "function": function})
