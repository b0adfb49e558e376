"""Lists of runs read what they show, and not all runs of the store."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bench.many_runs import fill
from retinue.core.commands import RunQuery
from retinue.core.ids import RunId
from retinue.store.sqlite import SqliteStore
from retinue.store.sqlite.migrations import INITIAL, STEPS, migrate
from retinue.testing.contracts.store.fixtures import accept

FEW, MANY, UNFINISHED = 600, 3_000, 20

BOUNDED = {
    "roots": RunQuery(roots_only=True, limit=20),
    "all": RunQuery(limit=50),
    "session": RunQuery(session_id="s3", limit=20),
    "roots of a session": RunQuery(session_id="s3", roots_only=True, limit=3),
    "unfinished": RunQuery(unfinished_only=True),
    "unfinished without a driver": RunQuery(unfinished_only=True, undriven_only=True),
    "unfinished of a driver": RunQuery(unfinished_only=True, driver_id="d"),
    "approvals": RunQuery(phase="parked"),
    "background": RunQuery(handle_space="background"),
}
"""Queries that must not take longer in a larger store."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[SqliteStore, list[RunId]]]:
    """A small store and a larger one, with their runs."""
    made: dict[int, tuple[SqliteStore, list[RunId]]] = {}
    for size in (FEW, MANY):
        store = SqliteStore(tmp_path_factory.mktemp("store") / "retinue.db")
        made[size] = store, fill(store, size, unfinished=UNFINISHED)
    return made


@pytest.fixture(scope="module", autouse=True)
def closed(stores: dict[int, tuple[SqliteStore, list[RunId]]]) -> object:
    yield
    for store, _ in stores.values():
        store.close()


def steps(store: SqliteStore, read: Callable[[], object]) -> int:
    """The steps of SQLite's virtual machine that a query takes, which do not depend on the machine."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1

    connection = store._connection
    connection.set_progress_handler(count, 1)
    try:
        read()
    finally:
        connection.set_progress_handler(None, 1)
    return taken


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("what", ["runs", "count"])
def test_a_list_takes_no_longer_in_a_larger_store(
    what: str, name: str, stores: dict[int, tuple[SqliteStore, list[RunId]]]
) -> None:
    few, many = (steps(store, lambda store=store: getattr(store, what)(BOUNDED[name])) for store, _ in stores.values())

    assert many <= 1.5 * few + 50


@pytest.mark.parametrize("query", [RunQuery(), RunQuery(unfinished_only=True), RunQuery(roots_only=True, limit=5)])
def test_a_count_is_the_length_of_the_list(query: RunQuery, stores: dict[int, tuple[SqliteStore, list[RunId]]]) -> None:
    store, _ = stores[MANY]

    assert store.count(query) == len(store.runs(query))


def test_part_of_an_id_reads_the_index_of_ids_alone(stores: dict[int, tuple[SqliteStore, list[RunId]]]) -> None:
    store, run_ids = stores[MANY]
    wanted = run_ids[1234]

    found = store.runs(RunQuery(id_part=wanted[-12:]))
    taken = steps(store, lambda: store.runs(RunQuery(id_part=wanted[-12:])))

    assert [row.run_id for row in found] == [wanted]
    assert taken < 25 * MANY
    assert "COVERING INDEX" in plan(
        store, "SELECT no FROM runs WHERE substr(run_id, 1, 3) = 'a' OR substr(run_id, -3) = 'a'"
    )


def test_a_run_and_its_tree_are_found_by_index(stores: dict[int, tuple[SqliteStore, list[RunId]]]) -> None:
    few, many = (
        steps(store, lambda store=store, ids=ids: (store.run(ids[7]), store.events(ids[7]), tree_of(store, ids[7])))
        for store, ids in stores.values()
    )

    assert many <= 1.5 * few


def tree_of(store: SqliteStore, run_id: RunId) -> int:
    row = store.run(run_id)
    assert row is not None
    tree = store.runs(RunQuery(root_id=row.root_id))
    assert len(tree) == 10
    return len(tree)


def plan(store: SqliteStore, query: str) -> str:
    return "; ".join(row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {query}"))


def test_an_older_store_gets_the_indexes(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, path, [INITIAL])
    connection.close()

    store = SqliteStore(path)
    try:
        fill(store, 30)
        indexes = {name for (name,) in store._connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        (version,) = store._connection.execute("PRAGMA user_version").fetchone()
        assert {"runs_by_time", "runs_by_session", "runs_by_handle"} < indexes
        assert version == len(STEPS)
        assert store.count(RunQuery()) == 30
    finally:
        store.close()


def test_tasks_are_read_for_many_runs_at_once_and_left_out_where_they_cannot_be_read(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "retinue.db")
    ids = fill(store, 1_100)
    creation = accept("long", session_id="s1", driver_id=None)
    accepted = msgspec.structs.replace(creation.accepted, task="x" * 20_000)
    store.commit(None, [msgspec.structs.replace(creation, accepted=accepted)])
    with closing(sqlite3.connect(tmp_path / "retinue.db", isolation_level=None)) as damage:
        damage.execute(
            "UPDATE events SET body = ? WHERE seq = 1 AND run_no = (SELECT no FROM runs WHERE run_id = ?)",
            (b"1{}", ids[3]),
        )

    tasks = store.tasks([*ids, "long", "unknown"])
    store.close()

    assert tasks == {run_id: "Look into it." for run_id in ids if run_id != ids[3]} | {"long": "x" * 20_000}
