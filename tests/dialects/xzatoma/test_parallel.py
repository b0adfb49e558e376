"""`parallel_subagent`: several tasks in one call, and one answer with all results."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError, StoreError
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Store
from retinue.core.usage import Usage
from retinue.dialects.xzatoma.answers import SubagentRefused
from retinue.dialects.xzatoma.dialect import CANCELLED
from retinue.dialects.xzatoma.requests import parse_batch
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers import scripted
from retinue.providers.scripted import ScriptedReply, calls_verbatim, fails, hangs
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.xzatoma.harness import ROOT, TASK, XzatomaHarness, says, uses
from tests.internals import tool_of

OUT_OF_TURNS = "Subagent execution failed: the turn limit was reached without a final answer: used 1, limit 1"
BROKEN = fails(ProviderError("gone", fault="bad_request"))


def task(label: str, task_prompt: str, **more: object) -> dict[str, object]:
    return {"label": label, "task_prompt": task_prompt, **more}


def parallel(*tasks: dict[str, object], **more: object) -> ScriptedReply:
    return uses("parallel_subagent", tasks=list(tasks), **more)


def result(label: str, output: str = "", *, ms: int = 0, error: str | None = None, tokens: int = 0) -> dict[str, Any]:
    return {
        "label": label,
        "success": error is None,
        "output": output,
        "duration_ms": ms,
        "error": error,
        "tokens_used": tokens,
    }


def refused(error: str) -> dict[str, object]:
    return {"success": False, "output": "", "error": error, "metadata": {}}


def batch(harness: XzatomaHarness) -> dict[str, Any]:
    """What the one call of the root came to; the four fields around it are looked at first."""
    (answer,) = harness.answers(ROOT)
    output = answer.pop("output")
    assert answer == {"success": True, "error": None, "metadata": {}}
    assert isinstance(output, str)
    return json.loads(output)


@pytest.mark.promise("XZ-PARALLEL", "XZ-PARALLEL-SHAPE", "XZ-PARALLEL-SUMMARY", "XZ-PARALLEL-NO-NESTING")
async def test_tasks_run_concurrently_and_results_are_in_their_order() -> None:
    harness = XzatomaHarness(
        parallel(
            task("a", "one"), task("b", "two", summary_prompt="List them."), task("c", "three", allowed_tools=["grep"])
        ),
        says("ok"),
        tasks={
            "one": [scripted.says("One.", usage=Usage(input=10, output=2))],
            "two": [says("Looked."), says("Two.")],
            "three": [BROKEN],
        },
        latency=1.0,
    )
    assert (await harness.play()).text == "ok"

    assert batch(harness) == {
        "results": [
            result("a", "One.", ms=1000, tokens=12),
            result("b", "Two.", ms=2000),
            result("c", ms=1000, error="Subagent execution failed: gone"),
        ],
        "total_duration_ms": 2000,
        "successful": 2,
        "failed": 1,
    }
    assert [harness.requests(label)[0].tools for label in ("a", "b", "c")] == [
        ("fetch", "grep", "file_ops"),
        ("fetch", "grep", "file_ops"),
        ("grep",),
    ]
    asked, summary = harness.requests("b")
    assert (len(asked.messages), summary.messages[-1].text, summary.tools) == (1, "List them.", ())
    assert harness.requests(ROOT)[0].tools[-2:] == ("subagent", "parallel_subagent")


@pytest.mark.promise("XZ-PARALLEL-ROOT")
async def test_only_the_root_is_offered_it() -> None:
    harness = XzatomaHarness(
        uses("subagent", label="dig", task_prompt="find it"),
        says("ok"),
        tasks={"find it": [parallel(task("a", "one")), says("Found."), says("The pool.")]},
    )
    await harness.play()

    assert harness.requests("dig")[0].tools[-1] == "subagent"
    (refusal,) = harness.texts("dig")
    assert "parallel_subagent" in refusal
    assert sorted(harness.rows()) == ["", "dig"]


@pytest.mark.promise("XZ-PARALLEL-CONCURRENT")
@pytest.mark.parametrize(("asked", "seconds"), [({}, 2), ({"max_concurrent": 2}, 3), ({"max_concurrent": 10**30}, 1)])
async def test_concurrency_never_exceeds_max_concurrent(asked: dict[str, object], seconds: int) -> None:
    names = [str(number) for number in range(6)]
    harness = XzatomaHarness(
        parallel(*(task(name, name) for name in names), **asked),
        says("ok"),
        tasks={name: [says(f"{name}.")] for name in names},
        latency=1.0,
    )
    await harness.play()

    told = batch(harness)
    assert told["total_duration_ms"] == seconds * 1000
    assert [each["output"] for each in told["results"]] == [f"{name}." for name in names]


@pytest.mark.promise("XZ-PARALLEL-FAIL-FAST")
async def test_fail_fast_cancels_the_rest_and_reports_the_failure() -> None:
    harness = XzatomaHarness(
        parallel(
            task("slow", "wait"),
            task("bad", "break"),
            task("late", "never begun"),
            max_concurrent=2,
            fail_fast=True,
        ),
        says("ok"),
        tasks={"wait": [hangs()], "break": [BROKEN]},
        latency=1.0,
    )
    await harness.play()

    assert batch(harness) == {
        "results": [
            result("slow", ms=1000, error=CANCELLED),
            result("bad", ms=1000, error="Subagent execution failed: gone"),
            result("late", error=CANCELLED),
        ],
        "total_duration_ms": 1000,
        "successful": 0,
        "failed": 3,
    }
    ended = harness.outcome("slow")
    assert ended is not None
    assert ended.result == "cancelled"
    assert sorted(harness.rows()) == ["", "bad", "slow"]


@pytest.mark.promise("XZ-PARALLEL-ITEMS")
async def test_an_invalid_task_is_an_error_of_that_task_alone() -> None:
    harness = XzatomaHarness(
        parallel(
            task("a", "one", allowed_tools=["nope"]),
            task("b", "two", allowed_tools=["subagent"]),
            task("c", "three", allowed_tools=["parallel_subagent"]),
            task("d", " "),
            task(" ", "five"),
            {"task_prompt": "six"},
            task("g", "seven", max_turns=51),
            task("h", "eight", max_turns=1),
            task("i", "nine"),
        ),
        says("ok"),
        tasks={"eight": [uses("grep")], "nine": [says("Nine.")]},
    )
    await harness.play()

    assert batch(harness) == {
        "results": [
            result("a", error="Unknown tool in allowed_tools: nope"),
            result("b", error="Tool 'subagent' cannot be used by subagents"),
            result("c", error="Unknown tool in allowed_tools: parallel_subagent"),
            result("d", error="task_prompt cannot be empty"),
            result("unknown", error="Invalid input: missing field `label`"),
            result("unknown", error="Invalid input: missing field `label`"),
            result("g", error="max_turns must be between 1 and 50"),
            result("h", error=OUT_OF_TURNS),
            result("i", "Nine."),
        ],
        "total_duration_ms": 0,
        "successful": 1,
        "failed": 8,
    }


@pytest.mark.promise("XZ-PARALLEL-ITEMS", "XZ-TRUNCATION")
async def test_tasks_at_the_turn_limit_are_summarized_on_request_and_outputs_cut() -> None:
    harness = XzatomaHarness(
        parallel(task("a", "one", max_turns=1, summary_prompt="Sum up."), task("b", "two")),
        says("ok"),
        tasks={"one": [uses("grep"), says("Enough.")], "two": [says("x" * 1025)]},
        settings=XzatomaSettings(output_max_size=1024),
    )
    await harness.play()

    assert batch(harness)["results"] == [
        result("a", "Enough."),
        result("b", "x" * 1024 + "[Output truncated]"),
    ]


@pytest.mark.promise("XZ-PARALLEL-ERRORS")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"tasks": []}', "At least one task required"),
        ("{}", "Invalid input: missing field `tasks`"),
        ('{"tasks": null}', "Invalid input: missing field `tasks`"),
        ('{"tasks": {}}', "Invalid input: Expected `array | null`, got `object` - at `$.tasks`"),
        ('{"tasks": [1]}', "Invalid input: Expected `object`, got `int` - at `$.tasks[0]`"),
        (
            '{"tasks": [{"label": 1, "task_prompt": "x"}]}',
            "Invalid input: Expected `str | null`, got `int` - at `$.tasks[0].label`",
        ),
        (
            '{"tasks": [{"label": "a", "task_prompt": "x"}], "max_concurrent": 0}',
            "Invalid input: Expected `int` >= 1 - at `$.max_concurrent`",
        ),
        (
            '{"tasks": [{"label": "a", "task_prompt": "x"}], "max_concurrent": 1.5}',
            "Invalid input: Expected `int`, got `float` - at `$.max_concurrent`",
        ),
        (
            '{"tasks": [{"label": "a", "task_prompt": "x"}], "max_concurrent": "2"}',
            "Invalid input: Expected `int | float | null`, got `str` - at `$.max_concurrent`",
        ),
        (
            '{"tasks": [{"label": "a", "task_prompt": "x"}], "fail_fast": "yes"}',
            "Invalid input: Expected `bool | null`, got `str` - at `$.fail_fast`",
        ),
        ("[]", "Invalid input: Expected `object`, got `array`"),
    ],
)
async def test_an_invalid_call_is_refused_as_a_whole(arguments: str, error: str) -> None:
    harness = XzatomaHarness(calls_verbatim("parallel_subagent", arguments), says("ok"))
    await harness.play()

    assert harness.answers(ROOT) == [refused(error)]


@pytest.mark.promise("XZ-PARALLEL-ERRORS", "XZ-NEVER-RAISES")
@given(
    st.text(max_size=30)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["tasks", "label", "task_prompt", "max_concurrent", "fail_fast"]), inner)
        ),
    ).map(json.dumps)
)
def test_random_arguments_are_parsed_or_refused(arguments: str) -> None:
    with suppress(SubagentRefused):
        assert parse_batch(arguments).tasks


@pytest.mark.promise("XZ-PARALLEL-DEPTH")
async def test_a_caller_at_the_greatest_depth_is_refused_before_its_input_is_looked_at() -> None:
    harness = XzatomaHarness(says("ok"))
    async with harness:
        await harness.run(TASK)
        tool = tool_of(harness.retinue, "parallel_subagent", "xzatoma")
        answered = await tool.call("nonsense", replace(CONTEXT, depth=3))

    assert answered.failed
    assert json.loads(answered.text) == refused("Maximum subagent depth 3 reached")


@pytest.mark.promise("XZ-PARALLEL-QUOTA")
async def test_every_task_of_a_batch_is_one_execution() -> None:
    harness = XzatomaHarness(
        parallel(task("a", "one"), task("b", "two"), task("c", "three")),
        parallel(task("d", "four")),
        says("ok"),
        tasks={"one": [says("One.")], "two": [says("Two.")]},
        settings=XzatomaSettings(max_executions=2),
    )
    await harness.play()

    first, second = harness.answers(ROOT)
    quota = "Resource quota exceeded: Execution limit reached: 2/2"
    assert json.loads(str(first["output"]))["results"] == [
        result("a", "One."),
        result("b", "Two."),
        result("c", error=quota),
    ]
    assert second == refused(quota)


@pytest.mark.promise("XZ-KEYED", "XZ-PARALLEL")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("fail_fast", [False, True])
async def test_a_crash_after_any_write_finds_every_subagent_again(kind: str, fail_fast: bool, tmp_path: Path) -> None:
    def story(name: str) -> XzatomaHarness:
        store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")
        tasks = [task("a", "one"), task("b", "two", summary_prompt="Sum up."), task("c", "three")]
        return XzatomaHarness(
            parallel(*tasks, max_concurrent=1, fail_fast=fail_fast),
            says("Thanks."),
            tasks={"one": [uses("grep"), says("One.")], "two": [says("Looked."), says("Two.")], "three": [BROKEN]},
            store=store,
        )

    def outputs(harness: XzatomaHarness) -> list[tuple[str, str, str | None]]:
        return [(each["label"], each["output"], each["error"]) for each in batch(harness)["results"]]

    undisturbed = story("undisturbed")
    async with undisturbed:
        await undisturbed.run(TASK, key="root")
        writes = undisturbed.written
    expected = outputs(undisturbed)
    assert [output for _, output, _ in expected] == ["One.", "Two.", ""]

    for n in range(writes + 1):
        harness = story(str(n))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        paths = {row.run_id: row.path for row in harness.rows().values()}
        stored = {(paths[run_id], turn) for run_id, turn in harness.replies()}
        asked = len(harness.provider.asked)
        await harness.open(adopt=True)
        assert (await harness.run(TASK, key="root")).text == "Thanks.", n
        await harness.close()

        assert outputs(harness) == expected, n
        assert sorted(harness.rows()) == ["", "a", "b", "c"], n
        assert stored & {(question.path, question.turn) for question in harness.provider.asked[asked:]} == set(), n
        harness.store.close()
    undisturbed.store.close()


@pytest.mark.promise("XZ-PARENT-ENDS")
async def test_all_are_cancelled_with_their_caller() -> None:
    harness = XzatomaHarness(parallel(task("a", "one"), task("b", "two")), tasks={"one": [hangs()], "two": [hangs()]})
    async with harness:
        root = await harness.retinue.spawn(TASK)
        await asyncio.sleep(1)
        await root.cancel()
        await root.wait()
        await asyncio.sleep(1)

    outcomes = [harness.outcome(label) for label in ("a", "b")]
    assert [outcome and outcome.result for outcome in outcomes] == ["cancelled", "cancelled"]


CONTEXT = CallContext(
    run_id="r",
    session_id="session",
    root_id="r",
    key="r/1/0",
    turn=1,
    index=0,
    depth=0,
    agent="main",
    path="root",
    handle=None,
    policy=Policy(),
    offered=("parallel_subagent",),
)
