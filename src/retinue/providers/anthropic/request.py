"""A conversation in the format of Anthropic's messages, and the options that go along with it.

The vendor refuses more of what a real history may hold than others do: a result away from its call, empty texts, a
conversation that begins or ends with the model. That is repaired here, by position alone, so that the same history
always gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, cast

import msgspec

from retinue.core.agent import ToolSpec
from retinue.core.history import LEFT_OUT
from retinue.core.messages import AssistantMessage, Thinking, ToolCall
from retinue.core.ports import Request
from retinue.providers.anthropic.content_order import in_order
from retinue.providers.lenient_json import as_object, sound, verbatim
from retinue.providers.message_encoder import Conversation, Slot, Speaker
from retinue.providers.output_prompt import told, told_in_words
from retinue.providers.unsupported_options import fields, is_wanted, only_wanted

MEMO = "anthropic"
"""Where in a request's memo the conversation is kept."""
TOOLS = "anthropic.tools"
"""Where the tools of the last turn that had any are kept."""

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

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_VERSION = re.compile(r"claude-[a-z]+-(\d+)(?:[-.](\d{1,2})(?!\d))?")

CACHED = "cache_control"
"""The marks, as servers call them that speak this format and refuse them."""
_MARK = b',"cache_control":{"type":"ephemeral"}'
_NO_CALLS = b',"tool_choice":{"type":"none"}'

_BUDGET, _ADAPTIVE = _THINKING = ("thinking.type.enabled", "thinking.type.adaptive")
"""Two ways of thinking, as the vendor calls them when it refuses one."""

_OPENING: dict[Speaker, bytes] = {
    "user": b'{"role":"user","content":[',
    "assistant": b'{"role":"assistant","content":[',
}


def encode(request: Request, *, version: str = "", unwanted: Collection[str] = ()) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    With `version`, as on Google's servers, that is in the body and the model is not.

    The vendor keeps what comes before a mark for later requests that begin in the same way; where marks were set before
    makes no difference. Four are allowed: the tools, the system text, where the request before this one ended (so that
    the next turn and all forks find it, however much one turn added), and the end.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()[:48]
    '{"model":"m","max_tokens":8192,"stream":true,"me'
    """
    kept = Blocks.of(request, MEMO)
    wanted = options(request, unwanted)
    is_told = request.output is None or "output_config.format" in wanted
    mark = _MARK if is_wanted(CACHED, unwanted) else b""
    named = ("anthropic_version", version) if version else ("model", sound(request.model))
    return b"".join(
        (
            b'{"%b":%b,"max_tokens":%d,"stream":true'
            % (named[0].encode(), msgspec.json.encode(named[1]), _most(request)),
            _fields(wanted),
            _declared(request, kept, mark),
            _system(told(request) if is_told else told_in_words(request), mark),
            b',"messages":[',
            kept.marked(mark),
            b"]}",
        )
    )


def options(request: Request, unwanted: Collection[str] = ()) -> dict[str, object]:
    """What goes into a request besides the conversation and its length, of what the model wants.

    >>> question = Request(model="claude-sonnet-4-5", system="", messages=[], temperature=0.5, think=True)
    >>> options(question)
    {'thinking.type.enabled': {'type': 'enabled', 'budget_tokens': 24000}}
    >>> options(question, {"thinking"})
    {'temperature': 0.5}
    """
    kept = Blocks.of(request, MEMO)
    adaptive = thinks_as_it_likes(request.model)
    wanted: dict[str, object] = {}
    if request.think:
        # A model that is not known here may refuse the one way of thinking and want the other.
        usual = (_ADAPTIVE, _BUDGET) if adaptive else (_BUDGET, _ADAPTIVE)
        way = next((way for way in usual if is_wanted(way, unwanted)), None)
        if way == _ADAPTIVE:
            wanted[_ADAPTIVE] = {"type": "adaptive", "display": "summarized"}
        elif way == _BUDGET and kept.may_think:
            # An allowance smaller than usual is shared out in the same proportion; the answer needs a part of it.
            budget = min(THINKING_BUDGET, _most(request) * THINKING_BUDGET // MAX_TOKENS_THINKING)
            if budget >= LEAST_BUDGET:
                wanted[_BUDGET] = {"type": "enabled", "budget_tokens": budget}
    # Thinking excludes a temperature, and newer models refuse one in any case.
    if request.temperature is not None and not wanted and not adaptive:
        wanted["temperature"] = request.temperature
    if request.output is not None and request.output.mode == "json_schema":
        wanted["output_config.format"] = {"type": "json_schema", "schema": verbatim(request.output.schema)}
    return only_wanted(wanted, unwanted)


def named_options(request: Request, unwanted: Collection[str]) -> list[str]:
    """What a server may refuse of a request by its name: the options, and the marks."""
    return [*options(request, unwanted), *((CACHED,) if is_wanted(CACHED, unwanted) else ())]


def _fields(wanted: Mapping[str, object]) -> bytes:
    """Both ways of thinking are said in the same field."""
    return fields({"thinking" if option in _THINKING else option: value for option, value in wanted.items()})


def _most(request: Request) -> int:
    return request.max_output or (MAX_TOKENS_THINKING if request.think else MAX_TOKENS)


def _declared(request: Request, kept: Blocks, mark: bytes) -> bytes:
    """The tools. A turn without any, in a conversation with calls, has those of the turns before and may use none: else
    the vendor would read them and the system text anew, and calls without tools are more than some servers take.
    """
    if request.tools:
        request.memo[TOOLS] = request.tools
        return _tools(request.tools, mark)
    before = request.memo.get(TOOLS)
    return _tools(cast("tuple[ToolSpec, ...]", before), mark) + _NO_CALLS if before and kept.has_calls else b""


def thinks_as_it_likes(model: str) -> bool:
    """Whether a model decides itself how long to think: Claude from 4.7 on, which refuses a budget.

    >>> [thinks_as_it_likes(name) for name in ("claude-opus-4-7", "claude-sonnet-5", "claude-sonnet-4-5@20250929")]
    [True, True, False]
    """
    found = _VERSION.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (4, 7)


class Blocks(Conversation):
    """The messages of a run as blocks; those of one role that follow each other are one message."""

    __slots__ = ("_asked_to", "_began_with_thought", "_role", "may_think")

    usable_id: ClassVar[re.Pattern[str]] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    made_id: ClassVar[str] = "toolu"

    def __init__(self, way: str = "") -> None:
        super().__init__(way)
        # What is written lacks the end of the last message, which may still grow.
        self.may_think = True
        """Whether the vendor allows thinking now: not amid calls that the model made without."""
        self._began_with_thought = False
        self._role: Speaker | None = None
        self._asked_to = 0
        """Where the last block before the last reply ends: so far the model was asked before."""

    def marked(self, mark: bytes = _MARK) -> bytes:
        """All messages, with marks; what is missing at the end is added, and not kept: it may still come."""
        whole = bytes(self.encoded) + self._ending()
        before, last = self._asked_to, len(whole) - 1
        if not before:
            return b"".join((whole[:last], mark, b"}]}"))
        return b"".join((whole[:before], mark, whole[before:last], mark, b"}]}"))

    def _ending(self) -> bytes:
        """Results for calls that have none, or a word if nobody said one after the model."""
        blocks = self.missing()
        if self._role == "user":
            return b"".join(b"," + block for block in blocks)
        return (b"]}," if self._role else b"") + _OPENING["user"] + b",".join(blocks or [_words(GO_ON)])

    def put(self, speaker: Speaker, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if speaker == self._role:
                self.encoded += b","
            else:
                self._turn(speaker)
            self.encoded += piece

    def _turn(self, speaker: Speaker) -> None:
        if self._role is None and speaker == "assistant":
            self.put("user", (_words(LEFT_OUT),))
        if self._role == "user":
            self._asked_to = len(self.encoded) - 1
        if self._role is not None:
            self.encoded += b"]},"
        self.encoded += _OPENING[speaker]
        self._role = speaker

    def words(self, text: str) -> bytes:
        return _words(text if text.strip() else EMPTY)

    def reply(self, message: AssistantMessage, slots: Sequence[Slot]) -> Iterable[bytes]:
        calls = iter(slots)
        blocks: list[tuple[bytes, bool]] = []
        """Each with whether it is a thought."""
        for part in in_order(message):
            match part:
                case Thinking():
                    blocks.append((_thought(part), True))
                case ToolCall():
                    blocks.append((_call(next(calls)), False))
                case _:
                    blocks.append((_words(part) if part.strip() else b"", False))
        blocks = [(block, is_thought) for block, is_thought in blocks if block]
        while blocks and blocks[-1][1]:
            blocks.pop()  # thoughts that led to nothing are refused
        if blocks:
            if self._role != "assistant":
                self._began_with_thought = blocks[0][1]
            self.may_think = self._began_with_thought or not message.calls
        return [block for block, _ in blocks]

    def results(self, slots: Sequence[Slot]) -> list[bytes]:
        return [_result(slot) for slot in slots]


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


def _call(slot: Slot) -> bytes:
    name = _NOT_IN_A_NAME.sub("_", slot.call.name)[:128] or "_"
    arguments = verbatim(as_object(slot.call.arguments))
    return msgspec.json.encode({"type": "tool_use", "id": slot.wire_id, "name": name, "input": arguments})


def _result(slot: Slot) -> bytes:
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": slot.wire_id}
    failed, text = slot.failed or slot.text is None, slot.told
    if failed:
        result["is_error"] = True
    if failed or text.strip():
        result["content"] = sound(text) if text.strip() else NO_REASON
    return msgspec.json.encode(result)


# Shared by all runs with the same system text and tools: a thousand siblings keep them once.
@lru_cache(maxsize=256)
def _system(text: str, mark: bytes) -> bytes:
    return b',"system":[' + _words(text)[:-1] + mark + b"}]" if text.strip() else b""


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...], mark: bytes) -> bytes:
    return b',"tools":[' + b",".join(map(_tool, tools))[:-1] + mark + b"}]" if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    tool = {
        "name": sound(spec.name),
        "description": sound(spec.description),
        "input_schema": verbatim(spec.parameters),
    }
    return msgspec.json.encode(tool)
