"""Who may write: the fence, the death and the leave of drivers, and cancels that reach driven and undriven runs."""

from __future__ import annotations

import pytest

from retinue.core.commands import (
    Adopt,
    CancelTree,
    DeclareDead,
    Heartbeat,
    Post,
    Progress,
    Record,
    RegisterDriver,
    RunQuery,
    UnregisterDriver,
)
from retinue.core.errors import Fenced
from retinue.core.events import RunEnded
from retinue.core.inbox import Cancel, TextMessage
from retinue.core.ports import Store
from retinue.core.run import Outcome
from retinue.core.usage import NO_USAGE, Usage
from retinue.testing.contracts.store_births import ids
from retinue.testing.contracts.store_case import (
    StoreCase,
    accept,
    born,
    driver,
    end,
    enlist,
    one,
    over,
    record,
    row,
    said,
    tree,
)

CANCEL = Cancel(key="stop", reason="parent_ended", note="no longer needed")
PROGRESS = Progress(phase="working", turns=2, usage=Usage(14, 6), cost=100)


def cancelled(*, text: str = "", turns: int = 0, usage: Usage = NO_USAGE, cost: int | None = 0) -> Outcome:
    """How a run ends that `CANCEL` met while nobody drove it: with its last words."""
    return Outcome(
        result="cancelled",
        reason="parent_ended",
        text=text,
        error="no longer needed",
        turns=turns,
        usage=usage,
        cost=cost,
    )


class DriverContract(StoreCase):
    """Driving and cancelling."""

    def test_a_driver_that_never_enlisted_writes_nothing(self, store: Store) -> None:
        with pytest.raises(Fenced) as fenced:
            store.commit("carol", [accept("root", driver_id="carol")])

        assert fenced.value.driver_id == "carol"
        assert store.run("root") is None

    def test_a_batch_may_begin_with_its_own_enlisting(self, store: Store) -> None:
        store.commit("carol", [enlist("carol"), accept("root", driver_id="carol")])

        assert row(store, "root").driver_id == "carol"

    def test_a_dead_driver_writes_nothing_and_its_runs_are_nobodys(self, store: Store) -> None:
        tree(store)
        end(store, "two")

        assert one(store, DeclareDead(driver_id="alice"), "bob") is True

        with pytest.raises(Fenced) as fenced:
            store.commit("alice", [record("root", 2, said("still here"))])
        assert fenced.value.driver_id == "alice"
        assert row(store, "root").seq == 1
        assert ids(store.runs(RunQuery(undriven_only=True))) == ["below", "one", "root"]
        assert row(store, "two").driver_id == "alice"
        assert store.drivers() == [driver("bob")]

    def test_a_driver_whose_counter_moved_is_not_dead(self, store: Store) -> None:
        one(store, Heartbeat(driver_id="alice"), "alice")

        assert one(store, DeclareDead(driver_id="alice", beat=0), "bob") is False
        assert store.drivers() == [driver("alice", beat=1), driver("bob")]

        assert one(store, DeclareDead(driver_id="alice", beat=1), "bob") is True
        assert one(store, DeclareDead(driver_id="alice", beat=0), "bob") is True
        assert store.drivers() == [driver("bob")]

    def test_a_driver_that_is_not_there_is_dead(self, store: Store) -> None:
        assert one(store, DeclareDead(driver_id="carol", beat=3), "bob") is True

    def test_a_driver_that_was_declared_dead_may_begin_again_without_its_runs(self, store: Store) -> None:
        born(store, accept("root"))
        one(store, DeclareDead(driver_id="alice"), "bob")

        store.commit("alice", [RegisterDriver(driver=driver("alice", beat=7))])

        assert store.drivers() == [driver("alice", beat=7), driver("bob")]
        with pytest.raises(Fenced):
            store.commit("alice", [record("root", 2, said("mine"))])

    def test_a_driver_that_leaves_is_gone_and_its_runs_can_be_adopted(self, store: Store) -> None:
        tree(store)

        answers = store.commit("alice", [record("root", 2, said("last words")), UnregisterDriver(driver_id="alice")])

        assert answers == [None, None]
        assert store.drivers() == [driver("bob")]
        with pytest.raises(Fenced):
            store.commit("alice", [Heartbeat(driver_id="alice")])
        assert one(store, Adopt(driver_id="bob", run_ids=("root", "one")), "bob") == ("root", "one")
        assert one(store, record("root", 3, said("my turn")), "bob") is None

    def test_of_two_adopters_one_gets_the_run(self, store: Store) -> None:
        born(store, accept("root", driver_id=None))
        store.commit(None, [enlist("carol")])

        answers = store.commit(
            None, [Adopt(driver_id=name, run_ids=("root",)) for name in ("nobody", "carol", "bob", "carol")]
        )

        assert answers == [(), ("root",), (), ()]
        assert row(store, "root").driver_id == "carol"

    def test_a_cancel_waits_in_the_inboxes_of_the_whole_tree(self, store: Store) -> None:
        tree(store)
        end(store, "two")

        answer = one(store, CancelTree(run_id="root", item=CANCEL, at=40.0), "bob")

        assert answer == ("root", "one", "below")
        for run_id in ("root", "one", "below"):
            assert store.inbox(run_id) == [CANCEL]
            assert row(store, run_id).cancelled_at == 40.0
            assert row(store, run_id).progress == Progress(phase="queued")
        assert store.inbox("two") == []
        assert row(store, "two").cancelled_at is None

    def test_a_part_of_a_tree_can_be_cancelled(self, store: Store) -> None:
        tree(store)

        assert one(store, CancelTree(run_id="one", item=CANCEL, at=40.0)) == ("one", "below")
        assert row(store, "root").cancelled_at is None

    def test_a_cancel_reaches_what_lives_below_an_ended_run(self, store: Store) -> None:
        tree(store)
        end(store, "one")

        assert one(store, CancelTree(run_id="one", item=CANCEL, at=40.0)) == ("below",)

    def test_cancelling_again_changes_nothing(self, store: Store) -> None:
        tree(store)
        one(store, CancelTree(run_id="one", item=CANCEL, at=40.0))

        assert one(store, CancelTree(run_id="root", item=Cancel(key="again"), at=50.0)) == ("root", "two")
        assert one(store, CancelTree(run_id="root", item=Cancel(key="again"), at=60.0)) == ()
        assert one(store, CancelTree(run_id="ghost", item=Cancel(key="again"), at=60.0)) is None
        assert (row(store, "one").cancelled_at, row(store, "two").cancelled_at) == (40.0, 50.0)
        assert store.inbox("one") == [CANCEL]

    def test_a_cancelled_run_that_nobody_drives_ends_on_the_spot(self, store: Store) -> None:
        born(store, accept("root"))
        one(store, Record(run_id="root", seq=2, events=(said("hm"),), progress=PROGRESS), "alice")
        store.commit("alice", [UnregisterDriver(driver_id="alice")])

        assert one(store, CancelTree(run_id="root", item=CANCEL, at=40.0)) == ("root",)

        outcome = cancelled(text="hm", turns=2, usage=Usage(14, 6), cost=100)
        found = row(store, "root")
        assert store.events("root", after=2) == [(3, RunEnded(at=40.0, outcome=outcome))]
        assert found.progress == Progress(
            phase="ended", turns=2, usage=Usage(14, 6), cost=100, outcome=outcome, ended_at=40.0
        )
        assert (found.cancelled_at, found.seq, found.driver_id) == (40.0, 3, None)
        assert one(store, Adopt(driver_id="bob", run_ids=("root",)), "bob") == ()
        assert one(store, CancelTree(run_id="root", item=CANCEL, at=50.0)) == ()

    def test_a_tree_that_is_partly_driven_is_cancelled_as_one(self, store: Store) -> None:
        tree(store, driver_id=None)
        one(store, Adopt(driver_id="bob", run_ids=("one",)), "bob")

        assert one(store, CancelTree(run_id="root", item=CANCEL, at=40.0)) == ("root", "one", "two", "below")

        assert ids(store.runs(RunQuery(unfinished_only=True))) == ["one"]
        assert store.inbox("one") == [CANCEL]
        assert store.events("below", after=1) == [(2, RunEnded(at=40.0, outcome=cancelled()))]

    @pytest.mark.parametrize(
        "how", [DeclareDead(driver_id="alice"), UnregisterDriver(driver_id="alice")], ids=["buried", "left"]
    )
    def test_what_was_cancelled_ends_when_its_driver_is_gone(
        self, store: Store, how: DeclareDead | UnregisterDriver
    ) -> None:
        tree(store)
        one(store, Post(run_id="one", item=TextMessage(key="w", text="hurry")))
        one(store, Record(run_id="one", seq=2, events=(said("hm"),), progress=PROGRESS), "alice")
        one(store, CancelTree(run_id="one", item=CANCEL, at=40.0))

        one(store, how)

        outcome = cancelled(text="hm", turns=2, usage=Usage(14, 6), cost=100)
        assert store.events("one", after=2) == [(3, RunEnded(at=40.0, outcome=outcome))]
        assert row(store, "one").progress.outcome == outcome
        assert row(store, "one").driver_id is None
        assert store.events("below", after=1) == [(2, RunEnded(at=40.0, outcome=cancelled()))]
        assert ids(store.runs(RunQuery(unfinished_only=True))) == ["two", "root"]

    def test_a_cancelled_run_may_still_be_ended_by_its_driver(self, store: Store) -> None:
        born(store, accept("root"))
        one(store, CancelTree(run_id="root", item=CANCEL, at=40.0))

        one(store, record("root", 2, over("just in time")), "alice")

        assert row(store, "root").progress.outcome == over("just in time").outcome

    def test_nothing_of_a_batch_happens_when_its_last_write_is_refused(self, store: Store) -> None:
        tree(store)
        one(store, CancelTree(run_id="below", item=CANCEL, at=39.0))
        before = (store.runs(RunQuery()), store.drivers(), store.inbox_for("alice"), store.events("below"))

        with pytest.raises(Fenced):
            store.commit(
                "bob",
                [
                    Heartbeat(driver_id="bob"),
                    enlist("carol"),
                    CancelTree(run_id="two", item=CANCEL, at=40.0),
                    DeclareDead(driver_id="alice"),
                    Adopt(driver_id="bob", run_ids=("root",)),
                    UnregisterDriver(driver_id="carol"),
                    record("one", 2, said("not mine")),
                ],
            )

        assert (store.runs(RunQuery()), store.drivers(), store.inbox_for("alice"), store.events("below")) == before
