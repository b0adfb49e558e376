"""Every side of the benchmark does the same work, or its ratios would mean nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bench.bare_wires import BARE_DECODERS
from bench.cases import Row, compare
from bench.fake_model import Replies
from bench.many_runs import fill
from bench.postgres import roots_a_second, seconds_of_first_page
from bench.processes import (
    FLOOR,
    MEMORY,
    POSTGRES,
    SQLITE,
    SQLITE_ONCE,
    FakeModel,
    Side,
    cost_of,
    cost_of_wires,
    fake_model,
    seconds_of_sandbox_start,
)
from bench.prune import prune_beside_a_writer
from bench.run import as_table, broken_promises
from bench.work import LEAD, WORKER, Cost, Work
from retinue.core.commands import RunQuery
from retinue.sandbox.probe import sandbox_verdict
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite import SqliteStore

SMALL = Work(workers=2, turns=1, tokens=3)


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def test_every_side_makes_the_same_requests_and_gets_the_same_answers(model: FakeModel) -> None:
    asked: dict[str, int] = {}
    answers: set[str] = set()
    for side in (FLOOR, MEMORY, SQLITE, SQLITE_ONCE):
        before = model.stats().requests
        cost = cost_of(side, model, SMALL, warm_ups=0)
        asked[side.name] = model.stats().requests - before
        answers.add(cost.answers)

    assert set(asked.values()) == {SMALL.model_turns} == {6}
    assert len(answers) == 1


def test_different_work_has_different_answers(model: FakeModel) -> None:
    more = msgspec.structs.replace(SMALL, tokens=4)

    assert cost_of(FLOOR, model, SMALL, warm_ups=0).answers != cost_of(FLOOR, model, more, warm_ups=0).answers


def test_the_fake_model_answers_leads_and_workers_in_turn() -> None:
    replies = Replies(SMALL)
    lead, worker = LEAD.encode(), WORKER.encode()
    result = b'{"role":"tool","tool_call_id":"call_0"}'

    said = [replies.to(lead), replies.to(lead + result), replies.to(worker), replies.to(worker + result)]

    assert [b"".join(pieces).count(b'"type":"function"') for pieces in said] == [2, 0, 1, 0]
    assert [b"".join(pieces).count(b'"content":"word "') for pieces in said] == [0, 3, 0, 3]


def test_ratios_compare_adjacent_measurements_and_exceeded_limits_are_bold() -> None:
    def costs(*walls: float) -> list[Cost]:
        return [Cost(cpu=0.0, wall=wall, model_turns=1, answers="", peak_kb=0) for wall in walls]

    found = {"floor": costs(1.0, 2.0, 4.0), "memory": costs(1.5, 3.0, 6.0), "SQLite": costs(2.0, 4.0, 8.4)}

    row = compare("wall time", "s", found, lambda cost: cost.wall, {"memory": 1.5, "SQLite": 1.9})

    assert row == Row(
        what="wall time",
        unit="s",
        values={"floor": 2.0, "memory": 3.0, "SQLite": 4.0},
        ratios={"floor": 1.0, "memory": 1.5, "SQLite": 2.0},
        most={"memory": 1.5, "SQLite": 1.9},
    )
    assert as_table([row]).splitlines() == [
        "| | floor | memory | SQLite | promised | kept |",
        "|---|---:|---:|---:|---|---|",
        "| wall time, s | 2 | 3 (1.50x) | 4 (2.00x) | memory ≤ 1.5x, SQLite ≤ 1.9x | **no: SQLite** |",
    ]
    assert broken_promises([row]) == "promises that were not kept:\n  wall time: SQLite"
    assert broken_promises([msgspec.structs.replace(row, most={"memory": 1.5})]) is None


def test_every_wire_is_read_by_both_sides_and_costs_something() -> None:
    costs = cost_of_wires(rounds=1)

    assert costs.keys() == BARE_DECODERS.keys()
    assert all(min(cost.bare, cost.retinue, cost.ratio, cost.in_memory) > 0 for cost in costs.values())


def test_a_start_in_the_sandbox_is_measured_where_there_is_one() -> None:
    found = asyncio.run(sandbox_verdict())

    assert (seconds_of_sandbox_start(rounds=1) is None) == (found.sandbox is None)


def test_a_failing_measurement_raises() -> None:
    with fake_model() as model, pytest.raises(RuntimeError, match="ended with status 1 and no output"):
        cost_of(Side("broken", "bench.nowhere"), model, SMALL)


@pytest.mark.real_time
async def test_roots_prunes_and_lists_are_measured_on_both_stores(postgres_url: str, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "retinue.db")) as sqlite, closing(PostgresStore(postgres_url)) as postgres:
        rates = [await roots_a_second(store, roots=400) for store in (sqlite, postgres)]
        fill(postgres, 100, own_sessions=True)
        page = seconds_of_first_page(postgres)
        prunes = [
            prune_beside_a_writer(sqlite, str(tmp_path / "retinue.db")),
            prune_beside_a_writer(postgres, postgres_url),
        ]

        assert min(rates) > 0
        assert page > 0
        assert [prune.removed for prune in prunes] == [0, 100]
        assert all(prune.resting.longest > 0 for prune in prunes)
        assert (sqlite.count(RunQuery()), postgres.count(RunQuery())) == (400, 400)  # roots have not ended


def test_a_side_on_a_server_does_the_same_work(model: FakeModel, postgres_url: str) -> None:
    answers = {cost_of(side, model, SMALL, warm_ups=0, store=postgres_url).answers for side in (SQLITE, POSTGRES)}

    assert len(answers) == 1
