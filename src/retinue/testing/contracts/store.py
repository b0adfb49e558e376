"""The promises of a store, to run against any implementation of `core.ports.Store`.

A new store inherits the class, says how it is made, and is tested::

    from pathlib import Path
    from retinue.testing.contracts.store import StoreContract

    class TestMyStore(StoreContract):
        def open_store(self, folder: Path) -> MyStore:
            return MyStore(folder / "retinue.db")

One that keeps nothing beyond its own life inherits `StoreContract`; one that does, `LastingStoreContract`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.core.commands import (
    Accepted,
    Adopt,
    CancelTree,
    Change,
    Charge,
    DeclareDead,
    Post,
    Retire,
    RunQuery,
    UnregisterDriver,
)
from retinue.core.errors import Fenced
from retinue.core.inbox import Cancel, TextMessage
from retinue.core.ports import Store
from retinue.core.run import HandleRef
from retinue.testing.contracts.store_births import BirthContract
from retinue.testing.contracts.store_case import BRIEF, accept, driver, end, one, over, record, row, said, tree
from retinue.testing.contracts.store_drivers import DriverContract
from retinue.testing.contracts.store_logs import LogContract
from retinue.testing.contracts.store_pruning import PruningContract
from retinue.testing.contracts.store_sessions import SessionContract, put

__all__ = ["LastingStoreContract", "StoreContract"]


class StoreContract(BirthContract, LogContract, DriverContract, SessionContract, PruningContract):
    """What every store promises."""

    def test_nobody_else_has_written(self, store: Store) -> None:
        store.changed()
        tree(store)

        assert store.changed() is False

    def test_a_durable_commit_answers_like_any_other(self, store: Store) -> None:
        assert store.commit("alice", [accept("root")], durable=True) == [Accepted("root")]
        assert store.commit("alice", [record("root", 2, over())], durable=False) == [None]
        assert row(store, "root").progress.outcome == over().outcome

    def test_an_empty_batch_changes_nothing(self, store: Store) -> None:
        assert store.commit("alice", []) == []


class LastingStoreContract(StoreContract):
    """What a store promises besides, when it outlives its process."""

    def test_a_store_that_is_opened_again_shows_the_same(self, tmp_path: Path, store: Store) -> None:
        tree(store)
        long = "once upon a time " * 10_000
        one(store, accept("named", key="k", space="tasks", driver_id="bob"))
        one(store, Retire(session_id="s", space="tasks", name="t_01", key="k"))
        one(store, Change(space="context/s", decide=put("a", b"\0\xff"), key="change"))
        charge = Charge("day", 20.0, 99.0, input=1, output=4, cost=2, calls=3)
        one(store, replace(record("root", 2, said(long)), charges=(charge,)), "alice")
        end(store, "two")
        one(store, Post(run_id="one", item=TextMessage(key="w", text=long)))
        one(store, CancelTree(run_id="below", item=Cancel(key="c"), at=40.0))
        store.commit("alice", [UnregisterDriver(driver_id="alice")])
        before = _everything(store)

        store.close()
        again = self.open_store(tmp_path)

        try:
            assert _everything(again) == before
            assert one(again, accept("new", space="tasks")) == Accepted("new", HandleRef("tasks", "t_02"))
        finally:
            again.close()

    def test_closing_twice_does_no_harm(self, store: Store) -> None:
        store.close()
        store.close()

    def test_a_second_store_sees_what_the_first_commits_and_is_told(self, tmp_path: Path, store: Store) -> None:
        other = self.open_store(tmp_path)
        try:
            assert other.changed() is False
            tree(store)
            assert other.changed() is True
            assert other.changed() is False
            assert other.runs(RunQuery()) == store.runs(RunQuery())

            other.commit("bob", [Post(run_id="root", item=TextMessage(key="w", text="hello"))])
            assert other.changed() is False
            assert store.changed() is True
            assert store.inbox("root") == [TextMessage(key="w", text="hello")]
        finally:
            other.close()

    def test_a_driver_is_fenced_by_another_store_too(self, tmp_path: Path, store: Store) -> None:
        tree(store)
        other = self.open_store(tmp_path)
        try:
            other.commit("bob", [DeclareDead(driver_id="alice"), Adopt(driver_id="bob", run_ids=("root",))])
            other.commit("bob", [record("root", 2, said("mine now"))])
        finally:
            other.close()

        with pytest.raises(Fenced):
            store.commit("alice", [record("root", 2, said("still mine"))])
        assert store.drivers() == [driver("bob")]
        assert store.events("root", after=1) == [(2, said("mine now"))]


def _everything(store: Store) -> dict[str, object]:
    runs = store.runs(RunQuery())
    return {
        "runs": runs,
        "events": [store.events(run.run_id) for run in runs],
        "mail": [store.inbox(run.run_id) for run in runs],
        "handles": store.handles("s", "tasks"),
        "drivers": store.drivers(),
        "sessions": store.sessions(),
        "shelf": dict(store.key_value("context/s")),
        "answer": store.answered("change"),
        "charges": store.charges("day", 0.0),
        "brief": store.run_spec(BRIEF.digest()),
        "by key": store.run_by_key("k"),
    }
