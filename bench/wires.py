"""The cost of each wire per streamed event, next to a bare typed decoder of the same bytes over HTTP.

Both sides use aiohttp in this process, in turn; the server is another process, so only the client's CPU is counted.
Prints one JSON object: by wire, microseconds of CPU per event for both sides and the median ratio of adjacent rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from bench.bare_wires import BARE_DECODERS
from bench.replay_server import replay_server
from retinue.core.messages import Delta, UserMessage
from retinue.core.ports import Request
from retinue.net.sse import EventReader
from retinue.providers.catalog import create_provider, provider_config
from retinue.providers.http import HttpProvider
from retinue.providers.scripted import ScriptedReply, streams
from retinue.testing import fake_chat
from retinue.testing.fake_server import ReceivedRequest
from tests.providers.fakes import anthropic, gemini, responses

EVENTS = 400
STREAMS = 8
"""Streams per measurement: one is too short for the CPU clock of some machines."""


class WireCost(Struct, frozen=True):
    """Microseconds of CPU per event, and their ratio."""

    bare: float
    retinue: float
    ratio: float
    in_memory: float = 0.0
    """The ratio without a network, one event per piece."""


def answer_pieces(wire: str, line: ScriptedReply) -> Sequence[bytes]:
    """The response to this line in a wire's format, event by event."""
    body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "messages": []}
    heard = ReceivedRequest(method="POST", path="/", headers={}, raw=b"", body=body | {"input": [], "contents": []})
    match wire:
        case "openai-chat":
            return fake_chat.response_for(line, heard).pieces
        case "openai-responses":
            return responses.answer_of(line, heard).pieces
        case "gemini":
            return gemini.answer_of(line, heard).pieces
        case _:
            return anthropic.answer_of(line, heard, anthropic.PromptTokens(total=10)).pieces


async def cost_of(wire: str, *, rounds: int) -> WireCost:
    """Measure one wire."""
    line = streams(*(f"word{number} " for number in range(EVENTS)))
    pieces = answer_pieces(wire, line)
    request = Request(model="fake-1", system="", messages=[UserMessage("Go on.")])
    async with replay_server(pieces) as url, aiohttp.ClientSession() as session:
        provider: Any = create_provider(provider_config(wire, base_url=url, api_key_env=""))

        async def bare() -> str:
            texts: list[str] = []
            decoder = BARE_DECODERS[wire](texts.append)
            async with session.post(url, data=b"{}") as response:
                while chunk := await response.content.readany():
                    decoder.feed(chunk)
            return "".join(texts)

        async def ours() -> str:
            published: list[Delta] = []
            return (await provider.answer(request, published.append)).message.text

        if not await bare() == await ours() == line.text:
            raise RuntimeError(f"{wire}: the decoders read different texts")
        pairs = [(await _cpu_of(bare), await _cpu_of(ours)) for _ in range(rounds)]
        in_memory = await ratio_in_memory(wire, pieces, provider.provider, rounds=rounds)
        await provider.close()
    scale = 1e-3 / STREAMS / len(pieces)
    bare_cost, our_cost = (median(side) * scale for side in zip(*pairs, strict=True))
    return WireCost(bare_cost, our_cost, median(ours / bare for bare, ours in pairs), in_memory)


async def ratio_in_memory(wire: str, pieces: Sequence[bytes], provider: HttpProvider, *, rounds: int) -> float:
    """The ratio of the decoders alone, on a stream whose events come one by one."""

    async def bare() -> str:
        texts: list[str] = []
        decoder = BARE_DECODERS[wire](texts.append)
        for piece in pieces:
            decoder.feed(piece)
        return "".join(texts)

    async def ours() -> str:
        published: list[Delta] = []
        publish, reader, decoder = published.append, EventReader(), provider.decoder("fake-1")
        for piece in pieces:
            for payload in reader.feed(piece):
                for delta in decoder.feed(payload):
                    publish(delta)
        return decoder.finish().message.text

    if await bare() != await ours():
        raise RuntimeError(f"{wire}: the decoders read different texts")
    pairs = [(await _cpu_of(bare), await _cpu_of(ours)) for _ in range(rounds)]
    return median(ours / bare for bare, ours in pairs)


async def _cpu_of(read: Callable[[], Awaitable[str]]) -> int:
    gc.collect()
    before = time.process_time_ns()
    for _ in range(STREAMS):
        await read()
    return time.process_time_ns() - before


async def main(wires: Sequence[str], rounds: int) -> None:
    """Measure these wires and print the result."""
    costs = {wire: await cost_of(wire, rounds=rounds) for wire in wires}
    sys.stdout.write(msgspec.json.encode(costs).decode() + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.wires", description=__doc__)
    parser.add_argument("wires", nargs="*", default=list(BARE_DECODERS))
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    asyncio.run(main(options.wires, options.rounds))
