"""The action `cancel`: the task stops, its partial result is returned, and its id is invalid."""

import asyncio

import pytest

import retinue
from retinue.providers.scripted import says, streams, together
from tests.dialects.spec.harness import SpecHarness, other_work, read_after, subagent, waiting_orchestrator

WORKER = retinue.Agent(name="worker", system_prompt="You work.", tools=("work",))
CANCEL = {"action": "cancel", "task_id": "t_01"}
SPAWN = {"action": "spawn", "agent": "worker", "task": "Work."}
UNKNOWN = {"error": "TASK_NOT_FOUND", "message": "Unknown or already-collected task: 't_01'"}


@pytest.mark.promise("SPEC-7.1-CANCEL", "SPEC-7.1-GONE")
async def test_cancel_returns_the_last_text_and_invalidates_the_task_id() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", together(says("The pool looks small."), other_work(1000)))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(5),
        subagent("cancel", task_id="t_01"),
        subagent("status", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        subagent("cancel", task_id="t_01"),
        says("enough"),
    )

    assert played.answers[1:] == [
        {
            "task_id": "t_01",
            "agent": "worker",
            "status": "cancelled",
            "result": "The pool looks small.",
            "turns_used": 1,
        },
        *[UNKNOWN] * 3,
    ]


@pytest.mark.promise("SPEC-7.1-CANCEL")
async def test_cancel_returns_text_that_is_still_streaming() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", streams("The pool", " is 10", every=10))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(8),
        subagent("cancel", task_id="t_01"),
        says("enough"),
    )

    assert played.answers[1]["result"] == "The pool"
    assert (played.answers[1]["status"], played.answers[1]["turns_used"]) == ("cancelled", 0)


@pytest.mark.promise("SPEC-7.1-SILENT")
async def test_a_cancelled_task_without_text_has_no_result() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."), subagent("cancel", task_id="t_01"), says("enough")
    )

    assert (played.answers[1]["status"], played.answers[1]["result"]) == ("cancelled", None)


@pytest.mark.promise("SPEC-7.1-CANCEL", "SPEC-4.3-RUNNING-ONLY")
async def test_a_cancelled_task_makes_room_for_another() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))
    async with waiting_orchestrator(harness) as (opened, caller):
        for index in range(5):
            await read_after(opened, caller(index), "subagent", **SPAWN)
        refused = await read_after(opened, caller(5), "subagent", **SPAWN)
        await read_after(opened, caller(6), "subagent", **CANCEL)
        sixth = await read_after(opened, caller(7), "subagent", **SPAWN)

    assert refused["error"] == "MAX_TASKS_EXCEEDED"
    assert sixth["task_id"] == "t_06"


@pytest.mark.promise("SPEC-7.1-FINISHED")
async def test_cancel_of_an_ended_task_collects_it() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("found it"))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(5),
        subagent("cancel", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        says("enough"),
    )

    assert played.answers[1:] == [
        {"task_id": "t_01", "agent": "worker", "status": "completed", "turns_used": 1, "result": "found it"},
        UNKNOWN,
    ]


@pytest.mark.promise("SPEC-7.1-FINISHED")
async def test_a_task_that_an_operator_cancelled_has_failed() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **SPAWN)
        (worker,) = [view for view in await opened.list(everyone=True) if view.agent == "worker"]
        await opened.handle(worker.run_id).cancel()
        await asyncio.sleep(1)
        answer = await read_after(opened, caller(1), "subagent", **CANCEL)

    assert (answer["status"], answer["result"], answer["error"]) == ("failed", None, "Task cancelled")


@pytest.mark.promise("SPEC-7.1-NOT-FOUND")
async def test_an_unknown_task_cannot_be_cancelled() -> None:
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        assert await read_after(opened, caller(0), "subagent", **CANCEL) == UNKNOWN


@pytest.mark.promise("SPEC-KEYED", "SPEC-7.1-GONE")
async def test_a_cancel_that_is_entered_again_answers_the_same_and_other_calls_fail() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", together(says("So far."), other_work(1000)))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **SPAWN)
        await asyncio.sleep(5)
        first = await read_after(opened, caller(1), "subagent", **CANCEL)
        again = await read_after(opened, caller(1, again=True), "subagent", **CANCEL)
        other = await read_after(opened, caller(2), "subagent", **CANCEL)

    assert (first["status"], first["result"]) == ("cancelled", "So far.")
    assert again == first
    assert other == UNKNOWN


@pytest.mark.promise("SPEC-7.1-CANCEL", "SPEC-7.4-PENDING")
async def test_a_pending_task_can_be_cancelled_and_those_that_depend_on_it_fail() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **SPAWN)
        await read_after(opened, caller(1), "subagent", **SPAWN, depends_on=["t_01"])
        await read_after(opened, caller(2), "subagent", **SPAWN, depends_on=["t_02"])
        cancelled = await read_after(opened, caller(3), "subagent", action="cancel", task_id="t_02")
        await asyncio.sleep(1)
        third = await read_after(opened, caller(4), "subagent", action="collect", task_id="t_03")

    assert cancelled == {"task_id": "t_02", "agent": "worker", "status": "cancelled", "result": None, "turns_used": 0}
    assert third["error"] == "Dependency t_02 failed: Task cancelled by the orchestrator"
