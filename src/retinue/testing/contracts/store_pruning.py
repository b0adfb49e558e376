"""What a store promises about forgetting."""

from __future__ import annotations

from msgspec.structs import replace

from retinue.core.commands import Accept, Accepted, Change, Charge, DeclareDead, Forget, Post, Prune, Retire, RunQuery
from retinue.core.inbox import TextMessage
from retinue.core.ports import Store
from retinue.core.run import HandleRef, HistoryRef
from retinue.testing.contracts.store_case import BRIEF, StoreCase, accept, born, end, one, over, record, said, tree
from retinue.testing.contracts.store_sessions import put


class PruningContract(StoreCase):
    """Old trees go as a whole, with all that only they needed, and nothing else does."""

    def test_trees_that_ended_before_the_moment_are_forgotten_whole(self, store: Store) -> None:
        tree(store)
        born(store, accept("other", at=14.0))
        for run_id in ("below", "one", "two", "root"):
            end(store, run_id)

        assert one(store, Prune(before=30.0)) == 0
        assert one(store, Prune(before=31.0)) == 4
        assert [row.run_id for row in store.runs(RunQuery())] == ["other"]
        assert store.events("root") == []
        assert store.run("one") is None
        assert store.run_spec(BRIEF.digest()) == BRIEF

    def test_a_tree_with_a_run_that_has_not_ended_stays(self, store: Store) -> None:
        tree(store)
        for run_id in ("two", "root"):
            end(store, run_id)

        assert one(store, Prune(before=1000.0)) == 0
        assert len(store.runs(RunQuery())) == 4

    def test_a_history_that_somebody_inherited_stays(self, store: Store) -> None:
        born(store, accept("origin"), accept("unrelated"))
        fork = accept("fork")
        heir = replace(fork.accepted, inherits=HistoryRef("origin", 1))
        assert one(store, replace(fork, accepted=heir)) == Accepted("fork")
        for run_id in ("origin", "unrelated"):
            end(store, run_id)

        assert one(store, Prune(before=1000.0)) == 1
        assert {row.run_id for row in store.runs(RunQuery())} == {"origin", "fork"}

    def test_what_only_a_forgotten_run_needed_goes_with_it(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        birth: Accept = accept("old", key="mine")
        one(store, birth)
        one(store, Post(run_id="old", item=TextMessage(key="w", text=long)))
        charges = (Charge("day", 5.0, 95.0, input=1), Charge("year", 5.0, 900.0, input=2))
        one(store, replace(record("old", 2, said(long), over(long)), charges=charges), "alice")
        one(store, Change(space="context/s", decide=put("a", b"1"), key="old/1/0"))
        one(store, Change(space="context/s", decide=put("b", b"2"), key="young/1/0"))

        assert one(store, Prune(before=100.0)) == 1
        assert (store.answered("old/1/0"), store.answered("young/1/0")) == (None, b"a")
        assert store.charges("day", 0.0) == []
        assert store.charges("year", 0.0) == [Charge("year", 5.0, 900.0, input=2)]
        assert dict(store.key_value("context/s")) == {"a": b"1", "b": b"2"}
        assert store.run_by_key("mine") is None
        assert one(store, birth) == Accepted("old")
        assert store.run_spec(BRIEF.digest()) == BRIEF

    def test_artifacts_go_with_the_tree_that_made_them(self, store: Store) -> None:
        tree(store)
        born(store, accept("root2"))
        for run_id in ("below", "one", "two", "root"):
            end(store, run_id)
        gone = [f"artifact/{run_id}/a{piece}" for run_id in ("root",) for piece in ("", "/0")]
        kept = [f"{kind}/{run_id}/a" for kind, run_id in (("artifact", "root2"), ("artifacts", "root"))]
        for space in (*gone, *kept):
            one(store, Change(space=space, decide=put("text", b"long")))

        assert one(store, Prune(before=100.0)) == 4
        assert [dict(store.key_value(space)) for space in gone] == [{}] * 2
        assert [dict(store.key_value(space)) for space in kept] == [{"text": b"long"}] * 2

    def test_what_remaining_runs_need_is_still_there(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        born(store, accept("old"), accept("young"))
        for run_id in ("old", "young"):
            one(store, record(run_id, 2, said(long)), "alice")
        one(store, record("old", 3, over()), "alice")
        one(store, Post(run_id="young", item=TextMessage(key="w", text=long)))

        assert one(store, Prune(before=100.0)) == 1
        assert store.events("young", after=1) == [(2, said(long))]
        assert store.inbox("young") == [TextMessage(key="w", text=long)]

    def test_messages_of_a_dialect_are_dropped_once_the_tree_is_over(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        born(store, accept("root", dialect="d"))
        for run_id, dialect in (("kept", "other"), ("dropped", "d")):
            born(store, accept(run_id, parent="root", dialect=dialect))
        one(store, Post(run_id="dropped", item=TextMessage(key="w", text=long)))
        one(store, record("dropped", 2, said(long)), "alice")
        for run_id, seq in (("kept", 2), ("dropped", 3)):
            one(store, record(run_id, seq, over("done")), "alice")
        assert one(store, Forget(root_id="root", dialect="d")) == 0
        assert len(store.events("dropped")) == 3
        end(store, "root")

        assert one(store, Forget(root_id="root", dialect="d")) == 1
        assert (store.events("dropped"), store.inbox("dropped")) == ([], [])
        assert [len(store.events(run_id)) for run_id in ("root", "kept")] == [2, 2]
        row = store.run("dropped")
        assert row is not None
        assert (row.seq, row.progress.outcome and row.progress.outcome.text) == (0, "done")
        assert one(store, Forget(root_id="root", dialect="d")) == 0
        assert one(store, Prune(before=1000.0)) == 3

    def test_what_is_dropped_and_said_elsewhere_too_is_still_said_there(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        born(store, accept("root"))
        born(store, accept("dropped", parent="root", dialect="d"))
        for run_id in ("root", "dropped"):
            one(store, record(run_id, 2, said(long)), "alice")
            one(store, record(run_id, 3, over(long)), "alice")

        assert one(store, Forget(root_id="root", dialect="d")) == 1
        assert store.events("root", after=1)[0] == (2, said(long))
        row = store.run("dropped")
        assert row is not None
        assert row.progress.outcome is not None
        assert row.progress.outcome.text == long

    def test_numbers_of_handles_are_not_given_again(self, store: Store) -> None:
        one(store, accept("old", space="tasks"))
        end(store, "old")
        assert one(store, Retire(session_id="s", space="tasks", name="t_01", key="k")) == "old"

        assert one(store, Prune(before=100.0)) == 1
        assert one(store, accept("new", space="tasks")) == Accepted("new", HandleRef("tasks", "t_02"))

    def test_dead_drivers_without_runs_are_forgotten(self, store: Store) -> None:
        tree(store)
        one(store, DeclareDead(driver_id="bob"))
        one(store, accept("nobodys", driver_id=None))
        one(store, Prune(before=0.0))

        assert [driver.driver_id for driver in store.drivers()] == ["alice"]
        one(store, DeclareDead(driver_id="bob"))
