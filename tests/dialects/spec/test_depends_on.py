"""Tasks with dependencies: they wait, read the results, and fail if a dependency fails."""

import asyncio
import json

import pytest

import retinue
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.requests import Spawn, parse
from retinue.dialects.spec.settings import SpecSettings
from retinue.providers.scripted import calls, says
from tests.dialects.spec.harness import Answer, SpecHarness, other_work, read_after, subagent, waiting_orchestrator

RESEARCHER = retinue.Agent(name="researcher", system_prompt="You research.", tools=("work",), max_turns=2)
WRITER = retinue.Agent(name="writer", system_prompt="You write.")
SUFFIX = (
    "You are a subagent. Keep your final response concise (under 1000 tokens). Write detailed findings to shared "
    "context rather than including them in your response. Your response will be returned to the orchestrator as a "
    "summary of your work."
)
RESEARCH = {"action": "spawn", "agent": "researcher", "task": "Look."}
WRITE = {"action": "spawn", "agent": "writer", "task": "Summarize findings"}


def unknown(task_id: str) -> Answer:
    return {"error": "TASK_NOT_FOUND", "message": f"Unknown or already-collected task: '{task_id}'"}


@pytest.mark.promise("SPEC-7.4-PENDING", "SPEC-7.4-NOT-READY", "SPEC-7.4-RESULTS")
async def test_a_task_is_pending_until_its_dependencies_completed_and_reads_results() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", other_work(20), says("The pool is 10."))
    harness.script.play("writer", says("Summarized."))

    played = await harness.play(
        subagent("spawn", agent="researcher", task="Look."),
        subagent("spawn", agent="researcher", task="Look elsewhere."),
        subagent("spawn", agent="writer", task="Summarize findings", depends_on=["t_01", "t_02"]),
        subagent("status", task_id="t_03"),
        subagent("collect", task_id="t_03"),
        subagent("wait", task_ids=["t_03"]),
        subagent("collect", task_id="t_03"),
        says("enough"),
    )

    pending: Answer = {"task_id": "t_03", "agent": "writer", "status": "pending"}
    assert played.answers[2:] == [
        pending,
        pending | {"turns_used": 0},
        {"error": "TASK_NOT_READY", "message": "Task 't_03' is still pending: it waits for other tasks."},
        {"done": ["t_03"], "pending": [], "timed_out": False},
        pending | {"status": "completed", "turns_used": 1, "result": "Summarized."},
    ]
    (request,) = harness.requests_of("writer")
    assert [message.text for message in request.messages] == ["Summarize findings"]
    assert request.system == (
        "You write.\n\nThe tasks that yours depends on have completed. Their results:\n\n"
        f"[t_01]\nThe pool is 10.\n\n[t_02]\nThe pool is 10.\n\n{SUFFIX}"
    )


@pytest.mark.promise("SPEC-7.4-RESULTS", "SPEC-4.1-RESULT")
async def test_results_of_dependencies_are_cut_like_collected_ones() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", says("x" * 5000))
    harness.script.play("writer", says("ok"))

    await harness.play(
        subagent("spawn", agent="researcher", task="Look."),
        subagent("spawn", agent="writer", task="Write.", depends_on=["t_01"]),
        subagent("wait", task_ids=["t_02"]),
        says("enough"),
    )

    cut = "x" * 4000 + "\n[truncated — full response exceeded 1000 token limit]"
    assert f"[t_01]\n{cut}\n\n{SUFFIX}" in harness.requests_of("writer")[0].system


@pytest.mark.promise("SPEC-7.4-PENDING", "SPEC-7.4-RESULTS")
async def test_a_task_may_depend_on_an_ended_task() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", says("early"))
    harness.script.play("writer", says("ok"))

    played = await harness.play(
        subagent("spawn", agent="researcher", task="Look."),
        other_work(5),
        subagent("spawn", agent="writer", task="Write.", depends_on=["t_01", "t_01"]),
        subagent("collect", task_id="t_01"),
        other_work(5),
        subagent("collect", task_id="t_02"),
        says("enough"),
    )

    assert played.answers[1] == {"task_id": "t_02", "agent": "writer", "status": "pending"}
    assert played.answers[3]["result"] == "ok"
    assert "\n\n[t_01]\nearly\n\n" in harness.requests_of("writer")[0].system


@pytest.mark.promise("SPEC-7.4-FAILED")
async def test_a_failed_dependency_fails_all_that_depend_on_it_with_the_reason() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", *[calls("work", seconds=1)] * 2)

    played = await harness.play(
        subagent("spawn", agent="researcher", task="Look."),
        subagent("spawn", agent="writer", task="Write.", depends_on=["t_01"]),
        subagent("spawn", agent="writer", task="Print.", depends_on=["t_02"]),
        other_work(10),
        subagent("status", task_id="t_02"),
        subagent("collect", task_id="t_03"),
        says("enough"),
    )

    error = "Dependency t_01 failed: Max turns exceeded without producing a final response"
    failed: Answer = {"agent": "writer", "status": "failed", "turns_used": 0}
    assert played.answers[3:] == [
        failed | {"task_id": "t_02", "error": error},
        failed | {"task_id": "t_03", "error": f"Dependency t_02 failed: {error}", "result": None},
    ]
    assert harness.requests_of("writer") == []


@pytest.mark.promise("SPEC-7.4-UNKNOWN", "SPEC-7.4-NO-CYCLES")
async def test_a_task_depends_on_existing_tasks_only_so_there_are_no_cycles() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", says("done"))
    harness.script.play("writer", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        itself = await read_after(opened, caller(0), "subagent", **WRITE, depends_on=["t_01"])
        first = await read_after(opened, caller(1), "subagent", **RESEARCH)
        own_or_later = await read_after(opened, caller(2), "subagent", **WRITE, depends_on=["t_01", "t_02"])
        await asyncio.sleep(5)
        await read_after(opened, caller(3), "subagent", action="collect", task_id="t_01")
        collected = await read_after(opened, caller(4), "subagent", **WRITE, depends_on=["t_01"])
        writers = [view.agent for view in await opened.list(everyone=True)].count("writer")

    assert (itself, own_or_later, collected) == (unknown("t_01"), unknown("t_02"), unknown("t_01"))
    assert first["task_id"] == "t_01"
    assert writers == 0


@pytest.mark.promise("SPEC-7.4-FREE", "SPEC-4.3-FIVE")
async def test_a_pending_task_does_not_count_as_running() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", other_work(100), says("done"))
    harness.script.play("writer", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        for index in range(4):
            await read_after(opened, caller(index), "subagent", **RESEARCH)
        pending = [
            await read_after(opened, caller(4 + index), "subagent", **WRITE, depends_on=["t_01"]) for index in range(3)
        ]
        fifth = await read_after(opened, caller(7), "subagent", **RESEARCH)
        another = await read_after(opened, caller(8), "subagent", **WRITE, depends_on=["t_08"])
        sixth = await read_after(opened, caller(9), "subagent", **RESEARCH)
        task_ids = [f"t_{number:02d}" for number in range(1, 10)]
        waited = await read_after(opened, caller(10), "subagent", action="wait", task_ids=task_ids)

    assert [each["status"] for each in (*pending, fifth, another)] == [*["pending"] * 3, "running", "pending"]
    assert sixth == {"error": "MAX_TASKS_EXCEEDED", "message": "Maximum concurrent tasks (5) reached."}
    assert waited == {"done": task_ids, "pending": [], "timed_out": False}


@pytest.mark.promise("SPEC-7.4-FREE")
async def test_a_task_with_ended_dependencies_counts_as_running() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("writer", says("done"))
    harness.script.play("researcher", other_work(100), says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **WRITE)
        await asyncio.sleep(5)
        for index in range(1, 6):
            await read_after(opened, caller(index), "subagent", **RESEARCH)
        refused = await read_after(opened, caller(6), "subagent", **WRITE, depends_on=["t_01"])

    assert refused["error"] == "MAX_TASKS_EXCEEDED"


@pytest.mark.promise("SPEC-7.4-PLACE", "SPEC-4.3-FIVE")
async def test_ready_tasks_start_one_by_one_as_running_tasks_end() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER), settings=SpecSettings(max_running=2))
    harness.script.play("researcher", other_work(10), says("done"))
    harness.script.play("writer", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **RESEARCH)
        for index in range(1, 6):
            await read_after(opened, caller(index), "subagent", **WRITE | {"task": f"{index}"}, depends_on=["t_01"])
        await asyncio.sleep(12.5)
        seen = [
            (await read_after(opened, caller(10 + number), "subagent", action="status", task_id=f"t_{number:02d}"))
            for number in range(1, 7)
        ]
        refused = await read_after(opened, caller(20), "subagent", **RESEARCH)
        not_ready = await read_after(opened, caller(21), "subagent", action="collect", task_id="t_06")
        began = [request.messages[0].text for request in harness.requests_of("writer")]
        cancelled = await read_after(opened, caller(22), "subagent", action="cancel", task_id="t_05")
        task_ids = ["t_02", "t_03", "t_04", "t_06"]
        waited = await read_after(opened, caller(23), "subagent", action="wait", task_ids=task_ids)

    assert [each["status"] for each in seen] == ["completed", "running", "running", "pending", "pending", "pending"]
    assert (refused["error"], not_ready["error"]) == ("MAX_TASKS_EXCEEDED", "TASK_NOT_READY")
    assert began == ["1", "2"]
    assert (cancelled["status"], cancelled["turns_used"]) == ("cancelled", 0)
    assert waited == {"done": task_ids, "pending": [], "timed_out": False}
    assert [request.messages[0].text for request in harness.requests_of("writer")] == ["1", "2", "3", "5"]


@pytest.mark.promise("SPEC-7.4-PLACE")
async def test_ready_tasks_still_wait_for_running_ones_after_a_restart() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER), settings=SpecSettings(max_running=2))
    harness.script.play("researcher", says("done"))
    harness.script.play("writer", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **RESEARCH)
        for index in range(1, 6):
            await read_after(opened, caller(index), "subagent", **WRITE | {"task": f"{index}"}, depends_on=["t_01"])
        await asyncio.sleep(1.5)
        assert len(harness.requests_of("writer")) == 2
        root = caller(0).run_id
    harness.requests.clear()
    most = 0
    async with harness.open(ids="again") as opened:
        await opened.resume(root)
        for _ in range(8):
            await asyncio.sleep(0.5)
            views = await opened.list(everyone=True)
            most = max(most, sum(view.agent == "writer" and view.state == "working" for view in views))
        ended = [view.outcome is not None for view in await opened.list(everyone=True) if view.agent == "writer"]

    assert (most, ended) == (2, [True] * 5)
    assert [request.messages[0].text for request in harness.requests_of("writer")] == ["1", "2", "3", "4", "5"]


@pytest.mark.promise("SPEC-7.4-ORDER")
async def test_dependencies_are_looked_at_after_the_agent_and_before_how_many_run() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", other_work(100), says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        for index in range(5):
            await read_after(opened, caller(index), "subagent", **RESEARCH)

        async def code(index: int, **fields: object) -> object:
            spawn = {"action": "spawn", "agent": "unknown", "task": "x" * 4004, "depends_on": ["t_99"]} | fields
            return (await read_after(opened, caller(index), "subagent", **spawn))["error"]

        assert await code(10, depends_on="t_01") == "INVALID_REQUEST"
        assert await code(11) == "TASK_TOO_LARGE"
        assert await code(12, task="x") == "AGENT_NOT_FOUND"
        assert await code(13, task="x", agent="writer") == "TASK_NOT_FOUND"
        assert await code(14, task="x", agent="writer", depends_on=[]) == "MAX_TASKS_EXCEEDED"


@pytest.mark.promise("SPEC-KEYED", "SPEC-7.4-PENDING")
async def test_a_spawn_that_is_entered_again_answers_the_same_without_dependencies() -> None:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    harness.script.play("researcher", says("done"))
    harness.script.play("writer", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **RESEARCH)
        first = await read_after(opened, caller(1), "subagent", **WRITE, depends_on=["t_01"])
        await asyncio.sleep(10)
        await read_after(opened, caller(2), "subagent", action="collect", task_id="t_01")
        again = await read_after(opened, caller(1, again=True), "subagent", **WRITE, depends_on=["t_01"])

    assert (first, again) == ({"task_id": "t_02", "agent": "writer", "status": "pending"}, first)


@pytest.mark.promise("SPEC-5-INVALID-REQUEST")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("t_01", "Field 'depends_on' must be a list of strings, got a string."),
        (None, "Field 'depends_on' must be a list of strings, got null."),
        ([1], "Field 'depends_on' must be a list of strings, got a number in it."),
        ({"t_01": True}, "Field 'depends_on' must be a list of strings, got an object."),
    ],
)
def test_dependencies_are_a_list_of_ids(value: object, message: str) -> None:
    with pytest.raises(CodedRefusal) as refused:
        parse(json.dumps(WRITE | {"depends_on": value}))

    assert (refused.value.code, refused.value.message) == ("INVALID_REQUEST", message)


def test_a_task_that_is_named_twice_is_one_dependency() -> None:
    assert parse(json.dumps(WRITE | {"depends_on": ["t_01", "t_01"]})) == Spawn(
        "writer", "Summarize findings", ("t_01",)
    )
