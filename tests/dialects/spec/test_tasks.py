"""Answers about tasks: statuses, results cut to size, and failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.run import EndReason, Outcome, Result
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.answers import Task, collected, failure, not_found, result, spawned, status, too_many_running

NOTICE = "\n[truncated — full response exceeded 1000 token limit]"


def task(result: Result | None = None, reason: EndReason = "answered", *, text: str = "", error: str = "") -> Task:
    """A task of the researcher that has used 7 turns."""
    outcome = None if result is None else Outcome(result=result, reason=reason, text=text, error=error, turns=7)
    return Task(task_id="t_01", agent="researcher", turns_used=7, outcome=outcome)


@pytest.mark.promise("SPEC-3.3-ANSWER")
def test_a_spawned_task_is_running() -> None:
    assert spawned(Task(task_id="t_01", agent="researcher")) == {
        "task_id": "t_01",
        "agent": "researcher",
        "status": "running",
    }


@pytest.mark.promise("SPEC-3.4-RUNNING")
def test_the_status_of_a_running_task() -> None:
    assert status(task()) == {"task_id": "t_01", "agent": "researcher", "status": "running", "turns_used": 7}


@pytest.mark.promise("SPEC-3.4-COMPLETED")
def test_the_status_of_a_completed_task_has_no_result() -> None:
    assert status(task("completed", text="found it")) == {
        "task_id": "t_01",
        "agent": "researcher",
        "status": "completed",
        "turns_used": 7,
    }


@pytest.mark.promise("SPEC-3.4-FAILED", "SPEC-8.7-TURN-LIMIT")
def test_the_status_of_a_failed_task_has_its_error() -> None:
    assert status(task("exhausted", "max_turns")) == {
        "task_id": "t_01",
        "agent": "researcher",
        "status": "failed",
        "turns_used": 7,
        "error": "Max turns exceeded without producing a final response",
    }


@pytest.mark.promise("SPEC-3.5-COMPLETED")
def test_a_completed_task_is_collected_with_its_result() -> None:
    assert collected(task("completed", text="found it")) == {
        "task_id": "t_01",
        "agent": "researcher",
        "status": "completed",
        "result": "found it",
        "turns_used": 7,
    }


@pytest.mark.promise("SPEC-3.5-FAILED", "SPEC-8.7-MODEL-ERROR")
def test_a_failed_task_is_collected_with_its_error_and_no_result() -> None:
    assert collected(task("failed", "model_error", text="partial", error="HTTP 529")) == {
        "task_id": "t_01",
        "agent": "researcher",
        "status": "failed",
        "result": None,
        "error": "Model API error: HTTP 529",
        "turns_used": 7,
    }


@pytest.mark.promise("SPEC-3.5-EMPTY")
def test_an_empty_answer_is_an_empty_result() -> None:
    assert collected(task("completed", "empty"))["result"] == ""


@pytest.mark.promise("SPEC-3.5-NOT-READY", "SPEC-5-SHAPE")
def test_a_running_task_is_not_collected() -> None:
    with pytest.raises(CodedRefusal) as refused:
        collected(task())

    assert refused.value.answer == {
        "error": "TASK_NOT_READY",
        "message": "Task 't_01' is still running (turns_used=7).",
    }


@pytest.mark.promise("SPEC-3.5-NOT-FOUND", "SPEC-4.3-FIVE", "SPEC-5-SHAPE")
def test_refusals_have_the_documented_texts() -> None:
    assert not_found("t_99").answer == {
        "error": "TASK_NOT_FOUND",
        "message": "Unknown or already-collected task: 't_99'",
    }
    assert too_many_running(5).answer == {
        "error": "MAX_TASKS_EXCEEDED",
        "message": "Maximum concurrent tasks (5) reached.",
    }


@pytest.mark.promise(
    "SPEC-8.7-TURN-LIMIT", "SPEC-8.7-MODEL-ERROR", "SPEC-8.7-TOOL-ERROR", "SPEC-8.7-OTHER", "SPEC-3.4-FAILED"
)
@pytest.mark.parametrize(
    ("how", "reason", "error", "told"),
    [
        ("exhausted", "max_turns", "any words", "Max turns exceeded without producing a final response"),
        ("failed", "model_error", "overloaded (529)", "Model API error: overloaded (529)"),
        ("failed", "tool_error", "division by zero", "Tool execution error in turn 7: division by zero"),
        ("failed", "refusal", "the model declined to answer", "Task failed: the model declined to answer"),
        ("failed", "bug", "", "Task failed: bug"),
        ("cancelled", "cancelled", "cancelled", "Task cancelled"),
        ("cancelled", "cancelled", "no longer needed", "Task cancelled: no longer needed"),
        ("timed_out", "deadline", "not done within 5 s", "Task timed out: not done within 5 s"),
        ("exhausted", "max_tokens", "the token budget is spent", "Task exhausted: the token budget is spent"),
    ],
)
def test_every_failure_has_the_documented_text(how: Result, reason: EndReason, error: str, told: str) -> None:
    failed = task(how, reason, error=error)

    assert failed.outcome is not None
    assert (failed.status, failure(failed.outcome)) == ("failed", told)


@pytest.mark.promise("SPEC-4.1-RESULT", "SPEC-4-TOKENS")
@pytest.mark.parametrize(
    ("length", "expected"),
    [(4000, "é" * 4000), (4003, "é" * 4003), (4004, "é" * 4000 + NOTICE), (50_000, "é" * 4000 + NOTICE)],
)
def test_a_result_above_1000_tokens_is_cut_with_a_notice(length: int, expected: str) -> None:
    assert collected(task("completed", text="é" * length))["result"] == expected


@pytest.mark.promise("SPEC-4.1-RESULT")
@given(st.text(max_size=100), st.integers(0, 60))
def test_a_result_is_whole_or_cut_and_never_anything_else(text: str, times: int) -> None:
    long = text * times

    assert result(long) == (long if len(long) // 4 <= 1000 else long[:4000] + NOTICE)
