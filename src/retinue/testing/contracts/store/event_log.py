"""Store contract: event logs, inboxes, charges, and texts of any size."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from retinue.core import commands
from retinue.core.errors import Fenced, StoreCorrupt
from retinue.core.events import CallReturned, MailTaken, RunEnded
from retinue.core.inbox import ApprovalAnswer, Cancel, ChildEnded, Input, TextMessage
from retinue.core.ports import LogLengths, Store
from retinue.core.run import HandleRef, HistoryRef, Outcome
from retinue.core.usage import Usage
from retinue.testing.contracts.store import fixtures
from retinue.testing.contracts.store.fixtures import accept, commit_one, create_runs, record, reply, run_ended, run_row


class EventLogContract(fixtures.StoreTestCase):
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

    def test_the_lengths_of_the_logs_of_a_tree_are_those_of_its_rows(self, store: Store) -> None:
        log_lengths: LogLengths | None = getattr(store, "log_lengths", None)
        if log_lengths is None:
            pytest.skip("the store has no method log_lengths")
        fixtures.create_tree(store)
        create_runs(store, accept("other"))
        store.commit("alice", [record("two", 2, reply("a"), run_ended()), record("below", 2, reply("b"))])

        assert log_lengths("root") == {"root": 1, "one": 1, "two": 3, "below": 2}
        assert log_lengths("unknown") == {}

    def test_one_batch_may_record_several_runs(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))

        store.commit(
            "alice", [record("root", 2, reply("a")), record("other", 2, reply("b")), record("root", 3, run_ended())]
        )

        assert [event for _, event in store.events("root", after=1)] == [reply("a"), run_ended()]
        assert store.events("other", after=1) == [(2, reply("b"))]

    def test_progress_updates_the_row_and_persists(self, store: Store) -> None:
        create_runs(store, accept("root"))
        progress = commands.Progress(phase="parked", turns=3, usage=Usage(9, 8, 7, 6), cost=None)

        commit_one(store, replace(record("root", 2, reply("hm")), progress=progress), "alice")
        commit_one(store, record("root", 3, reply("hm")), "alice")

        assert run_row(store, "root").progress == progress
        assert run_row(store, "root").seq == 3

    def test_the_last_record_of_a_batch_determines_the_row(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))
        working = commands.Progress(phase="working", turns=1, usage=Usage(1, 2), cost=3)
        parked = commands.Progress(phase="parked", turns=2, usage=Usage(9, 8, 7, 6), cost=None)

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
        ended = commands.Progress(phase="ended", turns=4, usage=Usage(1, 2), cost=3, outcome=outcome, ended_at=31.0)

        commit_one(store, replace(record("explicit", 2, RunEnded(at=31.0, outcome=outcome)), progress=ended), "alice")
        commit_one(store, record("derived", 2, run_ended()), "alice")

        assert run_row(store, "explicit").progress == ended
        assert run_row(store, "derived").progress == commands.Progress(
            phase="ended", turns=1, usage=Usage(7, 3), cost=50, outcome=run_ended().outcome, ended_at=30.0
        )

    def test_events_after_the_end_are_rejected(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"))
        fixtures.end_run(store, "root")

        with pytest.raises(StoreCorrupt, match="event 3 cannot be added to run root: it ended with event 2"):
            store.commit("alice", [record("root", 3, reply("more"))])
        with pytest.raises(StoreCorrupt, match="run other has events after its end"):
            store.commit("alice", [record("other", 2, run_ended(), reply("more"))])
        assert (run_row(store, "root").seq, run_row(store, "other").seq) == (2, 1)

    def test_ended_progress_without_an_end_event_is_rejected(self, store: Store) -> None:
        create_runs(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="run root is marked as ended without an end"):
            store.commit("alice", [replace(record("root", 2, reply("a")), progress=commands.Progress(phase="ended"))])

    @pytest.mark.parametrize("seq", [1, 2, 4])
    def test_a_wrong_sequence_number_rolls_back_its_batch(self, store: Store, seq: int) -> None:
        create_runs(store, accept("root"), accept("other"))
        commit_one(store, record("root", 2, reply("hm")), "alice")
        post = commands.Post(run_id="root", item=TextMessage(key="w", text="hello"))

        with pytest.raises(StoreCorrupt, match=f"event {seq} cannot be added to run root: its last event is 2"):
            store.commit("alice", [record("other", 2, run_ended()), post, record("root", seq, reply("again"))])

        assert run_row(store, "other").progress == commands.Progress(phase="queued")
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
        fixtures.create_tree(store)
        items = [
            TextMessage(key="b", text="one"),
            Input(key="a", text="two", tools=False),
            TextMessage(key="c", text="three"),
        ]

        answers = store.commit(None, [commands.Post(run_id="root", item=item) for item in items])

        assert answers == ["posted", "posted", "posted"]
        assert store.inbox("root") == items
        assert store.inbox("one") == []

    def test_post_returns_the_fate_of_the_item(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("over"))
        commit_one(store, commands.Post(run_id="over", item=TextMessage(key="w", text="early")))
        fixtures.end_run(store, "over")
        message = TextMessage(key="w", text="hello")

        answers = store.commit(
            None,
            [
                commands.Post(run_id="root", item=message),
                commands.Post(run_id="root", item=TextMessage(key="w", text="hello again")),
                commands.Post(run_id="over", item=TextMessage(key="late", text="too late")),
                commands.Post(run_id="over", item=message),
                commands.Post(run_id="ghost", item=message),
            ],
        )

        assert answers == ["posted", "duplicate", "ended", "duplicate", "unknown"]
        assert store.inbox("root") == [message]

    def test_taken_items_are_removed_but_their_keys_stay_known(self, store: Store) -> None:
        create_runs(store, accept("root"))
        first, second = TextMessage(key="a", text="one"), TextMessage(key="b", text="two")
        store.commit(None, [commands.Post(run_id="root", item=first), commands.Post(run_id="root", item=second)])
        taking = commands.Record(run_id="root", seq=2, events=(MailTaken(at=20.0, items=(first,)),), taken=("a",))

        commit_one(store, taking, "alice")

        assert store.inbox("root") == [second]
        assert commit_one(store, commands.Post(run_id="root", item=first)) == "duplicate"
        assert store.events("root", after=1) == [(2, MailTaken(at=20.0, items=(first,)))]

    def test_an_end_is_recorded_only_if_the_whole_inbox_was_read(self, store: Store) -> None:
        create_runs(store, accept("root"))
        words = [TextMessage(key=key, text=key) for key in ("a", "b", "c")]
        for item in words:
            commit_one(store, commands.Post(run_id="root", item=item), "bob")
        end = replace(record("root", 2, run_ended("done")), taken=("a",), known=("b",))
        charge = commands.Charge("day", 1.0, 2.0, calls=1)

        answers = store.commit("alice", [replace(end, charges=(charge,))])

        assert answers == [commands.Unread((words[2],))]
        assert store.inbox("root") == words
        assert (run_row(store, "root").seq, store.charges("day", 0.0)) == (1, [])
        assert store.commit("alice", [replace(end, known=("b", "c"))]) == [None]
        assert run_row(store, "root").progress.phase == "ended"
        late = TextMessage(key="d", text="d")
        assert commit_one(store, commands.Post(run_id="root", item=late), "bob") == "ended"

    def test_a_refused_end_does_not_hinder_the_other_records_of_its_batch(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("other"), accept("third"))
        word = TextMessage(key="a", text="a")
        commit_one(store, commands.Post(run_id="other", item=word), "bob")
        end = [replace(record(run_id, 3, run_ended()), known=()) for run_id in ("root", "other", "third")]

        answers = store.commit(
            "alice", [write for each in end for write in (record(each.run_id, 2, reply("hm")), each)]
        )

        assert answers == [None, None, None, commands.Unread((word,)), None, None]
        assert [len(store.events(run_id)) for run_id in ("root", "other", "third")] == [3, 2, 3]
        phases = [run_row(store, run_id).progress.phase for run_id in ("root", "other", "third")]
        assert phases == ["ended", "queued", "ended"]

    def test_a_rolled_back_take_keeps_the_items(self, store: Store) -> None:
        create_runs(store, accept("root"))
        message = TextMessage(key="a", text="one")
        commit_one(store, commands.Post(run_id="root", item=message))
        taking = commands.Record(run_id="root", seq=2, events=(MailTaken(at=20.0, items=(message,)),), taken=("a",))

        with pytest.raises(StoreCorrupt):
            store.commit("alice", [taking, taking])

        assert store.inbox("root") == [message]

    def test_a_record_posts_to_other_runs(self, store: Store) -> None:
        fixtures.create_tree(store)
        fixtures.end_run(store, "two")
        news = ChildEnded(key="end of below", run_id="below", result="completed", notice="below is done")
        posts = (("one", news), ("one", news), ("two", news), ("ghost", news))

        commit_one(store, commands.Record(run_id="below", seq=2, events=(run_ended(),), posts=posts), "alice")

        assert store.inbox("one") == [news]
        assert store.inbox("two") == []

    def test_inbox_for_returns_items_of_all_unfinished_runs(self, store: Store) -> None:
        fixtures.create_tree(store)
        create_runs(store, accept("of bob", driver_id="bob"))
        message, answer = TextMessage(key="w", text="hello"), ApprovalAnswer(key="a", turn=1, index=0, allow=True)
        for run_id in ("two", "root", "one", "of bob"):
            commit_one(store, commands.Post(run_id=run_id, item=message))
        commit_one(store, commands.Post(run_id="root", item=answer))
        fixtures.end_run(store, "one")

        assert store.inbox_for("alice") == [("root", message), ("root", answer), ("two", message)]
        assert store.inbox_for("bob") == [("of bob", message)]
        assert store.inbox_for("unknown") == []

    def test_charges_are_found_by_window_and_time(self, store: Store) -> None:
        create_runs(store, accept("root"))
        charges = (
            commands.Charge("researcher/hour", 20.0, 3620.0, calls=1),
            commands.Charge("researcher/day", 20.0, 86420.0, input=7, output=3, cost=50),
            commands.Charge("researcher/hour", 21.0, 3621.0, input=1, cost=2, calls=3),
            commands.Charge("researcher/hour", 19.0, 3619.0, calls=9),
        )

        commit_one(store, commands.Record(run_id="root", seq=2, events=(reply("hm"),), charges=charges), "alice")

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
        commit_one(store, commands.Post(run_id="root", item=message))
        commit_one(store, commands.Post(run_id="root", item=cancel))

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


class PruneContract(fixtures.StoreTestCase):
    """Old trees are deleted completely, with everything only they need, and nothing else."""

    def test_prune_deletes_trees_that_ended_before_the_time(self, store: Store) -> None:
        fixtures.create_tree(store)
        create_runs(store, accept("other", at=14.0))
        for run_id in ("below", "one", "two", "root"):
            fixtures.end_run(store, run_id)

        assert commit_one(store, commands.Prune(before=30.0)) == 0
        assert commit_one(store, commands.Prune(before=31.0)) == 4
        assert [run_row.run_id for run_row in store.runs(commands.RunQuery())] == ["other"]
        assert store.events("root") == []
        assert store.run("one") is None
        assert store.run_spec(fixtures.RUN_SPEC.digest()) == fixtures.RUN_SPEC

    def test_prune_keeps_trees_with_an_unfinished_run(self, store: Store) -> None:
        fixtures.create_tree(store)
        for run_id in ("two", "root"):
            fixtures.end_run(store, run_id)

        assert commit_one(store, commands.Prune(before=1000.0)) == 0
        assert len(store.runs(commands.RunQuery())) == 4

    def test_prune_keeps_histories_that_a_remaining_run_inherited(self, store: Store) -> None:
        create_runs(store, accept("origin"), accept("unrelated"))
        fork = accept("fork")
        heir = replace(fork.accepted, inherits=HistoryRef("origin", 1))
        assert commit_one(store, replace(fork, accepted=heir)) == commands.Accepted("fork")
        for run_id in ("origin", "unrelated"):
            fixtures.end_run(store, run_id)

        assert commit_one(store, commands.Prune(before=1000.0)) == 1
        assert {run_row.run_id for run_row in store.runs(commands.RunQuery())} == {"origin", "fork"}

    def test_prune_deletes_everything_only_a_pruned_run_needs(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        creation: commands.Accept = accept("old", key="mine")
        commit_one(store, creation)
        commit_one(store, commands.Post(run_id="old", item=TextMessage(key="w", text=long)))
        charges = (commands.Charge("day", 5.0, 95.0, input=1), commands.Charge("year", 5.0, 900.0, input=2))
        commit_one(store, replace(record("old", 2, reply(long), run_ended(long)), charges=charges), "alice")
        commit_one(store, commands.Change(space="context/s", decide=fixtures.put("a", b"1"), key="old/1/0"))
        commit_one(store, commands.Change(space="context/s", decide=fixtures.put("b", b"2"), key="young/1/0"))

        assert commit_one(store, commands.Prune(before=100.0)) == 1
        assert (store.answered("old/1/0"), store.answered("young/1/0")) == (None, b"a")
        assert store.charges("day", 0.0) == []
        assert store.charges("year", 0.0) == [commands.Charge("year", 5.0, 900.0, input=2)]
        assert dict(store.key_value("context/s")) == {"a": b"1", "b": b"2"}
        assert store.run_by_key("mine") is None
        assert commit_one(store, creation) == commands.Accepted("old")
        assert store.run_spec(fixtures.RUN_SPEC.digest()) == fixtures.RUN_SPEC

    def test_prune_deletes_the_artifacts_of_a_tree(self, store: Store) -> None:
        fixtures.create_tree(store)
        create_runs(store, accept("root2"))
        for run_id in ("below", "one", "two", "root"):
            fixtures.end_run(store, run_id)
        gone = [f"artifact/{run_id}/a{piece}" for run_id in ("root",) for piece in ("", "/0")]
        kept = [f"{kind}/{run_id}/a" for kind, run_id in (("artifact", "root2"), ("artifacts", "root"))]
        for space in (*gone, *kept):
            commit_one(store, commands.Change(space=space, decide=fixtures.put("text", b"long")))

        assert commit_one(store, commands.Prune(before=100.0)) == 4
        assert [dict(store.key_value(space)) for space in gone] == [{}] * 2
        assert [dict(store.key_value(space)) for space in kept] == [{"text": b"long"}] * 2

    def test_prune_keeps_what_remaining_runs_need(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        create_runs(store, accept("old"), accept("young"))
        for run_id in ("old", "young"):
            commit_one(store, record(run_id, 2, reply(long)), "alice")
        commit_one(store, record("old", 3, run_ended()), "alice")
        commit_one(store, commands.Post(run_id="young", item=TextMessage(key="w", text=long)))

        assert commit_one(store, commands.Prune(before=100.0)) == 1
        assert store.events("young", after=1) == [(2, reply(long))]
        assert store.inbox("young") == [TextMessage(key="w", text=long)]

    def test_forget_deletes_messages_of_a_dialect_once_the_tree_ended(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        create_runs(store, accept("root", dialect="d"))
        for run_id, dialect in (("kept", "other"), ("dropped", "d")):
            create_runs(store, accept(run_id, parent="root", dialect=dialect))
        commit_one(store, commands.Post(run_id="dropped", item=TextMessage(key="w", text=long)))
        commit_one(store, record("dropped", 2, reply(long)), "alice")
        for run_id, seq in (("kept", 2), ("dropped", 3)):
            commit_one(store, record(run_id, seq, run_ended("done")), "alice")
        assert commit_one(store, commands.Forget(root_id="root", dialect="d")) == 0
        assert len(store.events("dropped")) == 3
        fixtures.end_run(store, "root")

        assert commit_one(store, commands.Forget(root_id="root", dialect="d")) == 1
        assert (store.events("dropped"), store.inbox("dropped")) == ([], [])
        assert [len(store.events(run_id)) for run_id in ("root", "kept")] == [2, 2]
        run_row = store.run("dropped")
        assert run_row is not None
        assert (run_row.seq, run_row.progress.outcome and run_row.progress.outcome.text) == (0, "done")
        assert commit_one(store, commands.Forget(root_id="root", dialect="d")) == 0
        assert commit_one(store, commands.Prune(before=1000.0)) == 3

    def test_a_rolled_back_forget_keeps_the_messages(self, store: Store) -> None:
        create_runs(store, accept("root"), accept("child", parent="root", dialect="d"))
        message = TextMessage(key="w", text="hello")
        commit_one(store, commands.Post(run_id="child", item=message))
        for run_id in ("child", "root"):
            fixtures.end_run(store, run_id)
        events = store.events("child")

        with pytest.raises(StoreCorrupt):
            store.commit("alice", [commands.Forget(root_id="root", dialect="d"), record("root", 9, reply("no"))])

        assert (store.events("child"), store.inbox("child")) == (events, [message])

    def test_forget_keeps_blobs_that_other_runs_share(self, store: Store) -> None:
        long = "once upon a time " * 10_000
        create_runs(store, accept("root"))
        create_runs(store, accept("dropped", parent="root", dialect="d"))
        for run_id in ("root", "dropped"):
            commit_one(store, record(run_id, 2, reply(long)), "alice")
            commit_one(store, record(run_id, 3, run_ended(long)), "alice")

        assert commit_one(store, commands.Forget(root_id="root", dialect="d")) == 1
        assert store.events("root", after=1)[0] == (2, reply(long))
        run_row = store.run("dropped")
        assert run_row is not None
        assert run_row.progress.outcome is not None
        assert run_row.progress.outcome.text == long

    def test_prune_does_not_free_handle_numbers(self, store: Store) -> None:
        commit_one(store, accept("old", space="tasks"))
        fixtures.end_run(store, "old")
        assert commit_one(store, commands.Retire(session_id="s", space="tasks", name="t_01", key="k")) == "old"

        assert commit_one(store, commands.Prune(before=100.0)) == 1
        assert commit_one(store, accept("new", space="tasks")) == commands.Accepted("new", HandleRef("tasks", "t_02"))

    def test_prune_deletes_dead_drivers_without_runs(self, store: Store) -> None:
        fixtures.create_tree(store)
        commit_one(store, commands.DeclareDead(driver_id="bob"))
        commit_one(store, accept("undriven", driver_id=None))
        commit_one(store, commands.Prune(before=0.0))

        assert [driver.driver_id for driver in store.drivers()] == ["alice"]
        commit_one(store, commands.DeclareDead(driver_id="bob"))
