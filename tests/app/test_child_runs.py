"""`context.spawn` in a tool, and agents as tools."""

from contextlib import suppress

import pytest

import retinue
from retinue.core.errors import StoreError
from retinue.core.ports import CallContext
from retinue.core.usage import Usage
from retinue.ports import Request
from retinue.providers.scripted import Line
from retinue.testing import Harness, Script, ScriptedProvider, VirtualClock, calls, hangs, says, together

READER = retinue.Agent(name="reader", description="Reads settings", system_prompt="You read.")


def last(request: Request) -> Line:
    """The model repeats what it read last."""
    return says(request.messages[-1].text)


@retinue.tool(kind="keyed", waits=True)
async def survey(places: list[str], context: CallContext) -> str:
    """Look at several places."""
    runs = [await context.spawn(f"Look at {place}.", agent="reader") for place in places]
    return ", ".join([(await run.wait()).text for run in runs])


def model() -> ScriptedProvider:
    script = Script().play("main", calls("survey", places=["the well", "the barn"]), last)
    return ScriptedProvider(script.play("reader", says("It is empty.")))


def open_survey(**options: object) -> retinue.Retinue:
    given = {"provider": model(), "tools": [survey], "agents": [READER], "dialects": (), "home": retinue.MEMORY}
    return retinue.open(**(given | options))  # pyright: ignore[reportArgumentType] the types are in `given`


async def test_a_tool_starts_children_of_its_caller() -> None:
    async with open_survey() as r:
        run = await r.spawn("Look around.")
        outcome = await run.wait()
        tree = {view.path: (view.agent, view.parent_id) for view in await r.tree(run)}

    assert outcome.text == "It is empty., It is empty."
    assert tree == {
        "root": ("main", None),
        "root/reader/1": ("reader", run.run_id),
        "root/reader/2": ("reader", run.run_id),
    }


async def test_children_draw_on_the_limits_of_their_caller() -> None:
    async with open_survey() as r:
        outcome = await r.run("Look around.", max_tokens=60)

    assert outcome.result == "exhausted"


async def test_an_agent_is_called_as_a_tool() -> None:
    writer = retinue.Agent(name="writer", system_prompt="You write.", tools=(retinue.agent_tool(READER, "read"),))
    script = Script().play("main", calls("writer", task="Write."), last)
    script.play("writer", calls("read", task="Read."), last).play("reader", says("Ten."))
    async with retinue.open(
        provider=ScriptedProvider(script), tools=[retinue.agent_tool(writer)], dialects=(), home=retinue.MEMORY
    ) as r:
        run = await r.spawn("Report.")
        outcome = await run.wait()
        paths = sorted(view.path for view in await r.tree(run))

    assert outcome.text == "Ten."
    assert paths == ["root", "root/writer/1", "root/writer/1/reader/1"]
    assert [tool.name for tool in r.offers()] == ["writer"]


async def test_the_failure_of_an_agent_is_the_result_of_the_call() -> None:
    script = Script().play("main", calls("reader", task="Read."), last).play("reader", hangs())
    agent = retinue.Agent(name="reader", limits=retinue.Limits(timeout=5))
    async with retinue.open(
        provider=ScriptedProvider(script),
        tools=[retinue.agent_tool(agent)],
        dialects=(),
        home=retinue.MEMORY,
        clock=VirtualClock(),
    ) as r:
        outcome = await r.run("Report.")

    assert outcome.text.startswith("reader gave no answer (timed_out):")


async def test_a_crash_after_any_write_starts_no_child_twice() -> None:
    def harness() -> Harness:
        return Harness(provider=model(), tools=[survey], agents=[READER], dialects=())

    undisturbed = harness()
    async with undisturbed:
        assert (await undisturbed.run("Look around.", key="look")).text == "It is empty., It is empty."
        writes = undisturbed.written
    for stop in range(3, writes):  # the first writes register the process and open its session
        crashing = harness()
        await crashing.open(killed_after=stop)
        with suppress(StoreError):
            await crashing.run("Look around.", key="look")
        await crashing.restart()
        outcome = await crashing.run("Look around.", key="look")
        runs = await crashing.retinue.list(everyone=True)
        await crashing.close()

        assert (outcome.text, len(runs)) == ("It is empty., It is empty.", 3), f"after write {stop}"


async def test_wrong_spawns_are_clear() -> None:
    @retinue.tool(kind="keyed")
    async def wrong(agent: str, task: str, context: CallContext) -> str:
        await context.spawn(task, agent=agent)
        return "started"

    script = Script().play(
        "main",
        calls("wrong", agent="nobody", task="Look."),
        calls("wrong", agent="reader", task=" "),
        lambda request: says("; ".join(message.text for message in request.messages[2::2])),
    )
    async with open_survey(provider=ScriptedProvider(script), tools=[wrong]) as r:
        outcome = await r.run("Try.")

    assert "unknown agent: 'nobody'; known: reader" in outcome.text
    assert "the task of a spawned run is empty" in outcome.text


async def test_agents_that_call_themselves_stop_at_a_depth() -> None:
    agent = retinue.Agent(name="loop", tools=("loop",))

    def line(request: Request) -> Line:
        is_result = request.messages[-1].text != "Go."
        return says(request.messages[-1].text) if is_result else calls("loop", task="Go.")

    script = Script().play("main", calls("loop", task="Go."), last).play("loop", *[line for _ in range(40)])
    async with retinue.open(
        provider=ScriptedProvider(script), tools=[retinue.agent_tool(agent)], dialects=(), home=retinue.MEMORY
    ) as r:
        outcome = await r.run("Start.")

    assert "cannot delegate at depth 8" in outcome.text


def test_agent_tool_takes_an_agent() -> None:
    with pytest.raises(retinue.RetinueError, match=r"expected a retinue\.Agent, found str"):
        retinue.agent_tool("reader")  # pyright: ignore[reportArgumentType]


async def test_an_agent_as_a_tool_stays_under_the_limits_of_its_caller() -> None:
    """The agent's own limit would allow it far more."""

    @retinue.tool(kind="pure")
    def look() -> str:
        return "nothing"

    agent = retinue.Agent(name="reader", tools=("look",), limits=retinue.Limits(max_tokens=10_000))
    script = Script().play("main", calls("reader", task="Read."), last)
    script.play("reader", together(calls("look"), says("", usage=Usage(500))), says("It is empty."))
    provider = ScriptedProvider(script)
    tools = [look, retinue.agent_tool(agent)]
    async with retinue.open(provider=provider, tools=tools, dialects=(), home=retinue.MEMORY) as r:
        outcome = await r.run("Report.", max_tokens=200)

    assert outcome.result == "exhausted"
    assert [turn.path for turn in provider.asked] == ["root", "root/reader/1"]
