"""Pruning in small steps: what goes and what stays, the space on the disk, and writers that go on."""

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from retinue.core.commands import (
    CancelTree,
    Change,
    Decision,
    OpenSession,
    Record,
    RunQuery,
    UnregisterDriver,
)
from retinue.core.inbox import Cancel
from retinue.core.ports import PruneRequest
from retinue.core.run import HistoryRef
from retinue.store.sqlite import prune as module
from retinue.store.sqlite.check import check_file
from retinue.store.sqlite.store import SqliteStore
from retinue.store.sqlite.work import LongWork
from retinue.testing.contracts.store.fixtures import accept, record, register, reply, run_ended

ROOT = Path(__file__).parents[2]
LONG = "x" * 40_000
BOUND = 0.25
"""Seconds that a writer may wait for a step of a prune, on a machine that is busy with other things, too."""


def filled(path: Path, runs: int, *, text: str = "x" * 300) -> SqliteStore:
    store = SqliteStore(path)
    store.commit(None, [register("alice"), OpenSession(session_id="s", at=1.0)])
    for begin in range(0, runs, 100):
        writes = [accept(f"r{n}", at=float(n)) for n in range(begin, min(runs, begin + 100))]
        store.commit("alice", writes)
        for write in writes:
            run_id = write.accepted.run_id
            events = (reply(f"{run_id} {text}"), run_ended())
            store.commit("alice", [Record(run_id=run_id, seq=2, events=events)])
    return store


def ids(store: SqliteStore) -> list[str]:
    return sorted(row.run_id for row in store.runs(RunQuery()))


def prune(store: SqliteStore, request: PruneRequest) -> list[int]:
    return list(store.prune_in_steps(request))


def test_a_prune_takes_small_steps_and_gives_the_space_back(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    with closing(filled(path, 330, text=LONG)) as store:
        store.truncate_wal()
        full = path.stat().st_size

        steps = prune(store, PruneRequest(before=1e9))

        assert sum(steps) == 330
        assert max(steps) == module.RUNS_PER_STEP
        assert len([step for step in steps if step]) == 7
        assert path.stat().st_size < full / 20
        assert len(steps) < full / 4096 / 10, "a step gives many pages back"
        assert Path(f"{path}-wal").stat().st_size == 0
        assert ids(store) == []
    assert check_file(path, LongWork()).ok


def test_a_large_tree_goes_in_steps_that_leave_a_whole_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_PER_STEP", 3)
    path = tmp_path / "retinue.db"
    with closing(filled(path, 0)) as store:
        store.commit("alice", [accept("root"), *(accept(f"child {n}", parent="root") for n in range(7))])
        for name in (*(f"child {n}" for n in range(7)), "root"):
            store.commit("alice", [record(name, 2, run_ended())])

        for _ in store.prune_in_steps(PruneRequest(before=1e9)):
            assert check_file(path, LongWork()).damages == ()

        assert ids(store) == []


def test_a_slow_machine_takes_smaller_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path / "retinue.db", 3)) as store:
        store.commit("alice", [accept("root"), *(accept(f"child {n}", parent="root") for n in range(3))])
        for name in (*(f"child {n}" for n in range(3)), "root"):
            store.commit("alice", [record(name, 2, run_ended())])
        seconds = iter(range(1_000_000))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds)), time=time.time))
        steps = [removed for removed in prune(store, PruneRequest(before=1e12)) if removed]
        assert steps == [1] * 7
        assert ids(store) == []
    with closing(filled(tmp_path / "other.db", 3)) as store:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0, time=time.time))
        assert [removed for removed in prune(store, PruneRequest(before=1e12)) if removed] == [3]


def test_an_unfinished_tree_and_inherited_histories_stay(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "retinue.db", 3)) as store:
        heir = accept("heir", at=50.0)
        inherits = HistoryRef("r1", 3)
        store.commit("alice", [replace(heir, accepted=replace(heir.accepted, inherits=inherits))])
        store.commit("alice", [accept("later", at=60.0)])

        assert sum(prune(store, PruneRequest(before=1e9))) == 2

        assert ids(store) == ["heir", "later", "r1"]


def test_a_run_that_is_accepted_during_a_prune_keeps_the_history_that_it_inherits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RUNS_PER_STEP", 1)
    with closing(filled(tmp_path / "retinue.db", 4)) as store:
        steps = store.prune_in_steps(PruneRequest(before=1e9))
        assert next(steps) == 1  # the oldest is gone, and the others are chosen

        heir = accept("heir", at=50.0)
        store.commit("alice", [replace(heir, accepted=replace(heir.accepted, inherits=HistoryRef("r3", 3)))])
        list(steps)

        assert ids(store) == ["heir", "r3"]


def test_a_blob_that_is_used_again_during_a_prune_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "retinue.db"
    with closing(filled(path, 0)) as store:
        store.commit("alice", [accept("old"), record("old", 2, reply(LONG)), record("old", 3, run_ended())])
        steps = store.prune_in_steps(PruneRequest(before=1e9))
        next(steps)  # the run is gone, its blobs are not

        store.commit("alice", [accept("new"), record("new", 2, reply(LONG))])
        list(steps)

        assert store.events("new", after=1) == [(2, reply(LONG))]
    assert check_file(path, LongWork()).ok


def test_the_oldest_trees_go_until_the_data_are_small_enough(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "retinue.db", 100, text=LONG)) as store:
        removed = sum(prune(store, PruneRequest(before=1e9, max_bytes=2_500_000)))
        left = ids(store)

        assert removed == 100 - len(left)
        assert 0 < removed < 100
        assert store.used_bytes() <= 2_600_000
        assert prune(store, PruneRequest(before=1e9, max_bytes=10_000_000))[-1] == 0
        assert ids(store) == left


def test_the_newest_tree_of_a_named_session_stays(tmp_path: Path) -> None:
    generated = "019467d9-7e3a-7000-8000-000000000000"
    with closing(filled(tmp_path / "retinue.db", 0)) as store:
        store.commit("alice", [OpenSession(session_id=name, at=2.0) for name in ("audit", generated)])
        for n, session in enumerate(("audit", "audit", generated)):
            store.commit("alice", [accept(f"r{n}", session_id=session, at=float(n)), record(f"r{n}", 2, run_ended())])

        prune(store, PruneRequest(before=1e9, keep_sessions=True))

        assert ids(store) == ["r1"]
        assert [session.session_id for session in store.sessions()] == ["s", "audit"]


def test_unnamed_sessions_go_with_their_runs(tmp_path: Path) -> None:
    single, job = "019467d9-7e3a-7000-8000-000000000000", "cron-019467d9-7e3a-7000-8000-000000000000"
    names = ("audit", single, job)
    with closing(filled(tmp_path / "retinue.db", 0)) as store:
        store.commit("alice", [OpenSession(session_id=name, at=time.time()) for name in names])
        for n, name in enumerate(names):
            store.commit("alice", [accept(f"r{n}", session_id=name, at=float(n)), record(f"r{n}", 2, run_ended())])
            store.commit(
                None, [Change(space=f"context/{name}", decide=lambda _: Decision(b"", puts={"key": b"value"}))]
            )

        prune(store, PruneRequest(before=1e9))
        while_driven = [session.session_id for session in store.sessions()]
        store.commit(None, [UnregisterDriver(driver_id="alice")])
        store.commit(None, [accept("r9", session_id=single, at=9.0, driver_id=None)])
        store.commit(None, [CancelTree(run_id="r9", item=Cancel(key="c"), at=10.0)])
        prune(store, PruneRequest(before=1e9))

        assert while_driven == ["s", *names]
        assert [session.session_id for session in store.sessions()] == ["s", "audit", job]
        assert [bool(store.key_value(f"context/{name}")) for name in names] == [True, False, True]


WRITER = """
import sys, time
from pathlib import Path
from tests.store.worker import SqliteStore, prepare, write_batch
store = SqliteStore(Path(sys.argv[1]))
prepare(store, "w")
print("ready", flush=True)
longest, n = 0.0, 0
while not Path(sys.argv[2]).exists():
    n += 1
    began = time.monotonic()
    write_batch(store, "w", n)
    longest = max(longest, time.monotonic() - began)
store.close()
print(n, longest)
"""


def test_a_writer_in_another_process_goes_on_during_a_prune(tmp_path: Path, stress: bool) -> None:
    path, done = tmp_path / "retinue.db", tmp_path / "done"
    runs = 20_000 if stress else 1_000
    with closing(filled(path, runs)) as store:
        arguments = [sys.executable, "-c", WRITER, str(path), str(done)]
        writer = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        longest_step, removed, steps = 0.0, 0, 0
        iterator = store.prune_in_steps(PruneRequest(before=1e9))
        while True:
            began = time.process_time()
            step = next(iterator, None)
            longest_step = max(longest_step, time.process_time() - began)
            if step is None:
                break
            removed, steps = removed + step, steps + 1
            time.sleep(0.005)  # as the engine does
        done.touch()
        written, waited = writer.communicate()[0].split()

    assert removed == runs
    assert steps >= runs / module.RUNS_PER_STEP
    assert int(written) > 0
    # The time of the processor, because other programs may use it meanwhile.
    assert longest_step < BOUND, f"a step took {longest_step:.3f} s; the writer waited {float(waited):.3f} s at most"
    assert check_file(path, LongWork()).ok
