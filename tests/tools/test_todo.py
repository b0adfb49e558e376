"""The shared to-do list: results of its tools, dependencies between tasks, and crashes."""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.core.commands import CloseSession, OpenSession
from retinue.core.errors import StoreError
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, CallRisk, Store, Tool
from retinue.providers.scripted import calls, says, together
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from retinue.tools import todo
from retinue.tools.dependencies import ToolDependencies
from tests.tools.tool_calls import FixedClock, HarnessKeyValue, NoSandbox, StoreKeyValue, context, error_of, result_of

SHOWN: dict[str, Any] = {
    "id": "task_1",
    "subject": "Write the report",
    "description": "",
    "status": "pending",
    "priority": "medium",
    "labels": [],
    "owner": None,
    "metadata": {},
    "blocks": [],
    "blocked_by": [],
    "blocked": False,
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
    "created_by": "researcher",
    "updated_by": "researcher",
}
"""The rendered task if only its subject was given."""


class List:
    """The four tools, called one after the other by any agent."""

    def __init__(self, store: Store, **limits: int) -> None:
        self.store = store
        self.clock = FixedClock()
        dependencies = ToolDependencies(sandbox=NoSandbox(), key_value=StoreKeyValue(store), clock=self.clock)
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in todo.tools(dependencies, **limits)}
        self._calls = 0

    def _context(self, changes: dict[str, Any]) -> CallContext:
        self._calls += 1
        return context(f"run/{self._calls}/0", **changes)

    async def does(self, verb: str, /, *, by: dict[str, Any] | None = None, **arguments: object) -> Any:
        """The decoded result of a call."""
        return msgspec.json.decode(await result_of(self.tools[f"task_{verb}"], self._context(by or {}), **arguments))

    async def refuses(self, verb: str, /, *, by: dict[str, Any] | None = None, **arguments: object) -> str:
        """The error of a call."""
        return await error_of(self.tools[f"task_{verb}"], self._context(by or {}), **arguments)

    async def ids(self, **filters: Any) -> list[str]:
        """The ids of the listed tasks."""
        return [task["id"] for task in await self.does("list", **filters)]


@pytest.fixture
def tasks(tmp_path: Path) -> Generator[List]:
    store = SqliteStore(tmp_path / "retinue.db", threaded=False)
    store.commit(None, [OpenSession(session_id=name, at=1.0) for name in ("session", "other")])
    yield List(store)
    store.close()


async def test_a_task_is_created_read_and_listed(tasks: List) -> None:
    assert await tasks.does("list") == []
    assert await tasks.does("create", subject="Write the report") == SHOWN
    full = await tasks.does(
        "create",
        subject="Collect numbers",
        description="from March",
        priority="high",
        labels=["data", "data", "q1"],
        owner="dig",
        metadata={"ticket": 7, "nothing": None},
        by={"path": "lead/dig", "agent": "dig", "run_id": "r2", "depth": 1},
    )

    assert full == SHOWN | {
        "id": "task_2",
        "subject": "Collect numbers",
        "description": "from March",
        "priority": "high",
        "labels": ["data", "q1"],
        "owner": "dig",
        "metadata": {"ticket": 7},
        "created_by": "lead/dig",
        "updated_by": "lead/dig",
    }
    assert await tasks.does("get", id="task_2") == full
    assert await tasks.does("list") == [SHOWN, full]


async def test_an_update_changes_only_the_given_fields(tasks: List) -> None:
    await tasks.does("create", subject="Write the report", labels=["a"], metadata={"x": 1, "y": 2})
    before = await tasks.does("get", id="task_1")
    tasks.clock.at += 60
    stamp = {"updated_at": "2026-01-01T00:01:00Z", "updated_by": "lead/dig"}

    assert await tasks.does("update", id="task_1", by={"path": "lead/dig"}) == before | stamp
    changes: dict[str, Any] = {
        "subject": "S",
        "description": "D",
        "status": "in_progress",
        "priority": "low",
        "labels": [],
        "owner": "o",
    }
    changed = await tasks.does("update", id="task_1", by={"path": "lead/dig"}, **changes, metadata={"x": None, "z": []})

    assert changed == before | stamp | changes | {"metadata": {"y": 2, "z": []}}
    assert await tasks.does("get", id="task_1") == changed


async def test_a_list_is_narrowed_by_status_labels_and_what_could_begin(tasks: List) -> None:
    await tasks.does("create", subject="1", labels=["web"])
    await tasks.does("create", subject="2", labels=["web", "data"], blocked_by=["task_1"])
    await tasks.does("create", subject="3", labels=["data"])
    await tasks.does("update", id="task_3", status="completed")

    assert await tasks.ids() == ["task_1", "task_2", "task_3"]
    assert await tasks.ids(status="pending") == ["task_1", "task_2"]
    assert await tasks.ids(status="completed", labels=["web"]) == []
    assert await tasks.ids(labels=["data", "nothing"]) == ["task_2", "task_3"]
    assert await tasks.ids(labels=[]) == ["task_1", "task_2", "task_3"]
    assert await tasks.ids(blocked=True) == ["task_2"]
    assert await tasks.ids(blocked=False) == ["task_1", "task_3"]


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_a_task_waits_until_what_blocks_it_is_over(tasks: List, status: str) -> None:
    await tasks.does("create", subject="first")
    second = await tasks.does("create", subject="second", blocked_by=["task_1"])
    third = await tasks.does("create", subject="third", blocks=["task_2"])

    assert (second["blocked_by"], second["blocked"]) == (["task_1"], True)
    assert third["blocks"] == ["task_2"]
    assert (await tasks.does("get", id="task_1"))["blocks"] == ["task_2"]
    assert (await tasks.does("get", id="task_2"))["blocked_by"] == ["task_1", "task_3"]

    await tasks.does("update", id="task_1", status=status)
    assert await tasks.ids(blocked=True) == ["task_2"]
    await tasks.does("update", id="task_3", status=status)
    assert await tasks.ids(blocked=True) == []


async def test_links_are_added_and_removed_from_both_sides(tasks: List) -> None:
    for subject in "abc":
        await tasks.does("create", subject=subject)

    middle = await tasks.does("update", id="task_2", add_blocks=["task_3"], add_blocked_by=["task_1", "task_1"])
    assert (middle["blocks"], middle["blocked_by"]) == (["task_3"], ["task_1"])
    middle = await tasks.does("update", id="task_2", remove_blocks=["task_3"], remove_blocked_by=["task_1", "task_9"])
    assert (middle["blocks"], middle["blocked_by"]) == ([], [])
    assert (await tasks.does("get", id="task_3"))["blocked_by"] == []


async def test_a_cycle_of_blocked_tasks_is_refused(tasks: List) -> None:
    await tasks.does("create", subject="a")
    await tasks.does("create", subject="b", blocked_by=["task_1"])
    await tasks.does("create", subject="c", blocked_by=["task_2"])
    before = await tasks.does("list")

    round_trip = await tasks.refuses("update", id="task_1", add_blocked_by=["task_3"], status="completed")
    itself = await tasks.refuses("update", id="task_1", add_blocks=["task_1"])

    assert round_trip == "task_1 cannot wait for task_3: task_3 would wait for itself."
    assert itself == "task_1 cannot wait for task_1: task_1 would wait for itself."
    assert await tasks.does("list") == before, "a refused change changes nothing"


async def test_an_unknown_task_is_an_error(tasks: List) -> None:
    await tasks.does("create", subject="a")

    assert await tasks.refuses("get", id="task_7") == "Task not found: task_7"
    assert await tasks.refuses("update", id="../x", status="completed") == "Task not found: ../x"
    assert await tasks.refuses("update", id="task_1", remove_blocks=["task_7"]) == "Task not found: task_7"
    assert await tasks.refuses("create", subject="b", blocked_by=["task_7"]) == "Task not found: task_7"
    assert await tasks.ids() == ["task_1"]
    assert (await tasks.does("create", subject="b"))["id"] == "task_2"


@pytest.mark.parametrize(
    ("verb", "arguments", "word"),
    [
        ("create", {}, "subject"),
        ("create", {"subject": ""}, "subject"),
        ("create", {"subject": "x" * 501}, "subject"),
        ("create", {"subject": "x", "priority": "urgent"}, "priority"),
        ("create", {"subject": "x", "labels": "a"}, "labels"),
        ("create", {"subject": "x", "metadata": {"big": "x" * 10_000}}, "metadata"),
        ("list", {"status": "open"}, "status"),
        ("update", {"id": "task_1", "status": "done"}, "status"),
    ],
)
async def test_invalid_arguments_are_named(tasks: List, verb: str, arguments: dict[str, Any], word: str) -> None:
    await tasks.does("create", subject="a")

    assert word in await tasks.refuses(verb, **arguments)
    assert await tasks.ids() == ["task_1"]


async def test_a_list_refuses_tasks_beyond_its_limit(tasks: List) -> None:
    tasks = List(tasks.store, max_tasks=2)
    for subject in "ab":
        await tasks.does("create", subject=subject)

    full = "The list is full: it has 2 tasks. Update one that is over instead."
    assert await tasks.refuses("create", subject="c") == full


async def test_each_session_has_its_own_list(tasks: List) -> None:
    await tasks.does("create", subject="a")

    assert await tasks.does("list", by={"session_id": "other"}) == []
    elsewhere = await tasks.does("create", subject="Write the report", by={"session_id": "other"})
    assert elsewhere == SHOWN
    tasks.store.commit(None, [CloseSession(session_id="other", how="archive")])
    assert await tasks.refuses("create", subject="b", by={"session_id": "other"}) == (
        "Session 'other' is archived: its list can be read, not changed."
    )
    assert await tasks.does("list", by={"session_id": "other"}) == [SHOWN]
    tasks.store.commit(None, [CloseSession(session_id="other", how="delete")])
    assert await tasks.refuses("create", subject="b", by={"session_id": "other"}) == "Session 'other' is not there."
    assert await tasks.does("list", by={"session_id": "other"}) == []
    assert await tasks.ids() == ["task_1"]


async def test_the_same_call_again_answers_the_same_and_changes_nothing(tasks: List) -> None:
    create, update = tasks.tools["task_create"], tasks.tools["task_update"]
    first = await result_of(create, context("r/1/0"), subject="a")
    await result_of(update, context("r/2/0"), id="task_1", status="completed")
    await result_of(update, context("r/3/0"), id="task_1", status="pending")
    failed = await error_of(update, context("r/4/0"), id="task_2")
    await result_of(create, context("r/5/0"), subject="b")

    assert await result_of(create, context("r/1/0", again=True), subject="a") == first
    await result_of(update, context("r/2/0", again=True), id="task_1", status="completed")
    assert await error_of(update, context("r/4/0", again=True), id="task_2") == failed
    assert [(task["id"], task["status"]) for task in await tasks.does("list")] == [
        ("task_1", "pending"),
        ("task_2", "pending"),
    ]


async def test_the_tools_take_nothing_and_act_on_nothing_outside(tasks: List) -> None:
    assert {name: tool.kind for name, tool in tasks.tools.items()} == {
        "task_create": "keyed",
        "task_get": "pure",
        "task_list": "pure",
        "task_update": "keyed",
    }
    assert {tool.prepare("{}").risk for tool in tasks.tools.values()} == {CallRisk(Risk.LOW)}


async def test_runs_at_once_get_tasks_of_their_own_and_a_crash_doubles_none(tmp_path: Path) -> None:
    for after in range(5, 40):
        store = SqliteStore(tmp_path / f"{after}.db", threaded=False)
        key_value = HarnessKeyValue()
        dependencies = ToolDependencies(sandbox=NoSandbox(), key_value=key_value, clock=FixedClock())
        harness = key_value.harness = Harness(
            store=store, dialects=(), tools=todo.tools(dependencies), session="session"
        )
        harness.script(
            "main",
            together(calls("task_create", subject="a"), calls("task_create", subject="b")),
            calls("task_update", id="task_1", status="completed"),
            says("done"),
        )
        crashed = True
        with suppress(StoreError):
            await harness.open(killed_after=after)
            await harness.run("go")
            crashed = False
        if crashed:
            await harness.restart()
            await asyncio.gather(*(harness.retinue.wait(run.run_id) for run in await harness.retinue.list()))
        shelved = [msgspec.json.decode(value) for value in store.key_value("tasks/session").values()]
        with suppress(StoreError):
            await harness.close()
        store.close()

        found = sorted((task["number"], task["subject"], task["status"]) for task in shelved)
        assert found == [(1, "a", "completed"), (2, "b", "pending")], after
        if not crashed:
            assert after > 8
            return
    raise AssertionError("the story has no end")
