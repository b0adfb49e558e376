"""Token budgets of single tasks, and of all subagents of a session."""

import json
from pathlib import Path

import pytest

import retinue
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.requests import Spawn, parse
from retinue.dialects.spec.settings import SpecSettings
from retinue.providers.scripted import says, together
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.spec.harness import SpecHarness, other_work, subagent

WORKER = retinue.Agent(name="worker", tools=("work",))
SPAWN = {"action": "spawn", "agent": "worker", "task": "Work."}


@pytest.mark.promise("SPEC-7.6-TASK", "SPEC-7.6-SPENT")
@pytest.mark.parametrize(
    ("budget", "error"),
    [
        ({"max_input_tokens": 5000}, "Token budget exceeded: used 4900, limit 5000"),
        ({"max_output_tokens": 1010}, "Token budget exceeded: used 1000, limit 1010"),
        ({"max_input_tokens": 5000, "max_output_tokens": 100_000}, "Token budget exceeded: used 4900, limit 5000"),
    ],
)
async def test_a_task_that_used_up_its_tokens_fails_with_the_numbers(budget: dict[str, int], error: str) -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", together(other_work(0), says("x" * 2000, usage=Usage(4900, 1000))))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work.", **budget),
        other_work(10),
        subagent("collect", task_id="t_01"),
        says("enough"),
    )

    assert played.answers[1] == {
        "task_id": "t_01",
        "agent": "worker",
        "status": "failed",
        "turns_used": 1,
        "error": error,
        "result": None,
    }


@pytest.mark.promise("SPEC-7.6-TASK")
async def test_a_task_that_stays_within_its_budget_completes() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("done", usage=Usage(100, 10)))

    played = await harness.play(
        subagent("spawn", agent="worker", task="Work.", max_input_tokens=5000, max_output_tokens=5000),
        other_work(10),
        subagent("collect", task_id="t_01"),
        says("enough"),
    )

    assert (played.answers[1]["status"], played.answers[1]["result"]) == ("completed", "done")


@pytest.mark.promise("SPEC-7.6-TASK")
async def test_a_tasks_budget_never_exceeds_its_agents() -> None:
    harness = SpecHarness(
        agents=(retinue.Agent(name="worker", limits=Limits(max_input_tokens=700, max_output_tokens=300)),)
    )
    harness.script.play("worker", says("done"))
    harness.script.play(
        "main",
        subagent("spawn", agent="worker", task="Work.", max_input_tokens=5000, max_output_tokens=20),
        other_work(5),
        says("enough"),
    )
    async with harness.open() as opened:
        await opened.run("Go.")
        (view,) = [each for each in await opened.list(everyone=True) if each.agent == "worker"]
        limits = (await opened.supervisor.replay(view.run_id)).accepted.limits

    assert (limits.max_input_tokens, limits.max_output_tokens) == (700, 20)


@pytest.mark.promise("SPEC-7.6-SESSION", "SPEC-7.6-SUBAGENTS", "SPEC-7.6-SPENT")
async def test_all_subagents_of_a_session_share_its_budget_and_the_orchestrator_does_not(tmp_path: Path) -> None:
    def harness() -> SpecHarness:
        return SpecHarness(
            agents=(WORKER,),
            store=SqliteStore(tmp_path / "state.db"),
            settings=SpecSettings(max_input_tokens=10_000, max_output_tokens=100_000),
        )

    first, second = harness(), harness()
    first.script.play("worker", says("done", usage=Usage(4990, 10)))
    played = await first.play(
        together(
            subagent("spawn", agent="worker", task="One."), says("", usage=Usage(input=1_000_000, output=1_000_000))
        ),
        other_work(5),
        subagent("spawn", agent="worker", task="Two."),
        other_work(5),
        subagent("spawn", agent="worker", task="Three."),
        other_work(5),
        *[subagent("collect", task_id=f"t_{number:02d}") for number in (1, 2, 3)],
        says("enough"),
    )
    later = SpecHarness(agents=(WORKER,), store=second.store, settings=SpecSettings(max_input_tokens=10_000))
    later.script.play(
        "main",
        subagent("spawn", agent="worker", task="Four."),
        subagent("wait", task_ids=["t_04"]),
        subagent("collect", task_id="t_04"),
        says("enough"),
    )
    async with later.open(ids="later") as opened:
        handle = await opened.spawn("Go on.")
        await handle.wait()
        run = await opened.supervisor.replay(handle.run_id)

    spent = "Token budget exceeded: used 9980, limit 10000"
    assert [each["status"] for each in played.answers[3:]] == ["completed", "completed", "failed"]
    assert (played.answers[5]["error"], played.answers[5]["turns_used"]) == (spent, 0)
    assert json.loads(run.history[-2].text)["error"] == spent, "the budget is the session's, not the process's"


@pytest.mark.promise("SPEC-7.6-SESSION")
async def test_a_recreated_session_has_its_whole_budget_again() -> None:
    harness = SpecHarness(agents=(WORKER,), settings=SpecSettings(max_output_tokens=5000))
    harness.script.play("worker", says("done", usage=Usage(10, 5000)))
    lines = [subagent("spawn", agent="worker", task="One."), other_work(5), says("enough")]
    harness.script.play("main", *lines)
    async with harness.open() as opened:
        await opened.run("Go.")
        await opened.sessions.delete("s1")
    harness.script.play("main", *lines)
    async with harness.open(ids="later") as opened:
        await opened.run("Go.")
        ends = [view.outcome for view in await opened.list(everyone=True) if view.agent == "worker"]

    assert [end.result for end in ends if end is not None] == ["completed", "completed"]


@pytest.mark.promise("SPEC-7.6-SPENT", "SPEC-7.4-FAILED")
async def test_a_dependent_task_reads_that_its_dependency_ran_out_of_tokens() -> None:
    harness = SpecHarness(agents=(WORKER,), settings=SpecSettings(max_input_tokens=3))
    harness.script.play("worker")

    played = await harness.play(
        subagent("spawn", agent="worker", task="One."),
        subagent("spawn", agent="worker", task="Two.", depends_on=["t_01"]),
        other_work(5),
        subagent("collect", task_id="t_02"),
        says("enough"),
    )

    assert played.answers[2]["error"] == "Dependency t_01 failed: Token budget exceeded: used 0, limit 3"


@pytest.mark.promise("SPEC-7.6-POSITIVE", "SPEC-5-INVALID-REQUEST")
@pytest.mark.parametrize("field", ["max_input_tokens", "max_output_tokens"])
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0, "at least 1, got 0"),
        (-(10**400), "at least 1, got -9007199254740992"),
        (1.5, "an integer, got a number"),
        (True, "an integer, got a boolean"),
        ("50000", "an integer, got a string"),
        (None, "an integer, got null"),
        ([], "an integer, got a list"),
    ],
)
def test_a_budget_is_a_whole_number_from_1(field: str, value: object, wanted: str) -> None:
    with pytest.raises(CodedRefusal) as refused:
        parse(json.dumps(SPAWN | {field: value}))

    assert (refused.value.code, refused.value.message) == ("INVALID_REQUEST", f"Field '{field}' must be {wanted}.")


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (50_000.0, 50_000), (10**400, 2**53), (1e308, 2**53)])
def test_a_huge_budget_is_cut_to_the_largest_exact_number(asked: float, given: int) -> None:
    assert parse(json.dumps(SPAWN | {"max_input_tokens": asked})) == Spawn("worker", "Work.", (), given)
