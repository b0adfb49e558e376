"""The tables of the queue of workers are upgraded with procrastinate, by their owner, when the store is opened."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import psycopg
import pytest
from procrastinate.schema import SchemaManager

import retinue
from retinue.core.commands import RunQuery
from retinue.dispatch.worker.job_queue import JobQueue, runs_of
from retinue.providers.scripted import Script, ScriptedProvider
from retinue.store.postgres import PostgresStore, parse_address, queue_tables
from tests.internals import engine_of
from tests.postgres import PostgresServer

INSTALLED = Path(SchemaManager.get_migrations_path())
OLD = "03.01.00_50_post_add_heartbeat.sql"
COMMENT = "SELECT obj_description('procrastinate_workers'::regclass)"


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.url(f"queue_{uuid.uuid4().hex}")


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Execute statements in the schema of a store; the rows of the last one."""
    address = parse_address(url)
    with psycopg.connect(address.connection_string, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (address.schema,))
        cursor = None
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return [] if cursor is None or cursor.description is None else cursor.fetchall()


def use_migrations(folder: Path, monkeypatch: pytest.MonkeyPatch, **later: str) -> None:
    """Let the installed procrastinate have these migrations as well, by their names without the end."""
    folder.mkdir()
    for path in INSTALLED.glob("*.sql"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name, statement in later.items():
        (folder / f"{name.removeprefix('m')}.sql").write_text(statement)
    monkeypatch.setattr(queue_tables, "_folder", lambda: folder)


def create_old_tables(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a store with the tables of an older procrastinate."""
    with monkeypatch.context() as without:
        without.setattr(queue_tables, "_folder", lambda: None)
        PostgresStore(url).close()
    old = [path.read_text() for path in sorted(INSTALLED.glob("*.sql")) if path.name <= OLD]
    execute(url, *old, f"COMMENT ON TABLE procrastinate_workers IS '{OLD}'")


async def test_the_tables_of_an_older_procrastinate_are_upgraded_and_work(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_old_tables(url, monkeypatch)
    client = retinue.open(provider=ScriptedProvider(Script()), dialects=(), store=url)
    async with client as r, JobQueue(parse_address(url), lease=60.0, timeout=60.0) as queue:
        run = await r.spawn("task", detached=True)
        await queue.enqueue(engine_of(r).store.runs(RunQuery()), "a", is_takeover=False)
        job = await queue.fetch(["a"])
    assert job is not None
    assert runs_of(job) == (run.run_id,)


def test_a_role_without_the_right_to_upgrade_is_an_error_naming_the_owner(
    url: str,
    postgres_server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    PostgresStore(url).close()
    schema, role = parse_address(url).schema, f"role_{uuid.uuid4().hex}"
    execute(
        url,
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};"
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
    )
    later = {"m99.00.00_01_pre_add_note": "ALTER TABLE procrastinate_jobs ADD COLUMN note text"}
    use_migrations(tmp_path / "next", monkeypatch, **later)
    with caplog.at_level(logging.WARNING, logger="retinue.store"):
        PostgresStore(url.replace("postgres@", f"{role}@")).close()
    assert "open the store once as their owner to upgrade them" in caplog.text


def test_later_migrations_are_applied_once_and_the_last_that_remove_something_wait(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PostgresStore(url).close()
    later = {
        "m99.00.00_01_pre_add_note": "ALTER TABLE procrastinate_jobs ADD COLUMN note text",
        "m99.00.00_50_post_drop_note": "ALTER TABLE procrastinate_jobs DROP COLUMN note",
    }
    use_migrations(tmp_path / "next", monkeypatch, **later)
    for _ in range(2):
        PostgresStore(url).close()
        assert execute(url, "SELECT note FROM procrastinate_jobs") == []
        assert execute(url, COMMENT) == [("99.00.00_01_pre_add_note.sql",)]

    later["m99.01.00_01_pre_add_other"] = "ALTER TABLE procrastinate_jobs ADD COLUMN other text"
    use_migrations(tmp_path / "after that", monkeypatch, **later)
    PostgresStore(url).close()
    assert execute(url, "SELECT other FROM procrastinate_jobs") == []
    with pytest.raises(psycopg.errors.UndefinedColumn):
        execute(url, "SELECT note FROM procrastinate_jobs")
