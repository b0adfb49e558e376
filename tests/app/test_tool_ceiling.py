"""The tools given for a run bound its whole tree: no definition, subset, agent, fork or resume adds another tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.events import CallReturned
from retinue.core.policy import Autonomy, Policy, RuntimeProfile
from retinue.providers.scripted import Script, ScriptedReply, calls, hangs, says
from retinue.testing.fake_chat import FakeChat
from retinue.testing.harness import Harness
from tests.dialects.buzzllm.harness import CHAT, BuzzllmHarness, Cast, call_subagent, opened
from tests.dialects.recording import RecordingProvider

FULL = Policy(autonomy=Autonomy.FULL)


@retinue.tool(kind="pure")
def look() -> str:
    """Look."""
    return "seen"


@retinue.tool(kind="once", risk="high")
def erase() -> str:
    """Erase everything."""
    return "erased"


def defines(*tools: str) -> ScriptedReply:
    return calls(
        "subagent", action="define", name="helper", description="Helps.", system_prompt="Help.", tools=list(tools)
    )


def spawns(agent: str = "helper") -> ScriptedReply:
    return calls("subagent", action="spawn", agent=agent, task="work")


def harness(*agents: Agent, dialect: str = "spec", **options: Any) -> Harness:
    provider = RecordingProvider(Script())
    return Harness(provider=provider, tools=[look, erase], agents=agents, dialects=[dialect], **options)


def tools_of(opened_harness: Harness, task: str) -> list[str]:
    """The tools that the model of the run with this task was offered."""
    assert isinstance(opened_harness.provider, RecordingProvider)
    requests = [each for each in opened_harness.provider.requests if each.messages[0].text == task]
    return list(requests[0].tools)


async def test_a_defined_agent_gets_no_tool_outside_the_ceiling() -> None:
    async with harness(policy=FULL) as r:
        waits = calls("subagent", action="wait", task_ids=["t_01"])
        r.script("main", defines("look", "erase"), defines("look", "shared_context"), spawns(), waits, says("Done."))
        r.script("helper", calls("erase"), says("I could not."))
        await r.run("go", tools=["look"])

        refused, defined, *_ = r.results("main")
        assert json.loads(refused) == {
            "error": "INVALID_TOOL",
            "message": "Tool not in application registry: 'erase'",
            "available_tools": "look, shared_context",
        }
        assert json.loads(defined) == {"defined": "helper", "description": "Helps."}
        assert tools_of(r, "work") == ["look", "shared_context"]
        assert r.results("helper") == ["There is no tool named 'erase'. Tools you can use: look, shared_context."]


async def test_the_definition_of_the_delegation_tool_lists_the_ceiling() -> None:
    async with harness(policy=FULL) as r:
        shown = {spec.name: spec.parameters for spec in r.retinue.offers(tools=["look"])}
        free = {spec.name: spec.parameters for spec in r.retinue.offers()}

    assert ('"look"' in shown["subagent"], '"erase"' in shown["subagent"]) == (True, False)
    assert '"erase"' in free["subagent"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tools": ["look"]}, ["look"]),
        ({"tools": []}, []),
        ({}, ["look", "erase"]),
        ({"agent": "lead"}, ["look", "erase"]),  # the tools of an agent in the settings are its own
        ({"agent": "lead", "tools": ["look"]}, ["look"]),
        ({"tools": ["look"], "ceiling": False}, ["look", "erase"]),
    ],
)
async def test_a_configured_agent_has_its_tools_within_the_ceiling(given: dict[str, Any], expected: list[str]) -> None:
    lead, worker = Agent(name="lead", tools=("look",)), Agent(name="worker", tools=("look", "erase"))
    async with harness(lead, worker, policy=FULL) as r:
        r.script(given.get("agent", "main"), spawns("worker"), says("Done."))
        r.script("worker", says("Worked."))
        await (await r.retinue.spawn("go", output=None, **given)).wait()

        assert tools_of(r, "work") == expected


async def test_agents_of_an_earlier_run_of_the_session_are_bound_too() -> None:
    async with harness(policy=FULL) as r:
        r.script("main", defines("look", "erase"), says("Defined."), task="define it")
        r.script("main", spawns(), says("Done."), task="use it")
        r.script("helper", says("Helped."))
        await r.run("define it")
        await r.run("use it", tools=["look"])

        assert tools_of(r, "work") == ["look"]


@pytest.mark.parametrize("ceiling", ["target", "caller", None])
async def test_a_target_of_delegate_is_bound_whatever_rights_its_profile_has(ceiling: Any) -> None:
    target = Agent(name="target", tools=("look", "erase"), policy=FULL)
    lead = Agent(name="lead", policy=FULL, runtime=RuntimeProfile(delegation_ceiling=ceiling))
    async with harness(lead, target, dialect="zeroclaw") as r:
        r.script("lead", calls("delegate", agent="target", prompt="work"), says("Done."))
        r.script("target", calls("spawn_subagent", prompt="deeper"), says("Done."), task="work")
        r.script("target", says("Done."), task="deeper")
        await r.run("go", agent="lead", tools=["look"])

        assert tools_of(r, "work") == ["look", "spawn_subagent", "delegate"]
        assert tools_of(r, "deeper") == ["look", "spawn_subagent", "delegate"]


async def test_the_tool_ceiling_holds_after_a_crash_and_for_a_fork() -> None:
    async with harness(policy=FULL) as r:
        r.script("main", hangs(), task="go")
        root = await r.retinue.spawn("go", tools=["look"])
        await r.restart()
        r.provider.script = Script()
        r.script("main", defines("erase"), says("Done."), task="go")
        outcome = await (await r.retinue.resume(root.run_id)).wait()
        fork = await r.retinue.fork(root.run_id, "again")
        r.script("main", defines("erase"), says("Done."))
        await fork.wait()

        assert outcome.text == "Done."
        events = (*r.events(root.run_id), *r.events(fork.run_id))
        results = [event.text for event in events if isinstance(event, CallReturned)]
        assert [json.loads(text)["error"] for text in results] == ["INVALID_TOOL"] * 2


async def test_a_subagent_in_a_process_of_its_own_is_bound() -> None:
    cast = Cast((call_subagent(tool_subset=["bash_read", "python_execute"]), says("Done.")), says("Never."))
    async with FakeChat(cast) as vendor, opened(CHAT, vendor, policy=FULL) as r:
        process = BuzzllmHarness(r)
        await process.play(tools=["bash_read"])

    assert process.read() == ["Error: Unknown tool names: python_execute"]
    assert cast.children == []
