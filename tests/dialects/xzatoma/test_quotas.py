"""Quotas for all subagents of a session, across nesting, failures and crashes."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.commands import RunQuery
from retinue.core.errors import ProviderError, StoreError
from retinue.core.events import CallReturned
from retinue.core.ports import Request
from retinue.core.run import HistoryRef
from retinue.core.usage import Usage
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers import scripted
from retinue.providers.scripted import Line, fails, hangs, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.xzatoma.harness import TASK, XzatomaHarness, answered, refused, says, subagent, uses

FOUND = (says("It is the pool."), says("The pool is too small."))
EXECUTIONS = "Resource quota exceeded: Execution limit reached: {}/{}"
TOKENS = "Resource quota exceeded: Token limit exceeded: {}/{}"
TIME = "Resource quota exceeded: Time limit exceeded: {}s >= {}s"


def limited(**quotas: Any) -> XzatomaSettings:
    return XzatomaSettings(persistence_enabled=True, **quotas)


def says_for(tokens: int, text: str = "Said.") -> Line:
    """Words that cost so many tokens."""
    return scripted.says(text, usage=Usage(input=tokens - 1, output=1))


@pytest.mark.promise("XZ-QUOTA-EXECUTIONS")
async def test_no_more_subagents_than_the_quota_allows() -> None:
    broken = fails(ProviderError("gone", fault="bad_request"))
    harness = XzatomaHarness(
        together(subagent("a", "one"), subagent("b", "two")),
        together(subagent("c", "three"), subagent("d", "four")),
        subagent("e", "five"),
        says("ok"),
        tasks={"one": [broken], "two": FOUND, "three": FOUND},
        settings=limited(max_executions=3),
    )
    await harness.play()

    assert sorted(harness.answers(), key=lambda answer: str(answer["metadata"])[:23] + str(answer["error"])) == [
        refused("Subagent execution failed: gone", label="a"),
        answered("The pool is too small.", label="b"),
        answered("The pool is too small.", label="c"),
        refused(EXECUTIONS.format(3, 3), label="d"),
        refused(EXECUTIONS.format(3, 3), label="e"),
    ]
    assert sorted(harness.rows()) == ["", "a", "b", "c"]


@pytest.mark.promise("XZ-QUOTA-SHARED", "XZ-QUOTA-EXECUTIONS", "XZ-ORDER")
async def test_nested_subagents_draw_on_the_same_quota_which_is_looked_at_first() -> None:
    harness = XzatomaHarness(
        subagent(),
        uses("subagent"),
        says("ok"),
        tasks={"find it": [subagent("below", "look below"), *FOUND], "look below": [uses("subagent"), *FOUND]},
        settings=limited(max_executions=2, max_depth=2),
    )
    await harness.play()

    assert harness.answers("below") == [refused(EXECUTIONS.format(2, 2), label="unknown", depth=3)]
    assert harness.answers()[1] == refused(EXECUTIONS.format(2, 2), label="unknown")


@pytest.mark.promise("XZ-QUOTA-SESSION")
async def test_every_root_has_a_quota_of_its_own() -> None:
    harness = XzatomaHarness(
        subagent("a", "one"), subagent("b", "two"), says("ok"), tasks={"one": FOUND}, settings=limited(max_executions=1)
    )
    async with harness:
        await harness.run(TASK)
        harness.script("main", subagent("c", "three"), says("ok"), task="Again.")
        harness.script("main", *FOUND, task="three")
        assert (await harness.run("Again.")).text == "ok"

    labels = [row.label for row in harness.store.runs(RunQuery())]
    assert sorted(labels) == ["", "", "a", "c"]


@pytest.mark.promise("XZ-QUOTA-CHAT")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("quota", "error"),
    [
        ({"max_executions": 2}, EXECUTIONS.format(2, 2)),
        ({"max_total_tokens": 2000}, TOKENS.format(2000, 2000)),
        ({"max_total_time": 4}, TIME.format(4, 4)),
    ],
    ids=["executions", "tokens", "time"],
)
async def test_a_chat_has_one_quota_however_many_runs_it_takes(
    quota: dict[str, int], error: str, *, crash: bool
) -> None:
    harness = XzatomaHarness(settings=limited(**quota), latency=1.0)
    for label, line in (("a", "one"), ("b", "two"), ("c", "three")):
        harness.script("main", subagent(label, f"task {line}"), says("ok"), task=f"Do {line}.")
    for line in ("one", "two"):
        harness.script("main", says_for(400), says_for(600), task=f"task {line}")
    before: HistoryRef | None = None
    async with harness:
        for line in ("one", "two", "three"):
            run = await harness.retinue.spawn(f"Do {line}.", inherits=before, label="chat")
            assert (await run.wait()).text == "ok"
            before = HistoryRef(run.run_id, (await harness.retinue.supervisor.replay(run.run_id)).seq)
            if crash:
                await harness.restart()

    assert before is not None
    (text,) = [event.text for event in harness.events(before.run_id) if isinstance(event, CallReturned)]
    assert json.loads(text) == refused(error, label="c")


@pytest.mark.promise("XZ-QUOTA-CHAT")
async def test_a_token_quota_of_a_chat_stops_a_subagent_of_a_later_run_in_the_middle() -> None:
    harness = XzatomaHarness(settings=limited(max_total_tokens=1500))
    harness.script("main", subagent("a", "task one"), says("ok"), task="Do one.")
    harness.script("main", says_for(400), says_for(600), task="task one")
    harness.script("main", subagent("b", "task two"), says("ok"), task="Do two.")
    harness.script("main", says_for(700), task="task two")
    async with harness:
        run = await harness.retinue.spawn("Do one.", label="chat")
        await run.wait()
        before = HistoryRef(run.run_id, (await harness.retinue.supervisor.replay(run.run_id)).seq)
        later = await harness.retinue.spawn("Do two.", inherits=before, label="chat")
        await later.wait()

    (text,) = [event.text for event in harness.events(later.run_id) if isinstance(event, CallReturned)]
    assert json.loads(text) == refused(TOKENS.format(1700, 1500), label="b")


@pytest.mark.promise("XZ-QUOTA-SESSION")
async def test_a_fork_that_is_no_chat_has_a_quota_of_its_own() -> None:
    harness = XzatomaHarness(settings=limited(max_executions=1))
    for label, line in (("a", "one"), ("b", "two")):
        harness.script("main", subagent(label, f"task {line}"), says("ok"), task=f"Do {line}.")
        harness.script("main", *FOUND, task=f"task {line}")
    async with harness:
        run = await harness.retinue.spawn("Do one.")
        await run.wait()
        before = HistoryRef(run.run_id, (await harness.retinue.supervisor.replay(run.run_id)).seq)
        await (await harness.retinue.spawn("Do two.", inherits=before)).wait()

    assert sorted(row.label for row in harness.store.runs(RunQuery())) == ["", "", "a", "b"]


@pytest.mark.promise("XZ-QUOTA-TOKENS")
async def test_tokens_are_looked_at_before_a_subagent_begins() -> None:
    harness = XzatomaHarness(
        subagent("a", "one"),
        subagent("b", "two"),
        says("ok"),
        tasks={"one": [says_for(4000), says_for(6500)]},
        settings=limited(max_total_tokens=10_000),
    )
    await harness.play()

    assert harness.answers() == [
        answered("Said.", label="a", tokens=10_500),
        refused(TOKENS.format(10_500, 10_000), label="b"),
    ]


@pytest.mark.promise("XZ-QUOTA-TOKENS", "XZ-QUOTA-MIDDLE")
async def test_a_subagent_stops_at_the_token_quota_without_a_summary() -> None:
    working = scripted.ScriptedReply(calls=uses("grep").calls, usage=Usage(input=500, output=100))
    harness = XzatomaHarness(
        subagent("a", "one"),
        subagent("b", "two"),
        says("ok"),
        tasks={"one": [working, working], "two": []},
        settings=limited(max_total_tokens=1000),
    )
    await harness.play()

    assert harness.answers() == [
        refused(TOKENS.format(1200, 1000), label="a"),
        refused(TOKENS.format(1200, 1000), label="b"),
    ]
    assert len(harness.requests("a")) == 2


@pytest.mark.promise("XZ-QUOTA-MIDDLE")
async def test_an_answer_that_uses_the_last_tokens_has_no_summary() -> None:
    harness = XzatomaHarness(
        subagent(), says("ok"), tasks={"find it": [says_for(1000)]}, settings=limited(max_total_tokens=1000)
    )
    await harness.play()

    assert harness.answers() == [refused(TOKENS.format(1000, 1000))]


@pytest.mark.promise("XZ-QUOTA-SHARED", "XZ-QUOTA-MIDDLE")
async def test_a_caller_in_the_middle_ends_with_the_tokens_of_those_below() -> None:
    harness = XzatomaHarness(
        subagent(),
        says("ok"),
        tasks={"find it": [subagent("below", "look below")], "look below": [says_for(700), says_for(700)]},
        settings=limited(max_total_tokens=1000),
    )
    await harness.play()

    assert harness.answers("dig") == [answered("Said.", label="below", depth=2, tokens=1400)]
    assert harness.answers() == [refused(TOKENS.format(1400, 1000))]


@pytest.mark.promise("XZ-QUOTA-TOKENS")
async def test_the_token_quota_is_exceeded_by_one_call_at_most() -> None:
    names = [str(number) for number in range(10)]
    harness = XzatomaHarness(
        together(*(subagent(name, name) for name in names)),
        says("ok"),
        tasks={name: [says_for(600), says_for(600)] for name in names},
        settings=limited(max_total_tokens=1000),
        latency=1.0,
    )
    await harness.open()
    await harness.run(TASK)
    await harness.close()  # not __aexit__, which fails for unplayed lines: most of them cannot be played

    assert sum(row.progress.usage.total for label, row in harness.rows().items() if label) == 1200


@pytest.mark.promise("XZ-QUOTA-TIME", "XZ-QUOTA-MIDDLE")
async def test_time_ends_a_subagent_in_the_middle_and_refuses_the_next() -> None:
    harness = XzatomaHarness(
        subagent("a", "one"),
        subagent("b", "two"),
        says("ok"),
        tasks={"one": [hangs()]},
        settings=limited(max_total_time=60),
    )
    await harness.play()

    assert harness.answers() == [
        refused(TIME.format(60, 60), label="a"),
        refused(TIME.format(60, 60), label="b"),
    ]


@pytest.mark.promise("XZ-QUOTA-TIME")
async def test_time_counts_while_subagents_work_and_once_for_all_of_them() -> None:
    harness = XzatomaHarness(
        together(subagent("a", "one"), subagent("b", "two")),
        uses("grep"),
        subagent("c", "three"),
        subagent("d", "four"),
        says("ok"),
        tasks={"one": FOUND, "two": FOUND, "three": FOUND, "four": FOUND[:1]},
        settings=limited(max_total_time=41),
        latency=10.0,
    )
    await harness.play()

    a, b, looked, c, d = harness.texts()
    assert looked == "2 lines about "
    assert [json.loads(text)["success"] for text in (a, b, c)] == [True, True, True]
    assert json.loads(d) == refused(TIME.format(41, 41), label="d")


@pytest.mark.promise("XZ-QUOTA-CRASH")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_forgets_nothing_that_was_used(kind: str, tmp_path: Path) -> None:
    def story(name: str) -> XzatomaHarness:
        store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")
        return XzatomaHarness(
            together(subagent("a", "one"), subagent("b", "two")),
            subagent("c", "three"),
            says("Thanks."),
            tasks={"one": [says_for(300), says_for(300)], "two": [says_for(300), says_for(300)]},
            store=store,
            settings=limited(max_executions=2, max_total_tokens=5000),
        )

    undisturbed = story("undisturbed")
    async with undisturbed:
        await undisturbed.run(TASK, key="root")
        writes = undisturbed.written
    expected = undisturbed.answers()
    assert expected[2] == refused(EXECUTIONS.format(2, 2), label="c")

    for n in range(writes + 1):
        harness = story(str(n))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        await harness.open(adopt=True)
        assert (await harness.run(TASK, key="root")).text == "Thanks.", n
        await harness.close()

        assert sorted(harness.answers(), key=str) == sorted(expected, key=str), n
        harness.store.close()
    undisturbed.store.close()


@pytest.mark.promise("XZ-QUOTA-CRASH", "XZ-QUOTA-TOKENS")
async def test_tokens_used_before_a_crash_count_after_it() -> None:
    lives: list[str] = ["first"]

    def answers(_: Request) -> Line:
        return hangs() if len(lives) == 1 else says_for(400)

    harness = XzatomaHarness(
        subagent("a", "one"),
        subagent("b", "two"),
        says("Thanks."),
        tasks={"one": [says_for(400), says_for(400)], "two": [answers]},
        settings=limited(max_total_tokens=1000),
    )
    async with harness:
        await harness.retinue.spawn(TASK, key="root")
        await asyncio.sleep(1)
        lives.append("second")
        await harness.restart()
        assert (await harness.run(TASK, key="root")).text == "Thanks."

    assert harness.answers() == [
        answered("Said.", label="a", tokens=800),
        refused(TOKENS.format(1200, 1000), label="b"),
    ]
