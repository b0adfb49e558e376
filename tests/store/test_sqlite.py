"""SQLite store: its files, checkpoints, migrations, and errors."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.core.commands import Accepted, OpenSession, RunQuery
from retinue.core.errors import Fenced, StoreCorrupt, StoreUnavailable, UnknownFormat
from retinue.store.codec import Codec
from retinue.store.sqlite import store as module
from retinue.store.sqlite.migrations import APPLICATION_ID, STEPS, migrate
from retinue.store.sqlite.store import LockFile, SqliteStore
from retinue.testing.contracts.store.fixtures import (
    RUN_SPEC,
    accept,
    create_runs,
    record,
    register,
    reply,
    run_ended,
    run_row,
)
from tests.conftest import TrackedConnection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    store.commit(None, [register("alice"), OpenSession(session_id="s", at=1.0)])
    yield store
    store.close()


def query(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """The rows that another connection reads."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return [run_row for statement in statements for run_row in connection.execute(statement).fetchall()]
    finally:
        connection.close()


# ---- the file -----------------------------------------------------------------------------------------------------


def test_folders_are_created_and_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "retinue.db"
    store = SqliteStore(path)
    store.commit(None, [register("alice")])

    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}

    assert modes == {
        "retinue.db": 0o600,
        "retinue.db-wal": 0o600,
        "retinue.db-shm": 0o600,
        "retinue.db.lock": 0o600,
    }
    store.close()


def test_a_closed_store_leaves_the_database_and_its_lock_file(store: SqliteStore, path: Path) -> None:
    create_runs(store, accept("root"))

    store.close()

    assert sorted(file.name for file in path.parent.iterdir()) == ["retinue.db", "retinue.db.lock"]
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.commit("alice", [record("root", 2, reply("hm"))])
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.run("root")
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.changed()


@pytest.mark.parametrize("threaded", [True, False])
def test_threaded_decides_whether_the_store_is_blocking(path: Path, threaded: bool) -> None:
    store = SqliteStore(path, threaded=threaded)

    assert store.blocking is threaded
    store.close()


def test_the_wal_is_checkpointed_before_it_gets_long(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_SIZE", 100_000)
    monkeypatch.setattr(module, "TRUNCATE_SIZE", 200_000)
    monkeypatch.setattr(store, "_checkpoint_at", 100_000)
    log = Path(f"{path}-wal")
    create_runs(store, accept("root"))
    longest = 0

    for n in range(500):
        store.commit("alice", [record("root", n + 2, reply("x" * 1000))])
        longest = max(longest, log.stat().st_size)

    assert 100_000 < longest < 220_000
    assert path.stat().st_size > 500_000


def test_an_open_read_transaction_does_not_stop_the_writer(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_SIZE", 50_000)
    monkeypatch.setattr(module, "TRUNCATE_SIZE", 200_000)
    monkeypatch.setattr(store, "_checkpoint_at", 50_000)
    create_runs(store, accept("root"))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchall()

    for n in range(100):
        store.commit("alice", [record("root", n + 2, reply("x" * 1000))])
    held_back = Path(f"{path}-wal").stat().st_size
    reader.execute("COMMIT")
    for n in range(100, 200):
        store.commit("alice", [record("root", n + 2, reply("x" * 1000))])

    assert held_back > 400_000
    assert Path(f"{path}-wal").stat().st_size < held_back
    assert len(store.events("root")) == 201
    reader.close()


def test_only_durable_commits_are_synchronous(path: Path) -> None:
    store = SqliteStore(path, durability="power")
    modes: list[int] = []

    for durable in (False, True, False):
        store.commit(None, [register("alice")], durable=durable)
        modes += store._writer.execute("PRAGMA synchronous").fetchone()

    assert modes == [1, 2, 1]
    store.close()


# ---- commit_at_once -----------------------------------------------------------------------------------------------


def test_commit_at_once_commits_and_checks_the_fence(store: SqliteStore) -> None:
    create_runs(store, accept("root"))

    answers = store.commit_at_once("alice", [record("root", 2, reply("hm"))])

    assert (answers, run_row(store, "root").seq) == ([None], 2)
    with pytest.raises(Fenced):
        store.commit_at_once("unregistered", [record("root", 3, reply("hm"))])
    assert run_row(store, "root").seq == 2


def test_commit_at_once_returns_none_while_the_lock_is_held(store: SqliteStore, path: Path) -> None:
    another = LockFile(Path(f"{path}.lock"))

    with another:
        assert store.commit_at_once(None, [OpenSession(session_id="t", at=2.0)]) is None
    assert store.session("t") is None
    assert store.commit_at_once(None, [OpenSession(session_id="t", at=2.0)]) == [True]
    another.close()


def test_commit_at_once_returns_none_for_durable_writes(path: Path) -> None:
    store = SqliteStore(path, durability="power")
    durably, at_once = OpenSession(session_id="s", at=1.0), OpenSession(session_id="t", at=2.0)

    assert store.commit_at_once(None, [durably], durable=True) is None
    assert store.commit_at_once(None, [at_once]) == [True]
    store.commit(None, [durably], durable=True)
    assert store.commit_at_once(None, [OpenSession(session_id="u", at=3.0)]) is None  # it would be synced as well
    assert [session.session_id for session in store.sessions()] == ["s", "t"]
    store.close()


def test_commit_at_once_returns_none_when_a_checkpoint_is_due(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_SIZE", 1)
    store = SqliteStore(path)
    sessions = [OpenSession(session_id=name, at=1.0) for name in "abc"]

    assert store.commit_at_once(None, sessions[:1]) is None
    assert store.commit(None, sessions[:1]) == [True]
    assert store.commit_at_once(None, sessions[1:2]) == [True]
    store.close()


# ---- bodies -------------------------------------------------------------------------------------------------------


def test_large_bodies_are_stored_once(store: SqliteStore, path: Path) -> None:
    create_runs(store, accept("one"), accept("two"))
    text = "x" * 100_000
    store.commit("alice", [record("one", 2, reply(text)), record("two", 2, reply(text))])

    assert query(path, "SELECT length(body) > 100000 FROM blobs ORDER BY length(body)") == [(0,), (1,)]
    assert query(path, "SELECT max(length(body)) < 5000 FROM events") == [(1,)]
    assert store.events("one", after=1) == store.events("two", after=1) == [(2, reply(text))]


def test_lone_surrogates_in_a_label_are_replaced(store: SqliteStore) -> None:
    creation = accept("root")

    store.commit("alice", [replace(creation, accepted=replace(creation.accepted, label="a\ud800b", task="t\udfff"))])

    assert run_row(store, "root").label == "a?b"


# ---- formats ------------------------------------------------------------------------------------------------------


def test_a_new_file_has_application_id_and_schema_version(store: SqliteStore, path: Path) -> None:
    assert query(path, "PRAGMA application_id", "PRAGMA user_version") == [(APPLICATION_ID,), (len(STEPS),)]


def test_a_newer_schema_raises_unknown_format_with_both_numbers(store: SqliteStore, path: Path) -> None:
    store.close()
    query(path, "PRAGMA user_version = 7")

    with pytest.raises(UnknownFormat) as refused:
        SqliteStore(path)

    assert (refused.value.what, refused.value.found, refused.value.known) == (f"the store {path}", 7, len(STEPS))
    query(path, f"PRAGMA user_version = {len(STEPS)}")
    SqliteStore(path).close()


ADD_A_COLUMN = ("ALTER TABLE runs ADD COLUMN colour TEXT DEFAULT 'blue'",)
FAIL_HALFWAY = ("CREATE TABLE half (way TEXT)", "INSERT INTO missing VALUES (1)")


def test_an_older_schema_gets_the_missing_migrations(store: SqliteStore, path: Path) -> None:
    create_runs(store, accept("root"))
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)

    migrate(connection, path, [*STEPS, ADD_A_COLUMN])
    migrate(connection, path, [*STEPS, ADD_A_COLUMN])

    connection.close()
    assert query(path, "PRAGMA user_version", "SELECT run_id, colour FROM runs") == [
        (len(STEPS) + 1,),
        ("root", "blue"),
    ]


def test_migrations_are_applied_all_or_none(store: SqliteStore, path: Path) -> None:
    store.close()
    connection = sqlite3.connect(path, isolation_level=None)

    with pytest.raises(sqlite3.OperationalError, match="no such table: missing"):
        migrate(connection, path, [*STEPS, ADD_A_COLUMN, FAIL_HALFWAY])

    connection.close()
    assert query(path, "PRAGMA user_version", "SELECT count(*) FROM sqlite_master WHERE name = 'half'") == [
        (len(STEPS),),
        (0,),
    ]
    SqliteStore(path).close()


def test_a_run_of_a_newer_format_can_be_listed_but_not_read(path: Path) -> None:
    newer = SqliteStore(path, codec=Codec(format=2))
    newer.commit(None, [register("alice"), OpenSession(session_id="s", at=1.0), accept("root")])
    newer.commit("alice", [record("root", 2, run_ended())])
    newer.close()

    store = SqliteStore(path)

    (found,) = store.runs(RunQuery())
    assert (found.run_id, found.progress.phase, found.progress.outcome) == ("root", "ended", None)
    with pytest.raises(UnknownFormat) as refused:
        store.events("root")
    assert (refused.value.found, refused.value.known) == (2, 1)
    store.close()


# ---- errors -------------------------------------------------------------------------------------------------------


def test_a_full_database_rejects_a_batch_until_there_is_room(store: SqliteStore, path: Path) -> None:
    create_runs(store, accept("root"))
    (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
    store._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    big = [accept(f"run {n}") for n in range(100)]

    with pytest.raises(StoreUnavailable) as refused:
        store.commit("alice", [record("root", 2, reply("hm")), *big])

    assert refused.value.reason == f"database or disk is full ({path})"
    assert run_row(store, "root").seq == 1
    assert store.commit("alice", [record("root", 2, reply("small"))]) == [None]

    store._writer.execute("PRAGMA max_page_count = 1000000")
    assert store.commit("alice", big) == [Accepted(f"run {n}") for n in range(100)]
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_file_that_is_not_a_database_is_not_touched(path: Path) -> None:
    path.write_text("dear diary, " * 1000)

    with pytest.raises(StoreCorrupt) as refused:
        SqliteStore(path)

    assert str(refused.value) == f"{path} is not a database: choose another place, or move that file away"
    assert path.read_text() == "dear diary, " * 1000


def test_the_database_of_another_program_is_not_touched(path: Path) -> None:
    query(path, "CREATE TABLE recipes (name TEXT)")

    with pytest.raises(StoreCorrupt, match="is the database of another program"):
        SqliteStore(path)

    query(path, f"PRAGMA user_version = {len(STEPS)}")
    with pytest.raises(StoreCorrupt, match="is the database of another program"):
        SqliteStore(path)
    assert query(path, "SELECT name FROM sqlite_master") == [("recipes",)]


def test_a_damaged_file_raises_store_corrupt(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_runs(store, *(accept(f"run {n}") for n in range(200)))
    store.close()
    content = bytearray(path.read_bytes())
    for (page,) in query(path, "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'runs'"):
        assert isinstance(page, int)
        content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    path.write_bytes(content)

    with pytest.raises(StoreCorrupt) as opening:
        SqliteStore(path)
    monkeypatch.setattr(module, "OPEN_CHECK_SIZE", 0)  # as if it were large
    damaged = SqliteStore(path)
    with pytest.raises(StoreCorrupt) as reading:
        damaged.runs(RunQuery())
    damaged.close()

    assert f"{path} is damaged" in str(opening.value)
    assert f"{path} is damaged" in str(reading.value)


def test_a_store_that_does_not_open_leaves_no_connection_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> sqlite3.Connection:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(module, "_open_to_read", fail)
    with pytest.raises(StoreUnavailable, match="too many open files"):
        SqliteStore(path)

    assert open_connections(path) == 0


def test_a_store_whose_lock_is_kept_by_another_process_closes_its_connections(path: Path) -> None:
    store = SqliteStore(path)
    store._file_lock._timeout = 0.01
    other = LockFile(Path(f"{path}.lock"))
    with other, pytest.raises(StoreUnavailable, match="another process has held"):
        store.close()
    other.close()

    assert open_connections(path) == 0


def open_connections(path: Path) -> int:
    return sum(database == str(path) for _, database in TrackedConnection.open.values())


def test_a_changed_blob_raises_store_corrupt(store: SqliteStore, path: Path) -> None:
    create_runs(store, accept("root"))
    query(path, "UPDATE blobs SET body = CAST(replace(CAST(body AS TEXT), 'look', 'hook') AS BLOB)")

    with pytest.raises(StoreCorrupt, match=f"blob {RUN_SPEC.digest()} was changed"):
        store.run_spec(RUN_SPEC.digest())


def test_a_folder_that_cannot_be_created_raises_store_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        SqliteStore(tmp_path / "file" / "retinue.db")


def test_a_folder_in_place_of_the_file_raises_store_unavailable(path: Path) -> None:
    path.mkdir()

    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        SqliteStore(path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_file_that_cannot_be_written_can_still_be_read(store: SqliteStore, path: Path) -> None:
    create_runs(store, accept("root"))
    store.close()
    path.chmod(0o400)

    again = SqliteStore(path)
    with pytest.raises(StoreUnavailable, match="attempt to write a readonly database"):
        again.commit("alice", [record("root", 2, reply("hm"))])

    assert again.events("root") == [(1, accept("root").accepted)]
    again.close()


def test_a_file_that_becomes_read_only_rejects_batches(store: SqliteStore) -> None:
    store._writer.execute("PRAGMA query_only = ON")

    with pytest.raises(StoreUnavailable, match="attempt to write a readonly database"):
        store.commit(None, [accept("root")])

    store._writer.execute("PRAGMA query_only = OFF")
    assert store.commit(None, [accept("root")]) == [Accepted("root")]
