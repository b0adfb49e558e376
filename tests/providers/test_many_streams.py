"""Five hundred concurrent answers over real connections arrive whole, within limits on files and memory."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import retinue
from bench.replay_server import replay_server
from bench.wires import answer_pieces
from retinue.core.messages import Delta, Reply, TextDelta, UserMessage
from retinue.core.ports import Request
from retinue.engine.rate_limiter import max_connections
from retinue.providers.catalog import create_provider, provider_config
from retinue.providers.scripted import streams

STREAMS = 500
WORDS = [f"word{number} " for number in range(20)]
EVERY = 0.03
"""Seconds between two pieces, once all answers have begun."""

KB_PER_STREAM = 120.0
"""Kilobytes for connection, buffers and run; a waiting run alone may take at most 40."""

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


@contextmanager
def open_file_limit(most: int) -> Generator[None]:
    """Lower the limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic"])
async def test_five_hundred_answers_stream_at_once(wire: str) -> None:
    pieces = answer_pieces(wire, streams(*WORDS))
    most = {"files": 0, "heard": 0}
    async with (
        replay_server(pieces) as url,
        retinue.open(model=f"{wire}:fake-1", base_url=url, home=retinue.MEMORY, dialects=()) as opened,
    ):
        await opened.run("warm up")
    with open_file_limit(STREAMS + 256):
        async with (
            replay_server(pieces, every=EVERY, min_requests=STREAMS) as url,
            retinue.open(model=f"{wire}:fake-1", base_url=url, home=retinue.MEMORY, dialects=()) as opened,
        ):
            gc.collect()
            files, kilobytes = open_files(), resident_kb()
            begun = asyncio.get_running_loop().time()
            runs = [await opened.spawn(f"task {number}") for number in range(STREAMS)]

            async def watch() -> None:
                async for what in runs[-1].events():
                    most["heard"] += isinstance(what, TextDelta)
                    most["files"] = max(most["files"], open_files())

            watching = asyncio.create_task(watch())
            outcomes = await asyncio.gather(*(run.wait() for run in runs))
            await watching
            took = asyncio.get_running_loop().time() - begun
            grown = resident_kb() - kilobytes

    assert {outcome.text for outcome in outcomes} == {"".join(WORDS)}
    assert most["heard"] == len(WORDS), "it was a stream"
    # All of them were under way together, each with one connection.
    assert files + STREAMS <= most["files"] <= files + STREAMS + 16
    assert grown <= STREAMS * KB_PER_STREAM
    assert took <= STREAMS * len(WORDS) * EVERY / 10, "one after the other they would take ten times as long"


async def test_streams_queue_when_few_files_may_be_open() -> None:
    pieces = answer_pieces("openai-chat", streams("one ", "two"))
    allowed = open_files() + 128
    with open_file_limit(allowed):
        assert max_connections() < STREAMS
        async with (
            replay_server(pieces, every=0.01) as url,
            retinue.open(model="openai-chat:fake-1", base_url=url, home=retinue.MEMORY, dialects=()) as opened,
        ):
            runs = [await opened.spawn(f"task {number}") for number in range(STREAMS)]
            outcomes = await asyncio.gather(*(run.wait() for run in runs))

    assert [(outcome.result, outcome.text) for outcome in outcomes] == [("completed", "one two")] * STREAMS


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic"])
async def test_one_provider_streams_to_many_listeners_at_once(wire: str) -> None:
    pieces = answer_pieces(wire, streams(*WORDS))
    async with replay_server(pieces, every=0.01) as url:
        provider: Any = create_provider(provider_config(wire, base_url=url, api_key_env=""))
        heard: list[list[str]] = [[] for _ in range(STREAMS)]

        async def listen(number: int) -> str:
            request = Request(model="fake-1", system="", messages=[UserMessage(f"task {number}")])

            def publish(delta: Delta) -> None:
                if isinstance(delta, TextDelta):
                    heard[number].append(delta.text)

            reply: Reply = await provider.answer(request, publish)
            return reply.message.text

        with open_file_limit(STREAMS + 256):
            texts = await asyncio.gather(*map(listen, range(STREAMS)))
        await provider.close()

    assert texts == ["".join(WORDS)] * STREAMS
    assert heard == [WORDS] * STREAMS
