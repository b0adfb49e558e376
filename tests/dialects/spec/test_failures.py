"""Failures of tasks, and the errors that the orchestrator reads."""

import asyncio
import json

import pytest

import retinue
from retinue.providers.scripted import Line, calls, fails, hangs, says, streams, together
from tests.dialects.spec.harness import Answer, SpecHarness, other_work, read_by, subagent

NOTICE = "\n[truncated — full response exceeded 1000 token limit]"


@retinue.tool
def search_logs(query: str) -> str:
    """Search the logs; some queries go wrong."""
    if query == "crash":
        raise ZeroDivisionError("division by zero")
    if query == "sorry":
        raise retinue.ToolError("The logs are being rotated; try again later.")
    return "3 lines"


async def told(*lines: Line, max_turns: int = 5) -> tuple[Answer, Answer]:
    """What `status` and `collect` say of a task whose subagent plays these lines."""
    worker = retinue.Agent(name="worker", tools=("search_logs",), max_turns=max_turns)
    harness = SpecHarness(agents=(worker,), tools=(search_logs,))
    harness.script.play("worker", *lines)
    played = await harness.play(
        subagent("spawn", agent="worker", task="Work."),
        other_work(100),
        subagent("status", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        says("enough"),
    )
    _, status, collected = played.answers
    return status, collected


def failed(error: str, turns: int) -> tuple[Answer, Answer]:
    """What `status` and `collect` say of a task that failed so."""
    status: Answer = {"task_id": "t_01", "agent": "worker", "status": "failed", "turns_used": turns, "error": error}
    return status, status | {"result": None}


def completed(result: str, turns: int) -> tuple[Answer, Answer]:
    """What `status` and `collect` say of a task that gave this result."""
    status: Answer = {"task_id": "t_01", "agent": "worker", "status": "completed", "turns_used": turns}
    return status, status | {"result": result}


@pytest.mark.promise("SPEC-4.4-TURN", "SPEC-8.7-TURN-LIMIT", "SPEC-3.4-FAILED", "SPEC-3.5-FAILED")
async def test_a_task_that_needs_more_turns_than_it_has_fails() -> None:
    searching = [calls("search_logs", query="pool")] * 3

    assert await told(*searching, max_turns=3) == failed("Max turns exceeded without producing a final response", 3)


@pytest.mark.promise("SPEC-4.4-TURN")
async def test_a_task_may_answer_in_its_last_turn() -> None:
    searching = [calls("search_logs", query="pool")] * 2

    assert await told(*searching, says("found"), max_turns=3) == completed("found", 3)


@pytest.mark.promise("SPEC-8.7-MODEL-ERROR", "SPEC-3.4-LIVE")
async def test_a_model_that_cannot_be_asked_fails_the_task() -> None:
    refused = fails(retinue.ProviderError("HTTP 400: no such model", fault="bad_request", status=400))

    assert await told(refused) == failed("Model API error: HTTP 400: no such model", 0)
    assert await told(calls("search_logs", query="pool"), refused) == failed(
        "Model API error: HTTP 400: no such model", 1
    )


@pytest.mark.promise("SPEC-8.7-TOOL-ERROR")
async def test_a_tool_that_crashes_fails_the_task_and_names_the_turn() -> None:
    assert await told(calls("search_logs", query="pool"), calls("search_logs", query="crash")) == failed(
        "Tool execution error in turn 2: division by zero", 2
    )


@pytest.mark.promise("SPEC-8.7-OWN-ERRORS")
async def test_a_tool_error_is_read_by_the_subagent() -> None:
    policy = retinue.Policy(excluded_tools=("forbidden",))
    worker = retinue.Agent(name="worker", tools=("search_logs",))
    harness = SpecHarness(agents=(worker,), tools=(search_logs,), policy=policy)
    harness.script.play(
        "worker",
        together(
            calls("search_logs", query="sorry"),
            calls("search_logs", wrong="argument"),
            calls("forbidden"),
        ),
        says("I did without."),
    )
    harness.script.play(
        "main",
        subagent("spawn", agent="worker", task="W."),
        other_work(9),
        subagent("collect", task_id="t_01"),
        says("x"),
    )

    async with harness.open() as opened:
        await opened.run("Go.")
        sorry, wrong, forbidden = await read_by(opened, "worker")
        (worker_run,) = [view for view in await opened.list(everyone=True) if view.agent == "worker"]

    assert sorry == "The logs are being rotated; try again later."
    assert "query" in wrong
    assert "forbidden" in forbidden
    assert worker_run.outcome is not None
    assert worker_run.outcome.text == "I did without."


@pytest.mark.promise("SPEC-3.5-EMPTY")
async def test_a_subagent_that_ends_without_text_has_completed() -> None:
    assert await told(says("")) == completed("", 1)


@pytest.mark.promise("SPEC-4.1-RESULT")
async def test_a_long_result_is_cut_for_the_orchestrator_and_kept_in_the_store() -> None:
    worker = retinue.Agent(name="worker")
    harness = SpecHarness(agents=(worker,))
    harness.script.play("worker", streams("ab" * 5000))
    harness.script.play(
        "main",
        subagent("spawn", agent="worker", task="W."),
        other_work(9),
        subagent("collect", task_id="t_01"),
        says("x"),
    )

    async with harness.open() as opened:
        await opened.run("Go.")
        (child,) = [view for view in await opened.list(everyone=True) if view.agent == "worker"]

    assert child.outcome is not None
    assert child.outcome.text == "ab" * 5000
    assert json.loads(harness.requests_of("main")[-1].messages[-1].text)["result"] == "ab" * 2000 + NOTICE


@pytest.mark.promise("SPEC-8.7-OTHER")
async def test_a_task_that_is_cancelled_from_outside_has_failed() -> None:
    worker = retinue.Agent(name="worker")
    harness = SpecHarness(agents=(worker,))
    harness.script.play("worker", hangs("thinking"))
    harness.script.play(
        "main",
        subagent("spawn", agent="worker", task="W."),
        other_work(9),
        subagent("collect", task_id="t_01"),
        says("x"),
    )

    async with harness.open() as opened:
        handle = await opened.spawn("Go.")
        await asyncio.sleep(3)
        (child,) = [view for view in await opened.list(everyone=True) if view.agent == "worker"]
        await opened.cancel(child.run_id, note="an operator said so")
        await handle.wait()

    _, collected = failed("Task cancelled: an operator said so", 0)
    assert json.loads(harness.requests_of("main")[-1].messages[-1].text) == collected
