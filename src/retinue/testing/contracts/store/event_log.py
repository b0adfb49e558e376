"""Store contract: event logs, inboxes, charges, and texts of any size."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from retinue.core.commands import Charge, Post, Progress, Record
from retinue.core.errors import Fenced, StoreCorrupt
from retinue.core.events import CallReturned, MailTaken, RunEnded
from retinue.core.inbox import ApprovalAnswer, Cancel, ChildEnded, Input, TextMessage
from retinue.core.ports import Store
from retinue.core.run import Outcome
from retinue.core.usage import Usage
from retinue.testing.contracts.store.fixtures import (
    StoreTestCase,
    accept,
    commit_one,
    create_runs,
    create_tree,
    end_run,
    record,
    reply,
    run_ended,
    run_row,
)


class EventLogContract(StoreTestCase):
    """Recording events and posting inbox items."""

    def test_recorded_events_are_returned_in_order_with_numbers(self, store: Store) -> None:
        creation = accept("root")
        create_runs(store, creation)
        returned = CallReturned(at=22.0, turn=1, index=0, text="found", failed=True)

        assert commit_one(store, record("root", 2, reply("hm"), returned), "alice") is None
        assert commit_one(store, record("root", 4, reply("so", turn=2)), "alice") is None

        log = [(1, creation.accepted), (2, reply("hm")), (3, returned), (4, reply("so", turn=2))]
        assert store.events("root") == log
        assert store.events("root", after=2) == log[2:]
        assert store.events("root", after=4) == []
        assert run_row(store, "root").seq == 4

    def test_one_batch_may_record_several_runs(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))

        store.commit(
            "alice", [record("root", 2, reply("a")), record("other", 2, reply("b")), record("root", 3, run_ended())]
        )

        assert [event for _, event in store.events("root", after=1)] == [reply("a"), run_ended()]
        assert store.events("other", after=1) == [(2, reply("b"))]

    def test_progress_updates_the_row_and_persists(self, store: Store) -> None:
        create_runs(store, accept("root"))
        progress = Progress(phase="parked", turns=3, usage=Usage(9, 8, 7, 6), cost=None)

        commit_one(store, replace(record("root", 2, reply("hm")), progress=progress), "alice")
        commit_one(store, record("root", 3, reply("hm")), "alice")

        assert run_row(store, "root").progress == progress
        assert run_row(store, "root").seq == 3

    def test_the_last_record_of_a_batch_determines_the_row(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))
        working = Progress(phase="working", turns=1, usage=Usage(1, 2), cost=3)
        parked = Progress(phase="parked", turns=2, usage=Usage(9, 8, 7, 6), cost=None)

        answers = store.commit(
            "alice",
            [
                replace(record("root", 2, reply("a")), progress=working),
                replace(record("other", 2, reply("x")), progress=working),
                replace(record("root", 3, reply("b", turn=2)), progress=parked),
                record("root", 4, reply("c"), reply("d")),
            ],
        )

        assert answers == [None, None, None, None]
        assert store.events("root", after=1) == [
            (2, reply("a")),
            (3, reply("b", turn=2)),
            (4, reply("c")),
            (5, reply("d")),
        ]
        assert (run_row(store, "root").seq, run_row(store, "root").progress) == (5, parked)
        assert (run_row(store, "other").seq, run_row(store, "other").progress) == (2, working)

    @pytest.mark.parametrize("seq", [2, 4])
    def test_a_wrong_sequence_number_within_a_batch_is_rejected(self, store: Store, seq: int) -> None:
        create_runs(store, accept("root"), accept("other"))

        with pytest.raises(StoreCorrupt, match=f"event {seq} cannot be added to run root: its last event is 2"):
            store.commit(
                "alice",
                [record("root", 2, reply("a")), record("other", 2, reply("x")), record("root", seq, reply("b"))],
            )
        assert (len(store.events("root")), len(store.events("other"))) == (1, 1)

    def test_events_after_the_end_within_a_batch_are_rejected(self, store: Store) -> None:
        create_runs(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="event 3 cannot be added to run root: it ended with event 2"):
            store.commit("alice", [record("root", 2, run_ended()), record("root", 3, reply("more"))])
        assert len(store.events("root")) == 1

    def test_posts_of_a_batch_reach_runs_that_have_not_ended_before(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))
        early, late = TextMessage(key="early", text="in time"), TextMessage(key="late", text="too late")

        store.commit(
            "alice",
            [
                replace(record("root", 2, reply("a")), posts=(("other", early),)),
                record("other", 2, run_ended()),
                replace(record("root", 3, reply("b")), posts=(("other", late),)),
            ],
        )

        assert store.inbox("other") == [early]

    def test_the_end_of_a_run_is_in_its_row(self, store: Store) -> None:
        create_runs(store, accept("explicit"), accept("derived"))
        outcome = Outcome(
            result="failed",
            reason="bug",
            text="so far",
            error="it broke",
            structured={"a": [1, None]},
            unstopped=("x",),
        )
        ended = Progress(phase="ended", turns=4, usage=Usage(1, 2), cost=3, outcome=outcome, ended_at=31.0)

        commit_one(store, replace(record("explicit", 2, RunEnded(at=31.0, outcome=outcome)), progress=ended), "alice")
        commit_one(store, record("derived", 2, run_ended()), "alice")

        assert run_row(store, "explicit").progress == ended
        assert run_row(store, "derived").progress == Progress(
            phase="ended", turns=1, usage=Usage(7, 3), cost=50, outcome=run_ended().outcome, ended_at=30.0
        )

    def test_events_after_the_end_are_rejected(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))
        end_run(store, "root")

        with pytest.raises(StoreCorrupt, match="event 3 cannot be added to run root: it ended with event 2"):
            store.commit("alice", [record("root", 3, reply("more"))])
        with pytest.raises(StoreCorrupt, match="run other has events after its end"):
            store.commit("alice", [record("other", 2, run_ended(), reply("more"))])
        assert (run_row(store, "root").seq, run_row(store, "other").seq) == (2, 1)

    def test_ended_progress_without_an_end_event_is_rejected(self, store: Store) -> None:
        create_runs(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="run root is marked as ended without an end"):
            store.commit("alice", [replace(record("root", 2, reply("a")), progress=Progress(phase="ended"))])

    @pytest.mark.parametrize("seq", [1, 2, 4])
    def test_a_wrong_sequence_number_rolls_back_its_batch(self, store: Store, seq: int) -> None:
        create_runs(store, accept("root"), accept("other"))
        commit_one(store, record("root", 2, reply("hm")), "alice")
        post = Post(run_id="root", item=TextMessage(key="w", text="hello"))

        with pytest.raises(StoreCorrupt, match=f"event {seq} cannot be added to run root: its last event is 2"):
            store.commit("alice", [record("other", 2, run_ended()), post, record("root", seq, reply("again"))])

        assert run_row(store, "other").progress == Progress(phase="queued")
        assert len(store.events("other")) == 1
        assert store.inbox("root") == []
        assert commit_one(store, record("root", 3, reply("right")), "alice") is None

    def test_recording_an_unknown_run_is_rejected(self, store: Store) -> None:
        with pytest.raises(StoreCorrupt, match="event 2 cannot be added to run ghost: there is no such run"):
            store.commit("alice", [record("ghost", 2, reply("boo"))])

    def test_only_the_driver_of_a_run_may_record(self, store: Store) -> None:
        create_runs(store, accept("root", driver_id="alice"))

        with pytest.raises(Fenced) as fenced:
            store.commit("bob", [record("root", 2, reply("mine"))])

        assert fenced.value.driver_id == "bob"
        assert run_row(store, "root").seq == 1

    def test_inbox_items_are_in_the_order_of_their_posts(self, store: Store) -> None:
        create_tree(store)
        items = [
            TextMessage(key="b", text="one"),
            Input(key="a", text="two", tools=False),
            TextMessage(key="c", text="three"),
        ]

        answers = store.commit(None, [Post(run_id="root", item=item) for item in items])

        assert answers == ["posted", "posted", "posted"]
        assert store.inbox("root") == items
        assert store.inbox("one") == []

    def test_post_returns_the_fate_of_the_item(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("over"))
        commit_one(store, Post(run_id="over", item=TextMessage(key="w", text="early")))
        end_run(store, "over")
        message = TextMessage(key="w", text="hello")

        answers = store.commit(
            None,
            [
                Post(run_id="root", item=message),
                Post(run_id="root", item=TextMessage(key="w", text="hello again")),
                Post(run_id="over", item=TextMessage(key="late", text="too late")),
                Post(run_id="over", item=message),
                Post(run_id="ghost", item=message),
            ],
        )

        assert answers == ["posted", "duplicate", "ended", "duplicate", "unknown"]
        assert store.inbox("root") == [message]

    def test_taken_items_are_removed_but_their_keys_stay_known(self, store: Store) -> None:
        create_runs(store, accept("root"))
        first, second = TextMessage(key="a", text="one"), TextMessage(key="b", text="two")
        store.commit(None, [Post(run_id="root", item=first), Post(run_id="root", item=second)])
        taking = Record(run_id="root", seq=2, events=(MailTaken(at=20.0, items=(first,)),), taken=("a",))

        commit_one(store, taking, "alice")

        assert store.inbox("root") == [second]
        assert commit_one(store, Post(run_id="root", item=first)) == "duplicate"
        assert store.events("root", after=1) == [(2, MailTaken(at=20.0, items=(first,)))]

    def test_a_rolled_back_take_keeps_the_items(self, store: Store) -> None:
        create_runs(store, accept("root"))
        message = TextMessage(key="a", text="one")
        commit_one(store, Post(run_id="root", item=message))
        taking = Record(run_id="root", seq=2, events=(MailTaken(at=20.0, items=(message,)),), taken=("a",))

        with pytest.raises(StoreCorrupt):
            store.commit("alice", [taking, taking])

        assert store.inbox("root") == [message]

    def test_a_record_posts_to_other_runs(self, store: Store) -> None:
        create_tree(store)
        end_run(store, "two")
        news = ChildEnded(key="end of below", run_id="below", result="completed", notice="below is done")
        posts = (("one", news), ("one", news), ("two", news), ("ghost", news))

        commit_one(store, Record(run_id="below", seq=2, events=(run_ended(),), posts=posts), "alice")

        assert store.inbox("one") == [news]
        assert store.inbox("two") == []

    def test_inbox_for_returns_items_of_all_unfinished_runs(self, store: Store) -> None:
        create_tree(store)
        create_runs(store, accept("of bob", driver_id="bob"))
        message, answer = TextMessage(key="w", text="hello"), ApprovalAnswer(key="a", turn=1, index=0, allow=True)
        for run_id in ("two", "root", "one", "of bob"):
            commit_one(store, Post(run_id=run_id, item=message))
        commit_one(store, Post(run_id="root", item=answer))
        end_run(store, "one")

        assert store.inbox_for("alice") == [("root", message), ("root", answer), ("two", message)]
        assert store.inbox_for("bob") == [("of bob", message)]
        assert store.inbox_for("unknown") == []

    def test_charges_are_found_by_window_and_time(self, store: Store) -> None:
        create_runs(store, accept("root"))
        charges = (
            Charge("researcher/hour", 20.0, 3620.0, calls=1),
            Charge("researcher/day", 20.0, 86420.0, input=7, output=3, cost=50),
            Charge("researcher/hour", 21.0, 3621.0, input=1, cost=2, calls=3),
            Charge("researcher/hour", 19.0, 3619.0, calls=9),
        )

        commit_one(store, Record(run_id="root", seq=2, events=(reply("hm"),), charges=charges), "alice")

        assert store.charges("researcher/hour", 20.0) == [charges[0], charges[2]]
        assert store.charges("researcher/hour", 0.0) == [charges[3], charges[0], charges[2]]
        assert store.charges("researcher/day", 20.0) == [charges[1]]
        assert store.charges("researcher/day", 20.5) == []
        assert store.charges("unknown", 0.0) == []

    def test_large_texts_round_trip(self, store: Store) -> None:
        text = "ä long story " * 20_000
        creation = accept("root")
        create_runs(store, replace(creation, accepted=replace(creation.accepted, task=text)), accept("other"))
        message, cancel = TextMessage(key="w", text=text), Cancel(key="c", note=text)
        commit_one(store, Post(run_id="root", item=message))
        commit_one(store, Post(run_id="root", item=cancel))

        commit_one(store, record("other", 2, reply(text), run_ended(text)), "alice")

        assert store.events("root") == [(1, replace(creation.accepted, task=text))]
        assert store.inbox("root") == [message, cancel]
        assert store.inbox_for("alice") == [("root", message), ("root", cancel)]
        assert store.events("other", after=1) == [(2, reply(text)), (3, run_ended(text))]
        assert run_row(store, "other").progress.outcome == run_ended(text).outcome

    def test_unusual_characters_round_trip(self, store: Store) -> None:
        create_runs(store, accept("root"))
        text = 'quotes " and \\ and \0 and \n and 🦉 and \u2028'

        commit_one(store, record("root", 2, reply(text)), "alice")

        assert store.events("root", after=1) == [(2, reply(text))]
