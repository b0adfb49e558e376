"""A conversation in the format of Gemini's generateContent: turns of a user and a model, made of parts.

What the model thought is known to it by a signature that came with one of the parts of its reply, and has to go back on
that very part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Thinking
from retinue.core.ports import Request
from retinue.providers.block_order import noted
from retinue.providers.lenient_json import as_object, sound, verbatim
from retinue.providers.message_encoder import Conversation, Slot
from retinue.providers.output_prompt import told_in_words
from retinue.providers.unsupported_options import nested, only_wanted

MEMO = "gemini"
"""Where in a request's memo the conversation is kept."""

FOREIGN = "skip_thought_signature_validator"
"""The vendor's own word for a call that another model made: from version 3 on, it refuses calls without a signature."""

_SIGNS = re.compile(r"(?:.*/)?gemini-(?:[3-9]|\d\d|.*latest)")
_WANTS_A_BUDGET = re.compile(r"(?:.*/)?gemini-2\.5")

_SIGNED, _UNSIGNED = "signed", "unsigned"


class Place(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="gemini.signature"):
    """Where a signature belongs: on the thought it is kept with, on the text from `start` to `end`, or on the call
    number `start`."""

    on: Literal["thought", "text", "call"]
    start: int = 0
    end: int = 0


_decode_place = msgspec.json.Decoder(Place).decode


def encode(request: Request, *, unwanted: Collection[str] = ()) -> bytes:
    """The body of a request; what `request.memo` has of the conversation already is not encoded again.

    >>> from retinue.core.messages import UserMessage
    >>> encode(Request(model="m", system="", messages=[UserMessage("hi")])).decode()
    '{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}'
    """
    way = _SIGNED if _SIGNS.match(request.model) else _UNSIGNED
    said = Contents.of(request, MEMO, way).written()
    wanted = options(request, unwanted)
    demand = request.output
    is_told = demand is None or ("responseJsonSchema" if demand.mode == "json_schema" else "responseMimeType") in wanted
    return b"".join(
        (
            b"{",
            _system(request.system if is_told else told_in_words(request)),
            _tools(request.tools),
            b'"generationConfig":' + msgspec.json.encode(nested(wanted)) + b"," if wanted else b"",
            b'"contents":[',
            said,
            b"]}",
        )
    )


class Contents(Conversation):
    """The messages of a run as contents."""

    __slots__ = ()

    usable_id: ClassVar[re.Pattern[str]] = re.compile(r"[\x00-\x7f]{1,128}")
    results_wait: ClassVar[bool] = True
    needs_ids: ClassVar[bool] = False

    def words(self, text: str) -> bytes:
        return _content("user", [_text(text or " ")])  # an empty part is refused

    def reply(self, message: AssistantMessage, slots: Sequence[Slot]) -> Iterable[bytes]:
        signed = list(_signed(message.thinking))
        parts = [
            *(
                _text(thought.text, thought.signature, thought=True)
                for thought, place in signed
                if place.on == "thought"
            ),
            *_texts(message.text, signed),
            *self._calls(slots, signed),
        ]
        return [_content("model", parts)] if parts else []

    def results(self, slots: Sequence[Slot]) -> list[bytes]:
        return [_content("user", [_result(slot) for slot in slots])]

    def _calls(self, slots: Sequence[Slot], signed: Sequence[tuple[Thinking, Place]]) -> Iterator[bytes]:
        signatures = {place.start: thought.signature for thought, place in signed if place.on == "call"}
        if self.way == _SIGNED and slots:
            signatures.setdefault(0, FOREIGN)  # of calls that are made together, the first one has it
        for index, slot in enumerate(slots):
            call: dict[str, object] = {"id": slot.wire_id} if slot.wire_id else {}
            call |= {"name": sound(slot.call.name), "args": verbatim(as_object(slot.call.arguments))}
            yield _part({"functionCall": call}, signatures.get(index, ""))


def _signed(thinking: Sequence[Thinking]) -> Iterator[tuple[Thinking, Place]]:
    """The signatures that this vendor gave, and where they belong."""
    for thought in thinking:
        place = noted(_decode_place, thought)
        if place is not None and thought.signature:
            yield thought, place


def _texts(text: str, signed: Sequence[tuple[Thinking, Place]]) -> Iterator[bytes]:
    """The words in as many parts as there are signatures on them; what was signed is never joined with what was not."""
    told = 0
    for thought, place in signed:
        if place.on == "text" and told <= place.start <= place.end <= len(text):
            if told < place.start:
                yield _text(text[told : place.start])
            yield _text(text[place.start : place.end], thought.signature)
            told = place.end
    if told < len(text):
        yield _text(text[told:])


def _text(text: str, signature: str = "", *, thought: bool = False) -> bytes:
    part: dict[str, object] = {"text": sound(text)}
    return _part(part | {"thought": True} if thought else part, signature)


def _result(slot: Slot) -> bytes:
    response: dict[str, object] = {"id": slot.wire_id} if slot.wire_id else {}
    response |= {"name": sound(slot.call.name), "response": {"error" if slot.failed else "result": sound(slot.told)}}
    return _part({"functionResponse": response})


def _part(part: dict[str, object], signature: str = "") -> bytes:
    return msgspec.json.encode(part | {"thoughtSignature": sound(signature)} if signature else part)


def _content(role: Literal["user", "model"], parts: Iterable[bytes]) -> bytes:
    return b'{"role":"%b","parts":[%b]}' % (role.encode(), b",".join(parts))


def _has_a_field_for_output(request: Request) -> bool:
    """Whether the form of the answer can be said in a field: before version 3, not together with tools."""
    return not request.tools or _SIGNS.match(request.model) is not None


def options(request: Request, unwanted: Collection[str] = ()) -> dict[str, object]:
    """What goes into a request's configuration, of what the model wants.

    >>> question = Request(model="gemini-2.5-flash", system="", messages=[], max_output=9, think=True)
    >>> options(question, {"maxOutputTokens"})
    {'thinkingConfig.includeThoughts': True, 'thinkingConfig.thinkingBudget': -1}
    """
    wanted: dict[str, object] = {}
    if request.max_output is not None:
        wanted["maxOutputTokens"] = request.max_output
    if request.temperature is not None:
        wanted["temperature"] = request.temperature
    if request.think:
        wanted["thinkingConfig.includeThoughts"] = True
        if _WANTS_A_BUDGET.match(request.model):
            # The smaller models of this version think only if they are told how much; -1 leaves that to them.
            wanted["thinkingConfig.thinkingBudget"] = -1
    if request.output is not None and _has_a_field_for_output(request):
        wanted["responseMimeType"] = "application/json"
        if request.output.mode == "json_schema":
            wanted["responseJsonSchema"] = verbatim(request.output.schema)
    return only_wanted(wanted, unwanted)


# Shared by all runs with the same system text and tools: a thousand siblings keep them once.
@lru_cache(maxsize=256)
def _system(text: str) -> bytes:
    return b'"systemInstruction":{"parts":[' + _text(text) + b"]}," if text else b""


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return b'"tools":[{"functionDeclarations":[' + b",".join(map(_tool, tools)) + b"]}]," if tools else b""


def _tool(spec: ToolSpec) -> bytes:
    return msgspec.json.encode(
        {
            "name": sound(spec.name),
            "description": sound(spec.description),
            "parametersJsonSchema": verbatim(spec.parameters),
        }
    )
