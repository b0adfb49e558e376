"""The action `progress`, while a task runs and after its end."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

import retinue
from retinue.providers.scripted import says, streams, together
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.spec.harness import Answer, SpecHarness, other_work, read_after, subagent, waiting_orchestrator

WORKER = retinue.Agent(name="worker", tools=("work",), max_turns=25)
PROGRESS = {"action": "progress", "task_id": "t_01"}
SPAWN = {"action": "spawn", "agent": "worker", "task": "Work."}


def entries(answer: Answer) -> list[Answer]:
    return cast("list[Answer]", answer["entries"])


@pytest.mark.promise("SPEC-7.2-PROGRESS", "SPEC-7.2-KINDS", "SPEC-7.2-ENDED")
async def test_progress_lists_texts_calls_and_results_by_turn_during_and_after_a_task() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", together(says("Let me look."), other_work(10)), says("The pool is 10."))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(3),
        subagent("progress", task_id="t_01"),
        other_work(20),
        subagent("progress", task_id="t_01"),
        says("enough"),
    )

    first: list[Answer] = [
        {"turn": 1, "kind": "text", "text": "Let me look."},
        {"turn": 1, "kind": "call", "text": 'work {"seconds":10}'},
    ]
    then: list[Answer] = [
        {"turn": 1, "kind": "result", "text": "work: worked"},
        {"turn": 2, "kind": "text", "text": "The pool is 10."},
    ]
    about = {"task_id": "t_01"}
    assert played.answers[1] == about | {"status": "running", "turns_used": 1, "entries": first, "more": False}
    assert played.answers[2] == about | {
        "status": "completed",
        "turns_used": 2,
        "entries": first + then,
        "more": False,
    }


@pytest.mark.promise("SPEC-7.2-NOW")
async def test_the_text_that_is_being_streamed_is_the_last_entry() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1), streams("The pool", " is", " 10", every=100))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **SPAWN)
        await asyncio.sleep(120)
        answer = await read_after(opened, caller(1), "subagent", **PROGRESS)

    assert (answer["turns_used"], entries(answer)[-1]) == (1, {"turn": 2, "kind": "text", "text": "The pool is"})


@pytest.mark.promise("SPEC-7.2-KINDS")
async def test_results_are_shown_before_the_other_calls_of_their_turn_return() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", together(other_work(1), other_work(1000)))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **SPAWN)
        await asyncio.sleep(10)
        answer = await read_after(opened, caller(1), "subagent", **PROGRESS)

    assert [entry["kind"] for entry in entries(answer)] == ["call", "call", "result"]


@pytest.mark.promise("SPEC-7.2-BOUNDED", "SPEC-7.2-MORE")
async def test_the_newest_twenty_entries_are_given_and_long_ones_are_cut() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", *[together(says("x" * 401), other_work(0))] * 10, says("done"))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(100),
        subagent("progress", task_id="t_01"),
        says("enough"),
    )

    given = entries(played.answers[1])
    assert (len(given), played.answers[1]["more"]) == (20, True)
    assert given[-1] == {"turn": 11, "kind": "text", "text": "done"}
    assert given[1] == {"turn": 5, "kind": "text", "text": "x" * 400 + " [...]"}


async def test_a_task_that_has_not_begun_has_made_no_progress() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", **SPAWN)
        await read_after(opened, caller(1), "subagent", **SPAWN, depends_on=["t_01"])
        answer = await read_after(opened, caller(2), "subagent", action="progress", task_id="t_02")

    assert answer == {"task_id": "t_02", "status": "pending", "turns_used": 0, "entries": [], "more": False}


@pytest.mark.promise("SPEC-7.2-NOT-FOUND")
async def test_an_unknown_task_makes_no_progress() -> None:
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        answer = await read_after(opened, caller(0), "subagent", **PROGRESS)

    assert answer == {"error": "TASK_NOT_FOUND", "message": "Unknown or already-collected task: 't_01'"}


@pytest.mark.promise("SPEC-7.2-ENDED")
async def test_another_process_reads_the_progress_of_an_ended_task(tmp_path: Path) -> None:
    def harness() -> SpecHarness:
        return SpecHarness(agents=(WORKER,), store=SqliteStore(tmp_path / "state.db"))

    first, second = harness(), harness()
    first.script.play("worker", together(says("Looking."), other_work(0)), says("Done."))
    await first.play(subagent("spawn", agent="worker", task="Work."), other_work(20), says("enough"))
    second.script.play("main", subagent("progress", task_id="t_01"), says("I see"))
    async with second.open(ids="later") as opened:
        handle = await opened.spawn("Go.")
        await handle.wait()
        run = await opened.supervisor.replay(handle.run_id)

    assert '"entries":[{"turn":1,"kind":"text","text":"Looking."}' in run.history[2].text
