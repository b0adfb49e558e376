"""Batches of three vendors: one submission for many runs, half the price, crashes, errors of items, cancelling."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.errors import BadInput
from retinue.core.usage import NANO
from retinue.providers.pricing import Rates
from retinue.testing import says
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.fakes.anthropic import PromptTokens
from tests.providers.fakes.anthropic import answer_of as anthropic_answer
from tests.providers.fakes.batches import Answer, FakeBatches

WIRES = {"anthropic": "anthropic", "responses": "openai-responses", "chat": "openai-chat", "gemini": "gemini"}
each_wire = pytest.mark.parametrize("wire", WIRES)

WHOLE_PRICE = (100 * 10 + 10 * 20) * NANO // 1_000_000
"""What one answer of the fake costs outside of a batch: 100 tokens in and 10 out."""


def open_at(server: FakeServer, wire: str, home: str | Path = retinue.MEMORY, **options: Any) -> retinue.Retinue:
    address = f"{server.url}/v1" if wire in ("responses", "chat") else server.url
    config = retinue.ProviderConfig(
        name="house", wire=WIRES[wire], base_url=address, prices={"m": Rates(input=10.0, output=20.0)}
    )
    return retinue.open(model="house:m", provider_configs=[config], dialects=(), home=home, **options)


def squares(text: str) -> Answer:
    return str(int(text) ** 2)


@each_wire
async def test_tasks_are_one_batch_and_their_outcomes_have_their_order_and_half_the_price(wire: str) -> None:
    vendor = FakeBatches(wire, squares, looks=3)
    async with vendor.server() as server, open_at(server, wire) as r:
        outcomes = await r.run_batch([str(number) for number in range(12)], hours=24)

    assert [outcome.text for outcome in outcomes] == [str(number**2) for number in range(12)]
    assert {outcome.cost for outcome in outcomes} == {WHOLE_PRICE // 2}
    assert [len(batch.requests) for batch in vendor.batches.values()] == [12]


@each_wire
async def test_a_crash_submits_nothing_twice(wire: str, tmp_path: Path) -> None:
    vendor = FakeBatches(wire, squares, looks=1000)
    async with vendor.server() as server:
        async with open_at(server, wire, tmp_path) as r:
            options = retinue.ModelOptions(batch_hours=24)
            for number, task in enumerate(("2", "3")):
                await r.spawn(task, key=f"nightly/{number}", options=options)
            await asyncio.sleep(4)
        vendor.looks = 1
        async with open_at(server, wire, tmp_path) as r:
            outcomes = await r.run_batch(["2", "3"], key="nightly")

    assert [outcome.text for outcome in outcomes] == ["4", "9"]
    assert [(len(batch.requests), batch.was_cancelled) for batch in vendor.batches.values()] == [(2, False)]


@each_wire
async def test_a_submission_whose_answer_was_lost_is_found_again(wire: str) -> None:
    vendor = FakeBatches(wire, squares, after_submission=lambda: FakeResponse(status=0, ending="cut"))
    async with vendor.server() as server, open_at(server, wire) as r:
        outcomes = await r.run_batch(["2", "3"])

    assert [outcome.text for outcome in outcomes] == ["4", "9"]
    assert len(vendor.batches) == 1


async def test_a_batch_of_another_program_is_not_taken_for_a_lost_one() -> None:
    vendor = FakeBatches("anthropic", squares, looks=1)
    cuts = [FakeResponse(status=0, ending="cut")]

    def before(heard: ReceivedRequest) -> FakeResponse | None:
        if heard.method == "POST" and cuts:
            vendor.add({"other-0": {"messages": [{"content": [{"text": "1"}]}]}})
            return cuts.pop()
        return None

    vendor.before = before
    async with vendor.server() as server, open_at(server, "anthropic") as r:
        (outcome,) = await r.run_batch(["5"])

    assert outcome.text == "25"
    assert [next(iter(batch.requests)).endswith("-0") for batch in vendor.batches.values()] == [True, True]


@each_wire
async def test_items_fail_one_by_one(wire: str) -> None:
    answers: dict[str, Answer] = {"good": "Yes.", "wrong": 400, "late": "expired"}
    vendor = FakeBatches(wire, answers.__getitem__)
    async with vendor.server() as server, open_at(server, wire) as r:
        good, wrong, late = await r.run_batch(list(answers))

    assert (good.text, wrong.result, late.result) == ("Yes.", "failed", "failed")
    assert "told 400" in wrong.error
    assert "the batch expired at the vendor before this request was answered" in late.error
    assert len(vendor.batches) == 1


@each_wire
async def test_an_overloaded_item_goes_into_another_batch(wire: str) -> None:
    status = {"anthropic": 529, "responses": 503, "chat": 503, "gemini": 529}[wire]
    answers: list[Answer] = [status, "Yes."]
    vendor = FakeBatches(wire, lambda text: answers[min(len(vendor.batches), 2) - 1])
    async with vendor.server() as server, open_at(server, wire) as r:
        (outcome,) = await r.run_batch(["?"])

    assert outcome.text == "Yes."
    assert len(vendor.batches) == 2


@each_wire
async def test_a_cancelled_batch_is_cancelled_at_the_vendor(wire: str) -> None:
    vendor = FakeBatches(wire, squares, looks=1000)
    async with vendor.server() as server, open_at(server, wire) as r:
        running = asyncio.create_task(r.run_batch(["2", "3"]))
        await asyncio.sleep(10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(10)

    assert [batch.was_cancelled for batch in vendor.batches.values()] == [True]


async def test_one_cancelled_run_leaves_its_batch_to_the_others() -> None:
    vendor = FakeBatches("anthropic", squares, looks=20)
    async with vendor.server() as server, open_at(server, "anthropic") as r:
        options = retinue.ModelOptions(batch_hours=24)
        first, second = await r.spawn("2", options=options), await r.spawn("3", options=options)
        await asyncio.sleep(60)
        await first.cancel()
        outcome = await second.wait()

    assert outcome.text == "9"
    assert [batch.was_cancelled for batch in vendor.batches.values()] == [False]


@each_wire
async def test_the_hours_of_a_run_end_its_wait_and_the_batch(wire: str) -> None:
    vendor = FakeBatches(wire, squares, looks=10**9)
    async with vendor.server() as server, open_at(server, wire) as r:
        (outcome,) = await r.run_batch(["2"], hours=0.1)
        await asyncio.sleep(10)

    assert outcome.error.startswith("the batch gave no answer within 0.1 h")
    assert [batch.was_cancelled for batch in vendor.batches.values()] == [True]


@each_wire
async def test_failed_polls_of_a_batch_are_repeated(wire: str) -> None:
    refusals = [FakeResponse(status=503), FakeResponse(status=0, ending="cut"), FakeResponse(status=429)]

    def before(heard: ReceivedRequest) -> FakeResponse | None:
        return refusals.pop() if heard.method == "GET" and refusals else None

    vendor = FakeBatches(wire, squares, before=before)
    async with vendor.server() as server, open_at(server, wire) as r:
        (outcome,) = await r.run_batch(["4"])

    assert (outcome.text, refusals) == ("16", [])


@retinue.tool(kind="pure")
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


async def test_runs_with_tools_take_a_batch_for_each_turn() -> None:
    def answer(text: str) -> Answer:
        if not text.startswith("sum"):
            return f"It is {text}."
        number = int(text.split()[1])
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "add", "input": {"a": number, "b": 1}}
        usage = {"input_tokens": 100, "output_tokens": 10}
        content = {"content": [call], "stop_reason": "tool_use", "usage": usage}
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", **content}

    vendor = FakeBatches("anthropic", answer)
    async with vendor.server() as server, open_at(server, "anthropic", tools=[add]) as r:
        outcomes = await r.run_batch([f"sum {number}" for number in range(5)])

    assert [outcome.text for outcome in outcomes] == [f"It is {number + 1}." for number in range(5)]
    assert [len(batch.requests) for batch in vendor.batches.values()] == [5, 5]


@pytest.mark.parametrize("hours", [None, 0])
async def test_children_of_a_run_that_allows_hours_share_a_batch(hours: float | None) -> None:
    def answer(text: str) -> Answer:
        if text != "start":
            return squares(text) if text.isdigit() else "All started."
        calls = [
            {"type": "tool_use", "id": f"toolu_{n}", "name": "run_agent", "input": {"agent": "reader", "task": str(n)}}
            for n in range(3)
        ]
        usage = {"input_tokens": 100, "output_tokens": 10}
        content = {"content": calls, "stop_reason": "tool_use", "usage": usage}
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", **content}

    at_once: list[str] = []

    def before(heard: ReceivedRequest) -> FakeResponse | None:
        if heard.path != "/v1/messages":
            return None
        at_once.append(text := heard.body["messages"][-1]["content"][-1]["text"])
        return anthropic_answer(says(str(squares(text))), heard, PromptTokens(total=10))

    vendor = FakeBatches("anthropic", answer, before=before)
    reader = retinue.Agent(name="reader", options=retinue.ModelOptions(batch_hours=hours))
    async with vendor.server() as server:
        config = retinue.ProviderConfig(name="house", wire="anthropic", base_url=server.url)
        async with retinue.open(
            model="house:m", provider_configs=[config], dialects=["native"], agents=[reader], home=retinue.MEMORY
        ) as r:
            outcome = await r.run("start", options=retinue.ModelOptions(batch_hours=24))

    sizes = [len(batch.requests) for batch in vendor.batches.values()]
    assert outcome.text == "All started."
    assert (sizes, sorted(at_once)) == (([1, 3, 1], []) if hours is None else ([1, 1], ["0", "1", "2"]))


async def test_a_limit_on_cost_holds_before_the_submission() -> None:
    vendor = FakeBatches("anthropic", squares)
    async with vendor.server() as server, open_at(server, "anthropic") as r:
        poor, rich = await r.run_batch([{"task": "2", "max_cost": 0.000001}, "3"])

    assert (poor.result, poor.reason, rich.text) == ("exhausted", "max_cost", "9")
    assert [len(batch.requests) for batch in vendor.batches.values()] == [1]


async def test_a_key_of_the_vendor_is_sent_to_the_configured_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_KEY", "house-key-12345")
    vendor = FakeBatches("anthropic", squares)
    async with vendor.server() as server:
        config = retinue.ProviderConfig(name="house", wire="anthropic", base_url=server.url, api_key_env="HOUSE_KEY")
        async with retinue.open(model="house:m", provider_configs=[config], dialects=(), home=retinue.MEMORY) as r:
            (outcome,) = await r.run_batch(["2"])

    assert outcome.text == "4"
    assert {request.headers.get("x-api-key") for request in server.requests} == {"house-key-12345"}


async def test_a_wire_without_batches_says_so() -> None:
    async with FakeServer(lambda heard: FakeResponse(status=500)) as server:
        config = retinue.ProviderConfig(name="house", wire="groq", base_url=server.url)
        async with retinue.open(model="house:m", provider_configs=[config], dialects=(), home=retinue.MEMORY) as r:
            with pytest.raises(BadInput, match="batch_hours: the wire groq does not have it"):
                await r.run_batch(["2"])

    assert server.requests == []
