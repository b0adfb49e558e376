"""Calls that are entered again after a crash: they answer the same, and nothing happens twice."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest

import retinue
from retinue.core.commands import DeclareDead, Write, WriteResult
from retinue.core.errors import StoreUnavailable
from retinue.core.ids import DriverId
from retinue.core.ports import CallContext
from retinue.dialects.spec.answers import INTERRUPTED
from retinue.dialects.spec.settings import SpecSettings
from retinue.providers.scripted import Line, says, together
from retinue.store.memory.store import MemoryStore
from tests.dialects.spec.harness import (
    Answer,
    SpecHarness,
    answers,
    context,
    other_work,
    subagent,
    waiting_orchestrator,
)
from tests.internals import tool_of

WORKER = retinue.Agent(name="worker", system_prompt="You work.", tools=("shared_context", "work"))


async def call(opened: retinue.Retinue, tool_name: str, who: CallContext, **arguments: object) -> Answer:
    """What a model reads after this call."""
    return json.loads((await tool_of(opened, tool_name, "spec").call(json.dumps(arguments), who)).text)


@pytest.mark.promise("SPEC-KEYED")
async def test_a_spawn_that_is_entered_again_finds_the_task_it_started() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        spawn = {"action": "spawn", "agent": "worker", "task": "Work."}
        first = await call(opened, "subagent", caller(0), **spawn)
        await asyncio.sleep(5)
        again = await call(opened, "subagent", caller(0, again=True), **spawn)
        another = await call(opened, "subagent", caller(1), **spawn)
        await asyncio.sleep(5)
        workers = [view for view in await opened.list(everyone=True) if view.agent == "worker"]

    assert (first, again) == ({"task_id": "t_01", "agent": "worker", "status": "running"}, first)
    assert another["task_id"] == "t_02"
    assert len(workers) == 2


@pytest.mark.promise("SPEC-KEYED")
async def test_a_spawn_that_is_entered_again_finds_its_task_without_its_agent() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))
    async with waiting_orchestrator(harness) as (opened, caller):
        first = await call(opened, "subagent", caller(0), action="spawn", agent="worker", task="Work.")
        again = await call(opened, "subagent", caller(0, again=True), action="spawn", agent="gone", task="Work.")

    assert again == first


@pytest.mark.promise("SPEC-KEYED", "SPEC-3.5-ONCE")
async def test_a_collect_that_is_entered_again_answers_the_same_and_others_fail() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        await call(opened, "subagent", caller(0), action="spawn", agent="worker", task="Work.")
        await asyncio.sleep(5)
        first = await call(opened, "subagent", caller(1), action="collect", task_id="t_01")
        again = await call(opened, "subagent", caller(1, again=True), action="collect", task_id="t_01")
        other = await call(opened, "subagent", caller(2), action="collect", task_id="t_01")

    assert first == {"task_id": "t_01", "agent": "worker", "status": "completed", "turns_used": 1, "result": "done"}
    assert again == first
    assert other["error"] == "TASK_NOT_FOUND"


@pytest.mark.promise("SPEC-KEYED")
async def test_a_definition_that_is_entered_again_is_no_duplicate() -> None:
    define = {"action": "define", "name": "analyst", "description": "d", "system_prompt": "p"}
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        first = await call(opened, "subagent", caller(0), **define)
        again = await call(opened, "subagent", caller(0, again=True), **define)
        other = await call(opened, "subagent", caller(1), **define)

    assert (first, again) == ({"defined": "analyst", "description": "d"}, first)
    assert other["error"] == "AGENT_ALREADY_EXISTS"


@pytest.mark.promise("SPEC-4.5-NO-NESTING")
async def test_a_subagent_that_got_hold_of_the_tool_is_refused() -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", other_work(1000))
    async with waiting_orchestrator(harness) as (opened, caller):
        await call(opened, "subagent", caller(0), action="spawn", agent="worker", task="Work.")
        (worker,) = [view for view in await opened.list(everyone=True) if view.agent == "worker"]
        below = replace(caller(1), run_id=worker.run_id, depth=1)
        refused = [
            await call(opened, "subagent", below, **fields)
            for fields in (
                {"action": "spawn", "agent": "worker", "task": "Deeper."},
                {"action": "cancel", "task_id": "t_01"},
                {"action": "collect", "task_id": "t_01"},
                {"action": "define", "name": "spy", "description": "d", "system_prompt": "p"},
            )
        ]
        still = await call(opened, "subagent", caller(2), action="status", task_id="t_01")

    message = "Subagents cannot delegate; only the orchestrator can."
    assert refused == [{"error": "INVALID_REQUEST", "message": message}] * 4
    assert still["status"] == "running"


@pytest.mark.promise("SC-4-KEYED")
async def test_a_write_or_delete_that_is_entered_again_happens_once() -> None:
    write = {"action": "write", "key": "scope", "value": "all"}
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        first = await call(opened, "shared_context", caller(0), **write)
        await asyncio.sleep(60)
        again = await call(opened, "shared_context", caller(0, again=True), **write)
        deleted = await call(opened, "shared_context", caller(1), action="delete", key="scope")
        deleted_again = await call(opened, "shared_context", caller(1, again=True), action="delete", key="scope")
        other = await call(opened, "shared_context", caller(2), action="delete", key="scope")

    assert (first["version"], again) == (1, first)
    assert (deleted, deleted_again) == ({"deleted": "scope", "previous_version": 1}, deleted)
    assert other["error"] == "KEY_NOT_FOUND"


class FailingStore(MemoryStore):
    """A store that refuses every commit after the first `left`, as if the process had died there."""

    left = 1_000_000

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        """Make these writes happen, or nothing at all."""
        if self.left <= 0:
            raise StoreUnavailable("the process is dead")
        self.left -= 1
        return super().commit(driver_id, writes, durable=durable)


@pytest.mark.promise("SPEC-4.3-RUNNING-ONLY", "SPEC-3.4-INTERRUPTED")
@pytest.mark.parametrize("is_gone", [False, True])
async def test_tasks_of_a_dead_process_do_not_count_as_running(is_gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FailingStore()
    harness = SpecHarness(agents=(WORKER,), store=store, settings=SpecSettings(max_running=1))
    harness.script.play("worker", says("worked"))
    spawn = {"action": "spawn", "agent": "worker", "task": "Work."}
    with suppress(StoreUnavailable):
        async with waiting_orchestrator(harness) as (opened, caller):
            await call(opened, "subagent", caller(0), **spawn)
            store.left = 0  # from here on the process is dead, and no other process knows it
    store.left = 1_000_000

    def gone(host: str, process: str) -> bool:
        return is_gone

    monkeypatch.setattr("retinue.engine.driver_table.is_gone", gone)

    async with harness.open(ids="later") as opened:
        status = [subagent("status", task_id=task_id) for task_id in ("t_02", "t_01")]
        harness.script.play("main", subagent(**spawn), other_work(5), *status, says("enough"))
        handle = await opened.spawn("Go on.")
        await handle.wait()
        read = await answers(opened, handle.run_id)

    task = {"task_id": "t_02", "agent": "worker"}
    refused = {"error": "MAX_TASKS_EXCEEDED", "message": "Maximum concurrent tasks (1) reached."}
    assert read[0] == (task | {"status": "running"} if is_gone else refused)
    assert read[1].get("status") == ("completed" if is_gone else None)
    assert read[2] == {"task_id": "t_01", "agent": "worker", "status": "running", "turns_used": 0} | (
        {"hint": INTERRUPTED} if is_gone else {}
    )


LINES: list[Line] = [
    context("write", key="scope", value="all"),
    subagent("define", name="helper", description="Helps", system_prompt="You help.", tools=["shared_context"]),
    together(
        subagent("spawn", agent="worker", task="Work."),
        subagent("spawn", agent="helper", task="Help."),
    ),
    other_work(60),
    together(subagent("collect", task_id="t_01"), subagent("collect", task_id="t_02")),
    context("read", key="log"),
    context("delete", key="scope"),
    says("enough"),
]
STORY: list[Answer] = [
    {"key": "scope", "version": 1, "written_by": "orchestrator"},
    {"defined": "helper", "description": "Helps"},
    {"task_id": "t_01", "agent": "worker", "status": "running"},
    {"task_id": "t_02", "agent": "helper", "status": "running"},
    {"task_id": "t_01", "agent": "worker", "status": "completed", "turns_used": 3, "result": "worked"},
    {"task_id": "t_02", "agent": "helper", "status": "completed", "turns_used": 1, "result": "helped"},
    {
        "key": "log",
        "version": 1,
        "written_by": "subagent:worker:t_01",
        "value": "done",
        "value_size_tokens": 1,
    },
    {"deleted": "scope", "previous_version": 1},
]


MORE_LINES: list[Line] = [
    subagent("define", name="helper", description="Helps", system_prompt="You help.", tools=["work"]),
    subagent("redefine", name="helper", extends="helper", system_prompt_append="Gladly."),
    subagent("spawn", agent="worker", task="Work."),
    together(
        subagent("spawn", agent="helper", task="Help.", depends_on=["t_01"], max_output_tokens=100_000),
        context("write", key="scope", value="all", ttl_seconds=100_000, writable_by=["orchestrator"]),
    ),
    subagent("spawn", agent="helper", task="Help too.", depends_on=["t_02"]),
    subagent("wait", task_ids=["t_01", "t_02"], mode="any"),
    subagent("cancel", task_id="t_03"),
    together(context("snapshot", label="now"), subagent("wait", task_ids=["t_02"])),
    subagent("progress", task_id="t_02"),
    subagent("cancel", task_id="t_02"),
    context("read_history", key="scope"),
    says("enough"),
]
MORE_STORY: list[Answer] = [
    {"defined": "helper", "description": "Helps"},
    {"redefined": "helper", "description": "Helps", "version": 2},
    {"task_id": "t_01", "agent": "worker", "status": "running"},
    {"task_id": "t_02", "agent": "helper", "status": "pending"},
    {"key": "scope", "version": 1, "written_by": "orchestrator"},
    {"task_id": "t_03", "agent": "helper", "status": "pending"},
    {"done": ["t_01"], "pending": ["t_02"], "timed_out": False},
    {"task_id": "t_03", "agent": "helper", "status": "cancelled", "result": None, "turns_used": 0},
    {"snapshot": "now", "keys": 2},
    {"done": ["t_02"], "pending": [], "timed_out": False},
    {
        "task_id": "t_02",
        "status": "completed",
        "turns_used": 2,
        "entries": [
            {"turn": 1, "kind": "call", "text": 'work {"seconds":30}'},
            {"turn": 1, "kind": "result", "text": "work: worked"},
            {"turn": 2, "kind": "text", "text": "helped"},
        ],
        "more": False,
    },
    {"task_id": "t_02", "agent": "helper", "status": "completed", "turns_used": 2, "result": "helped"},
    {"key": "scope", "versions": [{"version": 1, "value": "all", "written_by": "orchestrator"}]},
]


async def played_with_a_death_after(
    commits: int, lines: Sequence[Line], helper: Sequence[Line]
) -> tuple[str, list[Answer], bool]:
    """The story, in which the process dies after so many commits and another goes on; whether that came to pass."""
    store = FailingStore()
    harness = SpecHarness(agents=(WORKER,), store=store)
    harness.script.play("main", *lines)
    harness.script.play("worker", context("write", key="log", value="done"), other_work(1), says("worked"))
    harness.script.play("helper", *helper)
    store.left = commits
    died = False
    try:
        async with harness.open() as opened:
            await opened.run("Go.", key="story")
    except StoreUnavailable:
        died = True
    store.left = 1_000_000
    store.commit(None, [DeclareDead(driver_id=row.driver_id) for row in store.drivers()])
    async with harness.open(ids="later") as opened:
        handle = await opened.spawn("Go.", key="story")
        outcome = await handle.wait()
        read = await answers(opened, handle.run_id)
    return outcome.text, [_without_times(answer) for answer in read], died


def _without_times(answer: Answer) -> Answer:
    """What does not depend on how long a process was dead."""
    kept = {name: value for name, value in answer.items() if name not in ("written_at", "expires_at")}
    if isinstance(versions := kept.get("versions"), list):
        kept["versions"] = [_without_times(each) for each in cast("list[Answer]", versions)]
    return kept


@pytest.mark.promise("SPEC-KEYED", "SC-4-KEYED", "SC-4-DURABLE")
async def test_the_example_reaches_the_same_end_after_a_crash_at_any_write() -> None:
    deaths, died = 0, True
    while died:
        text, read, died = await played_with_a_death_after(deaths, LINES, [says("helped")])
        assert (deaths, text, read) == (deaths, "enough", STORY)
        deaths += died
    assert deaths > 20


@pytest.mark.promise("SPEC-KEYED", "SC-4-KEYED", "SPEC-7.4-RESULTS", "SPEC-7.1-GONE", "SPEC-9.6-WAIT")
async def test_all_extensions_reach_the_same_end_after_a_crash_at_any_write() -> None:
    deaths, died = 0, True
    while died:
        text, read, died = await played_with_a_death_after(deaths, MORE_LINES, [other_work(30), says("helped")])
        assert (deaths, text, read) == (deaths, "enough", MORE_STORY)
        deaths += died
    assert deaths > 20
