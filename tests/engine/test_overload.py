"""An overloaded model is waited out, for as long as the limit `retry_for` says."""

import asyncio

import pytest

import retinue
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import Provider, Publish, Request
from retinue.engine.model_call import MAX_ATTEMPTS
from retinue.testing.fake_chat import error_response
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.providers.raw_answers import PROVIDERS, answer


class BusyModel:
    """A model that is overloaded until so many seconds have passed."""

    def __init__(self, seconds: float) -> None:
        self.times: list[float] = []
        self._seconds = seconds

    async def answer(self, request: Request, publish: Publish) -> Reply:
        if self.is_busy():
            raise ProviderError("Overloaded", fault="overloaded", status=529)
        return Reply(AssistantMessage("At last."))

    def is_busy(self) -> bool:
        self.times.append(asyncio.get_running_loop().time())
        return self.waited < self._seconds

    @property
    def waited(self) -> float:
        return self.times[-1] - self.times[0]

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


async def run_with(provider: Provider, limits: retinue.Limits | None = None) -> retinue.Outcome:
    async with retinue.open(model="m", provider=provider, dialects=(), home=retinue.MEMORY) as r:
        return await r.run("Why?", limits=limits or retinue.Limits())


@pytest.mark.parametrize("wire", PROVIDERS)
@pytest.mark.parametrize("status", [500, 503, 529])
async def test_a_server_is_asked_for_longer_than_a_few_seconds(wire: str, status: int) -> None:
    busy = BusyModel(5)

    def respond(_: object) -> FakeResponse:
        return error_response(status, "Overloaded") if busy.is_busy() else answer(wire, "At last.")

    async with FakeServer(respond) as server:
        outcome = await run_with(PROVIDERS[wire](server.url))

    assert (outcome.result, outcome.text) == ("completed", "At last.")
    assert len(busy.times) > MAX_ATTEMPTS


async def test_an_overload_of_minutes_is_waited_out() -> None:
    busy = BusyModel(300)

    outcome = await run_with(busy)

    assert (outcome.result, outcome.text) == ("completed", "At last.")
    assert 300 <= busy.waited <= 375
    assert all(0.375 <= pause <= 75 for pause in busy.pauses)
    assert len(busy.times) <= 16


@pytest.mark.parametrize(("retry_for", "least", "most"), [(600.0, 500, 600), (60.0, 20, 60), (0.0, 2, 5)])
async def test_an_overload_that_lasts_ends_the_run_after_the_limit(retry_for: float, least: int, most: int) -> None:
    busy = BusyModel(10_000)

    outcome = await run_with(busy, retinue.Limits(retry_for=retry_for))

    assert (outcome.result, outcome.reason) == ("failed", "model_error")
    assert outcome.error == f"Overloaded ({len(busy.times)} attempts were made; try again later)"
    assert least <= busy.waited <= most


async def test_a_run_is_shown_as_waiting_between_attempts() -> None:
    busy = BusyModel(300)
    async with retinue.open(model="m", provider=busy, dialects=(), home=retinue.MEMORY) as r:
        run = await r.spawn("Why?")
        await asyncio.sleep(100)
        view = await run.look()
        outcome = await run.wait()
        over = await run.look()

    assert (view.state, view.waiting_for) == ("waiting", "time")
    assert (outcome.text, over.state, over.waiting_for) == ("At last.", "ended", None)
