"""SQLite store with many writers, killed processes and full disks: no batch is lost or stored twice."""

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from retinue.core.commands import RunQuery
from retinue.core.events import ReplyReceived
from retinue.core.inbox import TextMessage
from retinue.store.sqlite.store import SqliteStore
from tests.store import worker

WORKER = [sys.executable, "-m", "tests.store.worker"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])}


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
        return verdict
    finally:
        connection.close()


def logged(store: SqliteStore, name: str) -> list[str]:
    """The texts of a worker's event log, without the padding."""
    replies = [event for _, event in store.events(name, after=1) if isinstance(event, ReplyReceived)]
    return [reply.reply.message.text.rstrip("x").strip() for reply in replies]


def posted(store: SqliteStore) -> Counter[str]:
    return Counter(item.key for item in store.inbox("shared") if isinstance(item, TextMessage))


def assert_whole(path: Path, done: dict[str, int]) -> None:
    """Exactly these numbers of batches are in the file, all of them complete."""
    assert integrity(path) == "ok"
    store = SqliteStore(path)
    try:
        for name, count in done.items():
            assert logged(store, name) == [f"{name} {n}" for n in range(1, count + 1)]
        assert posted(store) == Counter(f"{name}/{n}" for name, count in done.items() for n in range(1, count + 1))
        assert dict(store.key_value("counter")) == {"count": b"%d" % sum(done.values())}
        assert sum(run.seq for run in store.runs(RunQuery())) == 1 + sum(count + 1 for count in done.values())
    finally:
        store.close()


def test_sixteen_writers_in_two_processes_lose_no_batch(tmp_path: Path, stress: bool) -> None:
    path = tmp_path / "retinue.db"
    teams = [[f"{team}{n}" for n in range(8)] for team in "ab"]
    store = SqliteStore(path)
    worker.prepare(store, *teams[0], *teams[1])
    seconds = "60" if stress else "4"

    processes = [
        subprocess.Popen(
            [*WORKER, "hammer", str(path), seconds, *team], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        for team in teams
    ]
    reports = [process.communicate(timeout=300)[0] for process in processes]
    store.close()

    assert [process.returncode for process in processes] == [0, 0]
    done = {name: int(count) for line in "".join(reports).splitlines() for name, count in [line.split()]}
    assert sorted(done) == sorted([*teams[0], *teams[1]])
    assert min(done.values()) > 0
    assert_whole(path, done)


def test_a_process_that_is_killed_leaves_only_whole_batches(tmp_path: Path, stress: bool) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    worker.prepare(store, "w")
    store.close()
    stored = 0

    for round_ in range(40 if stress else 6):
        acknowledged = stored
        process = subprocess.Popen(
            [*WORKER, "write_for_ever", str(path), "w", str(stored + 1)],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(1 + round_ * 17):
            acknowledged = int(process.stdout.readline())
        process.kill()
        acknowledged = int([str(acknowledged), *process.communicate()[0].splitlines()][-1])

        store = SqliteStore(path)
        stored = len(store.events("w")) - 1
        store.close()
        assert stored in (acknowledged, acknowledged + 1)
        assert_whole(path, {"w": stored})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
@pytest.mark.parametrize("limit", [200_000, 333_333, 1_000_000])
def test_a_full_disk_loses_no_acknowledged_batch(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "retinue.db"

    process = subprocess.run(
        [*WORKER, "fill_up", str(path), str(limit)], env=ENVIRONMENT, capture_output=True, text=True, timeout=100
    )

    assert process.stderr == ""
    first, last = process.stdout.splitlines()
    acknowledged, stored, reason = first.split("|")
    assert reason == f"disk I/O error ({path})"
    assert acknowledged == stored
    assert int(last) == int(acknowledged) + 10
    assert_whole(path, {"w": int(last)})
