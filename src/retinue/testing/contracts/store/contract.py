"""`StoreContract` and `PersistentStoreContract`: all parts of the store contract together."""

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
from retinue.testing.contracts.store.creation import CreationContract, SessionContract
from retinue.testing.contracts.store.drivers import DriverContract
from retinue.testing.contracts.store.event_log import EventLogContract, PruneContract
from retinue.testing.contracts.store.fixtures import (
    RUN_SPEC,
    accept,
    commit_one,
    create_tree,
    driver_row,
    end_run,
    put,
    record,
    reply,
    run_ended,
    run_row,
)


class StoreContract(CreationContract, EventLogContract, DriverContract, SessionContract, PruneContract):
    """The guarantees of every store."""

    def test_changed_is_false_without_other_writers(self, store: Store) -> None:
        store.changed()
        create_tree(store)

        assert store.changed() is False

    def test_a_durable_commit_returns_the_same_results(self, store: Store) -> None:
        assert store.commit("alice", [accept("root")], durable=True) == [Accepted("root")]
        assert store.commit("alice", [record("root", 2, run_ended())], durable=False) == [None]
        assert run_row(store, "root").progress.outcome == run_ended().outcome

    def test_an_empty_batch_changes_nothing(self, store: Store) -> None:
        assert store.commit("alice", []) == []


class PersistentStoreContract(StoreContract):
    """The additional guarantees of a store that outlives its process."""

    def test_a_reopened_store_has_the_same_content(self, tmp_path: Path, store: Store) -> None:
        create_tree(store)
        long = "once upon a time " * 10_000
        commit_one(store, accept("named", key="k", space="tasks", driver_id="bob"))
        commit_one(store, Retire(session_id="s", space="tasks", name="t_01", key="k"))
        commit_one(store, Change(space="context/s", decide=put("a", b"\0\xff"), key="change"))
        charge = Charge("day", 20.0, 99.0, input=1, output=4, cost=2, calls=3)
        commit_one(store, replace(record("root", 2, reply(long)), charges=(charge,)), "alice")
        end_run(store, "two")
        commit_one(store, Post(run_id="one", item=TextMessage(key="w", text=long)))
        commit_one(store, CancelTree(run_id="below", item=Cancel(key="c"), at=40.0))
        store.commit("alice", [UnregisterDriver(driver_id="alice")])
        before = _content(store)

        store.close()
        again = self.open_store(tmp_path)

        try:
            assert _content(again) == before
            assert commit_one(again, accept("new", space="tasks")) == Accepted("new", HandleRef("tasks", "t_02"))
        finally:
            again.close()

    def test_close_may_be_called_twice(self, store: Store) -> None:
        store.close()
        store.close()

    def test_a_second_store_sees_commits_and_reports_them_as_changed(self, tmp_path: Path, store: Store) -> None:
        other = self.open_store(tmp_path)
        try:
            assert other.changed() is False
            create_tree(store)
            assert other.changed() is True
            assert other.changed() is False
            assert other.runs(RunQuery()) == store.runs(RunQuery())

            other.commit("bob", [Post(run_id="root", item=TextMessage(key="w", text="hello"))])
            assert other.changed() is False
            assert store.changed() is True
            assert store.inbox("root") == [TextMessage(key="w", text="hello")]
        finally:
            other.close()

    def test_a_driver_is_fenced_across_stores(self, tmp_path: Path, store: Store) -> None:
        create_tree(store)
        other = self.open_store(tmp_path)
        try:
            other.commit("bob", [DeclareDead(driver_id="alice"), Adopt(driver_id="bob", run_ids=("root",))])
            other.commit("bob", [record("root", 2, reply("mine now"))])
        finally:
            other.close()

        with pytest.raises(Fenced):
            store.commit("alice", [record("root", 2, reply("still mine"))])
        assert store.drivers() == [driver_row("bob")]
        assert store.events("root", after=1) == [(2, reply("mine now"))]


def _content(store: Store) -> dict[str, object]:
    runs = store.runs(RunQuery())
    return {
        "runs": runs,
        "events": [store.events(run.run_id) for run in runs],
        "inboxes": [store.inbox(run.run_id) for run in runs],
        "handles": store.handles("s", "tasks"),
        "drivers": store.drivers(),
        "sessions": store.sessions(),
        "namespace": dict(store.key_value("context/s")),
        "answer": store.answered("change"),
        "charges": store.charges("day", 0.0),
        "run spec": store.run_spec(RUN_SPEC.digest()),
        "by key": store.run_by_key("k"),
    }
