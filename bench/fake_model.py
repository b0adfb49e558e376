"""A fake model in a process of its own: the OpenAI chat wire over loopback, streamed, and as cheap as possible.

All replies are encoded once for each workload, and a reply is chosen by a few searches in the request. The workload is
the name of the model, so one process serves every case: for the model `n100-k3-t20-l200-g0`, the lead starts 100
workers, each of those calls `echo` 3 times and then answers with 20 tokens, and each reply is delayed by 200 ms.
`GET /stats` returns the request counts. The program prints its port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from functools import cache

import msgspec
from msgspec import Struct

from bench.work import DELEGATE, ECHO, LEAD, Work

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LEAD_PROMPT = LEAD[:30].encode()
_MODEL = re.compile(rb'"model"\s*:\s*"([^"]*)"')
_RESULT = b'"tool_call_id"'
"""Occurs once in each tool result, however the rest of a request is written."""

Pieces = tuple[bytes, ...]


class Stats(Struct):
    """The number of requests so far, and of those that wait for their reply now."""

    requests: int = 0
    waiting: int = 0


class Replies:
    """All replies of one workload, in the pieces in which they are sent."""

    def __init__(self, work: Work) -> None:
        self.work = work
        part = '{{"task":"Part {}: look into it and say what you found."}}'
        self._delegates = _calls(DELEGATE[0], [part.format(number + 1) for number in range(work.workers)])
        self._echoes = [_calls(ECHO[0], [f'{{"text":"turn {turn + 1} of the work"}}']) for turn in range(work.turns)]
        self.answer = _answer(work.tokens)

    def to(self, request: bytes | bytearray) -> Pieces:
        """The reply to a request: a lead delegates and then answers, a worker calls its tool and then answers."""
        if _LEAD_PROMPT in request:
            return self.answer if _RESULT in request else self._delegates
        results = request.count(_RESULT)
        return self._echoes[results] if results < self.work.turns else self.answer


@cache
def replies_of(model: bytes) -> Replies:
    """The replies of a model, encoded on first use."""
    return Replies(Work.from_model(model.decode()))


class Connection(asyncio.Protocol):
    """One client connection; requests are answered in order."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._buffer = bytearray()
        self._later = asyncio.get_running_loop().call_later
        self._write: Callable[[bytes], None] = _discard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._write = transport.write

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what is still to be sent."""
        self._write = _discard

    def data_received(self, data: bytes) -> None:
        """Buffer a part of a request, and answer the request when it is complete."""
        buffer = self._buffer
        buffer += data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(buffer[:end])
        length = _content_length(head)
        if len(buffer) < end + 4 + length:
            return
        body = buffer[end + 4 : end + 4 + length]
        del buffer[: end + 4 + length]
        if head.startswith(b"GET /stats"):
            self._send_stats(self._stats)
        else:
            self._reply(body)

    def _reply(self, request: bytearray) -> None:
        self._stats.requests += 1
        model = _MODEL.search(request)
        assert model is not None, "the request names no model"
        replies = replies_of(model[1])
        pieces, work = replies.to(request), replies.work
        gap = work.gap_ms / 1000 if pieces is replies.answer else 0
        if work.latency_ms:
            self._stats.waiting += 1
            self._later(work.latency_ms / 1000, self._begin, pieces, gap)
        else:
            self._send(pieces, gap)

    def _begin(self, pieces: Pieces, gap: float) -> None:
        self._stats.waiting -= 1
        self._send(pieces, gap)

    def _send(self, pieces: Pieces, gap: float) -> None:
        if gap:
            self._write(_HEAD)
            self._one_by_one(pieces, 0, gap)
        else:
            self._write(_HEAD + b"".join(pieces))

    def _one_by_one(self, pieces: Pieces, at: int, gap: float) -> None:
        self._write(pieces[at])
        if at + 1 < len(pieces):
            self._later(gap, self._one_by_one, pieces, at + 1, gap)

    def _send_stats(self, stats: Stats) -> None:
        body = msgspec.json.encode(stats)
        self._write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def _discard(data: bytes) -> None:
    """Ignore data for a client that has disconnected."""


def _content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


# ---- replies in the format of the wire ------------------------------------------------------------------------------


def _answer(tokens: int) -> Pieces:
    deltas: list[dict[str, object]] = [{"content": "word "} for _ in range(tokens)]
    return _stream([{"role": "assistant", "content": ""}, *deltas], "stop", tokens)


def _calls(name: str, arguments: list[str]) -> Pieces:
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": None}]
    for index, text in enumerate(arguments):
        opening = {"index": index, "id": f"call_{index}", "type": "function", "function": _function(name, "")}
        deltas.append({"tool_calls": [opening]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return _stream(deltas, "tool_calls", 10 * len(arguments))


def _function(name: str, arguments: str) -> dict[str, str]:
    return {"name": name, "arguments": arguments}


def _stream(deltas: list[dict[str, object]], finish: str, output: int) -> Pieces:
    events = [_event([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    ended = _event([{"index": 0, "delta": {}, "finish_reason": finish}])
    usage = _event([], {"prompt_tokens": 100, "completion_tokens": output, "total_tokens": 100 + output})
    return (*events, ended, usage, _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _event(choices: list[dict[str, object]], usage: dict[str, int] | None = None) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": choices,
        "usage": usage,
    }
    return _chunk(b"data: " + msgspec.json.encode(chunk) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve() -> None:
    """Answer until standard input ends."""
    loop = asyncio.get_running_loop()
    stats = Stats()
    server = await loop.create_server(lambda: Connection(stats), "127.0.0.1", 0, backlog=16384)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
