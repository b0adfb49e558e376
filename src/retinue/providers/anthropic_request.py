"""A conversation in the format of Anthropic's messages, encoded once and then only appended to.

The vendor refuses what a real history may hold: calls without an id or with one that was used before, a result away
from its call, a call without its result, arguments that are no object, empty texts, a conversation that begins or ends
with the model. All of that is repaired here, by position alone, so that the same history always gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, assert_never

import msgspec

from retinue.core.agent import ToolSpec
from retinue.core.history import LEFT_OUT, UNFINISHED
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.providers.anthropic_order import in_order
from retinue.providers.demand import told
from retinue.providers.mending import as_object, sound

MEMO = "anthropic"
"""Where in a request's memo the conversation is kept."""

MAX_TOKENS = 8192
MAX_TOKENS_THINKING = 32000
THINKING_BUDGET = 24000
"""What is asked for when nobody says how long the answer may be; the vendor wants to be told."""

LEAST_BUDGET = 1024
"""Smaller budgets for thinking are refused."""

EMPTY = "[an empty message]"
GO_ON = "[go on]"
NO_REASON = "[no reason given]"
"""Words where the vendor demands some and the history has none."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_VERSION = re.compile(r"claude-[a-z]+-(\d+)(?:[-.](\d{1,2})(?!\d))?")

_MARK = b',"cache_control":{"type":"ephemeral"}'
_ADAPTIVE = b',"thinking":{"type":"adaptive","display":"summarized"}'

Role = Literal["user", "assistant"]
_OPENING: dict[Role, bytes] = {
    "user": b'{"role":"user","content":[',
    "assistant": b'{"role":"assistant","content":[',
}


def encode(request: Request, *, version: str = "") -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    With `version`, as on Google's servers, that is in the body and the model is not.

    The vendor keeps what comes before a mark for later requests that begin in the same way; where marks were set before
    makes no difference. Four are allowed: the tools, the system text, where the request before this one ended (so that
    the next turn and all forks find it, however much one turn added), and the end.

    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()[:48]
    '{"model":"m","max_tokens":8192,"stream":true,"me'
    """
    kept = request.memo.get(MEMO)
    if not (isinstance(kept, Conversation) and kept.is_beginning_of(request.messages)):
        kept = request.memo[MEMO] = Conversation()
    kept.add(request.messages)
    named = ("anthropic_version", version) if version else ("model", sound(request.model))
    return b"".join(
        (
            b'{"%b":%b' % (named[0].encode(), msgspec.json.encode(named[1])),
            _options(request, kept),
            _tools(request.tools),
            _system(told(request)),
            b',"messages":[',
            kept.marked(),
            b"]}",
        )
    )


def _options(request: Request, kept: Conversation) -> bytes:
    adaptive = thinks_as_it_likes(request.model)
    most = request.max_output or (MAX_TOKENS_THINKING if request.think else MAX_TOKENS)
    thinking = b""
    if request.think and adaptive:
        thinking = _ADAPTIVE
    elif request.think and kept.may_think:
        # An allowance smaller than usual is shared out in the same proportion; the answer needs a part of it.
        budget = min(THINKING_BUDGET, most * THINKING_BUDGET // MAX_TOKENS_THINKING)
        if budget >= LEAST_BUDGET:
            thinking = b',"thinking":{"type":"enabled","budget_tokens":%d}' % budget
    options = b',"max_tokens":%d,"stream":true' % most + thinking
    # Thinking excludes a temperature, and newer models refuse one in any case.
    if request.temperature is not None and not thinking and not adaptive:
        options += b',"temperature":' + msgspec.json.encode(request.temperature)
    if request.output is not None and request.output.mode == "json_schema":
        schema = sound(request.output.schema).encode()
        options += b',"output_config":{"format":{"type":"json_schema","schema":%b}}' % schema
    return options


def thinks_as_it_likes(model: str) -> bool:
    """Whether a model decides itself how long to think: Claude from 4.7 on, which refuses a budget.

    >>> [thinks_as_it_likes(name) for name in ("claude-opus-4-7", "claude-sonnet-5", "claude-sonnet-4-5@20250929")]
    [True, True, False]
    """
    found = _VERSION.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (4, 7)


class Conversation:
    """The messages of a run as far as they were encoded, and what is needed to go on from there."""

    __slots__ = (
        "_asked_to",
        "_began_with_thought",
        "_count",
        "_first",
        "_last",
        "_replies",
        "_role",
        "_used",
        "_waiting",
        "encoded",
        "may_think",
    )

    def __init__(self) -> None:
        self.encoded = bytearray()
        """The messages, but for the end of the last one, which may still grow."""
        self.may_think = True
        """Whether the vendor allows thinking now: not amid calls that the model made without."""
        self._began_with_thought = False
        self._role: Role | None = None
        self._asked_to = 0
        """Where the last block before the last reply ends: so far the model was asked before."""
        self._count = 0
        self._first: Message | None = None
        self._last: Message | None = None
        self._replies = 0
        self._used: set[str] = set()
        self._waiting: list[tuple[ToolCall, str]] = []
        """Calls of the last reply that have no result yet, with the ids we gave them."""

    def is_beginning_of(self, messages: Sequence[Message]) -> bool:
        """Whether these messages begin with the encoded ones; a summary may have taken their place."""
        if not 0 < self._count <= len(messages):
            return False
        return messages[0] is self._first and messages[self._count - 1] is self._last

    def add(self, messages: Sequence[Message]) -> None:
        """Encode what is new."""
        if self._count == len(messages):
            return
        for message in messages[self._count :]:
            match message:
                case ToolMessage():
                    self._say("user", self._answered(message))
                case UserMessage(text=text):
                    self._close()
                    self._say("user", _words(text if text.strip() else EMPTY))
                case AssistantMessage():
                    self._close()
                    self._reply(message)
                case _:
                    assert_never(message)
        self._count = len(messages)
        self._first, self._last = messages[0], messages[-1]

    def marked(self) -> bytes:
        """All messages, with marks; what is missing at the end is added, and not kept: it may still come."""
        whole = bytes(self.encoded) + self._ending()
        before, last = self._asked_to, len(whole) - 1
        if not before:
            return b"".join((whole[:last], _MARK, b"}]}"))
        return b"".join((whole[:before], _MARK, whole[before:last], _MARK, b"}]}"))

    def _ending(self) -> bytes:
        """Results for calls that have none, or a word if nobody said one after the model."""
        blocks = [_result(wire_id, UNFINISHED, failed=True) for _, wire_id in self._waiting]
        if self._role == "user":
            return b"".join(b"," + block for block in blocks)
        return (b"]}," if self._role else b"") + _OPENING["user"] + b",".join(blocks or [_words(GO_ON)])

    def _close(self) -> None:
        """Give results to calls that nobody answered, before somebody else speaks."""
        for _, wire_id in self._waiting:
            self._say("user", _result(wire_id, UNFINISHED, failed=True))
        self._waiting.clear()

    def _say(self, role: Role, block: bytes) -> None:
        """Add a block; those of one role that follow each other are one message."""
        if role == self._role:
            self.encoded += b","
        else:
            if self._role is None and role == "assistant":
                self._say("user", _words(LEFT_OUT))
            if self._role == "user":
                self._asked_to = len(self.encoded) - 1
            if self._role is not None:
                self.encoded += b"]},"
            self.encoded += _OPENING[role]
            self._role = role
        self.encoded += block

    def _reply(self, message: AssistantMessage) -> None:
        self._replies += 1
        self._waiting = [(call, self._id(call, index)) for index, call in enumerate(message.calls)]
        calls = iter(self._waiting)
        blocks: list[tuple[bytes, bool]] = []
        """Each with whether it is a thought."""
        for part in in_order(message):
            match part:
                case Thinking():
                    blocks.append((_thought(part), True))
                case ToolCall():
                    blocks.append((_call(*next(calls)), False))
                case _:
                    blocks.append((_words(part) if part.strip() else b"", False))
        blocks = [(block, is_thought) for block, is_thought in blocks if block]
        while blocks and blocks[-1][1]:
            blocks.pop()  # thoughts that led to nothing are refused
        if blocks and self._role != "assistant":
            self._began_with_thought = blocks[0][1]
        for block, _ in blocks:
            self._say("assistant", block)
        if blocks:
            self.may_think = self._began_with_thought or not message.calls

    def _id(self, call: ToolCall, index: int) -> str:
        wire_id = call.id
        if not _ID.fullmatch(wire_id) or wire_id in self._used:
            wire_id = f"toolu_{self._replies}_{index}"
            while wire_id in self._used:
                wire_id += "_"
        self._used.add(wire_id)
        return wire_id

    def _answered(self, message: ToolMessage) -> bytes:
        """A result goes to the call with its id and name; else to one with its name; else to the next one waiting."""
        waiting = self._waiting
        if not waiting:
            return _words(f"[result of a call of {message.name} that is no longer shown]\n{message.text}")
        by_id = (i for i, (call, _) in enumerate(waiting) if (call.id, call.name) == (message.call_id, message.name))
        by_name = (i for i, (call, _) in enumerate(waiting) if call.name == message.name)
        _, wire_id = waiting.pop(next(by_id, next(by_name, 0)))
        return _result(wire_id, message.text, failed=message.failed)


def _words(text: str) -> bytes:
    return msgspec.json.encode({"type": "text", "text": sound(text)})


def _thought(thought: Thinking) -> bytes:
    """A thought as the vendor knows it, or nothing if it is not one of its own: those it would refuse."""
    match thought:
        case Thinking(signature="", opaque=data) if data and not thought.text and not data.startswith("{"):
            return msgspec.json.encode({"type": "redacted_thinking", "data": data})
        case Thinking(text=text, signature=signature, opaque="") if signature:
            return msgspec.json.encode({"type": "thinking", "thinking": sound(text), "signature": signature})
        case _:
            return b""


def _call(call: ToolCall, wire_id: str) -> bytes:
    name = _NOT_IN_A_NAME.sub("_", call.name)[:128] or "_"
    arguments = msgspec.Raw(sound(as_object(call.arguments)).encode())
    return msgspec.json.encode({"type": "tool_use", "id": wire_id, "name": name, "input": arguments})


def _result(wire_id: str, text: str, *, failed: bool) -> bytes:
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": wire_id}
    if failed:
        result["is_error"] = True
    if failed or text.strip():
        result["content"] = sound(text) if text.strip() else NO_REASON
    return msgspec.json.encode(result)


# Shared by all runs with the same system text and tools: a thousand siblings keep them once.
@lru_cache(maxsize=256)
def _system(text: str) -> bytes:
    return b',"system":[' + _words(text)[:-1] + _MARK + b"}]" if text.strip() else b""


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b',"tools":[' + b",".join(map(_tool, tools))[:-1] + _MARK + b"}]" if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    tool = {
        "name": sound(spec.name),
        "description": sound(spec.description),
        "input_schema": msgspec.Raw(sound(spec.parameters).encode()),
    }
    return msgspec.json.encode(tool)
