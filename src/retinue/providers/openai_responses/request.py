"""A conversation in the format of OpenAI's Responses: a flat list of items.

All of it is sent with every request: nothing is stored at the vendor, so what the model thought travels along,
encrypted, and goes back byte for byte before what it led to. Where the vendor is to remember instead, only what came
after its last reply is sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.agent import Output, ToolSpec
from retinue.core.messages import AssistantMessage, Message, Thinking
from retinue.core.ports import Request
from retinue.providers.block_order import fits, in_order, noted
from retinue.providers.lenient_json import as_object, sound, verbatim
from retinue.providers.message_encoder import Conversation, Slot
from retinue.providers.output_prompt import told, told_in_words
from retinue.providers.unsupported_options import fields, is_wanted, only_wanted

MEMO = "openai_responses"
"""Where in a request's memo the conversation is kept."""

Spelling: TypeAlias = Literal["function_call", "tool_call"]
"""Which words are written: `function_call` and `function_call_output` as OpenAI does, or `tool_call` and
`tool_result`."""

# These never think, and OpenAI refuses to be asked for their encrypted thoughts.
_NEVER_THINKS = re.compile(r"(?:.*/)?(?:gpt-3|gpt-4|chatgpt-|gpt-5(?:\.\d+)?-chat)")

Step: TypeAlias = Literal["reasoning", "call"] | int
"""One item of a reply: thoughts, a call, or a message of so many characters."""


class Order(Struct, frozen=True, tag_field="type", tag="responses.order"):
    """In which order a reply said things, where it was not thoughts, then words, then calls."""

    items: tuple[Step, ...]


class _Part(Struct, gc=False):
    text: str | None = None


class Reasoning(Struct, gc=False, tag_field="type", tag="reasoning"):
    """What we need to know of a reasoning item to send it back."""

    encrypted_content: str | None = None
    content: list[_Part] | None = None


_decode_opaque = msgspec.json.Decoder(Order | Reasoning).decode


class Last(Struct, frozen=True):
    """The last reply of a conversation, as the vendor knows it and as we do, and where that conversation is kept."""

    response_id: str
    message: AssistantMessage
    kept: object

    def is_known_of(self, request: Request) -> bool:
        """Whether a request goes on from here; somebody may have rewritten what was said before."""
        return request.memo.get(MEMO) is self.kept and _last_reply(request.messages) == self.message


def options(
    request: Request,
    unwanted: Collection[str] = (),
    *,
    explicit: bool = False,
    last: Last | None = None,
) -> dict[str, object]:
    """What goes into a request besides the conversation, of what the model wants.

    With `explicit`, how much to think is said in any case, and nothing that was not asked for is wanted back.

    >>> question = Request(model="o3", system="", messages=[], max_output=9, think=True)
    >>> options(question, {"include"})
    {'max_output_tokens': 9, 'reasoning.effort': 'high', 'reasoning.summary': 'detailed'}
    >>> options(question, {"include", "reasoning"}, explicit=True)
    {'max_output_tokens': 9}
    """
    wanted: dict[str, object] = {}
    if last is not None and last.is_known_of(request):
        wanted["previous_response_id"] = last.response_id
    if not explicit and not _NEVER_THINKS.match(request.model):
        wanted["include"] = ["reasoning.encrypted_content"]
    if request.max_output is not None:
        wanted["max_output_tokens"] = request.max_output
    if request.temperature is not None:
        wanted["temperature"] = request.temperature
    # Who cannot be told how much to think has nothing to sum up.
    if is_wanted("reasoning.effort", unwanted):
        if request.think:
            wanted |= {"reasoning.effort": "high", "reasoning.summary": "detailed"}
        elif explicit:
            wanted["reasoning.effort"] = "none"
    if request.output is not None:
        wanted["text.format"] = _text_format(request.output)
    return only_wanted(wanted, unwanted)


def encode(
    request: Request,
    *,
    spelling: Spelling = "function_call",
    explicit: bool = False,
    last: Last | None = None,
    unwanted: Collection[str] = (),
) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    If the vendor knows the `last` reply, only what came after it is sent.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="gpt-4o", system="", messages=[UserMessage("hi")])).decode()
    '{"model":"gpt-4o","stream":true,"store":false,"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}'
    """
    items = Items.of(request, MEMO, spelling)
    wanted = options(request, unwanted, explicit=explicit, last=last)
    is_told = request.output is None or "text.format" in wanted
    return b"".join(
        (
            b'{"model":',
            msgspec.json.encode(sound(request.model)),
            b',"stream":true,"store":false',
            fields(wanted),
            _instructions(told(request) if is_told else told_in_words(request)),
            _tools(request.tools),
            b',"input":[',
            items.since_reply() if "previous_response_id" in wanted else items.written(),
            b"]}",
        )
    )


def _last_reply(messages: Sequence[Message]) -> AssistantMessage | None:
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage):
            return message
    return None


class Items(Conversation):
    """The messages of a run as input items."""

    __slots__ = ()

    usable_id: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x7f]{1,64}")
    results_wait: ClassVar[bool] = True

    def words(self, text: str) -> bytes:
        return _message("user", "input_text", text)

    def reply(self, message: AssistantMessage, slots: Sequence[Slot]) -> Iterable[bytes]:
        thoughts = list(_thoughts(message.thinking))
        order = _order(message, len(thoughts))
        calls = (self._call(slot) for slot in slots)
        if order is not None:
            said = in_order(order.items, message.text, iter(thoughts), calls)
            return [_words(part) if isinstance(part, str) else part for part in said if part]
        words = [_words(message.text)] if message.text else []
        if not words and not slots:
            # Thoughts are refused without anything that follows them.
            return [_words("")]
        return [*filter(None, thoughts), *words, *calls]

    def results(self, slots: Sequence[Slot]) -> list[bytes]:
        return [self._result(slot) for slot in slots]

    def _call(self, slot: Slot) -> bytes:
        name, arguments = sound(slot.call.name), as_object(slot.call.arguments)
        if self.way == "tool_call":
            return msgspec.json.encode({"type": "tool_call", "id": slot.wire_id, "name": name, "arguments": arguments})
        return msgspec.json.encode(
            {"type": "function_call", "call_id": slot.wire_id, "name": name, "arguments": arguments}
        )

    def _result(self, slot: Slot) -> bytes:
        text = sound(slot.told)
        if self.way == "tool_call":
            return msgspec.json.encode({"type": "tool_result", "tool_call_id": slot.wire_id, "content": text})
        return msgspec.json.encode({"type": "function_call_output", "call_id": slot.wire_id, "output": text})


def _thoughts(thinking: Sequence[Thinking]) -> Iterator[bytes]:
    """The reasoning items that this vendor made; empty where it could not read them again: nothing was stored there, so
    an id alone is not enough.
    """
    for thought in thinking:
        item = noted(_decode_opaque, thought)
        if isinstance(item, Reasoning):
            yield sound(thought.opaque).encode() if item.encrypted_content or item.content else b""


def _order(message: AssistantMessage, thoughts: int) -> Order | None:
    """The order that was kept with a reply, if it still fits."""
    notes = (noted(_decode_opaque, thought) for thought in message.thinking)
    order = next((order for order in notes if isinstance(order, Order)), None)
    return order if order is not None and fits(order.items, message, thoughts) else None


def _words(text: str) -> bytes:
    return _message("assistant", "output_text", text)


def _message(role: str, kind: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": [{"type": kind, "text": sound(text)}]})


# Shared by all runs with the same system text and tools: a thousand siblings keep them once.
@lru_cache(maxsize=256)
def _instructions(text: str) -> bytes:
    return b',"instructions":' + msgspec.json.encode(sound(text)) if text else b""


@lru_cache(maxsize=256)
def _text_format(output: Output) -> msgspec.Raw:
    if output.mode == "json_object":
        return msgspec.Raw(b'{"type":"json_object"}')
    demand = {"type": "json_schema", "name": output.name, "schema": verbatim(output.schema), "strict": True}
    return msgspec.Raw(msgspec.json.encode(demand))


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b',"tools":[' + b",".join(map(_tool, tools)) + b'],"tool_choice":"auto"' if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    return msgspec.json.encode(
        {
            "type": "function",
            "name": sound(spec.name),
            "description": sound(spec.description),
            "parameters": verbatim(spec.parameters),
        }
    )
