"""PostgreSQL stores with very many runs: lists have an index for their order, and a prune leaves room for writers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from retinue.core.commands import Change, OpenSession, RunQuery
from retinue.core.ports import PruneRequest
from retinue.store.postgres import PostgresStore
from retinue.store.postgres import prune as prune_module
from retinue.testing.contracts.store.fixtures import commit_one, put


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        store.commit(None, [OpenSession(session_id="s", at=1.0)])
        yield store


class ExplainedStore(PostgresStore):
    """A store that keeps the plans of the queries on runs."""

    def __init__(self, url: str) -> None:
        self.plans: list[str] = []
        super().__init__(url)

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if "FROM runs" in query:
            self.plans.append("\n".join(line for (line,) in super().read(f"EXPLAIN {query}", *values)))
        return super().read(query, *values)


def fill(store: PostgresStore, count: int, *, analyze: bool = True) -> None:
    """Add ended trees of two runs, with three events each, by SQL: it is faster than commits."""
    columns = "run_id, session_id, root_id, parent_id, depth, path, agent, label, dialect, awaited, run_spec"
    values = """
        'r' || i, 's', 'r' || (i - i %% 2), CASE WHEN i %% 2 = 1 THEN 'r' || (i - 1) END, i %% 2, 'main', 'main', '',
        '', true, 'spec'
    """
    runs = f"""
        INSERT INTO runs ({columns}, accepted_at, format, seq, ended, phase, ended_at)
        SELECT {values}, i, 1, 3, true, 'ended', i FROM generate_series(0, %s - 1) AS i
    """
    events = """
        INSERT INTO events (run_no, seq, body)
        SELECT no, given, convert_to(repeat('x', 300), 'UTF8') FROM runs, generate_series(1, 3) AS given
    """
    with psycopg.connect(store.address.connection_string, autocommit=True) as connection:
        connection.execute(f"SET search_path = {store.address.schema}".encode())
        connection.execute(runs.encode(), (count,))
        connection.execute(events)
        if analyze:
            connection.execute("ANALYZE runs")


@pytest.mark.parametrize(
    "query",
    [
        RunQuery(limit=50),
        RunQuery(roots_only=True, limit=50),
        RunQuery(session_id="s", limit=50),
        RunQuery(unfinished_only=True, limit=50),
        RunQuery(unfinished_only=True, undriven_only=True, limit=50),
        RunQuery(phase="working", limit=50),
        RunQuery(id_part="r1234", limit=5),
    ],
)
def test_the_first_page_of_a_list_reads_no_table_from_end_to_end(postgres_url: str, query: RunQuery) -> None:
    with closing(ExplainedStore(postgres_url)) as store:
        fill(store, 5_000)
        store.runs(query)

    (plan,) = store.plans
    assert "Index" in plan
    assert "Seq Scan" not in plan


def test_parts_of_ids_are_found_at_both_ends(store: PostgresStore) -> None:
    fill(store, 2_000)

    found = store.runs(RunQuery(id_part="199"))
    begins = store.runs(RunQuery(id_part="r199"))

    assert {row.run_id for row in found} == {"r199", "r1199"}
    assert {row.run_id for row in begins} == {"r199", *(f"r199{n}" for n in range(10))}


def test_a_writer_commits_between_the_steps_of_a_prune(store: PostgresStore, stress: bool) -> None:
    count = 200_000 if stress else 3_000
    fill(store, count)
    commits = 0
    removed: list[int] = []
    with closing(PostgresStore(store.address)) as other, ThreadPoolExecutor(1) as thread:
        for number in store.prune_in_steps(PruneRequest(before=1e9)):
            removed.append(number)
            thread.submit(commit_one, other, Change(space="s", decide=put("n", b"1"))).result()
            commits += 1

    assert sum(removed) == count
    assert commits == len(removed) > count / prune_module.MOST_PER_STEP
    assert max(removed) <= prune_module.MOST_PER_STEP
    assert store.count(RunQuery()) == 0


def test_a_prune_of_tables_that_were_never_analyzed_reads_none_of_them_from_end_to_end(store: PostgresStore) -> None:
    fill(store, 20_000, analyze=False)
    roots = [f"r{2 * number}" for number in range(50)]
    store.read(prune_module.BY_INDEX, False)
    queries = {
        prune_module.RUNS_OF_TREES: (roots, 50),
        prune_module.SIZES_OF_TREES: (roots,),
        prune_module.HEIRS_OF_TREES: (roots,),
    }

    plans = ["\n".join(line for (line,) in store.read(f"EXPLAIN {query}", *queries[query])) for query in queries]

    assert [("runs_by_root" in plan, "Seq Scan" in plan, "runs_pkey" in plan) for plan in plans] == [
        (True, False, False)
    ] * 3


def test_a_prune_looks_for_answers_and_artifacts_by_an_index(store: PostgresStore) -> None:
    answers = "EXPLAIN DELETE FROM answers WHERE split_part(key, '/', 1) = ANY(%s)"
    artifacts = """
        EXPLAIN DELETE FROM key_values
        WHERE space >= 'artifact/' AND space < 'artifact0' AND split_part(space, '/', 2) = ANY(%s)
    """
    with psycopg.connect(store.address.connection_string, autocommit=True) as connection:
        connection.execute(f"SET search_path = {store.address.schema}".encode())
        connection.execute("INSERT INTO answers SELECT i || '/1/0', 'x' FROM generate_series(1, 5000) AS i")
        connection.execute(
            "INSERT INTO key_values (space, name, value) SELECT 'artifact/' || i || '/a', 'x', 'x' "
            "FROM generate_series(1, 5000) AS i"
        )
        connection.execute("ANALYZE")

    plans = ["\n".join(line for (line,) in store.read(sql, ["17", "18"])) for sql in (answers, artifacts)]

    assert ["answers_by_run" in plans[0], "artifacts_by_root" in plans[1]] == [True, True]
