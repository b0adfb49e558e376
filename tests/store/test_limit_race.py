"""Processes that create runs within one limit at the same time: exactly as many are created as it allows."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from retinue.core.commands import OpenSession, RunQuery
from retinue.core.ports import Store
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store.fixtures import accept
from tests.store.test_sqlite_processes import ENVIRONMENT, WORKER

LIMIT = 7


@pytest.mark.parametrize("of", ["tree", "session"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_create_exactly_as_many_runs_as_a_limit_allows(
    kind: str, of: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "retinue.db") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    store: Store = SqliteStore(Path(place)) if kind == "sqlite" else PostgresStore(place)
    store.commit(None, [OpenSession(session_id="s", at=1.0), accept("root", driver_id=None)])
    names = ("ann", "bob")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*WORKER, "race", place, name, of, "20", str(LIMIT)],
                    env=ENVIRONMENT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name in names
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        done = [int(process.communicate(timeout=120)[0]) for process in processes]

    rows = store.runs(RunQuery(root_id="root", unfinished_only=True))
    store.close()
    assert sum(done) == len(rows) - 1 == LIMIT, done
