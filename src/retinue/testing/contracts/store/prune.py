"""Store contract: `Prune` and `Forget`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from retinue.core.commands import Accept, Accepted, Change, Charge, DeclareDead, Forget, Post, Prune, Retire, RunQuery
from retinue.core.errors import StoreCorrupt
from retinue.core.inbox import TextMessage
from retinue.core.ports import Store
from retinue.core.run import HandleRef, HistoryRef
from retinue.testing.contracts.store.fixtures import (
    RUN_SPEC,
    StoreTestCase,
    accept,
    commit_one,
    create_runs,
    create_tree,
    end_run,
    put,
    record,
    reply,
    run_ended,
)


class PruneContract(StoreTestCase):
    """Old trees are deleted completely, with everything only they need, and nothing else."""

    def test_prune_deletes_trees_that_ended_before_the_time(self, store: Store) -> None:
        create_tree(store)
        create_runs(store, accept("other", at=14.0))
        for run_id in ("below", "one", "two", "root"):
            end_run(store, run_id)

        assert commit_one(store, Prune(before=30.0)) == 0
        assert commit_one(store, Prune(before=31.0)) == 4
        assert [run_row.run_id for run_row in store.runs(RunQuery())] == ["other"]
        assert store.events("root") == []
        assert store.run("one") is None
        assert store.run_spec(RUN_SPEC.digest()) == RUN_SPEC

    def test_prune_keeps_trees_with_an_unfinished_run(self, store: Store) -> None:
        create_tree(store)
        for run_id in ("two", "root"):
            end_run(store, run_id)

        assert commit_one(store, Prune(before=1000.0)) == 0
        assert len(store.runs(RunQuery())) == 4

    def test_prune_keeps_histories_that_a_remaining_run_inherited(self, store: Store) -> None:
        create_runs(store, accept("origin"), accept("unrelated"))
        fork = accept("fork")
        heir = replace(fork.accepted, inherits=HistoryRef("origin", 1))
        assert commit_one(store, replace(fork, accepted=heir)) == Accepted("fork")
        for run_id in ("origin", "unrelated"):
            end_run(store, run_id)

        assert commit_one(store, Prune(before=1000.0)) == 1
        assert {run_row.run_id for run_row in store.runs(RunQuery())} == {"origin", "fork"}

    def test_prune_deletes_everything_only_a_pruned_run_needs(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        creation: Accept = accept("old", key="mine")
        commit_one(store, creation)
        commit_one(store, Post(run_id="old", item=TextMessage(key="w", text=long)))
        charges = (Charge("day", 5.0, 95.0, input=1), Charge("year", 5.0, 900.0, input=2))
        commit_one(store, replace(record("old", 2, reply(long), run_ended(long)), charges=charges), "alice")
        commit_one(store, Change(space="context/s", decide=put("a", b"1"), key="old/1/0"))
        commit_one(store, Change(space="context/s", decide=put("b", b"2"), key="young/1/0"))

        assert commit_one(store, Prune(before=100.0)) == 1
        assert (store.answered("old/1/0"), store.answered("young/1/0")) == (None, b"a")
        assert store.charges("day", 0.0) == []
        assert store.charges("year", 0.0) == [Charge("year", 5.0, 900.0, input=2)]
        assert dict(store.key_value("context/s")) == {"a": b"1", "b": b"2"}
        assert store.run_by_key("mine") is None
        assert commit_one(store, creation) == Accepted("old")
        assert store.run_spec(RUN_SPEC.digest()) == RUN_SPEC

    def test_prune_deletes_the_artifacts_of_a_tree(self, store: Store) -> None:
        create_tree(store)
        create_runs(store, accept("root2"))
        for run_id in ("below", "one", "two", "root"):
            end_run(store, run_id)
        gone = [f"artifact/{run_id}/a{piece}" for run_id in ("root",) for piece in ("", "/0")]
        kept = [f"{kind}/{run_id}/a" for kind, run_id in (("artifact", "root2"), ("artifacts", "root"))]
        for space in (*gone, *kept):
            commit_one(store, Change(space=space, decide=put("text", b"long")))

        assert commit_one(store, Prune(before=100.0)) == 4
        assert [dict(store.key_value(space)) for space in gone] == [{}] * 2
        assert [dict(store.key_value(space)) for space in kept] == [{"text": b"long"}] * 2

    def test_prune_keeps_what_remaining_runs_need(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        create_runs(store, accept("old"), accept("young"))
        for run_id in ("old", "young"):
            commit_one(store, record(run_id, 2, reply(long)), "alice")
        commit_one(store, record("old", 3, run_ended()), "alice")
        commit_one(store, Post(run_id="young", item=TextMessage(key="w", text=long)))

        assert commit_one(store, Prune(before=100.0)) == 1
        assert store.events("young", after=1) == [(2, reply(long))]
        assert store.inbox("young") == [TextMessage(key="w", text=long)]

    def test_forget_deletes_messages_of_a_dialect_once_the_tree_ended(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        create_runs(store, accept("root", dialect="d"))
        for run_id, dialect in (("kept", "other"), ("dropped", "d")):
            create_runs(store, accept(run_id, parent="root", dialect=dialect))
        commit_one(store, Post(run_id="dropped", item=TextMessage(key="w", text=long)))
        commit_one(store, record("dropped", 2, reply(long)), "alice")
        for run_id, seq in (("kept", 2), ("dropped", 3)):
            commit_one(store, record(run_id, seq, run_ended("done")), "alice")
        assert commit_one(store, Forget(root_id="root", dialect="d")) == 0
        assert len(store.events("dropped")) == 3
        end_run(store, "root")

        assert commit_one(store, Forget(root_id="root", dialect="d")) == 1
        assert (store.events("dropped"), store.inbox("dropped")) == ([], [])
        assert [len(store.events(run_id)) for run_id in ("root", "kept")] == [2, 2]
        run_row = store.run("dropped")
        assert run_row is not None
        assert (run_row.seq, run_row.progress.outcome and run_row.progress.outcome.text) == (0, "done")
        assert commit_one(store, Forget(root_id="root", dialect="d")) == 0
        assert commit_one(store, Prune(before=1000.0)) == 3

    def test_a_rolled_back_forget_keeps_the_messages(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("child", parent="root", dialect="d"))
        message = TextMessage(key="w", text="hello")
        commit_one(store, Post(run_id="child", item=message))
        for run_id in ("child", "root"):
            end_run(store, run_id)
        events = store.events("child")

        with pytest.raises(StoreCorrupt):
            store.commit("alice", [Forget(root_id="root", dialect="d"), record("root", 9, reply("no"))])

        assert (store.events("child"), store.inbox("child")) == (events, [message])

    def test_forget_keeps_blobs_that_other_runs_share(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        create_runs(store, accept("root"))
        create_runs(store, accept("dropped", parent="root", dialect="d"))
        for run_id in ("root", "dropped"):
            commit_one(store, record(run_id, 2, reply(long)), "alice")
            commit_one(store, record(run_id, 3, run_ended(long)), "alice")

        assert commit_one(store, Forget(root_id="root", dialect="d")) == 1
        assert store.events("root", after=1)[0] == (2, reply(long))
        run_row = store.run("dropped")
        assert run_row is not None
        assert run_row.progress.outcome is not None
        assert run_row.progress.outcome.text == long

    def test_prune_does_not_free_handle_numbers(self, store: Store) -> None:
        commit_one(store, accept("old", space="tasks"))
        end_run(store, "old")
        assert commit_one(store, Retire(session_id="s", space="tasks", name="t_01", key="k")) == "old"

        assert commit_one(store, Prune(before=100.0)) == 1
        assert commit_one(store, accept("new", space="tasks")) == Accepted("new", HandleRef("tasks", "t_02"))

    def test_prune_deletes_dead_drivers_without_runs(self, store: Store) -> None:
        create_tree(store)
        commit_one(store, DeclareDead(driver_id="bob"))
        commit_one(store, accept("undriven", driver_id=None))
        commit_one(store, Prune(before=0.0))

        assert [driver.driver_id for driver in store.drivers()] == ["alice"]
        commit_one(store, DeclareDead(driver_id="bob"))
