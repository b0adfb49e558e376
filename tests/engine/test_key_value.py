"""Key-value namespaces and handles: each change is one transaction, and a repeated key returns the same answer."""

import asyncio
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from retinue.core.agent import RunSpec
from retinue.core.commands import Decide, Decision, NamespaceClosed
from retinue.core.ports import Store
from retinue.core.run import HandleRef
from retinue.engine import SpawnRequest, StartedRun
from retinue.providers.scripted import says
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness


@pytest.fixture(params=["memory", "sqlite", "sqlite in a thread"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    """All stores."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        file = SqliteStore(tmp_path / "r.db", threaded=request.param != "sqlite")
        yield file
        file.close()


def count_up(name: str = "count") -> Decide:
    """A decision that depends on the content: increments a counter."""

    def decide(key_value: Mapping[str, bytes]) -> Decision:
        more = str(int(key_value.get(name, b"0")) + 1).encode()
        return Decision(answer=more, puts={name: more})

    return decide


def drop(name: str) -> Decide:
    def decide(key_value: Mapping[str, bytes]) -> Decision:
        return Decision(answer=key_value.get(name, b"nothing"), drops=(name,))

    return decide


async def test_a_change_is_stored_when_it_is_answered_and_survives_the_process(store: Store) -> None:
    async with Harness(store=store) as harness:
        key_value = harness.retinue.supervisor.key_value

        assert await key_value.change("notes", count_up()) == b"1"

        assert store.key_value("notes") == {"count": b"1"}
        assert await key_value.look("notes") == {"count": b"1"}
        assert await key_value.look("elsewhere") == {}
        await harness.restart()
        assert await harness.retinue.supervisor.key_value.look("notes") == {"count": b"1"}


async def test_concurrent_changes_are_decided_in_sequence(store: Store) -> None:
    async with Harness(store=store) as harness:
        key_value = harness.retinue.supervisor.key_value

        answers = await asyncio.gather(*(key_value.change("notes", count_up()) for _ in range(20)))

        assert answers == [str(number).encode() for number in range(1, 21)]


async def test_a_repeated_key_returns_the_first_answer_and_changes_nothing(store: Store) -> None:
    async with Harness(store=store) as harness:
        key_value = harness.retinue.supervisor.key_value
        first = await key_value.change("notes", count_up(), key="run/1/0")
        await key_value.change("notes", count_up(), key="run/1/1")
        await harness.restart()
        key_value = harness.retinue.supervisor.key_value

        again = await key_value.change("notes", count_up(), key="run/1/0")

        assert (first, again) == (b"1", b"1")
        assert await key_value.look("notes") == {"count": b"2"}


async def test_names_are_dropped_as_decided(store: Store) -> None:
    async with Harness(store=store) as harness:
        key_value = harness.retinue.supervisor.key_value
        await key_value.change("notes", count_up("a"))
        await key_value.change("notes", count_up("b"))

        assert await key_value.change("notes", drop("a")) == b"1"
        assert await key_value.change("notes", drop("a")) == b"nothing"

        assert await key_value.look("notes") == {"b": b"1"}


async def test_a_namespace_of_a_closed_session_cannot_be_changed(store: Store) -> None:
    async with Harness(store=store) as harness:
        key_value = harness.retinue.supervisor.key_value
        await harness.retinue.sessions.create("old")
        assert await key_value.change("notes/old", count_up(), session_id="old") == b"1"
        await harness.retinue.sessions.archive("old")

        archived = await key_value.change("notes/old", count_up(), session_id="old")
        unknown = await key_value.change("notes/none", count_up(), session_id="none")

        assert (archived, unknown) == (NamespaceClosed("session_archived"), NamespaceClosed("session_unknown"))
        assert await key_value.look("notes/old") == {"count": b"1"}
        await harness.retinue.sessions.delete("old")
        assert await key_value.look("notes/old") == {}


async def test_a_raising_decision_raises_only_for_its_caller(store: Store) -> None:
    async with Harness(store=store, dialects=()) as harness:
        key_value = harness.retinue.supervisor.key_value
        harness.script("main", says("fine"))

        def decide(key_value: Mapping[str, bytes]) -> Decision:
            raise ZeroDivisionError

        outcome, bug, good = await asyncio.gather(
            harness.run("go"),
            key_value.change("notes", decide),
            key_value.change("notes", count_up()),
            return_exceptions=True,
        )

        assert not isinstance(outcome, BaseException)
        assert (outcome.text, type(bug), good) == ("fine", ZeroDivisionError, b"1")


# ---- handles --------------------------------------------------------------------------------------------------------


async def named_run(harness: Harness) -> StartedRun:
    """A run with a handle in the space `tasks`."""
    run_spec = RunSpec(agent="main", provider="custom")
    spawn_request = SpawnRequest(
        agent="main", run_spec=run_spec, task="go", handle_space="tasks", handle_format="t_{:02}"
    )
    return await harness.retinue.supervisor.spawn(spawn_request, session_id="session")


async def test_handles_are_numbered_and_found_in_this_process_and_the_next(store: Store) -> None:
    async with Harness(store=store, dialects=()) as harness:
        harness.script("main", says("done"))
        first, second = [await named_run(harness) for _ in range(2)]
        assert (first.handle, second.handle) == (HandleRef("tasks", "t_01"), HandleRef("tasks", "t_02"))

        for _ in range(2):
            handles = harness.retinue.supervisor.handles
            assert await handles.find("session", "tasks", "t_01") == first.run_id
            assert await handles.find("session", "tasks", "t_02") == second.run_id
            assert await handles.find("session", "tasks", "t_03") is None
            assert await handles.find("session", "other tasks", "t_01") is None
            assert await handles.find("other session", "tasks", "t_01") is None
            await harness.retinue.wait(first.run_id, second.run_id)
            await harness.restart()


async def test_a_retired_handle_is_found_only_with_the_retiring_key(store: Store) -> None:
    async with Harness(store=store, dialects=()) as harness:
        harness.script("main", says("done"))
        run = await named_run(harness)
        await harness.retinue.wait(run.run_id)
        handles = harness.retinue.supervisor.handles

        assert await handles.retire("session", "tasks", "t_01", key="a") == run.run_id
        assert await handles.retire("session", "tasks", "t_01", key="b") is None
        assert await handles.find("session", "tasks", "t_01") is None

        await harness.restart()
        handles = harness.retinue.supervisor.handles
        assert await handles.find("session", "tasks", "t_01") is None
        assert await handles.retire("session", "tasks", "t_01", key="a") == run.run_id
        assert await handles.retire("session", "tasks", "t_09", key="a") is None
        assert (await named_run(harness)).handle == HandleRef("tasks", "t_02"), "a name is never given twice"
        assert len(await harness.retinue.list()) == 2, "the runs stay on record"


async def test_one_of_two_concurrent_retirements_gets_the_handle(store: Store) -> None:
    async with Harness(store=store, dialects=()) as harness:
        harness.script("main", says("done"))
        run = await named_run(harness)
        await harness.retinue.wait(run.run_id)
        handles = harness.retinue.supervisor.handles

        got = await asyncio.gather(*(handles.retire("session", "tasks", "t_01", key=str(n)) for n in range(5)))

        assert sorted(got, key=lambda run_id: run_id is None) == [run.run_id, None, None, None, None]
