"""`retinue.handoff`: a run goes on as another agent."""

from contextlib import suppress

import msgspec

import retinue
from retinue.core.errors import StoreError
from retinue.events import AgentChanged
from retinue.messages import ToolMessage
from retinue.ports import Request
from retinue.providers.scripted import Line
from retinue.testing import Harness, Script, ScriptedProvider, calls, says


@retinue.tool(kind="pure")
def invoice(number: int) -> str:
    """Look up an invoice."""
    return f"invoice {number}: 7 dollars"


BILLING = retinue.Agent(name="billing", system_prompt="You know invoices.", tools=(invoice,), model="other")


def final(request: Request) -> Line:
    tools = ",".join(tool.name for tool in request.tools)
    return says(f"{request.system} {request.model} [{tools}] {request.messages[-1].text}")


def model() -> ScriptedProvider:
    lines = (calls("handoff_to_billing"), calls("invoice", number=3), final)
    return ScriptedProvider(Script().play("main", *lines))


ANSWER = "You know invoices. other [invoice] invoice 3: 7 dollars"


async def test_a_run_goes_on_as_another_agent() -> None:
    async with retinue.open(
        provider=model(), model="first", tools=[retinue.handoff(BILLING)], dialects=(), home=retinue.MEMORY
    ) as r:
        run = await r.spawn("My invoice is wrong.")
        changes = [event.agent async for event in run.events() if isinstance(event, AgentChanged)]
        outcome = await run.wait()
        tree = await r.tree(run)

    assert (outcome.text, changes, len(tree)) == (ANSWER, ["billing"], 1)


async def test_a_crash_after_any_write_keeps_the_new_agent() -> None:
    def harness() -> Harness:
        return Harness(provider=model(), model="first", tools=[retinue.handoff(BILLING)], dialects=())

    undisturbed = harness()
    async with undisturbed:
        assert (await undisturbed.run("My invoice is wrong.", key="case")).text == ANSWER
        writes = undisturbed.written
    for stop in range(3, writes):
        crashing = harness()
        await crashing.open(killed_after=stop)
        with suppress(StoreError):
            await crashing.run("My invoice is wrong.", key="case")
        await crashing.restart()
        outcome = await crashing.run("My invoice is wrong.", key="case")
        await crashing.close()

        assert outcome.text == ANSWER, f"after write {stop}"


async def test_the_actions_of_the_agent_that_takes_over_are_limited_by_its_own_policy() -> None:
    done: list[int] = []

    @retinue.tool(risk="medium", acts=True)
    def send(number: int) -> str:
        """Send an invoice."""
        done.append(number)
        return "sent"

    full = retinue.Policy(autonomy=retinue.Autonomy.FULL, max_actions_per_hour=100)
    billing = retinue.Agent(name="billing", tools=(send,), policy=msgspec.structs.replace(full, max_actions_per_hour=2))
    limited = retinue.Agent(name="front", tools=("handoff_to_billing",), policy=full)
    sent = [calls("send", number=number) for number in range(4)]
    for agent in (None, limited):  # a root run without limits of its own, and one with windows
        done.clear()
        lines = (calls("handoff_to_billing"), *sent, says("Done."))
        provider = ScriptedProvider(Script().play("front" if agent else "main", *lines))
        async with retinue.open(
            provider=provider,
            agents=[limited],
            tools=[retinue.handoff(billing)],
            dialects=(),
            policy=full,
            home=retinue.MEMORY,
        ) as r:
            outcome = await r.run("My invoice is wrong.", agent=None if agent is None else agent.name)

        assert (outcome.text, done) == ("Done.", [0, 1])


async def test_a_run_that_was_handed_over_is_continued_under_the_limits_of_its_new_agent() -> None:
    done: list[int] = []

    @retinue.tool(risk="medium", acts=True)
    def send(number: int) -> str:
        """Send an invoice."""
        done.append(number)
        return "sent"

    def child(request: Request) -> str:
        results = [each for each in request.messages if isinstance(each, ToolMessage) and each.name == "run_agent"]
        return msgspec.json.decode(results[0].text)["run"]

    full = retinue.Policy(autonomy=retinue.Autonomy.FULL, max_actions_per_hour=100)
    billing = retinue.Agent(name="billing", tools=(send,), policy=msgspec.structs.replace(full, max_actions_per_hour=2))
    front = retinue.Agent(name="front", tools=("handoff_to_billing",))
    script = Script()
    script.play(
        "main",
        calls("run_agent", task="My invoice is wrong.", agent="front"),
        lambda request: calls("message_agent", run=child(request), text="Send more."),
        lambda request: calls("wait_agents", runs=[child(request)]),
        says("Done."),
    )
    script.play("front", calls("handoff_to_billing"), *[calls("send", number=each) for each in range(4)], says("Sent."))
    async with retinue.open(
        provider=ScriptedProvider(script),
        agents=[front],
        tools=[retinue.handoff(billing)],
        dialects=("native",),
        policy=full,
        home=retinue.MEMORY,
    ) as r:
        outcome = await r.run("Help.")

    assert (outcome.text, done) == ("Done.", [0, 1])
