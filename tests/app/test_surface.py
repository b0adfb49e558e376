"""`retinue.surface`: definitions of tools, calls from outside, waiting, keys, cancelling and closing."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.policy import Policy
from retinue.core.run import HOST, Limits
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, hangs, says, streams
from retinue.store.memory import MemoryStore
from retinue.store.sqlite import SqliteStore
from retinue.testing.virtual_time import VirtualClock

DIG = "find it"


def model(**tasks: Sequence[Line]) -> ScriptedProvider:
    script = Script()
    for task, lines in tasks.items():
        script.play("general", *lines, task=task)
    return ScriptedProvider(script)


def opened(*dialects: str, provider: ScriptedProvider | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"home": retinue.MEMORY, "clock": VirtualClock()} | options
    return retinue.surface(*dialects, provider=provider or ScriptedProvider(Script()), **given)


def slowly(text: str, seconds: float) -> Line:
    return streams(text[:1], text[1:], every=seconds)


async def test_tools_are_defined_as_each_vendor_takes_them() -> None:
    async with opened("native", agents=[retinue.Agent(name="reader")]) as surface:
        names = [spec.name for spec in surface.tools]
        chat, responses = surface.openai(), surface.openai(responses=True)
        anthropic, gemini = surface.anthropic(), surface.gemini()

    schema = anthropic[0]["input_schema"]
    assert schema["properties"]["agent"]["enum"] == ["reader"]
    assert len(names) == 6
    assert chat[0] == {
        "type": "function",
        "function": {"name": "run_agent", "description": anthropic[0]["description"], "parameters": schema},
    }
    assert responses[0] == {"type": "function", **chat[0]["function"]}
    assert [tool["name"] for tool in anthropic] == names
    assert [tool["name"] for tool in gemini[0]["functionDeclarations"]] == names
    assert gemini[0]["functionDeclarations"][0]["parametersJsonSchema"] == schema


async def test_spec_works_in_a_loop_of_another_program() -> None:
    script = Script().play(
        "researcher", calls("shared_context", action="write", key="size", value="10"), says("It has 10 connections.")
    )
    async with opened(
        provider=ScriptedProvider(script), agents=[retinue.Agent(name="researcher", tools=("shared_context",))]
    ) as surface:
        assert [spec.name for spec in surface.tools] == ["subagent", "shared_context"]
        spawned = await surface.call("subagent", {"action": "spawn", "agent": "researcher", "task": "How large?"})
        await surface.call("subagent", '{"action":"wait","task_ids":["t_01"]}')
        collected = await surface.call("subagent", {"action": "collect", "task_id": "t_01"})
        read = await surface.call("shared_context", {"action": "read", "key": "size"})

    assert json.loads(spawned.text)["task_id"] == "t_01"
    assert json.loads(collected.text)["result"] == "It has 10 connections."
    assert json.loads(read.text)["value"] == "10"


async def test_whatever_a_model_wrote_is_answered() -> None:
    async with opened("native") as surface:
        unknown = await surface.call("shell", {})
        broken = await surface.call("run_agent", "no JSON")

    assert unknown == retinue.SurfaceResult(
        "There is no tool named 'shell'. Valid: run_agent, wait_agents, message_agent, agent_result, cancel_agent, "
        "list_agents.",
        failed=True,
    )
    assert broken.failed
    assert "Valid fields: task, " in broken.text


async def test_the_policy_holds_for_calls_from_outside() -> None:
    policy = Policy(excluded_tools=("cancel_agent",), always_ask=("run_agent",))
    async with opened("native", policy=policy) as surface:
        names = [spec.name for spec in surface.tools]
        excluded = await surface.call("cancel_agent", {"run": "x"})
        asked = await surface.call("run_agent", {"task": DIG})

    assert "cancel_agent" not in names
    assert (excluded.failed, asked.failed) == (True, True)
    assert asked.text.endswith(
        "A call from outside cannot wait for a person: change the policy, or let an agent make the call."
    )


async def test_a_call_returns_after_max_wait_and_the_run_goes_on() -> None:
    async with opened("native", provider=model(**{DIG: [slowly("Ten.", 60.0)]})) as surface:
        first = json.loads((await surface.call("run_agent", {"task": DIG}, max_wait=45.0)).text)
        second = json.loads((await surface.call("wait_agents", {"runs": [first["run"]]}, max_wait=45.0)).text)

    assert (first["state"], first["next"]) == (
        "working",
        f'Call wait_agents with {{"runs":["{first["run"]}"]}} to get the answer.',
    )
    assert second == {"runs": [{"run": first["run"], "state": "completed", "answer": "Ten."}], "timed_out": False}


async def test_a_dialect_that_only_blocks_is_waited_for_with_the_same_call() -> None:
    script = Script().play("main", slowly("Ten.", 80.0), says("Ten, in short."))
    arguments = {"label": "dig", "task_prompt": DIG}
    async with opened("xzatoma", provider=ScriptedProvider(script)) as surface:
        first = json.loads((await surface.call("subagent", arguments, max_wait=45.0)).text)
        second = json.loads((await surface.call("subagent", arguments, max_wait=45.0)).text)

    assert first == {
        "run": first["run"],
        "state": "working",
        "next": "Call subagent again with the same arguments to go on waiting.",
    }
    assert (second["success"], second["output"]) == (True, "Ten, in short.")


async def test_a_repeated_key_continues_the_same_call_in_a_later_process(tmp_path: Path) -> None:
    provider = model(**{DIG: [says("Ten.")]})
    results: list[Any] = []
    for _ in range(2):
        async with opened("native", provider=provider, home=tmp_path, session="app") as surface:
            results.append(json.loads((await surface.call("run_agent", {"task": DIG}, key="call-1")).text))

    assert results[0] == results[1]
    assert len(provider.asked) == 1


async def test_cancelling_a_call_cancels_what_it_waits_for_and_no_background_run() -> None:
    provider = model(a=[hangs()], b=[hangs()])
    async with opened("native", provider=provider) as surface:
        behind = json.loads((await surface.call("run_agent", {"task": "b", "background": True})).text)["run"]
        call = asyncio.create_task(surface.call("run_agent", {"task": "a"}))
        await asyncio.sleep(1.0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(1.0)
        listed = json.loads((await surface.call("list_agents", {})).text)["runs"]
        await surface.call("cancel_agent", {"run": behind})

    assert [(run["task"], run["state"]) for run in listed] == [("a", "cancelled"), ("b", "working")]


async def test_the_limits_of_a_surface_bind_all_its_runs() -> None:
    lines: list[Line] = [says("word " * 100), says("word " * 100)]
    async with opened("native", provider=model(a=lines[:1], b=lines[1:]), limits=Limits(max_tokens=150)) as surface:
        first = json.loads((await surface.call("run_agent", {"task": "a"})).text)
        second = json.loads((await surface.call("run_agent", {"task": "b"})).text)

    assert (first["state"], second["state"]) == ("completed", "exhausted")


async def test_a_hosted_run_is_idle_calls_no_model_and_ends_when_it_is_closed() -> None:
    store, provider = MemoryStore(), model(**{DIG: [says("Ten.")]})
    async with retinue.open(provider=provider, store=store, dialects=["native"], clock=VirtualClock()) as r:
        run_id = await r.host(dialects=["native"], label=HOST)
        view = await r.handle(run_id).look()
        async with retinue.open(provider=provider, store=store, clock=VirtualClock()) as elsewhere:
            seen = await elsewhere.handle(run_id).look()
        await r.send(run_id, "Is there anyone?")
        await r.handle(run_id).close()
        ended = await r.handle(run_id).look()

    assert (view.state, view.label, view.turns) == ("idle", "host", 0)
    assert seen.state == "idle"  # in another process, too
    assert ended.outcome is not None
    assert (ended.outcome.result, ended.outcome.reason) == ("completed", "closed")
    assert provider.asked == []


async def test_a_closed_surface_leaves_its_working_runs_to_a_later_process(tmp_path: Path) -> None:
    provider = model(**{DIG: [slowly("Ten.", 60.0)]})
    async with opened("native", provider=provider, home=tmp_path, session="app") as surface:
        run = json.loads((await surface.call("run_agent", {"task": DIG, "background": True})).text)["run"]
    async with opened("native", provider=provider, home=tmp_path, session="app", adopt=True) as surface:
        waited = json.loads((await surface.call("wait_agents", {"runs": [run]})).text)

    assert waited == {"runs": [{"run": run, "state": "completed", "answer": "Ten."}], "timed_out": False}
    store = SqliteStore(tmp_path / "retinue.db")
    states = [(row.label, row.progress.phase) for row in store.runs(RunQuery(roots_only=True))]
    store.close()
    assert states == [("host", "ended"), ("host", "ended")]


async def test_other_sessions_do_not_see_the_runs(tmp_path: Path) -> None:
    provider = model(**{DIG: [says("Ten.")]})
    async with opened("native", provider=provider, home=tmp_path, session="one") as surface:
        run = json.loads((await surface.call("run_agent", {"task": DIG, "key": "k"})).text)["run"]
    async with opened("native", provider=provider, home=tmp_path, session="two") as surface:
        listed = json.loads((await surface.call("list_agents", {})).text)
        read = await surface.call("agent_result", {"run": run})

    assert listed["runs"] == []
    assert read == retinue.SurfaceResult(f'{{"error":"Unknown run {run!r}. Valid: (none)."}}', failed=True)
