"""Events of the chat wire, and what a decoder makes of them."""

from typing import Any

import msgspec

from retinue.core.messages import CallDelta, Delta, Reply
from retinue.providers.openai_chat.provider import Decoder

STOP: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def saying(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def calling(*engine: dict[str, Any]) -> dict[str, Any]:
    return saying(tool_calls=list(engine))


def part(name: str | None = None, arguments: Any = None, **others: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"function": function} | others


def decoded(*events: object, done: bool = True) -> Reply:
    return heard(*events, done=done)[0]


def heard(*events: object, done: bool = True) -> tuple[Reply, list[Delta]]:
    decoder = Decoder(model="asked")
    deltas = [delta for each in events for delta in decoder.feed(msgspec.json.encode(each))]
    if done:
        assert decoder.feed(b"[DONE]") == ()
    return decoder.finish(), deltas


def calls(*events: object) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls; what was published says the same."""
    reply, deltas = heard(*events)
    made = reply.message.calls
    for index, call in enumerate(made):
        pieces = [delta for delta in deltas if isinstance(delta, CallDelta) and delta.index == index]
        assert "".join(piece.name for piece in pieces) == call.name
        assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert reply.stop == "calls"
    return [(call.id, call.name, call.arguments) for call in made]
