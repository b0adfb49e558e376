"""What the page on operations says about roles, backup and restore, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from retinue.core.commands import OpenSession, Post, RunQuery
from retinue.core.errors import StoreError
from retinue.core.inbox import TextMessage
from retinue.core.ports import PruneRequest
from retinue.dispatch.worker.job_queue import JobQueue, runs_of
from retinue.store.postgres import PostgresMemoryTables, PostgresStore, parse_address
from retinue.testing.contracts.store.fixtures import accept, commit_one, end_run, record, register, reply
from retinue.tools.memory import Note
from retinue.tools.memory.postgres import PostgresMemory
from tests.docs.pages import DOCS, PAGES
from tests.postgres import PostgresServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


def blocks() -> list[str]:
    (page,) = (page for page in PAGES if page.path == DOCS / "how-to" / "operations.md")
    return [block.code for block in page.of("text")]


def as_role(server: PostgresServer, role: str) -> str:
    return server.url("retinue").replace("postgres@", f"{role}@")


def administrator(server: PostgresServer) -> psycopg.Connection[Any]:
    return psycopg.connect(parse_address(server.url("retinue")).connection_string, autocommit=True)


@pytest.fixture(scope="module")
def roles(server: PostgresServer) -> None:
    (statements,) = (code for code in blocks() if "CREATE ROLE" in code)
    with administrator(server) as connection:
        connection.execute(statements.encode())
    PostgresStore(as_role(server, "retinue_owner")).close()


@pytest.mark.usefixtures("roles")
def test_the_role_of_workers_does_everything_that_a_worker_does(server: PostgresServer) -> None:
    url = as_role(server, "retinue_worker")
    with closing(PostgresStore(url)) as store:
        store.commit(None, [register("alice"), OpenSession(session_id="s", at=1.0)])
        store.commit("alice", [accept("root"), accept("other")])
        store.commit("alice", [record("root", 2, reply("x" * 40_000))])
        assert commit_one(store, Post(run_id="root", item=TextMessage(key="m", text="hello"))) == "posted"
        memory = PostgresMemory(PostgresMemoryTables(store.address))
        memory.store(Note(agent="a", key="k", content="text", at=1.0))
        stop = store.on_change(lambda: None)
        stop()
        end_run(store, "other")

        assert sum(store.prune_in_steps(PruneRequest(before=1e9))) == 1
        assert [row.run_id for row in store.runs(RunQuery())] == ["root"]
        assert memory.forget("a", "k")


@pytest.mark.real_time
@pytest.mark.usefixtures("roles")
async def test_the_role_of_workers_uses_the_queue_that_the_owner_has_made(server: PostgresServer) -> None:
    address = parse_address(as_role(server, "retinue_worker"))
    with closing(PostgresStore(address)) as store:
        store.commit(None, [register("queuer"), OpenSession(session_id="q", at=1.0)])
        store.commit("queuer", [accept("queued", driver_id=None)])
        row = store.run("queued")
    assert row is not None
    async with JobQueue(address, lease=60, timeout=60) as queue:
        await queue.enqueue([row], "a", is_takeover=False)
        job = await queue.fetch(["a"])
        assert job is not None
        assert runs_of(job) == ("queued",)
        await queue.give_back(job)
        job = await queue.fetch(["a"])
        assert job is not None
        assert await queue.maintain({"queued": job}) == []
        await queue.finish(job)
        assert await queue.fetch(["a"]) is None


@pytest.mark.usefixtures("roles")
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE retinue.mine (x integer)",
        "DROP TABLE retinue.runs",
        "TRUNCATE retinue.runs",
        "ALTER TABLE retinue.runs ADD COLUMN x integer",
        "CREATE OR REPLACE FUNCTION retinue.begin_commit() RETURNS void LANGUAGE sql AS ''",
        "CREATE SCHEMA mine",
        "DROP SCHEMA retinue CASCADE",
        "SELECT * FROM pg_authid",
        "CREATE ROLE other SUPERUSER",
    ],
)
def test_the_role_of_workers_cannot_do_more(server: PostgresServer, statement: str) -> None:
    address = parse_address(as_role(server, "retinue_worker"))
    with psycopg.connect(address.connection_string) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())


@pytest.mark.usefixtures("roles")
def test_the_role_of_workers_can_use_tables_that_an_upgrade_adds(server: PostgresServer) -> None:
    owner, worker = (parse_address(as_role(server, role)) for role in ("retinue_owner", "retinue_worker"))
    with psycopg.connect(owner.connection_string, autocommit=True) as connection:
        connection.execute("CREATE TABLE retinue.added (x integer)")
        with psycopg.connect(worker.connection_string, autocommit=True) as other:
            other.execute("INSERT INTO retinue.added VALUES (1)")
        connection.execute("DROP TABLE retinue.added")


@pytest.mark.usefixtures("roles")
def test_a_worker_names_a_schema_that_is_not_migrated(server: PostgresServer) -> None:
    with administrator(server) as connection:
        connection.execute("UPDATE retinue.store_version SET version = version - 1")
        try:
            with pytest.raises(StoreError, match=r"permission denied|must be owner"):
                PostgresStore(as_role(server, "retinue_worker"))
        finally:
            connection.execute("UPDATE retinue.store_version SET version = version + 1")


def test_a_dump_is_restored_with_all_runs(server: PostgresServer) -> None:
    commands = "\n".join(blocks())
    assert "pg_dump --format=custom --file=retinue.dump --schema=retinue" in commands
    assert "pg_restore --exit-on-error" in commands
    url = server.url("kept")
    with closing(PostgresStore(url)) as store:
        store.commit(None, [register("alice"), OpenSession(session_id="s", at=1.0)])
        store.commit("alice", [accept("root")])
        store.commit("alice", [record("root", 2, reply("x" * 40_000))])
        before = (store.runs(RunQuery()), store.events("root"))
        # While the store is in use.
        server.run("pg_dump", "--format=custom", "--schema=kept", "--file=kept.dump", "postgres")
    with administrator(server) as connection:
        connection.execute("DROP SCHEMA kept CASCADE")
    server.run("pg_restore", "--exit-on-error", "--dbname=postgres", "kept.dump")

    with closing(PostgresStore(url)) as store:
        assert (store.runs(RunQuery()), store.events("root")) == before
        store.commit(None, [register("bob")])
        assert commit_one(store, Post(run_id="root", item=TextMessage(key="m", text="hello"))) == "posted"
        assert store.commit("bob", [accept("next")])
