"""The action `wait`, and the hint for orchestrators that poll."""

import asyncio
import json

import pytest

import retinue
from retinue.core.run import Limits
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.dialect import REMEMBERED, StatusPolls
from retinue.dialects.spec.requests import WaitForTasks, parse
from retinue.dialects.spec.settings import EXTENSIONS, SpecSettings
from retinue.providers.scripted import Line, says, together
from retinue.testing.virtual_time import VirtualClock
from tests.dialects.spec.harness import Answer, SpecHarness, other_work, read_after, subagent, waiting_orchestrator

QUICK = retinue.Agent(name="quick", tools=("work",))
SLOW = retinue.Agent(name="slow", tools=("work",))


def harness_with_both() -> SpecHarness:
    harness = SpecHarness(agents=(QUICK, SLOW))
    harness.script.play("quick", other_work(10), says("soon"))
    harness.script.play("slow", other_work(100), says("later"))
    return harness


SPAWN_THREE: list[Line] = [
    together(
        subagent("spawn", agent="quick", task="One."),
        subagent("spawn", agent="quick", task="Two."),
        subagent("spawn", agent="slow", task="Three."),
    )
]
ALL_THREE = ["t_01", "t_02", "t_03"]


@pytest.mark.promise("SPEC-9.6-WAIT", "SPEC-9.6-MODE")
@pytest.mark.parametrize(
    ("mode", "done", "seconds"),
    [
        ({}, ALL_THREE, 102),
        ({"mode": "all"}, ALL_THREE, 102),
        ({"mode": "any"}, ["t_01", "t_02"], 12),
        ({"mode": 2}, ["t_01", "t_02"], 12),
        ({"mode": 2.0}, ["t_01", "t_02"], 12),
        ({"mode": 3}, ALL_THREE, 102),
        ({"mode": 99}, ALL_THREE, 102),
    ],
)
async def test_wait_returns_when_enough_tasks_have_ended(mode: Answer, done: list[str], seconds: float) -> None:
    began: list[float] = []
    harness = harness_with_both()
    async with waiting_orchestrator(harness) as (opened, caller):
        for index, agent in enumerate(("quick", "quick", "slow")):
            await read_after(opened, caller(index), "subagent", action="spawn", agent=agent, task="Go.")
        began.append(asyncio.get_running_loop().time())
        answer = await read_after(opened, caller(5), "subagent", action="wait", task_ids=ALL_THREE, **mode)
        began.append(asyncio.get_running_loop().time())

    pending = [task_id for task_id in ALL_THREE if task_id not in done]
    assert answer == {"done": done, "pending": pending, "timed_out": False}
    assert began[1] - began[0] == pytest.approx(seconds)


@pytest.mark.promise("SPEC-9.6-TIMEOUT")
async def test_wait_returns_at_its_timeout_with_the_ended_tasks() -> None:
    played = await harness_with_both().play(
        *SPAWN_THREE,
        subagent("wait", task_ids=ALL_THREE, timeout_ms=50_000),
        subagent("wait", task_ids=["t_03", "t_01"], mode="any", timeout_ms=0),
        subagent("wait", task_ids=["t_03"], timeout_ms=-5),
        other_work(100),
        says("enough"),
    )

    assert played.answers[3:] == [
        {"done": ["t_01", "t_02"], "pending": ["t_03"], "timed_out": True},
        {"done": ["t_01"], "pending": ["t_03"], "timed_out": False},
        {"done": [], "pending": ["t_03"], "timed_out": True},
    ]


@pytest.mark.promise("SPEC-9.6-TIMEOUT")
def test_the_time_is_ten_minutes_by_default_and_an_hour_at_most() -> None:
    def timeout(**fields: object) -> object:
        request = parse(json.dumps({"action": "wait", "task_ids": ["t_01"]} | fields))
        return request.timeout_ms if isinstance(request, WaitForTasks) else None

    assert timeout() == 600_000
    assert [timeout(timeout_ms=asked) for asked in (1, 3_600_001, 10**400, -1)] == [1, 3_600_000, 3_600_000, 0]


@pytest.mark.promise("SPEC-9.6-WAIT")
async def test_wait_accepts_no_tasks_and_repeated_tasks() -> None:
    harness = SpecHarness(agents=(QUICK,))
    harness.script.play("quick", says("soon"))
    played = await harness.play(
        subagent("spawn", agent="quick", task="One."),
        subagent("wait", task_ids=[]),
        subagent("wait", task_ids=["t_01", "t_01"]),
        says("enough"),
    )

    assert played.answers[1:] == [
        {"done": [], "pending": [], "timed_out": False},
        {"done": ["t_01"], "pending": [], "timed_out": False},
    ]


@pytest.mark.promise("SPEC-9.6-BLOCKS")
async def test_a_waiting_run_is_shown_as_waiting_and_has_no_tool_timeout() -> None:
    harness = harness_with_both()
    harness.script.play(
        "main", subagent("spawn", agent="slow", task="One."), subagent("wait", task_ids=["t_01"]), says("enough")
    )
    async with harness.open() as opened:
        handle = await opened.spawn("Go.", limits=Limits(tool_timeout=5))
        await asyncio.sleep(1.5)
        spawning = await handle.look()
        await asyncio.sleep(30)
        waiting = await handle.look()
        outcome = await handle.wait()
        run = await opened.supervisor.replay(handle.run_id)

    assert (spawning.state, spawning.waiting_for) == ("working", None)
    assert (waiting.state, waiting.waiting_for) == ("waiting", "child")
    assert outcome.text == "enough"
    assert json.loads(run.history[4].text) == {"done": ["t_01"], "pending": [], "timed_out": False}


@pytest.mark.promise("SPEC-9.6-BLOCKS")
async def test_other_calls_of_the_same_turn_go_on_while_one_waits() -> None:
    harness = harness_with_both()
    harness.script.play(
        "main",
        subagent("spawn", agent="slow", task="One."),
        together(subagent("wait", task_ids=["t_01"]), subagent("list_agents"), other_work(20)),
        says("enough"),
    )
    async with harness.open() as opened:
        handle = await opened.spawn("Go.")
        await asyncio.sleep(10)
        both = await handle.look()
        await asyncio.sleep(30)
        alone = await handle.look()
        await handle.wait()

    assert (both.state, alone.state) == ("working", "waiting")


@pytest.mark.promise("SPEC-9.6-NOT-FOUND")
async def test_waiting_for_an_unknown_task_is_refused_at_once() -> None:
    harness = harness_with_both()
    async with waiting_orchestrator(harness) as (opened, caller):
        await read_after(opened, caller(0), "subagent", action="spawn", agent="slow", task="One.")
        before = asyncio.get_running_loop().time()
        answer = await read_after(opened, caller(1), "subagent", action="wait", task_ids=["t_01", "t_02"])
        after = asyncio.get_running_loop().time()

    assert answer == {"error": "TASK_NOT_FOUND", "message": "Unknown or already-collected task: 't_02'"}
    assert before == after


@pytest.mark.promise("SPEC-9.6-MODE", "SPEC-5-INVALID-REQUEST")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Field 'task_ids' is required for action 'wait'."),
        ({"task_ids": "t_01"}, "Field 'task_ids' must be a list of strings, got a string."),
        ({"task_ids": [1]}, "Field 'task_ids' must be a list of strings, got a number in it."),
        ({"task_ids": [], "mode": "some"}, "Field 'mode' must be 'any', 'all' or a number of tasks, got: 'some'"),
        ({"task_ids": [], "mode": None}, "Field 'mode' must be 'any', 'all' or a number of tasks, got null."),
        ({"task_ids": [], "mode": ["any"]}, "Field 'mode' must be 'any', 'all' or a number of tasks, got a list."),
        ({"task_ids": [], "mode": 0}, "Field 'mode' must be at least 1, got 0."),
        ({"task_ids": [], "mode": 1.5}, "Field 'mode' must be an integer, got a number."),
        ({"task_ids": [], "mode": True}, "Field 'mode' must be an integer, got a boolean."),
        ({"task_ids": [], "timeout_ms": "5"}, "Field 'timeout_ms' must be an integer, got a string."),
        ({"task_ids": [], "timeout_ms": None}, "Field 'timeout_ms' must be an integer, got null."),
    ],
)
def test_a_wait_with_other_fields_is_refused(fields: Answer, message: str) -> None:
    with pytest.raises(CodedRefusal) as refused:
        parse(json.dumps({"action": "wait"} | fields))

    assert (refused.value.code, refused.value.message) == ("INVALID_REQUEST", message)


# ---- polling --------------------------------------------------------------------------------------------------------


HINT = (
    "Status was asked for more than 10 times within 10 s. Do other work before you ask again, or use the wait action."
)


@pytest.mark.promise("SPEC-9.6-HINT")
async def test_the_eleventh_question_within_ten_seconds_is_answered_with_a_hint() -> None:
    harness = harness_with_both()
    async with waiting_orchestrator(harness) as (opened, caller):
        for index in range(2):
            await read_after(opened, caller(index), "subagent", action="spawn", agent="slow", task="One.")

        async def status(task_id: str = "t_01") -> Answer:
            return await read_after(opened, caller(9), "subagent", action="status", task_id=task_id)

        polite = [await status() for _ in range(10)]
        other = await status("t_02")
        await asyncio.sleep(9)
        eleventh = await status()
        await asyncio.sleep(11)
        rested = await status()

    assert [answer for answer in (*polite, other, rested) if "hint" in answer] == []
    assert eleventh == {"task_id": "t_01", "agent": "slow", "status": "running", "turns_used": 1, "hint": HINT}


@pytest.mark.promise("SPEC-9.6-HINT")
async def test_the_hint_names_only_available_actions_and_can_be_switched_off() -> None:
    async def eleventh(*extensions: str) -> Answer:
        harness = SpecHarness(agents=(SLOW,), settings=SpecSettings(extensions=extensions))
        harness.script.play("slow", other_work(100), says("later"))
        async with waiting_orchestrator(harness) as (opened, caller):
            await read_after(opened, caller(0), "subagent", action="spawn", agent="slow", task="One.")
            asked = [
                await read_after(opened, caller(1), "subagent", action="status", task_id="t_01") for _ in range(11)
            ]
        return asked[-1]

    without_wait = await eleventh("hint")
    without_hint = await eleventh(*(name for name in EXTENSIONS if name != "hint"))

    assert str(without_wait["hint"]).endswith("Do other work before you ask again.")
    assert "hint" not in without_hint


async def test_status_requests_are_counted_per_task_and_old_ones_forgotten() -> None:
    polls = StatusPolls(VirtualClock())

    assert [polls.is_storm("s1", "t_01") for _ in range(11)] == [*[False] * 10, True]
    assert not polls.is_storm("s2", "t_01")
    polls.forget("s1", "t_01")
    polls.forget("s1", "t_99")
    assert not polls.is_storm("s1", "t_01")
    assert [polls.is_storm("s2", "t_01") for _ in range(10)] == [*[False] * 9, True]
    for number in range(REMEMBERED):
        polls.is_storm("s3", f"t_{number}")
    assert not polls.is_storm("s2", "t_01"), "so many others were asked about since"
