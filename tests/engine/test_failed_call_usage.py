"""The usage of failed model calls counts for the run, for the runs above it, and in windows."""

import pytest

from retinue.core.agent import Agent
from retinue.core.errors import ProviderError
from retinue.core.events import TurnFailed
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.policy import Policy
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.providers.scripted import fails, says
from retinue.testing.harness import Harness

WASTE = Usage(input=700, output=50)


def wasteful() -> ProviderError:
    return ProviderError("it broke", fault="internal", usage=WASTE, cost=4_000)


class UsageProvider:
    """A provider that answers with its usage."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Answer."""
        return Reply(AssistantMessage("from the spare"), usage=Usage(input=10, output=1), cost=100)


@pytest.mark.parametrize("limits", [Limits(), Limits(max_tokens=100_000)])
async def test_a_failed_run_has_the_usage_of_its_failed_calls(limits: Limits) -> None:
    async with Harness(dialects=()) as r:
        r.script("main", fails(wasteful()))
        outcome = await r.run("go", limits=limits)

        (failed,) = (event for event in r.events(r.run_of("main")) if isinstance(event, TurnFailed))
    assert (outcome.result, outcome.usage, outcome.cost) == ("failed", WASTE, 4_000)
    assert (failed.usage, failed.cost) == (WASTE, 4_000)


async def test_the_reply_of_a_fallback_includes_the_usage_of_failed_calls() -> None:
    agent = Agent(name="lead", model="custom:first", fallback=("spare:second",))
    async with Harness(dialects=(), agents=[agent], providers={"spare": UsageProvider()}) as r:
        r.script("lead", fails(wasteful()))
        outcome = await r.run("go", agent="lead", limits=Limits(max_tokens=100_000))

    assert (outcome.text, outcome.usage, outcome.cost) == ("from the spare", Usage(input=710, output=51), 4_100)


async def test_a_window_counts_the_usage_of_failed_calls() -> None:
    policy = Policy(max_cost_per_day_cents=1)
    waste = ProviderError("it broke", fault="internal", usage=WASTE, cost=20_000_000)  # two cents
    async with Harness(dialects=(), policy=policy) as r:
        r.script("main", fails(waste), task="first")
        r.script("main", says("never"), task="second")
        first, second = await r.run("first"), await r.run("second")
        r.provider.script = type(r.provider.script)()  # the second model is never called

    assert (first.result, second.result, second.reason) == ("failed", "exhausted", "window")
