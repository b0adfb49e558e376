"""`StoreContract` and `PersistentStoreContract`; here also the part about drivers, the fence and cancellation."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.core import commands
from retinue.core.commands import Adopt, CancelTree, DeclareDead, Heartbeat, Post, Progress, RunQuery, UnregisterDriver
from retinue.core.errors import Fenced
from retinue.core.events import RunEnded, RunLeft
from retinue.core.inbox import Cancel, TextMessage
from retinue.core.ports import Store
from retinue.core.run import HandleRef, Outcome
from retinue.core.usage import NO_USAGE, Usage
from retinue.testing.contracts.store import fixtures
from retinue.testing.contracts.store.creation import CreationContract, SessionContract
from retinue.testing.contracts.store.event_log import EventLogContract, PruneContract
from retinue.testing.contracts.store.fixtures import accept, commit_one, create_tree, driver_row, record, reply, run_row

CANCEL = Cancel(key="stop", reason="parent_ended", note="no longer needed")
PROGRESS = Progress(phase="working", turns=2, usage=Usage(14, 6), cost=100)


def cancelled(*, text: str = "", turns: int = 0, usage: Usage = NO_USAGE, cost: int | None = 0) -> Outcome:
    """The outcome of a run without a driver that was cancelled by `CANCEL`, with the last text of its model."""
    return Outcome(
        result="cancelled",
        reason="parent_ended",
        text=text,
        error="no longer needed",
        turns=turns,
        usage=usage,
        cost=cost,
    )


class DriverContract(fixtures.StoreTestCase):
    """Drivers and cancellation."""

    def test_an_unregistered_driver_is_fenced(self, store: Store) -> None:
        with pytest.raises(Fenced) as fenced:
            store.commit("carol", [accept("root", driver_id="carol")])

        assert fenced.value.driver_id == "carol"
        assert store.run("root") is None

    def test_a_batch_may_register_its_own_driver(self, store: Store) -> None:
        store.commit("carol", [fixtures.register("carol"), accept("root", driver_id="carol")])

        assert run_row(store, "root").driver_id == "carol"

    def test_a_dead_driver_is_fenced_and_loses_its_runs(self, store: Store) -> None:
        create_tree(store)
        fixtures.end_run(store, "two")

        assert commit_one(store, DeclareDead(driver_id="alice"), "bob") is True

        with pytest.raises(Fenced) as fenced:
            store.commit("alice", [record("root", 2, reply("still here"))])
        assert fenced.value.driver_id == "alice"
        assert run_row(store, "root").seq == 1
        assert fixtures.run_ids(store.runs(RunQuery(undriven_only=True))) == ["below", "one", "root"]
        assert run_row(store, "two").driver_id == "alice"
        assert store.drivers() == [driver_row("bob")]

    def test_the_unfinished_runs_of_a_dead_driver_were_left_at_its_last_sign_of_life(self, store: Store) -> None:
        create_tree(store)
        fixtures.end_run(store, "two")
        store.commit("alice", [record("root", 2, reply("hm"))])
        before = len(store.events("two"))

        dead = DeclareDead(driver_id="alice", left_at=70.5)
        assert store.commit("bob", [dead, dead]) == [True, True]

        assert store.events("root")[2:] == [(3, RunLeft(at=70.5))]
        assert store.events("one")[1:] == [(2, RunLeft(at=70.5))]
        assert len(store.events("two")) == before
        assert run_row(store, "root").seq == 3

    def test_a_driver_whose_beat_changed_is_not_declared_dead(self, store: Store) -> None:
        commit_one(store, Heartbeat(driver_id="alice"), "alice")

        assert commit_one(store, DeclareDead(driver_id="alice", beat=0), "bob") is False
        assert store.drivers() == [driver_row("alice", beat=1), driver_row("bob")]

        assert commit_one(store, DeclareDead(driver_id="alice", beat=1), "bob") is True
        assert commit_one(store, DeclareDead(driver_id="alice", beat=0), "bob") is True
        assert store.drivers() == [driver_row("bob")]

    def test_an_unknown_driver_counts_as_dead(self, store: Store) -> None:
        assert commit_one(store, DeclareDead(driver_id="carol", beat=3), "bob") is True

    def test_a_dead_driver_may_register_again_without_its_runs(self, store: Store) -> None:
        fixtures.create_runs(store, accept("root"))
        commit_one(store, DeclareDead(driver_id="alice"), "bob")

        store.commit("alice", [commands.RegisterDriver(driver=driver_row("alice", beat=7))])

        assert store.drivers() == [driver_row("alice", beat=7), driver_row("bob")]
        with pytest.raises(Fenced):
            store.commit("alice", [record("root", 2, reply("mine"))])

    def test_runs_of_an_unregistered_driver_can_be_adopted(self, store: Store) -> None:
        create_tree(store)

        answers = store.commit("alice", [record("root", 2, reply("last words")), UnregisterDriver(driver_id="alice")])

        assert answers == [None, None]
        assert store.drivers() == [driver_row("bob")]
        with pytest.raises(Fenced):
            store.commit("alice", [Heartbeat(driver_id="alice")])
        assert commit_one(store, Adopt(driver_id="bob", run_ids=("root", "one")), "bob") == ("root", "one")
        assert commit_one(store, record("root", 3, reply("my turn")), "bob") is None

    def test_only_one_of_two_adopters_gets_the_run(self, store: Store) -> None:
        fixtures.create_runs(store, accept("root", driver_id=None))
        store.commit(None, [fixtures.register("carol")])

        answers = store.commit(
            None, [Adopt(driver_id=name, run_ids=("root",)) for name in ("unregistered", "carol", "bob", "carol")]
        )

        assert answers == [(), ("root",), (), ()]
        assert run_row(store, "root").driver_id == "carol"

    def test_cancel_posts_to_the_whole_tree(self, store: Store) -> None:
        create_tree(store)
        fixtures.end_run(store, "two")

        answer = commit_one(store, CancelTree(run_id="root", item=CANCEL, at=40.0), "bob")

        assert answer == ("root", "one", "below")
        for run_id in ("root", "one", "below"):
            assert store.inbox(run_id) == [CANCEL]
            assert run_row(store, run_id).cancelled_at == 40.0
            assert run_row(store, run_id).progress == Progress(phase="queued")
        assert store.inbox("two") == []
        assert run_row(store, "two").cancelled_at is None

    def test_a_subtree_can_be_cancelled(self, store: Store) -> None:
        create_tree(store)

        assert commit_one(store, CancelTree(run_id="one", item=CANCEL, at=40.0)) == ("one", "below")
        assert run_row(store, "root").cancelled_at is None

    def test_cancel_reaches_unfinished_runs_below_an_ended_one(self, store: Store) -> None:
        create_tree(store)
        fixtures.end_run(store, "one")

        assert commit_one(store, CancelTree(run_id="one", item=CANCEL, at=40.0)) == ("below",)

    def test_a_second_cancel_changes_nothing(self, store: Store) -> None:
        create_tree(store)
        commit_one(store, CancelTree(run_id="one", item=CANCEL, at=40.0))

        assert commit_one(store, CancelTree(run_id="root", item=Cancel(key="again"), at=50.0)) == ("root", "two")
        assert commit_one(store, CancelTree(run_id="root", item=Cancel(key="again"), at=60.0)) == ()
        assert commit_one(store, CancelTree(run_id="ghost", item=Cancel(key="again"), at=60.0)) is None
        assert (run_row(store, "one").cancelled_at, run_row(store, "two").cancelled_at) == (40.0, 50.0)
        assert store.inbox("one") == [CANCEL]

    def test_a_cancelled_run_without_a_driver_ends_at_once(self, store: Store) -> None:
        fixtures.create_runs(store, accept("root"))
        commit_one(store, commands.Record(run_id="root", seq=2, events=(reply("hm"),), progress=PROGRESS), "alice")
        store.commit("alice", [UnregisterDriver(driver_id="alice")])

        assert commit_one(store, CancelTree(run_id="root", item=CANCEL, at=40.0)) == ("root",)

        outcome = cancelled(text="hm", turns=2, usage=Usage(14, 6), cost=100)
        found = run_row(store, "root")
        assert store.events("root", after=2) == [(3, RunEnded(at=40.0, outcome=outcome))]
        assert found.progress == Progress(
            phase="ended", turns=2, usage=Usage(14, 6), cost=100, outcome=outcome, ended_at=40.0
        )
        assert (found.cancelled_at, found.seq, found.driver_id) == (40.0, 3, None)
        assert commit_one(store, Adopt(driver_id="bob", run_ids=("root",)), "bob") == ()
        assert commit_one(store, CancelTree(run_id="root", item=CANCEL, at=50.0)) == ()

    def test_a_tree_with_and_without_drivers_is_cancelled_as_a_whole(self, store: Store) -> None:
        create_tree(store, driver_id=None)
        commit_one(store, Adopt(driver_id="bob", run_ids=("one",)), "bob")

        assert commit_one(store, CancelTree(run_id="root", item=CANCEL, at=40.0)) == ("root", "one", "two", "below")

        assert fixtures.run_ids(store.runs(RunQuery(unfinished_only=True))) == ["one"]
        assert store.inbox("one") == [CANCEL]
        assert store.events("below", after=1) == [(2, RunEnded(at=40.0, outcome=cancelled()))]

    @pytest.mark.parametrize(
        "how", [DeclareDead(driver_id="alice"), UnregisterDriver(driver_id="alice")], ids=["dead", "unregistered"]
    )
    def test_cancelled_runs_end_when_their_driver_is_gone(
        self, store: Store, how: DeclareDead | UnregisterDriver
    ) -> None:
        create_tree(store)
        commit_one(store, Post(run_id="one", item=TextMessage(key="w", text="hurry")))
        commit_one(store, commands.Record(run_id="one", seq=2, events=(reply("hm"),), progress=PROGRESS), "alice")
        commit_one(store, CancelTree(run_id="one", item=CANCEL, at=40.0))

        commit_one(store, how)

        outcome = cancelled(text="hm", turns=2, usage=Usage(14, 6), cost=100)
        assert store.events("one", after=2) == [(3, RunEnded(at=40.0, outcome=outcome))]
        assert run_row(store, "one").progress.outcome == outcome
        assert run_row(store, "one").driver_id is None
        assert store.events("below", after=1) == [(2, RunEnded(at=40.0, outcome=cancelled()))]
        assert fixtures.run_ids(store.runs(RunQuery(unfinished_only=True))) == ["two", "root"]

    def test_a_driver_may_still_end_its_cancelled_run(self, store: Store) -> None:
        fixtures.create_runs(store, accept("root"))
        commit_one(store, CancelTree(run_id="root", item=CANCEL, at=40.0))

        commit_one(store, record("root", 2, fixtures.run_ended("just in time")), "alice")

        assert run_row(store, "root").progress.outcome == fixtures.run_ended("just in time").outcome

    def test_a_rejected_write_rolls_back_its_batch(self, store: Store) -> None:
        create_tree(store)
        commit_one(store, CancelTree(run_id="below", item=CANCEL, at=39.0))
        before = (store.runs(RunQuery()), store.drivers(), store.inbox_for("alice"), store.events("below"))

        with pytest.raises(Fenced):
            store.commit(
                "bob",
                [
                    Heartbeat(driver_id="bob"),
                    fixtures.register("carol"),
                    CancelTree(run_id="two", item=CANCEL, at=40.0),
                    DeclareDead(driver_id="alice"),
                    Adopt(driver_id="bob", run_ids=("root",)),
                    UnregisterDriver(driver_id="carol"),
                    record("one", 2, reply("not mine")),
                ],
            )

        assert (store.runs(RunQuery()), store.drivers(), store.inbox_for("alice"), store.events("below")) == before


class StoreContract(CreationContract, EventLogContract, DriverContract, SessionContract, PruneContract):
    """The guarantees of every store."""

    def test_changed_is_false_without_other_writers(self, store: Store) -> None:
        store.changed()
        create_tree(store)

        assert store.changed() is False

    def test_a_durable_commit_returns_the_same_results(self, store: Store) -> None:
        assert store.commit("alice", [accept("root")], durable=True) == [commands.Accepted("root")]
        assert store.commit("alice", [record("root", 2, fixtures.run_ended())], durable=False) == [None]
        assert run_row(store, "root").progress.outcome == fixtures.run_ended().outcome

    def test_an_empty_batch_changes_nothing(self, store: Store) -> None:
        assert store.commit("alice", []) == []


class PersistentStoreContract(StoreContract):
    """The additional guarantees of a store that outlives its process."""

    def test_a_reopened_store_has_the_same_content(self, tmp_path: Path, store: Store) -> None:
        create_tree(store)
        long = "once upon a time " * 10_000
        commit_one(store, accept("named", key="k", space="tasks", driver_id="bob"))
        commit_one(store, commands.Retire(session_id="s", space="tasks", name="t_01", key="k"))
        commit_one(store, commands.Change(space="context/s", decide=fixtures.put("a", b"\0\xff"), key="change"))
        charge = commands.Charge("day", 20.0, 99.0, input=1, output=4, cost=2, calls=3)
        commit_one(store, replace(record("root", 2, reply(long)), charges=(charge,)), "alice")
        fixtures.end_run(store, "two")
        commit_one(store, Post(run_id="one", item=TextMessage(key="w", text=long)))
        commit_one(store, CancelTree(run_id="below", item=Cancel(key="c"), at=40.0))
        store.commit("alice", [UnregisterDriver(driver_id="alice")])
        before = _content(store)

        store.close()
        again = self.open_store(tmp_path)

        try:
            assert _content(again) == before
            assert commit_one(again, accept("new", space="tasks")) == commands.Accepted(
                "new", HandleRef("tasks", "t_02")
            )
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
        "run spec": store.run_spec(fixtures.RUN_SPEC.digest()),
        "by key": store.run_by_key("k"),
    }
