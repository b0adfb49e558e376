"""Fallback models: an unavailable model is followed by the next; if all fail, the error names each."""

import asyncio
from dataclasses import dataclass, field

import pytest

from retinue.core.agent import Agent
from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.events import ReplyReceived, TurnFailed
from retinue.core.messages import AssistantMessage, Reply, ToolCall
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.engine.compaction import NOTHING_LEFT
from retinue.engine.model_call import MAX_ATTEMPTS
from retinue.providers.scripted import Script, ScriptedProvider, calls, fails, says
from retinue.testing.harness import Harness
from tests.internals import engine_of


@dataclass
class SpareProvider:
    """A provider that answers every request with its own name."""

    text: str = "from the spare"
    replies: list[Reply] = field(default_factory=list[Reply])
    asked: list[tuple[str, float | None]] = field(default_factory=list[tuple[str, float | None]])
    closed: bool = False

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Answer."""
        self.asked.append((request.model, request.temperature))
        return self.replies.pop(0) if self.replies else Reply(AssistantMessage(self.text))

    async def close(self) -> None:
        """Close."""
        self.closed = True


def down(fault: ProviderFault, status: int | None = None) -> ProviderError:
    return ProviderError(f"no: {fault}", fault=fault, status=status)


def lead(*fallback: str, **options: object) -> Agent:
    return Agent(name="lead", model="custom:first", fallback=fallback, **options)  # pyright: ignore[reportArgumentType]


def models(harness: Harness, agent: str = "lead") -> list[str]:
    events = harness.events(harness.run_of(agent))
    return [event.reply.model for event in events if isinstance(event, ReplyReceived)]


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        (down("auth", 401), 1),
        (down("internal"), 1),
        (down("bad_request", 404), 1),
        (down("unreachable"), MAX_ATTEMPTS),
        (down("overloaded", 503), MAX_ATTEMPTS),
        (down("rate_limited", 429), MAX_ATTEMPTS),
        (down("timeout"), MAX_ATTEMPTS),
        (down("cut"), MAX_ATTEMPTS),
    ],
    ids=lambda value: value.fault if isinstance(value, ProviderError) else "",
)
async def test_an_unavailable_model_is_followed_by_the_next(failure: ProviderError, attempts: int) -> None:
    spare = SpareProvider()
    async with Harness(dialects=(), agents=[lead("spare:second")], providers={"spare": spare}) as r:
        r.script("lead", fails(failure))
        outcome = await r.run("go", agent="lead")

        assert (outcome.result, outcome.text) == ("completed", "from the spare")
        assert (len(r.provider.asked), spare.asked) == (attempts, [("second", None)])
        assert models(r) == ["second"]
    assert spare.closed


@pytest.mark.parametrize("failure", [down("too_long", 400), down("bad_request", 400), down("refused", 400)])
async def test_a_faulty_request_is_not_sent_to_a_fallback(failure: ProviderError) -> None:
    spare = SpareProvider()
    async with Harness(dialects=(), agents=[lead("spare:second")], providers={"spare": spare}) as r:
        r.script("lead", fails(failure))
        outcome = await r.run("go", agent="lead")

        too_long = NOTHING_LEFT.format(error=failure)
        error = too_long if failure.fault == "too_long" else str(failure)
        assert (outcome.result, outcome.error, spare.asked) == ("failed", error, [])


async def test_if_all_models_fail_the_error_names_each() -> None:
    async with Harness(dialects=(), agents=[lead("second", "unknown:third", "vertexai-anthropic:fourth")]) as r:
        r.script("lead", fails(down("auth", 401)))
        outcome = await r.run("go", agent="lead")
        (failed,) = [event for event in r.events(r.run_of("lead")) if isinstance(event, TurnFailed)]

        first, second, third, fourth = outcome.error.split("; ")
        assert (first, second) == ("custom:first: no: auth", "custom:second: no: auth")
        assert third == "custom:unknown:third: no: auth", "unknown is no provider, so it is part of the model name"
        assert fourth.startswith("vertexai-anthropic:fourth: provider 'vertexai-anthropic' cannot be asked: ")
        assert (outcome.result, outcome.reason, failed.fault) == ("failed", "model_error", "bad_request")


async def test_every_turn_begins_with_the_first_model_again() -> None:
    spare = SpareProvider(
        replies=[Reply(AssistantMessage("", (ToolCall("nothing"),)), stop="calls", model="second-dated")]
    )
    async with Harness(dialects=(), agents=[lead("spare:second")], providers={"spare": spare}) as r:
        r.script("lead", fails(down("auth"), times=1), says("back"))
        outcome = await r.run("go", agent="lead")

        assert (outcome.text, models(r)) == ("back", ["second-dated", "first"])


async def test_a_fallback_has_its_own_price_and_no_temperature_of_another_provider() -> None:
    first = ScriptedProvider(Script(), prices={"first": (1, 1)})
    spare = SpareProvider(replies=[Reply(AssistantMessage("dear"), usage=Usage(input=10, output=1), cost=700)])
    agent = lead("spare:second", limits=Limits(max_cost=1))
    async with Harness(provider=first, dialects=(), agents=[agent], providers={"spare": spare}) as r:
        r.script("lead", fails(down("auth")))
        outcome = await r.run("go", agent="lead", limits=agent.limits)

        assert (outcome.text, outcome.cost, spare.asked) == ("dear", 700, [("second", None)])
        assert not engine_of(r.retinue).budgets.is_capped(r.run_of("lead"))


async def test_a_cancel_during_retries_calls_no_fallback() -> None:
    spare = SpareProvider()
    async with Harness(dialects=(), agents=[lead("spare:second")], providers={"spare": spare}) as r:
        r.script("lead", fails(ProviderError("wait", fault="rate_limited", retry_after=60.0)))
        handle = await r.retinue.spawn("go", agent="lead")
        await asyncio.sleep(30)
        await r.retinue.cancel(handle)

        assert ((await handle.wait()).result, spare.asked) == ("cancelled", [])


async def test_a_child_inherits_the_fallback_only_with_its_callers_model() -> None:
    spare = SpareProvider()
    agents = [
        lead("spare:second"),
        Agent(name="same", description="d"),
        Agent(name="other", description="d", model="third"),
        Agent(name="own", description="d", model="third", fallback=("spare:fourth", "fifth")),
    ]
    async with Harness(agents=agents, providers={"spare": spare}) as r:
        r.script(
            "lead",
            calls("subagent", action="spawn", agent="same", task="t"),
            calls("subagent", action="spawn", agent="other", task="t"),
            calls("subagent", action="spawn", agent="own", task="t"),
            says("started"),
        )
        for name in ("same", "other", "own"):
            r.script(name, says("done"))
        await r.run("go", agent="lead")
        briefs = {
            view.agent: (await r.retinue.supervisor.replay(view.run_id)).run_spec
            for view in await r.retinue.list(everyone=True)
        }

        assert {name: (run_spec.model, run_spec.fallback) for name, run_spec in briefs.items()} == {
            "lead": ("first", (("spare", "second"),)),
            "same": ("first", (("spare", "second"),)),
            "other": ("third", ()),
            "own": ("third", (("spare", "fourth"), ("custom", "fifth"))),
        }


async def test_a_process_without_the_fallbacks_provider_can_still_adopt_the_run() -> None:
    spare = SpareProvider()
    first = Harness(dialects=(), agents=[lead("spare:second")], providers={"spare": spare})
    async with first:
        first.script("lead", says("done"))
        handle = await first.retinue.spawn("go", agent="lead", detached=True)
        await first.close()
        async with Harness(store=first.store, provider=first.provider, dialects=(), agents=[]) as later:
            resumed = await later.retinue.resume(handle.run_id)
            assert (await resumed.wait()).text == "done"
