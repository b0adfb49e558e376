"""Builders for events of the Gemini wire, and helpers that decode them."""

from typing import Any

import msgspec

from retinue.core.messages import Delta, Reply
from retinue.providers.gemini.response import Decoder

STOP: dict[str, Any] = {"candidates": [{"finishReason": "STOP", "index": 0}]}


def chunk(*parts: dict[str, Any], finish: str | None = None, **others: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate]} | others


def text(words: str, **others: Any) -> dict[str, Any]:
    return {"text": words} | others


def call(name: str, args: Any = None, **others: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name} | ({} if args is None else {"args": args})} | others


def decode_events(*events: object) -> tuple[Reply, list[Delta]]:
    decoder = Decoder(model="asked")
    deltas = [delta for each in events for delta in decoder.feed(msgspec.json.encode(each))]
    return decoder.finish(), deltas


def decode_reply(*events: object) -> Reply:
    return decode_events(*events)[0]
