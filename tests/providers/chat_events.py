"""Builders for events of the chat wire, and helpers that decode them."""

from typing import Any

import msgspec

from retinue.core.messages import CallDelta, Delta, Reply, Thinking
from retinue.providers.openai_chat.response import Decoder

STOP: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def delta_event(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def calls_event(*pieces: dict[str, Any]) -> dict[str, Any]:
    return delta_event(tool_calls=list(pieces))


def call_piece(name: str | None = None, arguments: Any = None, **others: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"function": function} | others


def thought(text: str, field: str = "reasoning_content") -> Thinking:
    """Thinking that came in a field of the message, with the note that sends it back there."""
    return Thinking(text, "openai-chat", f'{{"type":"chat.reasoning","field":"{field}"}}')


def decode_reply(*events: object, done: bool = True) -> Reply:
    return decode_events(*events, done=done)[0]


def decode_events(*events: object, done: bool = True) -> tuple[Reply, list[Delta]]:
    decoder = Decoder(model="asked")
    deltas = [delta for each in events for delta in decoder.feed(msgspec.json.encode(each))]
    if done:
        assert decoder.feed(b"[DONE]") == ()
    return decoder.finish(), deltas


def calls(*events: object) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls; the published deltas have to agree."""
    reply, deltas = decode_events(*events)
    made = reply.message.calls
    for index, call in enumerate(made):
        pieces = [delta for delta in deltas if isinstance(delta, CallDelta) and delta.index == index]
        assert "".join(piece.name for piece in pieces) == call.name
        assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert reply.stop == "calls"
    return [(call.id, call.name, call.arguments) for call in made]
