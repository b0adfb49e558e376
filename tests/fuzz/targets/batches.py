"""Answers of vendors about batches: any bytes are results and states, or a provider error.

The first byte of an input chooses the vendor and the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from retinue.core.errors import ProviderError
from retinue.providers.batch.vendors import (
    AnsweredRequest,
    AnthropicBatches,
    BatchApi,
    GeminiBatches,
    NotAnswered,
    OpenAIBatches,
)
from retinue.providers.http import Endpoint
from tests.fuzz.target import Target

OPENAI = b'{"id":"b1","status":"completed","output_file_id":"f1","error_file_id":"f2"}'


class Vendor:
    """An endpoint that answers each request for a file, and each other one, with the same bytes."""

    def __init__(self, body: bytes, *, batch: bytes | None = None) -> None:
        self._body = body
        self._batch = body if batch is None else batch

    async def exchange(self, method: str, path: str, **options: object) -> bytes:
        assert ".." not in path
        assert "?" not in path
        return self._batch

    async def lines(self, path: str, **options: object) -> AsyncIterator[bytes]:
        for line in self._body.split(b"\n"):
            yield line


def check(data: bytes) -> None:
    """The answer `data[1:]` is handled."""
    kind, body = data[0] if data else 0, data[1:]
    asyncio.run(ask(kind, body))


async def ask(kind: int, body: bytes) -> None:
    def at(vendor: Vendor) -> Endpoint:
        return cast("Endpoint", vendor)

    apis: tuple[BatchApi, ...] = (
        AnthropicBatches(at(Vendor(body)), {}),
        OpenAIBatches(at(Vendor(body, batch=OPENAI if kind & 4 else None)), {}, path="/chat/completions"),
        GeminiBatches(at(Vendor(body)), {}),
    )
    api = apis[kind % 3]
    try:
        match kind >> 3 & 3:
            case 0:
                async for item_id, result in api.results("b1"):
                    check_result(item_id, result)
            case 1:
                state = await api.state("b1")
                assert state.state in ("working", "ended", "failed")
                assert len(state.error) <= 500
            case 2:
                assert all(each for each in await api.find("key", since=0.0, count=1))
            case _:
                assert await api.submit("key", "model", [b"{}"])
    except ProviderError:
        pass


def check_result(item_id: str, result: Any) -> None:
    assert isinstance(item_id, str)
    if isinstance(result, NotAnswered):
        assert result.why in ("errored", "expired", "cancelled")
    else:
        assert isinstance(result, AnsweredRequest)


_MESSAGE = b'{"custom_id":"k-0","result":{"type":"succeeded","message":{"content":[]}}}\n'
_RESPONSES = b'{"response":{"inlinedResponses":{"inlinedResponses":[{"metadata":{"key":"k-0"},"response":{}}]}}}'

TARGET = Target(
    check=check,
    seeds=(
        b"\x00" + _MESSAGE + b'{"custom_id":"k-1","result":{"type":"errored","error":{"error":{"type":"api_error"}}}}',
        b'\x04{"custom_id":"k-0","response":{"status_code":200,"body":{"choices":[]}}}\n{"custom_id":"k-1","error":{}}',
        b"\x02" + _RESPONSES,
        b'\x02{"response":{"inlinedResponses":{"inlinedResponses":[{"error":{"code":8,"message":"x"}}]}}}',
        b'\x08{"id":"b1","processing_status":"ended"}',
        b'\x09{"id":"b1","status":"failed","errors":{"data":[{"message":"no","line":1}]}}',
        b'\x0a{"name":"batches/1","done":true,"metadata":{"state":"BATCH_STATE_SUCCEEDED"}}',
        b'\x12{"data":[{"id":"b1","created_at":"2026-01-01T00:00:00Z","request_counts":{"succeeded":1}}]}',
        b'\x13{"data":[{"id":"b1","created_at":1e9,"metadata":{"retinue_key":"key"}}]}',
        b'\x14{"operations":[{"name":"batches/1","metadata":{"displayName":"key"}}]}',
        b'\x1b{"id":"b1"}',
    ),
    words=(
        *(b"null", b"true", b"[]", b"{}", b'""', b"0", b"-1", b"1e999", b"99999999999999999999", b'"\\ud83d"', b"\n"),
        *(b'"custom_id":', b'"result":', b'"type":', b'"succeeded"', b'"errored"', b'"expired"', b'"canceled"'),
        *(b'"error":', b'"message":', b'"response":', b'"status_code":', b'"body":', b'"code":', b'"id":', b'"data":'),
        *(b'"inlinedResponses":', b'"metadata":', b'"key":', b'"name":', b'"done":', b'"state":', b'"has_more":'),
        *(b'"created_at":', b'"0001-01-01T00:00:00"', b'"request_counts":', b"[" * 2000, b'{"a":' * 1000),
    ),
)
