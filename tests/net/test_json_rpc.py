"""JSON-RPC on lines: the order of messages, requests of both sides, errors, and bounds."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from retinue.core.text import MAX_JSON_VALUES
from retinue.net.json_rpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAX_GARBAGE,
    MAX_REQUESTS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ConnectionGone,
    JsonRpcPeer,
    RpcError,
)


class Side:
    """A handler that notes what it is given, and the messages that its peer sends."""

    def __init__(self) -> None:
        self.noted: list[object] = []
        self.sent: list[dict[str, Any]] = []
        self.hold = asyncio.Event()

    async def requested(self, method: str, params: dict[str, Any]) -> object:
        match method:
            case "echo":
                return params
            case "hold":
                await self.hold.wait()
                return None
            case "crash":
                raise KeyError("a secret")
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"no {method}", {"known": ["echo"]})

    def notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "crash":
            raise KeyError("x")
        self.noted.append((method, params))

    def send(self, line: bytes) -> None:
        self.sent.append(json.loads(line))


async def lines(messages: Sequence[object]) -> AsyncGenerator[bytes]:
    for message in messages:
        yield message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        await asyncio.sleep(0)


def request(id: object, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def test_requests_are_answered_and_notifications_taken_in_order() -> None:
    side = Side()
    messages = [
        request(1, "echo", a=1),
        {"method": "note", "params": {"n": 1}},
        {"method": "note"},
        request("x", "nope"),
    ]
    await JsonRpcPeer(side, side.send).serve(
        lines([*messages, {"method": "crash"}, request(2, "crash"), b"\n", b" \n"])
    )

    assert side.noted == [("note", {"n": 1}), ("note", {})]
    assert side.sent == [
        {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}},
        {
            "jsonrpc": "2.0",
            "id": "x",
            "error": {"code": METHOD_NOT_FOUND, "message": "no nope", "data": {"known": ["echo"]}},
        },
        {"jsonrpc": "2.0", "id": 2, "error": {"code": INTERNAL_ERROR, "message": "internal error: KeyError"}},
    ]


async def test_answers_reach_their_requests_and_the_end_reaches_all() -> None:
    side = Side()
    peer = JsonRpcPeer(side, side.send)
    asked = [asyncio.ensure_future(peer.request("m", {"n": n})) for n in range(4)]
    await asyncio.sleep(0)
    answers = [
        {"id": 2, "result": "two"},
        {"id": 99, "result": "of no request"},
        {"id": [1], "result": "strange"},
        {"id": 1, "error": {"code": -1, "message": "bad\x1b[2J", "data": 7}},
        {"id": 3, "error": "strange"},
        {"id": 2, "result": "twice"},
    ]
    await peer.serve(lines(answers))
    ends = await asyncio.gather(*asked, return_exceptions=True)

    assert [str(each) for each in ends[1:]] == ["two", "an error without a text", "it ended"]
    assert str(ends[0]).startswith("bad")
    assert "\x1b" not in str(ends[0])
    assert [type(each) for each in ends] == [RpcError, str, RpcError, ConnectionGone]
    with pytest.raises(ConnectionGone):
        await peer.request("m", {})


async def test_a_strict_peer_answers_an_invalid_message_with_an_error() -> None:
    side = Side()
    odd = [b"{\n", [1], {"jsonrpc": "2.0"}, {"id": None, "method": "echo"}, {"id": True, "method": "echo"}, b"[" * 5000]
    await JsonRpcPeer(side, side.send, strict=True).serve(lines(odd))

    codes = [(each["id"], each["error"]["code"]) for each in side.sent]
    assert codes == [(None, PARSE_ERROR), *[(None, INVALID_REQUEST)] * 4, (None, PARSE_ERROR)]


async def test_a_lenient_peer_skips_a_few_invalid_messages_and_stops_at_many() -> None:
    side = Side()
    peer = JsonRpcPeer(side, side.send)
    await peer.serve(
        lines([*[b"noise\n"] * MAX_GARBAGE, request(1, "echo"), *[b"noise\n"] * (MAX_GARBAGE + 1), request(2, "echo")])
    )

    assert [each["id"] for each in side.sent] == [1]
    assert peer.gone_because == f"it sent {MAX_GARBAGE} lines that are no messages"


async def test_only_so_many_requests_are_worked_on_and_none_outlives_the_connection() -> None:
    side = Side()
    await JsonRpcPeer(side, side.send).serve(lines([request(n, "hold") for n in range(MAX_REQUESTS + 3)]))

    assert [(each["id"], each["error"]["code"]) for each in side.sent] == [
        (MAX_REQUESTS + n, INTERNAL_ERROR) for n in range(3)
    ]
    assert len(asyncio.all_tasks()) == 1


async def test_a_message_of_too_many_values_is_not_decoded() -> None:
    side = Side()
    peer = JsonRpcPeer(side, side.send, strict=True)
    huge = b'{"method":"note","params":{"x":[' + b"[]," * (MAX_JSON_VALUES // 2) + b"1]}}\n"

    await peer.serve(lines([huge, {"method": "note", "params": {"x": 1}}]))

    assert side.noted == [("note", {"x": 1})]
    error = {"code": INVALID_REQUEST, "message": f"the message has more than {MAX_JSON_VALUES} values"}
    assert side.sent == [{"jsonrpc": "2.0", "id": None, "error": error}]
