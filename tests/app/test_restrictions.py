"""Agents with `read_only`, `excluded_tools` and `background`: how they are started makes no difference."""

from __future__ import annotations

import pytest

import retinue
from retinue.core.policy import Autonomy, Policy
from retinue.events import CallReturned
from retinue.ports import CallContext, Request
from retinue.providers.scripted import Line
from retinue.testing import Script, ScriptedProvider, calls, says

FREE = Policy(autonomy=Autonomy.FULL)


@retinue.tool(kind="pure")
def look() -> str:
    """Look at something."""
    return "seen"


@retinue.tool(risk="medium")
def deploy() -> str:
    """Deploy."""
    return "deployed"


@retinue.tool(kind="pure")
def secret() -> str:
    """Read a secret."""
    return "4711"


@retinue.tool(kind="keyed")
async def ask_careful(context: CallContext) -> str:
    """Ask the careful agent."""
    return (await (await context.spawn("Go.", agent="careful")).wait()).text


TOOLS = ("look", "deploy", "secret")
CAREFUL = retinue.Agent(name="careful", tools=TOOLS, read_only=True, excluded_tools=("secret",))
STARTS = {
    "native": calls("run_agent", task="Go.", agent="careful"),
    "claude": calls("Agent", description="Go", prompt="Go.", subagent_type="careful"),
    "zeroclaw": calls("delegate", agent="careful", prompt="Go."),
    "": calls("ask_careful"),
}
ALL = [look, deploy, secret, ask_careful]


def tell(request: Request) -> Line:
    """An answer with the tools that are offered, and the result of the last call."""
    offered = ",".join(tool.name for tool in request.tools if tool.name in TOOLS)
    return says(f"[{offered}] {request.messages[-1].text}")


def careful(*tools: str) -> Script:
    """A script in which the careful agent calls these tools and tells about the last one."""
    return Script().play("careful", *map(calls, tools), tell)


def repeat(request: Request) -> Line:
    return says(request.messages[-1].text)


@pytest.mark.parametrize("dialect", STARTS)
async def test_a_child_has_less_than_its_caller(dialect: str) -> None:
    answers: list[str] = []
    for tool in ("look", "deploy", "secret"):
        script = careful(tool).play("main", STARTS[dialect], repeat)
        main = retinue.Agent(name="main", tools=(*TOOLS, "ask_careful"))
        dialects = [dialect] if dialect else ()
        async with retinue.open(
            provider=ScriptedProvider(script),
            agents=[main, CAREFUL],
            tools=ALL,
            dialects=dialects,
            policy=FREE,
            home=retinue.MEMORY,
        ) as r:
            answers.append((await r.run("Lead.")).text)

    seen, deployed, revealed = answers
    assert "[look,deploy] seen" in seen
    assert "read-only mode" in deployed
    assert ("deployed" not in deployed, "4711" not in revealed) == (True, True)


async def test_a_root_run_and_one_that_is_handed_over_have_less_than_the_session() -> None:
    answers: list[str] = []
    for script, agent in (
        (careful("deploy"), "careful"),
        (Script().play("main", calls("handoff_to_careful"), calls("deploy"), tell), "main"),
    ):
        main = retinue.Agent(name="main", tools=(*TOOLS, "handoff_to_careful"))
        async with retinue.open(
            provider=ScriptedProvider(script),
            agents=[main, CAREFUL],
            tools=[*ALL, retinue.handoff(CAREFUL)],
            dialects=(),
            policy=FREE,
            home=retinue.MEMORY,
        ) as r:
            answers.append((await r.run("Go.", agent=agent)).text)

    assert ["deployed" in answer for answer in answers] == [False, False]
    assert ["[look,deploy]" in answer for answer in answers] == [True, True]


@pytest.mark.parametrize("dialect", ["native", "claude"])
async def test_an_agent_of_the_background_is_not_waited_for(dialect: str) -> None:
    slow = retinue.Agent(name="careful", background=True)
    script = Script().play("careful", says("Done at last.")).play("main", STARTS[dialect], repeat, says("Told."))
    async with retinue.open(
        provider=ScriptedProvider(script), agents=[slow], dialects=[dialect], home=retinue.MEMORY
    ) as r:
        run = await r.spawn("Lead.")
        returned = [event async for event in run.events() if isinstance(event, CallReturned)]
        started = returned[0].text

    assert "Done at last." not in started
    assert (
        ('"state":"working"' in started or '"state":"queued"' in started)
        if dialect == "native"
        else ("async_launched" in started)
    )
