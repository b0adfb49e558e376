"""Wrong arguments of `Agent`, `Limits` and `open` are refused at once, with what was expected."""

import pickle
from decimal import Decimal

import msgspec
import pytest

import retinue
from retinue.messages import AssistantMessage, Reply
from retinue.ports import Publish, Request
from retinue.testing import Script, ScriptedProvider, calls, says

MODEL = ScriptedProvider(Script())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_turns": "20"}, "Limits: max_turns='20' is a str; expected an int or None"),
        ({"max_turns": True}, "Limits: max_turns=True is a bool; expected an int or None"),
        ({"max_cost": "1"}, "max_cost='1' is a str; expected dollars as an int, float or Decimal, or None"),
        ({"max_cost": True}, "max_cost=True is a bool; expected dollars"),
        ({"max_nanodollars": 0.5}, "Limits: max_nanodollars=0.5 is a float; expected an int or None"),
        ({"max_cost": 1, "max_nanodollars": 1}, "max_cost and max_nanodollars are the same limit: give one of them"),
        ({"max_cost": -1.0}, "max_cost=-1.0 is not an amount of dollars"),
        ({"max_cost": float("nan")}, "max_cost=nan is not an amount of dollars"),
        ({"timeout": "5"}, "Limits: timeout='5' is a str; expected seconds"),
    ],
)
def test_invalid_limits_name_the_expected_type(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(retinue.RetinueError, match=text):
        retinue.Limits(**arguments)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("dollars", "nanodollars"),
    [(1, 1_000_000_000), (0.25, 250_000_000), (Decimal("1.1"), 1_100_000_000), (0, 0), (None, None)],
)
def test_money_is_given_and_read_in_dollars(dollars: float | Decimal | None, nanodollars: int | None) -> None:
    limits = retinue.Limits(max_cost=dollars, max_turns=3)

    assert limits.max_cost == (None if dollars is None else float(dollars))
    assert limits.max_nanodollars == nanodollars
    assert limits == retinue.Limits(max_nanodollars=nanodollars, max_turns=3)
    assert pickle.loads(pickle.dumps(limits)) == limits


def test_the_stored_form_of_a_cost_limit_is_nanodollars() -> None:
    stored = b'{"max_turns":3,"max_cost":250000000}'

    assert msgspec.json.encode(retinue.Limits(max_cost=0.25, max_turns=3)) == stored
    assert msgspec.json.decode(stored, type=retinue.Limits) == retinue.Limits(max_cost=0.25, max_turns=3)


async def test_a_limit_of_one_dollar_is_the_same_in_limits_and_as_a_single_limit() -> None:
    script = Script().play("main", says("Hi.")).play("main", says("Hi."))
    async with retinue.open(provider=ScriptedProvider(script), home=retinue.MEMORY, dialects=()) as r:
        runs = [await r.spawn("Hi.", max_cost=1), await r.spawn("Hi.", limits=retinue.Limits(max_cost=1))]
        for run in runs:
            await run.wait()
        limits = [(await r.supervisor.replay(run.run_id)).accepted.limits for run in runs]

    assert [each.max_nanodollars for each in limits] == [1_000_000_000] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": 7}, "Agent: name=7 is an int; expected a str"),
        ({"name": "a", "tools": "shell"}, r"Agent: tools='shell' is a str: write tools=\('shell',\)"),
        ({"name": "a", "tools": 7}, "Agent: tools=7 is a int: expected a tuple of names"),
        ({"name": "a", "limits": {"max_turns": 1}}, r"Agent: limits=.* is a dict; expected a Limits"),
        ({"name": "a", "policy": "read"}, "Agent: policy='read' is a str; expected a Policy or None"),
        ({"name": "a", "max_turns": "3"}, "Agent: max_turns='3' is a str; expected an int or None"),
    ],
)
def test_invalid_agents_name_the_expected_type(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(retinue.RetinueError, match=text):
        retinue.Agent(**arguments)  # pyright: ignore[reportArgumentType]


class NoProvider:
    """An object without `answer`."""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model": 7}, "open: model=7 is an int; expected a str"),
        ({"provider": NoProvider()}, "expected the name of a wire .* or an object with the method `async def answer"),
        ({"provider": ScriptedProvider}, r"open: provider is the class ScriptedProvider: write ScriptedProvider\(\)"),
        ({"provider": MODEL, "agents": retinue.Agent(name="a")}, r"agents is not a list: write agents=\["),
        ({"provider": MODEL, "agents": ["a"]}, "agents has a str: expected objects of retinue.Agent"),
        ({"provider": MODEL, "policy": "read"}, "open: policy='read' is a str; expected a Policy or None"),
        ({"model": "antropic:claude-opus-4-7"}, "did you mean anthropic:claude-opus-4-7?"),
        ({"model": "nothing:x"}, "there is no provider named 'nothing'; known: anthropic"),
        ({"provider": "antropic", "model": "x"}, "anthropic"),
    ],
)
def test_invalid_arguments_of_open_name_the_expected_type(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(retinue.RetinueError, match=text):
        retinue.open(home=retinue.MEMORY, **arguments)  # pyright: ignore[reportArgumentType]


def test_a_with_block_without_async_names_the_right_form() -> None:
    r = retinue.open(provider=MODEL, home=retinue.MEMORY)

    with pytest.raises(TypeError, match="write `async with"), r:
        pass


async def test_an_agent_has_functions_as_tools_and_others_are_not_offered_them() -> None:
    def depth(place: str) -> str:
        """How deep a place is."""
        return f"{place} is 3 m deep"

    digger = retinue.Agent(name="digger", tools=(depth,))
    script = Script().play("digger", calls("depth", place="the well"), lambda ask: says(ask.messages[-1].text))
    async with retinue.open(provider=ScriptedProvider(script), agents=[digger], dialects=(), home=":memory:") as r:
        outcome = await r.run("Dig.", agent="digger")

        assert outcome.text == "the well is 3 m deep"
        assert r.offers() == ()


async def test_a_provider_that_returns_nonsense_is_named() -> None:
    class Nonsense:
        async def answer(self, request: Request, publish: Publish) -> Reply:
            return "hello"  # pyright: ignore[reportReturnType]

    async with retinue.open(provider=Nonsense(), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("Hi.")

    assert (outcome.result, outcome.error) == (
        "failed",
        "the provider returned str: expected a retinue.messages.Reply",
    )


async def test_single_limits_have_the_names_of_the_flags() -> None:
    class Dear:
        def price(self, model: str) -> tuple[int, int]:
            return 1_000_000, 1_000_000

        async def answer(self, request: Request, publish: Publish) -> Reply:
            return Reply(AssistantMessage("Hello."))

    async with retinue.open(provider=Dear(), home=retinue.MEMORY, dialects=()) as r:
        run = await r.spawn("Hi.", max_turns=3, max_tokens=900, max_cost=0.5, timeout=60)
        await run.wait()
        limits = (await r.supervisor.replay(run.run_id)).accepted.limits

    assert (limits.max_turns, limits.max_tokens, limits.max_cost, limits.timeout) == (3, 900, 0.5, 60)
