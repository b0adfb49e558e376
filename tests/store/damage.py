"""A store with rows in every table, all answers that can be read from a store, and flipped bytes."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from retinue.core.commands import CancelTree, Change, Charge, Decision, OpenSession, Post, Record, Retire, RunQuery
from retinue.core.inbox import Cancel, TextMessage
from retinue.core.state import fold
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store.fixtures import accept, record, register, reply, run_ended

LARGE = "large " * 5_000


def fill(path: Path, *, runs: int = 12) -> None:
    """Fill a new store: ended and unfinished runs, a tree, inbox items, blobs, handles, values, answers, charges."""
    store = SqliteStore(path)
    try:
        store.commit(None, [register("alice"), register("bob"), OpenSession(session_id="s", at=1.0)])
        store.commit(None, [OpenSession(session_id=f"session {n}", at=2.0 + n) for n in range(10)])
        for n in range(runs):
            root = accept(f"root-{n}", key=f"key {n}", space="t", at=10.0 + n)
            store.commit("alice", [root, record(f"root-{n}", 2, reply(f"answer {n} " * 20))])
            store.commit("alice", [Post(run_id=f"root-{n}", item=TextMessage(key=f"k{n}", text=f"words {n} " * 10))])
            if n % 3:
                store.commit(
                    "alice", [record(f"root-{n}", 3, reply(f"{LARGE} {n}")), record(f"root-{n}", 4, run_ended())]
                )
        charges = tuple(Charge("agent/hour", 10.0 + n, 5000.0, 1, 2, 3, 1) for n in range(10))
        store.commit("alice", [Record(run_id="root-0", seq=3, events=(reply("more", turn=2),), charges=charges)])
        for n in range(10):
            decision = Decision(f"answer {n}".encode(), puts={f"name {n}": f"value {n} ".encode() * 10})
            store.commit("alice", [Change(space="values", decide=lambda _, it=decision: it, key=f"change {n}")])
        store.commit("alice", [Retire(session_id="s", space="t", name="1", key="r")])
        store.commit("bob", [CancelTree(run_id="root-3", item=Cancel(key="c"), at=30.0)])
    finally:
        store.close()


def answers(path: Path) -> list[object]:
    """Every answer that can be read from the store; each row once by itself and once in its list."""
    store = SqliteStore(path)
    try:
        runs = store.runs(RunQuery())
        found: list[object] = [runs, store.runs(RunQuery(roots_only=True)), store.runs(RunQuery(unfinished_only=True))]
        for row in runs:
            found += [store.run(row.run_id), store.run_by_key(row.key or ""), store.inbox(row.run_id)]
            events = store.events(row.run_id)
            run = fold(events, store.run_spec(row.run_spec))
            found += [events, (run.seq, run.text, run.turns, run.outcome)]
        found += [store.handles("s", "t"), store.sessions(), store.session("s"), store.drivers()]
        found += [store.key_value("values"), store.charges("agent/hour", 0.0)]
        found += [store.answered(f"change {n}") for n in range(10)]
        found += [store.inbox_for("alice")]
        return found
    finally:
        store.close()


def pages(path: Path) -> dict[str, list[tuple[int, int]]]:
    """The byte ranges of each table and index, `sqlite_schema` included."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, pgoffset, pgsize FROM dbstat ORDER BY name, pgoffset").fetchall()
    found: dict[str, list[tuple[int, int]]] = {}
    for name, begin, size in rows:
        found.setdefault(name, []).append((begin, size))
    return found


def flips(whole: bytes, ranges: list[tuple[int, int]], count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Random positions in these ranges, each with a random number by which its byte is changed (exclusive or).

    Every other position has a byte that is not zero: a page of a small table is mostly empty.
    """
    rng = random.Random(seed)
    used = [begin + n for begin, size in ranges for n in range(size) if whole[begin + n]]
    for number in range(count):
        begin, size = rng.choice(ranges)
        position = rng.choice(used) if number % 2 else begin + rng.randrange(size)
        yield position, rng.randrange(1, 256)


def flip(whole: bytes, position: int, by: int) -> bytes:
    return whole[:position] + bytes([whole[position] ^ by]) + whole[position + 1 :]
