"""What a provider reports cannot make a limit void, end the process, or keep another run from its end."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.messages import MAX_CALLS, AssistantMessage, Reply, ToolCall
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits
from retinue.core.usage import MAX_COST, MAX_TOKENS, Usage
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.testing import Script, ScriptedProvider, says
from retinue.testing.fake_server import FakeResponse, FakeServer
from retinue.testing.harness import Harness
from retinue.tools.function import tool

PAGE = "All of this page is read again with each request. " * 1400  # 70,000 characters, about 17,500 tokens


@tool(polls=True)
def read_page() -> str:
    """Read a page."""
    return PAGE


class Reporter:
    """A provider whose model reads a page in every turn, and that reports what `usage` returns for a request."""

    def __init__(self, usage: Callable[[Request], Usage | None], *, turns: int = 40) -> None:
        self.usage, self.turns = usage, turns
        self.characters: list[int] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Read the page again, or end."""
        self.characters.append(sum(len(getattr(message, "text", "")) for message in request.messages))
        calls = (ToolCall("read_page", "{}"),) if len(self.characters) < self.turns else ()
        return Reply(AssistantMessage("Once more.", calls), usage=self.usage(request))

    def cost_of(self, model: str) -> tuple[int, int]:
        """Nanodollars."""
        return (1000, 4000)


@pytest.mark.parametrize("usage", [Usage(), None, Usage(output=1), Usage(input=1, output=1)], ids=repr)
async def test_a_provider_that_counts_nothing_or_nearly_nothing_does_not_get_around_a_limit(
    usage: Usage | None,
) -> None:
    counts_nothing = usage is None or not usage.total
    limit = 200_000 if counts_nothing else 50_000
    provider = Reporter(lambda _: usage)
    async with Harness(dialects=(), tools=[read_page], providers={"odd": provider}) as r:
        outcome = await r.run("go", model="odd:x", limits=Limits(max_tokens=limit))

    assert (outcome.result, outcome.reason) == ("exhausted", "max_tokens")
    assert outcome.limit is not None
    estimate = sum(provider.characters) // 4
    assert (estimate if counts_nothing else estimate // 64) <= outcome.limit.used <= limit
    assert outcome.usage == (
        Usage() if usage is None else Usage(*(len(provider.characters) * n for n in (usage.input, usage.output)))
    )


async def test_the_counts_of_a_tokenizer_are_taken_as_they_are_cached_ones_too() -> None:
    def counted(request: Request) -> Usage:
        size = sum(len(getattr(message, "text", "")) for message in request.messages)
        return Usage(input=100 + size // 6, output=2, cached=size // 7)  # English text, most of it from the cache

    provider = Reporter(counted, turns=4)
    async with Harness(dialects=(), tools=[read_page], providers={"usual": provider}) as r:
        free = await r.run("go", model="usual:x")
        provider.characters.clear()
        limited = await r.run("go", model="usual:x", limits=Limits(max_tokens=1_000_000))

    assert free.usage == limited.usage
    assert (free.result, limited.result, limited.cost) == ("completed", "completed", free.cost)


@pytest.mark.parametrize("limits", [Limits(), Limits(max_tokens=1_000_000)])
async def test_numbers_beyond_any_store_are_cut_to_what_a_store_holds(limits: Limits, tmp_path: Path) -> None:
    class Boundless(Reporter):
        async def answer(self, request: Request, publish: Publish) -> Reply:
            """An answer of endless cost."""
            return Reply(AssistantMessage("hi"), usage=Usage(input=10**30, output=-5), cost=10**40)

    async with retinue.open(
        provider=ScriptedProvider(Script().play("main", says("fine"))),
        providers={"odd": Boundless(lambda _: None)},
        agents=[Agent(name="odd", model="odd:x")],
        home=tmp_path,
        dialects=(),
    ) as r:
        hostile = await r.spawn("go", agent="odd", limits=limits)
        other = await r.spawn("go")
        first, second = await hostile.wait(), await other.wait()

    assert (first.result, first.usage, first.cost) == ("completed", Usage(input=MAX_TOKENS), MAX_COST)
    assert (second.result, second.text) == ("completed", "fine")


@pytest.mark.real_time
async def test_a_server_with_a_number_of_thirty_digits_ends_neither_its_run_nor_the_process(tmp_path: Path) -> None:
    events: list[dict[str, object]] = [
        {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 10**30, "completion_tokens": 10**30}},
    ]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    async with (
        FakeServer(lambda _: FakeResponse(pieces=(stream,))) as server,
        OpenAIChatProvider(f"{server.url}/v1") as provider,
        retinue.open(provider=provider, model="x", home=tmp_path, dialects=()) as r,
    ):
        for _ in range(2):
            outcome = await (await r.spawn("go")).wait()
            assert (outcome.text, outcome.usage) == ("hi", Usage(input=MAX_TOKENS, output=MAX_TOKENS))


async def test_a_sum_of_such_numbers_can_be_stored(tmp_path: Path) -> None:
    provider = Reporter(lambda _: Usage(input=MAX_TOKENS, output=MAX_TOKENS), turns=5)
    async with retinue.open(provider=provider, model="x", tools=[read_page], home=tmp_path, dialects=()) as r:
        outcome = await (await r.spawn("go")).wait()

    assert (outcome.result, outcome.usage) == ("completed", Usage(input=MAX_TOKENS, output=MAX_TOKENS))


async def test_a_reply_with_too_many_calls_fails_with_the_number() -> None:
    class Eager(Reporter):
        async def answer(self, request: Request, publish: Publish) -> Reply:
            """Very many calls."""
            return Reply(AssistantMessage("", (ToolCall("read_page", "{}"),) * (MAX_CALLS + 1)))

    async with Harness(dialects=(), tools=[read_page], providers={"odd": Eager(lambda _: None)}) as r:
        outcome = await r.run("go", model="odd:x")

    assert (outcome.result, outcome.error) == ("failed", "the reply has more than 1000 tool calls")
