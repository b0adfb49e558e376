"""Writer processes that the store tests start and kill; each prints the batches that were acknowledged.

A batch is one event of the worker's own run, one item in the inbox of the run `shared`, and an increment of a shared
counter. They are committed together, so they must be found together.
"""

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from retinue.core.commands import Accepted, Change, Decision, OpenSession, Post, RunLimit
from retinue.core.errors import StoreUnavailable
from retinue.core.inbox import TextMessage
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite import store as sqlite
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store.fixtures import accept, record, register, reply


def count_up(key_value: Mapping[str, bytes]) -> Decision:
    count = b"%d" % (int(key_value.get("count", b"0")) + 1)
    return Decision(count, puts={"count": count})


def prepare(store: SqliteStore, *names: str) -> None:
    """Create the workers' runs, and the run to which they all post."""
    store.commit(None, [OpenSession(session_id="s", at=1.0), accept("shared", driver_id=None)])
    for name in names:
        store.commit(None, [register(name), accept(name, driver_id=name)])


def write_batch(store: SqliteStore, name: str, n: int, *, padding: int = 1000) -> None:
    """The `n`-th batch of a worker, counted from 1."""
    text = f"{name} {n} ".ljust(padding, "x")
    writes = (
        record(name, n + 1, reply(text, turn=n)),
        Post(run_id="shared", item=TextMessage(key=f"{name}/{n}", text=f"{n}")),
        Change(space="counter", decide=count_up),
    )
    store.commit(name, writes)


def hammer(path: Path, seconds: float, *names: str) -> None:
    """Write with one thread and one store per name for some seconds, each at least once; prints the batches of each."""
    setattr(sqlite, "CHECKPOINT_SIZE", 100_000)  # noqa: B010  force many checkpoints
    until = time.monotonic() + seconds
    done = dict.fromkeys(names, 0)

    def work(name: str) -> None:
        store = SqliteStore(path)
        while time.monotonic() < until or not done[name]:
            write_batch(store, name, done[name] + 1)
            done[name] += 1
        store.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, count in done.items():
        print(name, count)


def write_for_ever(path: Path, name: str, begin: int) -> None:
    """Write batches until the process is killed; prints the number of each when it is acknowledged."""
    setattr(sqlite, "CHECKPOINT_SIZE", 100_000)  # noqa: B010  be killed during checkpoints, too
    store = SqliteStore(path)
    n = begin
    while True:
        write_batch(store, name, n)
        print(n, flush=True)
        n += 1


def race(place: str, name: str, of: str, count: int, limit: int) -> None:
    """When a line comes on stdin, create children of `root` within a limit; prints how many were accepted.

    The limit is one of a `tree`, or one of a `session`.
    """
    store = PostgresStore(place) if place.startswith("postgresql:") else SqliteStore(Path(place))
    store.commit(None, [register(name)])
    print("ready", flush=True)
    sys.stdin.readline()
    within = RunLimit(root_ids=("root",), dialect="mine", runs=limit)
    limits: dict[str, Any] = {"limit": within} if of == "tree" else {"handle_space": "tasks", "max_running": limit}
    done = 0
    for n in range(count):
        child = replace(accept(f"{name}-{n}", parent="root", driver_id=name), handle_format="t_{:02d}", **limits)
        (answer,) = store.commit(name, [child])
        done += isinstance(answer, Accepted)
    print(done)
    store.close()


def fill_up(path: Path, limit: int) -> None:
    """Write batches up to a file size limit, then ten more without it; prints how many were acknowledged."""
    import resource

    store = SqliteStore(path)
    prepare(store, "w")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    done = 0
    reasons: set[str] = set()
    while not reasons:
        try:
            write_batch(store, "w", done + 1)
            done += 1
        except StoreUnavailable as full:
            reasons.add(full.reason)
    try:
        write_batch(store, "w", done + 1)
    except StoreUnavailable as full:
        reasons.add(full.reason)
    print(done, len(store.events("w")) - 1, *reasons, sep="|")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    for _ in range(10):
        write_batch(store, "w", done + 1)
        done += 1
    print(done)
    store.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hammer", path, seconds, *names]:
            hammer(Path(path), float(seconds), *names)
        case ["write_for_ever", path, name, begin]:
            write_for_ever(Path(path), name, int(begin))
        case ["race", place, name, of, count, limit]:
            race(place, name, of, int(count), int(limit))
        case ["fill_up", path, limit]:
            fill_up(Path(path), int(limit))
        case unknown:
            sys.exit(f"unknown: {unknown}")
