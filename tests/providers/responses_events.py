"""Builders for events of the Responses wire, and helpers that decode them."""

from typing import Any

import msgspec

from retinue.core.messages import Delta, Reply
from retinue.providers.openai_responses.response import Decoder

CREATED: dict[str, Any] = {"type": "response.created", "response": {"id": "r1", "model": "m1", "status": "in_progress"}}
COMPLETED: dict[str, Any] = {"type": "response.completed", "response": {"id": "r1", "status": "completed"}}


def text_delta(piece: str, **others: Any) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": piece} | others


def summary_delta(piece: str, **others: Any) -> dict[str, Any]:
    return {"type": "response.reasoning_summary_text.delta", "delta": piece} | others


def arguments_delta(piece: str, spelling: str = "function_call", **others: Any) -> dict[str, Any]:
    return {"type": f"response.{spelling}_arguments.delta", "delta": piece} | others


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind} | fields


def added(item: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "item": item} | others


def done(item: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "item": item} | others


def completed(**response: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"id": "r1", "status": "completed"} | response}


def decode_events(*events: object) -> tuple[Reply, list[Delta]]:
    decoder = Decoder(model="asked")
    deltas = [delta for each in events for delta in decoder.feed(msgspec.json.encode(each))]
    return decoder.finish(), deltas


def decode_reply(*events: object) -> Reply:
    return decode_events(*events)[0]
