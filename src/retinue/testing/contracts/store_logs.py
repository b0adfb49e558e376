"""How a run's log grows, what its inbox holds, and how large texts come back whole."""

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
from retinue.testing.contracts.store_case import StoreCase, accept, born, end, one, over, record, row, said, tree


class LogContract(StoreCase):
    """Recording and posting."""

    def test_recorded_events_come_back_in_order_and_numbered(self, store: Store) -> None:
        birth = accept("root")
        born(store, birth)
        returned = CallReturned(at=22.0, turn=1, index=0, text="found", failed=True)

        assert one(store, record("root", 2, said("hm"), returned), "alice") is None
        assert one(store, record("root", 4, said("so", turn=2)), "alice") is None

        log = [(1, birth.accepted), (2, said("hm")), (3, returned), (4, said("so", turn=2))]
        assert store.events("root") == log
        assert store.events("root", after=2) == log[2:]
        assert store.events("root", after=4) == []
        assert row(store, "root").seq == 4

    def test_one_batch_carries_events_of_many_runs(self, store: Store) -> None:
        born(store, accept("root"), accept("other"))

        store.commit("alice", [record("root", 2, said("a")), record("other", 2, said("b")), record("root", 3, over())])

        assert [event for _, event in store.events("root", after=1)] == [said("a"), over()]
        assert store.events("other", after=1) == [(2, said("b"))]

    def test_progress_moves_the_row_and_stays_until_it_moves_again(self, store: Store) -> None:
        born(store, accept("root"))
        progress = Progress(phase="parked", turns=3, usage=Usage(9, 8, 7, 6), cost=None)

        one(store, replace(record("root", 2, said("hm")), progress=progress), "alice")
        one(store, record("root", 3, said("hm")), "alice")

        assert row(store, "root").progress == progress
        assert row(store, "root").seq == 3

    def test_records_of_one_batch_move_a_row_as_far_as_the_last_of_them(self, store: Store) -> None:
        born(store, accept("root"), accept("other"))
        working = Progress(phase="working", turns=1, usage=Usage(1, 2), cost=3)
        parked = Progress(phase="parked", turns=2, usage=Usage(9, 8, 7, 6), cost=None)

        answers = store.commit(
            "alice",
            [
                replace(record("root", 2, said("a")), progress=working),
                replace(record("other", 2, said("x")), progress=working),
                replace(record("root", 3, said("b", turn=2)), progress=parked),
                record("root", 4, said("c"), said("d")),
            ],
        )

        assert answers == [None, None, None, None]
        assert store.events("root", after=1) == [
            (2, said("a")),
            (3, said("b", turn=2)),
            (4, said("c")),
            (5, said("d")),
        ]
        assert (row(store, "root").seq, row(store, "root").progress) == (5, parked)
        assert (row(store, "other").seq, row(store, "other").progress) == (2, working)

    @pytest.mark.parametrize("seq", [2, 4])
    def test_a_number_that_does_not_follow_in_its_own_batch_is_refused(self, store: Store, seq: int) -> None:
        born(store, accept("root"), accept("other"))

        with pytest.raises(StoreCorrupt, match=f"event {seq} cannot be added to run root: its last event is 2"):
            store.commit(
                "alice", [record("root", 2, said("a")), record("other", 2, said("x")), record("root", seq, said("b"))]
            )
        assert (len(store.events("root")), len(store.events("other"))) == (1, 1)

    def test_nothing_follows_the_end_in_its_own_batch(self, store: Store) -> None:
        born(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="event 3 cannot be added to run root: it ended with event 2"):
            store.commit("alice", [record("root", 2, over()), record("root", 3, said("more"))])
        assert len(store.events("root")) == 1

    def test_mail_of_a_batch_reaches_whoever_has_not_ended_before_it(self, store: Store) -> None:
        born(store, accept("root"), accept("other"))
        early, late = TextMessage(key="early", text="in time"), TextMessage(key="late", text="too late")

        store.commit(
            "alice",
            [
                replace(record("root", 2, said("a")), posts=(("other", early),)),
                record("other", 2, over()),
                replace(record("root", 3, said("b")), posts=(("other", late),)),
            ],
        )

        assert store.inbox("other") == [early]

    def test_the_end_of_a_run_stands_in_its_row(self, store: Store) -> None:
        born(store, accept("told"), accept("untold"))
        outcome = Outcome(
            result="failed",
            reason="bug",
            text="so far",
            error="it broke",
            structured={"a": [1, None]},
            unstopped=("x",),
        )
        ended = Progress(phase="ended", turns=4, usage=Usage(1, 2), cost=3, outcome=outcome, ended_at=31.0)

        one(store, replace(record("told", 2, RunEnded(at=31.0, outcome=outcome)), progress=ended), "alice")
        one(store, record("untold", 2, over()), "alice")

        assert row(store, "told").progress == ended
        assert row(store, "untold").progress == Progress(
            phase="ended", turns=1, usage=Usage(7, 3), cost=50, outcome=over().outcome, ended_at=30.0
        )

    def test_nothing_follows_the_end(self, store: Store) -> None:
        born(store, accept("root"), accept("other"))
        end(store, "root")

        with pytest.raises(StoreCorrupt, match="event 3 cannot be added to run root: it ended with event 2"):
            store.commit("alice", [record("root", 3, said("more"))])
        with pytest.raises(StoreCorrupt, match="run other was told to go on after its end"):
            store.commit("alice", [record("other", 2, over(), said("more"))])
        assert (row(store, "root").seq, row(store, "other").seq) == (2, 1)

    def test_a_row_cannot_be_over_without_an_end(self, store: Store) -> None:
        born(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="run root was said to be over without an end"):
            store.commit("alice", [replace(record("root", 2, said("a")), progress=Progress(phase="ended"))])

    @pytest.mark.parametrize("seq", [1, 2, 4])
    def test_a_number_that_does_not_follow_is_refused_and_nothing_of_its_batch_happens(
        self, store: Store, seq: int
    ) -> None:
        born(store, accept("root"), accept("other"))
        one(store, record("root", 2, said("hm")), "alice")
        post = Post(run_id="root", item=TextMessage(key="w", text="hello"))

        with pytest.raises(StoreCorrupt, match=f"event {seq} cannot be added to run root: its last event is 2"):
            store.commit("alice", [record("other", 2, over()), post, record("root", seq, said("again"))])

        assert row(store, "other").progress == Progress(phase="queued")
        assert len(store.events("other")) == 1
        assert store.inbox("root") == []
        assert one(store, record("root", 3, said("right")), "alice") is None

    def test_an_unknown_run_has_no_log(self, store: Store) -> None:
        with pytest.raises(StoreCorrupt, match="event 2 cannot be added to run ghost: there is no such run"):
            store.commit("alice", [record("ghost", 2, said("boo"))])

    def test_only_the_driver_of_a_run_records(self, store: Store) -> None:
        born(store, accept("root", driver_id="alice"))

        with pytest.raises(Fenced) as fenced:
            store.commit("bob", [record("root", 2, said("mine"))])

        assert fenced.value.driver_id == "bob"
        assert row(store, "root").seq == 1

    def test_items_wait_in_the_order_they_were_posted(self, store: Store) -> None:
        tree(store)
        items = [
            TextMessage(key="b", text="one"),
            Input(key="a", text="two", tools=False),
            TextMessage(key="c", text="three"),
        ]

        answers = store.commit(None, [Post(run_id="root", item=item) for item in items])

        assert answers == ["posted", "posted", "posted"]
        assert store.inbox("root") == items
        assert store.inbox("one") == []

    def test_posting_answers_what_became_of_the_item(self, store: Store) -> None:
        born(store, accept("root"), accept("over"))
        one(store, Post(run_id="over", item=TextMessage(key="w", text="early")))
        end(store, "over")
        words = TextMessage(key="w", text="hello")

        answers = store.commit(
            None,
            [
                Post(run_id="root", item=words),
                Post(run_id="root", item=TextMessage(key="w", text="hello again")),
                Post(run_id="over", item=TextMessage(key="late", text="too late")),
                Post(run_id="over", item=words),
                Post(run_id="ghost", item=words),
            ],
        )

        assert answers == ["posted", "duplicate", "ended", "duplicate", "unknown"]
        assert store.inbox("root") == [words]

    def test_taken_items_are_gone_but_their_keys_are_remembered(self, store: Store) -> None:
        born(store, accept("root"))
        first, second = TextMessage(key="a", text="one"), TextMessage(key="b", text="two")
        store.commit(None, [Post(run_id="root", item=first), Post(run_id="root", item=second)])
        taking = Record(run_id="root", seq=2, events=(MailTaken(at=20.0, items=(first,)),), taken=("a",))

        one(store, taking, "alice")

        assert store.inbox("root") == [second]
        assert one(store, Post(run_id="root", item=first)) == "duplicate"
        assert store.events("root", after=1) == [(2, MailTaken(at=20.0, items=(first,)))]

    def test_mail_that_was_not_taken_after_all_is_still_there(self, store: Store) -> None:
        born(store, accept("root"))
        words = TextMessage(key="a", text="one")
        one(store, Post(run_id="root", item=words))
        taking = Record(run_id="root", seq=2, events=(MailTaken(at=20.0, items=(words,)),), taken=("a",))

        with pytest.raises(StoreCorrupt):
            store.commit("alice", [taking, taking])

        assert store.inbox("root") == [words]

    def test_a_record_posts_to_others_with_its_events(self, store: Store) -> None:
        tree(store)
        end(store, "two")
        news = ChildEnded(key="end of below", run_id="below", result="completed", notice="below is done")
        posts = (("one", news), ("one", news), ("two", news), ("ghost", news))

        one(store, Record(run_id="below", seq=2, events=(over(),), posts=posts), "alice")

        assert store.inbox("one") == [news]
        assert store.inbox("two") == []

    def test_a_driver_reads_the_mail_of_all_its_unfinished_runs(self, store: Store) -> None:
        tree(store)
        born(store, accept("of bob", driver_id="bob"))
        words, answer = TextMessage(key="w", text="hello"), ApprovalAnswer(key="a", turn=1, index=0, allow=True)
        for run_id in ("two", "root", "one", "of bob"):
            one(store, Post(run_id=run_id, item=words))
        one(store, Post(run_id="root", item=answer))
        end(store, "one")

        assert store.inbox_for("alice") == [("root", words), ("root", answer), ("two", words)]
        assert store.inbox_for("bob") == [("of bob", words)]
        assert store.inbox_for("nobody") == []

    def test_charges_are_remembered_by_window_and_time(self, store: Store) -> None:
        born(store, accept("root"))
        charges = (
            Charge("researcher/hour", 20.0, 3620.0, calls=1),
            Charge("researcher/day", 20.0, 86420.0, input=7, output=3, cost=50),
            Charge("researcher/hour", 21.0, 3621.0, input=1, cost=2, calls=3),
            Charge("researcher/hour", 19.0, 3619.0, calls=9),
        )

        one(store, Record(run_id="root", seq=2, events=(said("hm"),), charges=charges), "alice")

        assert store.charges("researcher/hour", 20.0) == [charges[0], charges[2]]
        assert store.charges("researcher/hour", 0.0) == [charges[3], charges[0], charges[2]]
        assert store.charges("researcher/day", 20.0) == [charges[1]]
        assert store.charges("researcher/day", 20.5) == []
        assert store.charges("nobody", 0.0) == []

    def test_large_texts_come_back_whole(self, store: Store) -> None:
        text = "ä long story " * 20_000
        birth = accept("root")
        born(store, replace(birth, accepted=replace(birth.accepted, task=text)), accept("other"))
        words, cancel = TextMessage(key="w", text=text), Cancel(key="c", note=text)
        one(store, Post(run_id="root", item=words))
        one(store, Post(run_id="root", item=cancel))

        one(store, record("other", 2, said(text), over(text)), "alice")

        assert store.events("root") == [(1, replace(birth.accepted, task=text))]
        assert store.inbox("root") == [words, cancel]
        assert store.inbox_for("alice") == [("root", words), ("root", cancel)]
        assert store.events("other", after=1) == [(2, said(text)), (3, over(text))]
        assert row(store, "other").progress.outcome == over(text).outcome

    def test_strange_texts_come_back_as_they_were(self, store: Store) -> None:
        born(store, accept("root"))
        text = 'quotes " and \\ and \0 and \n and 🦉 and \u2028'

        one(store, record("root", 2, said(text)), "alice")

        assert store.events("root", after=1) == [(2, said(text))]
