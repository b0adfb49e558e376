"""What differs on PostgreSQL: addresses, migrations, roles, lost connections, wake-ups, writers, prune and copy."""

from __future__ import annotations

import signal
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from msgspec.structs import replace

from retinue.app import store_copy
from retinue.core import commands
from retinue.core.commands import Change, Charge, Decision, OpenSession, Post, RunQuery
from retinue.core.errors import BadInput, StoreCorrupt, StoreNotOpened, StoreUnavailable, UnknownFormat
from retinue.core.events import ReplyReceived
from retinue.core.inbox import Cancel, TextMessage
from retinue.core.ports import PruneRequest
from retinue.core.run import HandleRef, HistoryRef
from retinue.store.postgres import PostgresMemoryTables, PostgresStore, parse_address
from retinue.store.postgres import prune as prune_module
from retinue.store.postgres.migrations import STEPS, migrate
from retinue.store.postgres.transfer import DatabaseInUse
from retinue.store.sqlite.store import SqliteStore
from retinue.store.sqlite.transfer import read_rows
from retinue.store.sqlite.work import LongWork
from retinue.testing.contracts.store.fixtures import (
    accept,
    commit_one,
    create_tree,
    end_run,
    put,
    record,
    register,
    reply,
    run_ended,
)
from retinue.tools.memory import Note
from retinue.tools.memory.postgres import PostgresMemory
from retinue.tools.memory.sqlite import SqliteMemory
from tests.postgres import PostgresServer, running_server

PREPARED = (register("alice"), register("bob"), OpenSession(session_id="s", at=1.0))


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        store.commit(None, PREPARED)
        yield store


def administrator(server: PostgresServer) -> psycopg.Connection[Any]:
    return psycopg.connect(f"postgresql://postgres@/postgres?host={server.folder}", autocommit=True)


def texts(store: PostgresStore, run_id: str) -> list[str]:
    return [event.reply.message.text for _, event in store.events(run_id) if isinstance(event, ReplyReceived)]


class TestAddress:
    """Passwords are in no text, and a schema is a plain name."""

    def test_the_shown_address_has_no_password(self) -> None:
        address = parse_address("postgresql://me:s%40cret@a.example:5432,b.example/work?password=p2&sslmode=require")

        shown = "postgresql://me@a.example:5432,b.example/work?schema=retinue&sslmode=require"
        assert (str(address), repr(address), address.schema) == (shown, f"PostgresAddress({shown!r})", "retinue")
        assert "target_session_attrs=read-write" in address.connection_string
        assert "s%40cret" in address.connection_string

    @pytest.mark.parametrize("schema", ["", "Team", "a b", 'a"; DROP TABLE runs; --', "pg_temp", "1a", "a" * 55])
    def test_a_schema_that_is_no_plain_name_is_refused(self, schema: str) -> None:
        with pytest.raises(BadInput, match="of the store: expected"):
            parse_address(f"postgresql://db/work?schema={quote(schema)}")

    def test_an_invalid_address_is_refused_without_its_text(self) -> None:
        with pytest.raises(BadInput) as refused:
            parse_address("postgresql://me:hidden@[::1/work?x")

        assert "hidden" not in str(refused.value)

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://me:a/hidden@db.example/work",
            "postgresql://me:1/hidden@db.example/work",
            "postgresql://hidden:a#b@db.example/work",
            "postgresql://me:hidden#b@db.example/work",
            "postgresql:me:hidden@db.example",
        ],
    )
    def test_a_password_with_characters_that_end_a_part_is_refused_and_not_shown(self, url: str) -> None:
        with pytest.raises(BadInput, match="%XX") as refused:
            parse_address(url)
        assert "hidden" not in str(refused.value)

    def test_other_secrets_of_an_address_are_not_shown(self) -> None:
        address = parse_address("POSTGRESQL://me@db.example/work?PASSWORD=hidden&oauth_client_secret=hidden")
        assert "hidden" not in str(address)

    def test_an_unreachable_server_is_named_without_its_password(self) -> None:
        with pytest.raises(StoreNotOpened) as refused:
            PostgresStore("postgresql://me:hidden@127.0.0.1:1/work")

        assert "127.0.0.1" in str(refused.value)
        assert "hidden" not in str(refused.value)


class TestMigrations:
    """Forwards only, by one process at a time, and never in the tables of another program."""

    def test_a_schema_of_a_newer_version_is_not_opened(
        self, postgres_server: PostgresServer, postgres_url: str
    ) -> None:
        PostgresStore(postgres_url).close()
        schema = parse_address(postgres_url).schema
        with administrator(postgres_server) as connection:
            connection.execute(f"UPDATE {schema}.store_version SET version = 99".encode())

        with pytest.raises(UnknownFormat) as refused:
            PostgresStore(postgres_url)

        assert (refused.value.found, refused.value.known) == (99, len(STEPS))

    def test_a_schema_with_tables_of_another_program_is_left_alone(
        self, postgres_server: PostgresServer, postgres_url: str
    ) -> None:
        schema = parse_address(postgres_url).schema
        with administrator(postgres_server) as connection:
            connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.runs (mine text)".encode())

        with pytest.raises(StoreCorrupt, match="tables of another program"):
            PostgresStore(postgres_url)

    def test_processes_that_open_an_empty_schema_together_share_it(self, postgres_url: str) -> None:
        opened: list[PostgresStore] = []
        threads = [threading.Thread(target=lambda: opened.append(PostgresStore(postgres_url))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        opened[0].commit(None, PREPARED)

        assert [each.session("s") is not None for each in opened] == [True] * 4
        for each in opened:
            each.close()

    def test_a_later_migration_is_applied_once_and_an_error_in_it_changes_nothing(self, store: PostgresStore) -> None:
        create_tree(store)
        broken = (*STEPS, ("CREATE TABLE more (x text)", "SELECT nonsense"))
        whole = (*STEPS, ("CREATE TABLE more (x text)",))
        with psycopg.connect(store.address.connection_string, autocommit=True) as connection:
            connection.execute(f"SET search_path TO {store.address.schema}".encode())
            with pytest.raises(psycopg.Error):
                migrate(connection, store.address, broken)
            migrate(connection, store.address, whole)
            migrate(connection, store.address, whole)

            assert connection.execute("SELECT version FROM store_version").fetchone() == (len(whole),)
        assert len(store.runs(RunQuery())) == 4


class TestRoles:
    """Least privileges, and tenants that cannot read each other."""

    def test_a_role_with_the_documented_grants_needs_no_right_to_create(
        self, postgres_server: PostgresServer, postgres_url: str
    ) -> None:
        PostgresStore(postgres_url).close()
        role = f"r_{uuid.uuid4().hex}"
        schema = parse_address(postgres_url).schema
        grants = f"""
            CREATE ROLE {role} LOGIN;
            GRANT USAGE ON SCHEMA {schema} TO {role};
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
        """
        with administrator(postgres_server) as connection:
            connection.execute(grants.encode())

        with closing(PostgresStore(postgres_url.replace("postgres@", f"{role}@"))) as store:
            store.commit(None, PREPARED)
            create_tree(store)
            commit_one(store, record("root", 2, reply("x" * 20_000)), "alice")
            commit_one(store, Change(space="context/s", decide=put("a", b"1"), key="k"))
            assert store.changed() is False
            assert texts(store, "root") == ["x" * 20_000]

    def test_a_role_without_the_right_to_create_the_schema_is_an_error(self, postgres_server: PostgresServer) -> None:
        role = f"r_{uuid.uuid4().hex}"
        with administrator(postgres_server) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN".encode())

        with pytest.raises(StoreNotOpened, match="permission denied"):
            PostgresStore(postgres_server.url("not_mine").replace("postgres@", f"{role}@"))

    def test_a_tenant_cannot_read_the_schema_of_another(self, postgres_server: PostgresServer) -> None:
        tenants = [f"tenant_{uuid.uuid4().hex}" for _ in range(2)]
        with administrator(postgres_server) as connection:
            for name in tenants:
                connection.execute(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA {name} AUTHORIZATION {name}".encode())
        urls = [postgres_server.url(name).replace("postgres@", f"{name}@") for name in tenants]
        with closing(PostgresStore(urls[0])) as mine, closing(PostgresStore(urls[1])) as other:
            mine.commit(None, PREPARED)
            create_tree(mine)
            commit_one(mine, Change(space="context/s", decide=put("secret", b"1")))
            PostgresMemory(PostgresMemoryTables(mine.address)).store(note("secret"))

            assert (other.runs(RunQuery()), other.sessions(), dict(other.key_value("context/s"))) == ([], [], {})
            assert other.run("root") is None
            assert PostgresMemory(PostgresMemoryTables(other.address)).agents() == []
            assert other.changed() is False
            with administrator(postgres_server) as connection:
                query = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
                tables = {name for (name,) in connection.execute(query, (tenants[0],)).fetchall()}
            assert tables >= {"runs", "events", "inbox", "blobs", "key_values", "memories", "procrastinate_jobs"}
            with psycopg.connect(other.address.connection_string, autocommit=True) as attack:
                for table in tables:
                    for statement in ("SELECT * FROM", "DELETE FROM", "TRUNCATE", "DROP TABLE"):
                        with pytest.raises(psycopg.errors.InsufficientPrivilege):
                            attack.execute(f"{statement} {tenants[0]}.{table}".encode())
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    attack.execute(f"SELECT {tenants[0]}.accept()".encode())
        with pytest.raises(StoreNotOpened, match="permission denied"):
            PostgresStore(postgres_server.url(tenants[0]).replace("postgres@", f"{tenants[1]}@"))

    def test_a_tenant_cannot_stop_the_commits_of_another(self, postgres_server: PostgresServer) -> None:
        tenants = [f"tenant_{uuid.uuid4().hex}" for _ in range(2)]
        with administrator(postgres_server) as connection:
            for name in tenants:
                connection.execute(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA {name} AUTHORIZATION {name}".encode())
        mine, other = (parse_address(postgres_server.url(name).replace("postgres@", f"{name}@")) for name in tenants)
        PostgresStore(mine).close()
        with psycopg.connect(other.connection_string, autocommit=True) as attack:
            for purpose in ("commit", "migration", "jobs"):
                attack.execute("SELECT pg_advisory_lock(%s)", (mine.lock_number(purpose),))
            for mode in ("ACCESS SHARE", "ROW SHARE", "EXCLUSIVE"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    attack.execute(f"BEGIN; LOCK TABLE {tenants[0]}.store_version IN {mode} MODE".encode())
                attack.execute("ROLLBACK")

            with closing(PostgresStore(mine)) as store:
                store.commit(None, PREPARED)
                create_tree(store)
                commit_one(store, record("root", 2, reply("mine")), "alice")

                assert texts(store, "root") == ["mine"]


class TestConnections:
    """A lost connection loses no commit and repeats none."""

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
    def test_commits_and_reads_go_on_after_a_restart_of_the_server(self, how: signal.Signals) -> None:
        with running_server(synchronous_commit="on") as server, closing(PostgresStore(server.url("mine"))) as store:
            store.commit(None, PREPARED)
            create_tree(store)
            store.commit("alice", [record("root", 2, reply("before"))])

            server.restart(how)

            assert store.commit("alice", [record("root", 3, reply("after"))]) == [None]
            assert commit_one(store, Post(run_id="root", item=TextMessage(key="w", text="hello"))) == "posted"
            assert texts(store, "root") == ["before", "after"]
            assert store.changed() is False

            server.restart(how)

            assert [item.key for item in store.inbox("root")] == ["w"]

    def test_a_server_that_does_not_come_back_makes_the_store_unavailable(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("retinue.store.postgres.database.RECONNECT_SECONDS", 0.2)
        with running_server() as server, closing(PostgresStore(server.url("mine"))) as store:
            store.commit(None, PREPARED)
            server.stop()

            with pytest.raises(StoreUnavailable):
                store.commit(None, [accept("root")])
            with pytest.raises(StoreUnavailable):
                store.run("root")

            server.start()
            assert store.commit("alice", [accept("root")]) == [commands.Accepted("root")]

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_a_commit_whose_answer_was_lost_is_neither_lost_nor_repeated(
        self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, is_committed: bool
    ) -> None:
        create_tree(store)
        execute = psycopg.Connection[Any].execute
        lost: list[str] = []

        def lose_answer(connection: psycopg.Connection[Any], query: Any, *values: Any, **options: Any) -> Any:
            if "commit_appends" in str(query) and not lost:
                if is_committed:
                    execute(connection, query, *values, **options)
                connection.close()
                lost.append("answer")
                raise psycopg.OperationalError("the connection was lost")
            return execute(connection, query, *values, **options)

        monkeypatch.setattr(psycopg.Connection, "execute", lose_answer)

        assert store.commit("alice", [record("root", 2, reply("once")), record("one", 2, reply("once"))]) == [
            None,
            None,
        ]

        assert lost == ["answer"]
        assert (texts(store, "root"), texts(store, "one")) == (["once"], ["once"])
        assert store.commit("alice", [record("root", 3, reply("more"))]) == [None]

    def test_a_refused_acceptance_whose_answer_was_lost_is_an_error_and_created_nothing(
        self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = store._commit

        def lose_connection(connection: psycopg.Connection[Any], *arguments: Any) -> Any:
            commit(connection, *arguments)
            connection.close()
            raise psycopg.OperationalError("the connection was lost")

        monkeypatch.setattr(store, "_commit", lose_connection)

        with pytest.raises(StoreUnavailable, match="results"):
            store.commit(None, [accept("root", session_id="unknown")])

        assert store.runs(RunQuery()) == []

    def test_a_stopped_writer_does_not_keep_others_waiting(self, postgres_url: str, store: PostgresStore) -> None:
        create_tree(store)
        stopped = psycopg.connect(store.address.connection_string)
        stopped.execute(f"SET search_path TO {store.address.schema}".encode())
        stopped.execute("SET idle_in_transaction_session_timeout = '200ms'")
        stopped.execute("LOCK TABLE store_version IN EXCLUSIVE MODE")

        assert commit_one(store, Post(run_id="root", item=TextMessage(key="w", text="hello"))) == "posted"

        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            stopped.execute("SELECT 1")
        stopped.close()


class TestWakeUps:
    """Other processes are woken by what they may wait for, and not by their own commits."""

    def test_posts_and_ends_wake_others_and_not_the_writer(self, postgres_url: str, store: PostgresStore) -> None:
        create_tree(store)
        woken, own = threading.Event(), threading.Event()
        with closing(PostgresStore(postgres_url)) as other:
            stop = other.on_change(woken.set)
            store.on_change(own.set)
            assert woken.wait(60), "it wakes once it listens, because notifications may have been missed"
            assert own.wait(60)
            for write in (
                Post(run_id="root", item=TextMessage(key="w", text="hello")),
                replace(record("one", 2, run_ended())),
            ):
                woken.clear()
                own.clear()
                store.commit("alice", [write])
                assert woken.wait(60)
            assert not own.is_set()
            stop()
            stop()

    def test_a_listener_connects_again(self, postgres_server: PostgresServer, store: PostgresStore) -> None:
        woken = threading.Event()
        store.on_change(woken.set)
        assert woken.wait(60)
        woken.clear()
        with administrator(postgres_server) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND query LIKE %s",
                (f"%{store.address.channel}%",),
            )

        assert woken.wait(60)


class TestConcurrentWriters:
    """Many stores on one schema: every batch is whole, and none is lost."""

    def test_writers_in_threads_lose_no_batch(self, postgres_url: str, stress: bool) -> None:
        names, batches = [f"w{n}" for n in range(4)], 300 if stress else 25
        with closing(PostgresStore(postgres_url)) as store:
            store.commit(None, [OpenSession(session_id="s", at=1.0), accept("shared", driver_id=None)])
            for name in names:
                store.commit(None, [register(name), accept(name, driver_id=name)])

            def count_up(content: Any) -> Decision:
                count = b"%d" % (int(content.get("count", b"0")) + 1)
                return Decision(count, puts={"count": count})

            def work(name: str) -> None:
                with closing(PostgresStore(postgres_url)) as own:
                    for n in range(batches):
                        own.commit(name, [record(name, 2 * n + 2, reply(f"{n} alone"))])
                        item = TextMessage(key=f"{name}/{n}", text=str(n))
                        together = record(name, 2 * n + 3, reply(f"{n} together"))
                        writes = (together, Post(run_id="shared", item=item), Change(space="counter", decide=count_up))
                        own.commit(name, writes)

            threads = [threading.Thread(target=work, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            expected = [f"{n} {how}" for n in range(batches) for how in ("alone", "together")]
            assert [texts(store, name) for name in names] == [expected] * len(names)
            assert dict(store.key_value("counter")) == {"count": b"%d" % (batches * len(names))}
            keys = Counter(item.key for item in store.inbox("shared"))
            assert keys == Counter(f"{name}/{n}" for name in names for n in range(batches))


def test_names_with_nul_round_trip(store: PostgresStore) -> None:
    name = "a\0b\ue000c"
    creation = accept("root", key=name)
    create = replace(creation, accepted=replace(creation.accepted, label=name, agent=name))

    assert commit_one(store, create) == commands.Accepted("root")
    commit_one(store, Change(space=name, decide=put(name, b"\0")))

    row = store.run_by_key(name)
    assert row is not None
    assert (row.label, row.agent, row.key) == (name, name, name)
    assert dict(store.key_value(name)) == {name: b"\0"}


def test_tasks_of_runs_are_read_by_one_query_and_long_ones_from_blobs(store: PostgresStore) -> None:
    for run_id, task in (("short", "Look into it."), ("long", "x" * 20_000)):
        creation = accept(run_id)
        commit_one(store, replace(creation, accepted=replace(creation.accepted, task=task)))

    assert store.tasks(["short", "long", "unknown"]) == {"short": "Look into it.", "long": "x" * 20_000}


class TestPruneInSteps:
    """The same guarantees as on SQLite."""

    @staticmethod
    def ids(store: PostgresStore) -> list[str]:
        return sorted(row.run_id for row in store.runs(RunQuery()))

    def test_large_trees_go_in_small_steps(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        for size in ("FIRST_STEP", "LEAST_PER_STEP", "MOST_PER_STEP"):
            monkeypatch.setattr(prune_module, size, 3)
        store.commit("alice", [accept("root"), *(accept(f"child {n}", parent="root") for n in range(7))])
        for name in (*(f"child {n}" for n in range(7)), "root"):
            end_run(store, name)
        commit_one(store, Change(space="artifact/root/a", decide=put("text", b"long")))

        steps = store.prune_in_steps(PruneRequest(before=1e9))
        assert next(steps) == 3
        assert "root" in self.ids(store)
        assert sum(steps) == 5

        assert self.ids(store) == []
        assert dict(store.key_value("artifact/root/a")) == {}

    def test_charges_that_are_over_are_removed(self, store: PostgresStore) -> None:
        charge = Charge("w", 1.0, 2.0, 1, 1, 1, 1)
        charges = (charge, replace(charge, until=1e9))
        commit_one(store, Change(space="s", decide=lambda _: Decision(b"", charges=charges)))

        list(store.prune_in_steps(PruneRequest(before=100.0)))

        assert [each.until for each in store.charges("w", 0.0)] == [1e9]

    def test_inherited_histories_and_shared_blobs_stay(self, store: PostgresStore) -> None:
        long = "x" * 40_000
        store.commit("alice", [accept("origin"), accept("old"), accept("young")])
        for run_id in ("origin", "old", "young"):
            store.commit("alice", [record(run_id, 2, reply(long))])
        heir = accept("heir")
        store.commit("alice", [replace(heir, accepted=replace(heir.accepted, inherits=HistoryRef("origin", 2)))])
        for run_id in ("origin", "old"):
            store.commit("alice", [record(run_id, 3, run_ended())])

        assert sum(store.prune_in_steps(PruneRequest(before=1e9))) == 1

        assert self.ids(store) == ["heir", "origin", "young"]
        assert texts(store, "young") == [long]

    def test_the_newest_tree_of_a_named_session_stays(self, store: PostgresStore) -> None:
        generated = "0f8fad5b-d9cb-469f-a165-70867728950e"
        unused = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
        store.commit(None, [OpenSession(session_id=name, at=1.0) for name in (generated, unused)])
        for name, session_id, at in (("old", "s", 10.0), ("new", "s", 11.0), ("other", generated, 12.0)):
            store.commit("alice", [accept(name, session_id=session_id, at=at)])
            end_run(store, name)

        assert sum(store.prune_in_steps(PruneRequest(before=1e9, keep_sessions=True))) == 2

        assert self.ids(store) == ["new"]
        assert [row.session_id for row in store.sessions()] == ["s"]

    def test_sessions_without_a_name_go_in_small_steps_and_stay_if_they_are_used_meanwhile(
        self, store: PostgresStore
    ) -> None:
        names = [f"0f8fad5b-d9cb-469f-a165-{number:012}" for number in range(prune_module.FIRST_STEP + 10)]
        store.commit(None, [OpenSession(session_id=name, at=1.0) for name in names])
        steps = store.prune_in_steps(PruneRequest(before=1e9, keep_sessions=True))

        assert next(steps) == 0
        remaining = {row.session_id for row in store.sessions()} & set(names)
        assert len(remaining) == 10
        used = min(remaining)
        store.commit(None, [Change(space=f"context/{used}", decide=put("a", b"1"))])
        assert sum(steps) == 0

        assert {row.session_id for row in store.sessions()} & set(names) == {used}

    def test_nothing_is_pruned_below_the_size_limit(self, store: PostgresStore) -> None:
        create_tree(store)
        for run_id in ("below", "one", "two", "root"):
            end_run(store, run_id)

        assert sum(store.prune_in_steps(PruneRequest(before=1e9, max_bytes=10**9))) == 0
        assert sum(store.prune_in_steps(PruneRequest(before=1e9, max_bytes=1))) == 4


def note(key: str) -> Note:
    return Note(agent="me", key=key, content=f"the content of {key}\0", at=5.0, run_id="r", session_id="s")


class TestCopy:
    """A store moves to PostgreSQL and back, and is the same store."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        path = tmp_path / "from" / "retinue.db"
        store = SqliteStore(path)
        store.commit(None, PREPARED)
        create_tree(store)
        long = "once upon a time \0" * 3_000
        origin = accept("heir", key="k\0", space="tasks", driver_id="bob")
        commit_one(store, replace(origin, accepted=replace(origin.accepted, inherits=HistoryRef("two", 1))))
        commit_one(store, commands.Retire(session_id="s", space="tasks", name="t_01", key="r"))
        commit_one(store, Change(space="context/s", decide=put("a\0", b"\0\xff"), key="change"))
        charge = commands.Charge("day", 20.0, 99.0, input=1, output=4, cost=2, calls=3)
        commit_one(store, replace(record("root", 2, reply(long)), charges=(charge,)), "alice")
        end_run(store, "two")
        commit_one(store, Post(run_id="one", item=TextMessage(key="w", text=long)))
        commit_one(store, commands.CancelTree(run_id="below", item=Cancel(key="c"), at=40.0))
        commit_one(store, commands.DeclareDead(driver_id="bob"))
        store.close()
        SqliteMemory(path.parent / "memory.db").store(note("style"))
        return path

    @staticmethod
    def rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
        with read_rows(path, LongWork()) as rows:
            found = [(name, {key: value for key, value in row.items() if key != "id"}) for name, row in rows]
        return sorted(found, key=lambda named: (named[0], str(named[1].get("run_no", "")), repr(named[1])))

    def test_a_round_trip_gives_the_same_rows_and_memories(
        self, source: Path, tmp_path: Path, postgres_url: str
    ) -> None:
        back = tmp_path / "back" / "retinue.db"

        there = store_copy.copy_store(f"sqlite:{source}", postgres_url, LongWork())
        with closing(PostgresStore(postgres_url)) as moved, closing(SqliteStore(source)) as original:
            assert moved.runs(RunQuery()) == original.runs(RunQuery())
            assert moved.events("root") == original.events("root")
            assert moved.inbox("one") == original.inbox("one")
            assert moved.drivers() == original.drivers()
        again = store_copy.copy_store(postgres_url, f"sqlite:{back}", LongWork())

        assert there.rows == again.rows
        assert there.rows["runs"] == 5
        assert there.rows["memories"] == 1
        assert self.rows(back) == self.rows(source)
        assert SqliteMemory(back.parent / "memory.db").all() == SqliteMemory(source.parent / "memory.db").all()

    def test_a_copied_store_goes_on(self, source: Path, postgres_url: str) -> None:
        store_copy.copy_store(f"sqlite:{source}", postgres_url, LongWork())

        with closing(PostgresStore(postgres_url)) as store:
            assert store.commit("alice", [record("root", 3, reply("more"))]) == [None]
            assert commit_one(store, accept("new", space="tasks"), "alice") == commands.Accepted(
                "new", HandleRef("tasks", "t_02")
            )
            assert commit_one(store, Post(run_id="one", item=TextMessage(key="x", text="later"))) == "posted"
            assert [item.key for item in store.inbox("one")] == ["w", "x"]
            assert commit_one(store, commands.Prune(before=1e9)) == 0, "a run inherited the history of an ended one"

    def test_a_target_with_content_is_refused(self, source: Path, tmp_path: Path, postgres_url: str) -> None:
        with closing(PostgresStore(postgres_url)) as store:
            store.commit(None, PREPARED)
        before = self.rows(source)

        with pytest.raises(BadInput, match="is not empty: nothing was copied"):
            store_copy.copy_store(f"sqlite:{source}", postgres_url, LongWork())
        with pytest.raises(BadInput, match="exists: nothing was copied"):
            store_copy.copy_store(postgres_url, f"sqlite:{source}", LongWork())

        assert self.rows(source) == before

    def test_a_source_that_a_process_drives_is_refused(self, tmp_path: Path, store: PostgresStore) -> None:
        target = tmp_path / "retinue.db"

        with pytest.raises(DatabaseInUse):
            store_copy.copy_store(str(store.address), f"sqlite:{target}", LongWork())

        assert not target.exists()

    def test_a_damaged_source_leaves_the_target_empty(self, source: Path, postgres_url: str) -> None:
        with closing(sqlite3.connect(source)) as connection:
            connection.execute("UPDATE charges SET cost = 0")
            connection.commit()

        with pytest.raises(StoreCorrupt, match="retinue store repair"):
            store_copy.copy_store(f"sqlite:{source}", postgres_url, LongWork())

        with closing(PostgresStore(postgres_url)) as store:
            assert (store.runs(RunQuery()), store.sessions()) == ([], [])
