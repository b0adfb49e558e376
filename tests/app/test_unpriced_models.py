"""A limit on cost for a model without a price causes a warning in the library, as it is refused on the command line."""

import logging

import pytest

import retinue
from retinue.ports import ModelPrices, PricedProvider, Rates
from retinue.testing import Script, ScriptedProvider, says

UNPRICED = (
    "no price known for model {} (provider {}): max_cost is only enforced as far as the provider reports costs; "
    "give the model a price (retinue.ports.PricedProvider), or set max_tokens instead"
)


HELLO = Script().play("main", says("Hi."))
PRICED = PricedProvider(ScriptedProvider(HELLO), ModelPrices({"mine": Rates(input=1.0, output=2.0)}))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_limit_on_cost_for_an_unpriced_model_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    async with retinue.open(provider=ScriptedProvider(HELLO), model="mine", home=retinue.MEMORY) as r:
        outcomes = [
            await r.run("Hi.", max_cost=0.5),
            await r.run("Hi again.", limits=retinue.Limits(max_cost=0.5)),
        ]

    assert [outcome.text for outcome in outcomes] == ["Hi.", "Hi."]
    assert warnings(caplog) == [UNPRICED.format("mine", "custom")]


@pytest.mark.parametrize("limits", [retinue.Limits(), retinue.Limits(max_tokens=1000)])
async def test_other_limits_cause_no_warning(limits: retinue.Limits, caplog: pytest.LogCaptureFixture) -> None:
    async with retinue.open(provider=ScriptedProvider(HELLO), model="mine", home=retinue.MEMORY) as r:
        await r.run("Hi.", limits=limits)

    assert warnings(caplog) == []


async def test_a_priced_model_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with retinue.open(provider=PRICED, model="mine", home=retinue.MEMORY) as r:
        await r.run("Hi.", max_cost=0.5)

    assert warnings(caplog) == []


async def test_the_models_of_agents_are_checked_where_the_run_can_delegate(caplog: pytest.LogCaptureFixture) -> None:
    agents = [
        retinue.Agent(name="dear", model="huge", limits=retinue.Limits(max_cost=1)),
        retinue.Agent(name="plain", model="tiny"),
    ]
    async with retinue.open(provider=PRICED, model="mine", agents=agents, dialects=["spec"], home=retinue.MEMORY) as r:
        await r.run("Hi.", dialects=())
        assert warnings(caplog) == []
        await r.run("Hi.")
        assert warnings(caplog) == [UNPRICED.format("huge", "custom")]
        await (await r.spawn("Hi.", max_cost=1)).cancel("enough")
        assert warnings(caplog)[1:] == [UNPRICED.format("tiny", "custom")]
