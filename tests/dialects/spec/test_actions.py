"""The actions of `subagent` in runs: agents, running tasks, tools, models and system texts."""

import asyncio
from typing import cast

import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.messages import UserMessage
from retinue.dialects.spec.answers import cancelled_notice, orchestrator_text, subagent_text
from retinue.dialects.spec.settings import DEFAULTS
from retinue.providers.scripted import calls, says, together
from retinue.testing.virtual_time import VirtualClock
from retinue.tools.builtin import BUILTIN
from tests.dialects.spec.harness import Answer, SpecHarness, answers, context, other_work, read_by, subagent

WORKER = retinue.Agent(name="worker", description="Works", system_prompt="You work.")


@retinue.tool
def search_logs(query: str) -> str:
    """Search the logs."""
    return f"3 lines about {query}"


def running(number: int, turns: int | None = None) -> Answer:
    """A running task of the worker."""
    known: Answer = {"task_id": f"t_{number:02}", "agent": "worker", "status": "running"}
    return known if turns is None else known | {"turns_used": turns}


@pytest.mark.promise("SPEC-4.3-FIVE", "SPEC-4.3-RUNNING-ONLY", "SPEC-8.3-IDS", "SPEC-3.3-AT-ONCE")
async def test_five_tasks_run_at_once_and_ended_ones_make_room_collected_or_not() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("done"))
    spawn = subagent("spawn", agent="worker", task="Work.")

    played = await harness.play(
        together(*[spawn] * 6),
        other_work(5),
        spawn,
        subagent("collect", task_id="t_02"),
        spawn,
        other_work(5),
        says("enough"),
    )

    assert played.answers == [
        *(running(number) for number in range(1, 6)),
        {"error": "MAX_TASKS_EXCEEDED", "message": "Maximum concurrent tasks (5) reached."},
        running(6),
        {"task_id": "t_02", "agent": "worker", "status": "completed", "result": "done", "turns_used": 1},
        running(7),
    ]


@pytest.mark.promise("SPEC-3.4-LIVE", "SPEC-3.5-NOT-READY", "SPEC-3.5-ONCE", "SPEC-3.5-NOT-FOUND")
async def test_a_task_is_watched_then_collected_once() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", *[calls("unheard_of", n=n) for n in range(6)], says("found it"))
    gone = {"error": "TASK_NOT_FOUND", "message": "Unknown or already-collected task: 't_01'"}

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        subagent("status", task_id="t_01"),
        subagent("status", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        other_work(5),
        together(subagent("collect", task_id="t_01"), subagent("collect", task_id="t_01")),
        together(subagent("status", task_id="t_01"), subagent("status", task_id="t_99")),
        says("enough"),
    )

    assert played.answers == [
        running(1),
        running(1, turns=1),
        running(1, turns=2),
        {"error": "TASK_NOT_READY", "message": "Task 't_01' is still running (turns_used=3)."},
        {"task_id": "t_01", "agent": "worker", "status": "completed", "result": "found it", "turns_used": 7},
        gone,
        gone,
        {"error": "TASK_NOT_FOUND", "message": "Unknown or already-collected task: 't_99'"},
    ]


@pytest.mark.promise("SPEC-3.3-FIRST-MESSAGE", "SPEC-8.4-SUFFIX", "SPEC-2.2-NO-TOOLS")
async def test_a_subagent_starts_with_its_task_alone() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("done"))
    task = '  Ünïcode — \n\ttabs & "quotes"  \n'

    await harness.play(subagent("spawn", agent="worker", task=task), other_work(3), says("enough"))

    (request,) = harness.requests_of("worker")
    assert (request.messages, request.system, request.tools) == (
        (UserMessage(text=task),),
        subagent_text("You work.", ()),
        (),
    )


@pytest.mark.promise("SPEC-3.3-TOOLS", "SPEC-4.5-NO-NESTING", "SPEC-2.2-OFFERED", "SPEC-3.2-SUBAGENT-DROPPED")
async def test_a_subagent_has_its_agents_tools_and_cannot_delegate() -> None:
    nested = retinue.Agent(
        name="nested", system_prompt="You delegate.", tools=("shared_context", "subagent", "search_logs")
    )
    harness = SpecHarness(agents=(nested,), tools=(search_logs,))
    harness.script.play(
        "nested", calls("subagent", action="spawn", agent="nested", task="Deeper."), says("stayed here")
    )
    harness.script.play("main", subagent("spawn", agent="nested", task="Go deep."), other_work(5), says("enough"))

    async with harness.open() as opened:
        outcome = await opened.run("Go.")

        assert outcome.text == "enough"
        assert await read_by(opened, "nested") == [
            "There is no tool named 'subagent'. Tools you can use: shared_context, search_logs."
        ]
        assert [view.agent for view in await opened.list(everyone=True)] == ["nested", "main"]
    assert [request.tools for request in harness.requests_of("nested")] == [("shared_context", "search_logs")] * 2


@pytest.mark.promise("SPEC-8.1-MODEL", "SPEC-8.1-PROVIDER", "SPEC-3.1-MODEL", "SPEC-3.2-MODEL-DEFAULT")
async def test_a_subagent_has_its_agents_model_on_the_orchestrators_provider() -> None:
    agents = (
        retinue.Agent(name="plain"),
        retinue.Agent(name="bare", model="llama3:8b"),
        retinue.Agent(name="wired", model="beta:fast-model"),
    )
    harness = SpecHarness(agents=agents)
    names = ("plain", "bare", "wired", "defined", "chosen")
    for name in names:
        harness.script.play(name, says("done"))
    define = {"description": "d", "system_prompt": "p"}

    played = await harness.play(
        together(
            subagent("define", name="defined", **define),
            subagent("define", name="chosen", model="beta:tiny", **define),
        ),
        subagent("list_agents"),
        together(*(subagent("spawn", agent=name, task="Work.") for name in names)),
        other_work(3),
        says("enough"),
    )

    listed = cast("list[dict[str, str]]", played.answers[2]["agents"])
    assert {row["name"]: row["model"] for row in listed} == {
        "plain": "lead-model",
        "bare": "llama3:8b",
        "wired": "fast-model",
        "defined": "lead-model",
        "chosen": "tiny",
    }
    assert {
        request.agent: (request.provider, request.model) for request in harness.requests if request.agent in names
    } == {
        "plain": ("alpha", "lead-model"),
        "bare": ("alpha", "llama3:8b"),
        "wired": ("beta", "fast-model"),
        "defined": ("alpha", "lead-model"),
        "chosen": ("beta", "tiny"),
    }


@pytest.mark.promise("SPEC-3.3-ORDER", "SPEC-3.3-AGENT-NOT-FOUND", "SPEC-4.2-TASK")
async def test_a_spawn_is_checked_by_fields_then_task_then_agent_then_count() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", *[calls("unheard_of", n=n) for n in range(10)])
    long = "x" * 4004

    played = await harness.play(
        together(*[subagent("spawn", agent="worker", task="Work.")] * 5),
        together(
            subagent("spawn", agent="unknown", task=7),
            subagent("spawn", agent="unknown", task=long),
            subagent("spawn", agent="worker", task=long),
            subagent("spawn", agent="unknown", task="Work."),
            subagent("spawn", agent="worker", task="Work."),
        ),
        other_work(20),
        says("enough"),
    )

    assert played.answers[5:] == [
        {"error": "INVALID_REQUEST", "message": "Field 'task' must be a string, got a number."},
        {"error": "TASK_TOO_LARGE", "message": "Task string is ~1001 tokens, max is 1000."},
        {"error": "TASK_TOO_LARGE", "message": "Task string is ~1001 tokens, max is 1000."},
        {"error": "AGENT_NOT_FOUND", "message": "Unknown agent: 'unknown'"},
        {"error": "MAX_TASKS_EXCEEDED", "message": "Maximum concurrent tasks (5) reached."},
    ]


@pytest.mark.promise("SPEC-3.2-INVALID-TOOL")
async def test_a_definition_may_name_the_tools_that_the_policy_allows() -> None:
    harness = SpecHarness(tools=(search_logs,), policy=retinue.Policy(excluded_tools=("search_logs",)))
    define = {"description": "d", "system_prompt": "p"}

    played = await harness.play(
        together(
            subagent("define", name="a", tools=["work", "shared_context"], **define),
            subagent("define", name="b", tools=["search_logs"], **define),
            subagent("define", name="c", tools=["rm_rf"], **define),
        ),
        says("enough"),
    )

    available = {"available_tools": ", ".join(("work", *BUILTIN, "shared_context"))}
    assert played.answers == [
        {"defined": "a", "description": "d"},
        {"error": "INVALID_TOOL", "message": "Tool not in application registry: 'search_logs'", **available},
        {"error": "INVALID_TOOL", "message": "Tool not in application registry: 'rm_rf'", **available},
    ]


@pytest.mark.promise("SPEC-2.1-KEPT", "SPEC-8.3-IDS", "SPEC-3.2-ALREADY-EXISTS")
async def test_defined_agents_and_task_ids_stay_with_their_session() -> None:
    first = SpecHarness(agents=(WORKER,))
    first.script.play("worker", says("done"))
    await first.play(
        subagent("define", name="analyst", description="Analyzes", system_prompt="You analyze."),
        subagent("spawn", agent="worker", task="Work."),
        other_work(3),
        says("later"),
    )
    again = SpecHarness(agents=(WORKER,), store=first.store)
    again.script.play("analyst", says("analyzed"))
    again.script.play(
        "main",
        subagent("define", name="analyst", description="Another", system_prompt="You do."),
        subagent("spawn", agent="analyst", task="Analyze."),
        subagent("collect", task_id="t_01"),
        says("enough"),
    )
    other = SpecHarness(agents=(WORKER,), store=first.store, session="s2")

    async with again.open(ids="later") as opened:
        handle = await opened.spawn("Go on.")
        await handle.wait()
        assert await answers(opened, handle.run_id) == [
            {"error": "AGENT_ALREADY_EXISTS", "message": "Agent already registered: 'analyst'"},
            {"task_id": "t_02", "agent": "analyst", "status": "running"},
            {"task_id": "t_01", "agent": "worker", "status": "completed", "result": "done", "turns_used": 1},
        ]
    other.script.play(
        "main", together(subagent("spawn", agent="analyst", task="A."), subagent("status", task_id="t_01")), says("x")
    )
    async with other.open(ids="other") as opened:
        handle = await opened.spawn("Go.")
        await handle.wait()
        assert [answer["error"] for answer in await answers(opened, handle.run_id)] == [
            "AGENT_NOT_FOUND",
            "TASK_NOT_FOUND",
        ]


@pytest.mark.promise("SPEC-PARENT-ENDS", "SPEC-PARENT-ENDS-TOLD")
async def test_running_tasks_are_cancelled_when_the_orchestrator_ends_and_listed() -> None:
    worker = retinue.Agent(name="worker", tools=("work",))
    harness = SpecHarness(agents=(worker,))
    harness.script.play("worker", other_work(1000), task="Work on")
    harness.script.play("worker", says("done"), task="Be quick")
    spawns = [subagent("spawn", agent="worker", task=task) for task in ("Work on A.", "Be quick.", "Work on B.")]
    harness.script.play("main", together(*spawns), other_work(5), says("I am off"))

    async with harness.open() as opened:
        handle = await opened.spawn("Go.")
        await handle.wait()
        await opened.wait(*(view.run_id for view in await opened.tree(handle)))
        tree = await opened.tree(handle)

    assert {view.handle.name: view.outcome.reason for view in tree if view.handle and view.outcome} == {
        "t_01": "parent_ended",
        "t_02": "answered",
        "t_03": "parent_ended",
    }
    assert cancelled_notice(tree) == "cancelled 2 running task(s): t_01, t_03"
    assert cancelled_notice([]) is None


@pytest.mark.promise("SPEC-6.1-AGENTS", "SPEC-6.2-DISCIPLINE", "SPEC-6.3-COMPOSITION", "SPEC-2.2-OFFERED")
async def test_the_orchestrator_has_the_system_text_about_delegation() -> None:
    harness = SpecHarness(agents=(WORKER,))

    await harness.play(context("list_keys"), says("enough"))

    offered = ("work", "subagent", "shared_context")
    assert [request.tools for request in harness.requests_of("main")] == [offered, offered]
    assert {request.system for request in harness.requests_of("main")} == {
        orchestrator_text((WORKER,), offered, DEFAULTS.on)
    }


@pytest.mark.promise("SPEC-2.3-TIMES")
async def test_the_times_of_creation_and_completion_are_stored() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("found it"))
    await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(2),
        subagent("collect", task_id="t_01"),
        says("enough"),
    )

    (task,) = [row for row in harness.store.runs(RunQuery()) if row.agent == "worker"]
    began = VirtualClock(asyncio.get_running_loop()).now() - asyncio.get_running_loop().time()
    assert (round(task.accepted_at - began, 1), round((task.progress.ended_at or 0.0) - began, 1)) == (1.0, 2.0)
