"""After a compaction every wire sends the new history, over HTTP to a fake vendor with a length limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec
import pytest

import retinue
from retinue.core.compaction import SUMMARY_SYSTEM_PROMPT
from retinue.core.events import HistoryCompacted
from retinue.core.run import Outcome
from retinue.providers.catalog import create_provider, provider_config
from retinue.providers.scripted import Line, calls, says, together
from retinue.testing import fake_chat
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from retinue.testing.harness import Harness
from tests.providers.fakes import anthropic, gemini
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses


def behind_openrouter(status: int, message: str) -> FakeResponse:
    """The error of a vendor as OpenRouter repeats it."""
    raw = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}}).decode()
    error = {"message": "Provider returned error", "code": status, "metadata": {"raw": raw, "provider_name": "A"}}
    return FakeResponse(status=status, headers=fake_chat.JSON, pieces=(msgspec.json.encode({"error": error}),))


def in_a_stream_of_openrouter(status: int, message: str) -> FakeResponse:
    """The same after the headers of a stream."""
    body = msgspec.json.decode(behind_openrouter(status, message).pieces[0])
    return FakeResponse(headers=fake_chat.EVENTS, pieces=(fake_chat.event(body),))


Vendor: TypeAlias = FakeChat | FakeAnthropic | FakeResponses | FakeGemini
Played: TypeAlias = Callable[[ReceivedRequest], Line | FakeResponse]

VENDORS: dict[str, tuple[Callable[[Played], Vendor], Callable[..., FakeResponse]]] = {
    "openai-chat": (FakeChat, fake_chat.error_response),
    "anthropic": (FakeAnthropic, anthropic.failed),
    "openai-responses": (FakeResponses, fake_chat.error_response),
    "gemini": (FakeGemini, partial(gemini.failed, kind="INVALID_ARGUMENT")),
    "openrouter": (FakeChat, behind_openrouter),
    "openrouter, in a stream": (FakeChat, in_a_stream_of_openrouter),
}
MOST = 12_000
"""Bytes of a request that the vendor takes."""


@retinue.tool(kind="pure")
async def read(name: str) -> str:
    """Read something long."""
    return f"{name} " + "r" * 2500


class Script:
    """A model that reads six files and then lists those that are still in its history."""

    def __init__(self, refuse: Callable[..., FakeResponse], words: int) -> None:
        self.refuse = refuse
        self.words = words
        self.turn = 0
        self.refused = 0
        self.summaries: list[str] = []
        self.last = ""

    def __call__(self, heard: ReceivedRequest) -> Line | FakeResponse:
        """The reply to a request, or a context-length error."""
        text = msgspec.json.encode(heard.body).decode()
        if SUMMARY_SYSTEM_PROMPT in text:
            self.summaries.append(text)
            return says("Some files were read.")
        if len(text) > MOST:
            self.refused += 1
            return self.refuse(400, "prompt is too long: 5000 tokens > 3000 maximum context length")
        self.turn += 1
        self.last = text
        if self.turn <= 6:
            return together(says("w" * self.words), calls("read", name=f"file-{self.turn}"))
        return says("done")


async def tell(name: str, words: int) -> tuple[Script, Outcome, list[HistoryCompacted]]:
    make, refuse = VENDORS[name]
    script = Script(refuse, words)
    async with make(script) as vendor:
        provider = create_provider(provider_config(name.split(",")[0], base_url=vendor.base_url))
        async with Harness(dialects=(), tools=[read], providers={"wire": provider}, model="wire:m") as r:
            handle = await r.retinue.spawn("Find the leak.", model="wire:m")
            outcome = await handle.wait()
            events = [event for event in r.events(handle.run_id) if isinstance(event, HistoryCompacted)]
    return script, outcome, events


@pytest.mark.parametrize("name", VENDORS)
async def test_dropped_results_are_not_sent_any_more(name: str) -> None:
    script, outcome, events = await tell(name, words=5)

    assert (outcome.result, outcome.text, outcome.turns) == ("completed", "done", 7)
    assert {event.way for event in events} == {"shortened"}
    assert script.refused == len(events) >= 1
    assert "[result of read left out: 2507 characters]" in script.last
    assert "file-6 rrr" in script.last
    assert "file-1 rrr" not in script.last
    assert "Find the leak." in script.last


@pytest.mark.parametrize("name", VENDORS)
async def test_a_summary_is_sent_instead_of_the_summarised_messages(name: str) -> None:
    script, outcome, events = await tell(name, words=3000)

    assert (outcome.result, outcome.text, outcome.turns) == ("completed", "done", 7)
    assert "summarised" in {event.way for event in events}
    assert script.summaries
    assert "Some files were read." in script.last
    assert "Find the leak." in script.last
    assert "file-1 rrr" not in script.last
    assert outcome.usage.output >= 7, "what the summaries took is counted"
