"""`agent_status`, `agent_list`, `agent_cancel`, notices about ends, and how long ended sub-agents are remembered."""

import asyncio
import time
from typing import Any

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import CallContext, Request, Tool
from retinue.core.run import Limits
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.providers.scripted import Line, calls, fails, hangs, says, streams, together
from tests.dialects.meerkat.harness import MANY, TASK, MeerkatHarness, about, fork, name, slowly, spawn, started

MOST = MeerkatSettings(concurrency_limits=MANY)


# ---- status ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-STATUS", "MK-NOTICE-ONCE")
async def test_the_status_of_a_running_one_and_of_a_completed_one() -> None:
    harness = MeerkatHarness(
        spawn(),
        about("agent_status"),
        about("agent_status"),
        says("Thanks."),
        spawned={"find it": [streams("The ", "pool.", every=1.5)]},
        latency=1.0,
    )

    await harness.play()

    child = harness.row("root/sub-agent/1")
    used = child.progress.usage.total
    assert used > 0
    assert harness.texts()[1:] == [
        f'{{"agent_id":"{child.run_id}","state":"running","is_final":false,"duration_ms":1000}}',
        f'{{"agent_id":"{child.run_id}","state":"completed","output":"The pool.","is_final":true,'
        f'"duration_ms":1500,"tokens_used":{used}}}',
    ]


@pytest.mark.promise("MK-STATUS", "MK-STATUS-FAILED")
async def test_the_status_of_a_failed_one_a_cancelled_one_and_an_empty_one() -> None:
    harness = MeerkatHarness(
        together(spawn("fail"), spawn("stop"), spawn("be silent")),
        about("agent_cancel", 1),
        lambda request: together(*(calls("agent_status", agent_id=each) for each in started(request.messages))),
        says("Thanks."),
        spawned={
            "fail": [fails(ProviderError("no credit left", fault="bad_request"))],
            "stop": [hangs("so far")],
            "be silent": [slowly("", 0.5)],
        },
        latency=1.0,
    )

    await harness.play()

    failed, cancelled, silent = harness.answers()[4:]
    rows = [harness.row(f"root/sub-agent/{n}") for n in (1, 2, 3)]
    assert failed == {
        "agent_id": rows[0].run_id,
        "state": "failed",
        "error": harness.outcome("root/sub-agent/1").error,
        "is_final": True,
        "duration_ms": 0,
        "tokens_used": 0,
    }
    assert "no credit left" in failed["error"]
    assert cancelled == {"agent_id": rows[1].run_id, "state": "cancelled", "is_final": True, "duration_ms": 1000}
    assert silent == {
        "agent_id": rows[2].run_id,
        "state": "completed",
        "output": "",
        "is_final": True,
        "duration_ms": 500,
        "tokens_used": rows[2].progress.usage.total,
    }


# ---- list -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-LIST", "MK-LIST-CANCELLED", "MK-NAMES")
async def test_the_list_is_in_the_order_of_the_starts_with_its_counts() -> None:
    harness = MeerkatHarness(
        calls("agent_list"),
        together(spawn("one"), fork("two"), spawn("three"), spawn("four")),
        about("agent_cancel", 0),
        calls("agent_list"),
        says("Waiting."),
        says("Thanks."),
        spawned={
            "one": [hangs()],
            "three": [fails(ProviderError("no", fault="bad_request"))],
            "four": [slowly("4.", 9)],
        },
        forked={"two": [says("2.")]},
        latency=1.0,
    )

    await harness.play()

    one, two, three, four = harness.rows()[1:]
    assert harness.texts()[0] == (
        '{"agents":[],"running_count":0,"completed_count":0,"failed_count":0,"total_count":0}'
    )
    listed = harness.answers()[-1]
    assert listed == {
        "agents": [
            {"id": one.run_id, "name": name(one.run_id), "state": "cancelled", "depth": 1},
            {"id": two.run_id, "name": name(two.run_id, "fork"), "state": "completed", "depth": 1},
            {"id": three.run_id, "name": name(three.run_id), "state": "failed", "depth": 1},
            {"id": four.run_id, "name": name(four.run_id), "state": "running", "depth": 1, "running_ms": 2000},
        ],
        "running_count": 1,
        "completed_count": 1,
        "failed_count": 2,
        "total_count": 4,
    }


# ---- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-CANCEL", "MK-CANCEL-LATE", "MK-NOTICE-ONCE")
async def test_a_cancel_stops_the_sub_agent_and_a_second_one_is_too_late() -> None:
    harness = MeerkatHarness(
        together(spawn("dig"), spawn("quick")),
        about("agent_cancel", 0),
        lambda request: together(*(calls("agent_cancel", agent_id=each) for each in started(request.messages)[:2])),
        says("Thanks."),
        spawned={"dig": [slowly("The pool.", 60)], "quick": [says("Done.")]},
    )
    async with harness:
        began = harness.retinue.supervisor.clock.now()
        await harness.run(TASK)
        took = harness.retinue.supervisor.clock.now() - began

    dig, quick = harness.rows()[1:]
    late = "Cannot cancel sub-agent: already {} (only running agents can be cancelled)"
    assert harness.texts()[2] == (
        f'{{"agent_id":"{dig.run_id}","success":true,"previous_state":"running",'
        '"message":"Sub-agent cancelled successfully"}'
    )
    assert harness.answers()[3:] == [
        {"agent_id": dig.run_id, "success": False, "previous_state": "cancelled", "message": late.format("cancelled")},
        {
            "agent_id": quick.run_id,
            "success": False,
            "previous_state": "completed",
            "message": late.format("completed"),
        },
    ]
    assert took < 1
    assert harness.outcome("root/sub-agent/1").text == "T"
    notices = [message for message in harness.requests("root")[-1].messages if isinstance(message, UserMessage)][1:]
    assert [notice.text.splitlines()[0] for notice in notices] == [
        f"[sub-agent {name(quick.run_id)} completed] Task: quick"
    ]


@pytest.mark.promise("MK-CANCEL-LATE")
async def test_of_two_cancels_at_once_one_is_too_late() -> None:
    harness = MeerkatHarness(
        spawn(),
        lambda request: together(*2 * [calls("agent_cancel", agent_id=started(request.messages)[0])]),
        says("Thanks."),
        spawned={"find it": [hangs()]},
    )

    await harness.play()

    assert sorted(answer["success"] for answer in harness.answers()[1:]) == [False, True]


# ---- news -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-NOTICE", "MK-WAITS")
async def test_the_root_gets_a_notice_of_every_end_before_it_answers() -> None:
    task = "find " + "it " * 100
    harness = MeerkatHarness(
        together(spawn(task), spawn("fail")),
        says("Waiting."),
        says("One failed."),
        says("It was the pool."),
        spawned={
            "find": [slowly("The pool.\nIt is full.", 9)],
            "fail": [fails(ProviderError("no credit left", fault="bad_request"))],
        },
    )

    assert (await harness.play()).text == "It was the pool."

    found, failed = harness.rows()[1:]
    request = harness.requests("root")[-1].messages
    assert [(message.text, message.origin) for message in request if isinstance(message, UserMessage)] == [
        (TASK, "caller"),
        (
            f"[sub-agent {name(failed.run_id)} failed] Task: fail\n{harness.outcome('root/sub-agent/2').error}",
            "notice",
        ),
        (f"[sub-agent {name(found.run_id)} completed] Task: {task[:200]}\nThe pool.\nIt is full.", "notice"),
    ]


@pytest.mark.promise("MK-NOTICE", "MK-STATUS-FAILED")
async def test_the_root_gets_a_notice_when_its_child_is_cancelled_from_outside() -> None:
    harness = MeerkatHarness(spawn(), says("Waiting."), says("Then not."), spawned={"find it": [hangs()]})
    async with harness:
        run = await harness.retinue.spawn(TASK)
        await asyncio.sleep(1)
        child = harness.row("root/sub-agent/1").run_id
        await harness.retinue.cancel(child, note="not needed any more")
        assert (await run.wait()).text == "Then not."

    assert harness.last()[-1] == f"user: [sub-agent {name(child)} cancelled] Task: find it\nnot needed any more"


@pytest.mark.promise("MK-NOTICE-ONCE", "MK-WAITS")
@pytest.mark.parametrize("look", [about("agent_status"), calls("agent_list")])
async def test_an_end_that_was_looked_at_is_not_announced(look: Any) -> None:
    harness = MeerkatHarness(spawn(), look, says("Thanks."), spawned={"find it": [slowly("Found.", 0.5)]}, latency=1.0)

    assert (await harness.play()).text == "Thanks."

    assert [text for text in harness.last() if text.startswith("user: ")] == [f"user: {TASK}"]


@pytest.mark.promise("MK-WAITS")
async def test_an_answer_that_took_the_last_turn_stands_although_children_end_after_it() -> None:
    harness = MeerkatHarness(spawn(), says("Waiting."), spawned={"find it": [slowly("Found.", 9)]})

    outcome = await harness.play(limits=Limits(max_turns=2))

    assert (outcome.result, outcome.text) == ("completed", "Waiting.")
    assert harness.outcome("root/sub-agent/1").text == "Found."


# ---- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-KEPT", "MK-THOUSAND", "MK-IDS")
async def test_a_thousand_sub_agents_one_after_another_are_kept_to_the_last_256() -> None:
    def more(request: Request) -> Line:
        return together(*(spawn(f"task {request.turn}.{n}") for n in range(50)))

    def ask(request: Request) -> Line:
        ids = started(request.messages)
        return together(*(calls("agent_status", agent_id=ids[n]) for n in (0, 743, 744, 999)), calls("agent_list"))

    def answer(request: Request) -> Line:
        return says(f"result {request.messages[0].text}")

    lines: list[Any] = [line for _ in range(20) for line in (more, says("Waiting."))]
    harness = MeerkatHarness(*lines, ask, says("Done."), settings=MOST)
    harness.script("sub-agent", answer)
    async with harness:
        supervisor = harness.retinue.supervisor
        run = await harness.retinue.spawn(TASK, limits=Limits(max_turns=100))
        kept = [len(list(supervisor.recent_ends())) async for _ in run.events()]
        await run.wait()

    rows = harness.rows()[1:]
    texts = harness.texts()
    assert len(rows) == len({row.run_id for row in rows}) == len({name(row.run_id) for row in rows}) == 1000
    assert {row.progress.outcome and row.progress.outcome.result for row in rows} == {"completed"}
    first, before, oldest, newest, listed = texts[-5:]
    assert first == f"Execution failed: Sub-agent not found: {rows[0].run_id}"
    assert before == f"Execution failed: Sub-agent not found: {rows[743].run_id}"
    assert '"output":"result task 29.44"' in oldest
    assert '"output":"result task 39.49"' in newest
    assert '"running_count":0,"completed_count":256,"failed_count":0,"total_count":256}' in listed
    assert max(kept) == 256


@pytest.mark.promise("MK-THOUSAND")
async def test_status_costs_the_same_among_a_thousand_and_list_grows_with_their_number() -> None:
    few, many = await _costs(10), await _costs(1000)

    assert many["agent_status"] <= 10 * few["agent_status"]
    assert many["agent_list"] <= 3 * 100 * few["agent_list"]


async def _costs(agents: int) -> dict[str, float]:
    """The seconds of CPU that the tools take while so many agents work."""
    harness = MeerkatHarness(
        together(*(spawn(f"task {n}") for n in range(agents))),
        hangs(),
        settings=MOST,
    )
    harness.script("sub-agent", hangs())
    async with harness:
        run = await harness.retinue.spawn(TASK)
        await asyncio.sleep(1)
        assert len(harness.retinue.supervisor.live_runs()) == agents + 1
        ids = [row.run_id for row in harness.rows()[1:]]
        context = harness.context(run.run_id)
        took: dict[str, float] = {}
        for tool, arguments in (("agent_status", f'{{"agent_id":"{ids[agents // 2]}"}}'), ("agent_list", "{}")):
            took[tool] = await _least(harness.tool(tool), arguments, context)
        await run.cancel()
    return took


async def _least(tool: Tool, arguments: str, context: CallContext) -> float:
    """The least seconds of CPU of several calls: other work on the machine makes a call dearer, and not cheaper."""
    times: list[float] = []
    for _ in range(31):
        began = time.thread_time()
        result = await tool.call(arguments, context)
        times.append(time.thread_time() - began)
        assert not result.failed
    return min(times)
