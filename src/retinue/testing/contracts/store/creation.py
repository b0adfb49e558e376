"""Store contract: creating runs, rejections, handles, run queries and adoption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.core import commands
from retinue.core.agent import RunSpec
from retinue.core.commands import Accepted, Change, CloseSession, Decision, NotCreated, OpenSession, RunQuery
from retinue.core.errors import StoreCorrupt
from retinue.core.ids import RunId
from retinue.core.inbox import Cancel
from retinue.core.ports import Store
from retinue.core.run import HandleRef
from retinue.testing.contracts.store import fixtures
from retinue.testing.contracts.store.fixtures import RUN_SPEC, accept, commit_one, create_runs, end_run, put, run_ids


class CreationContract(fixtures.StoreTestCase):
    """Creating, naming and listing runs."""

    def test_an_accepted_run_has_its_row_first_event_and_run_spec(self, store: Store) -> None:
        creation = accept("root", key="k", space="tasks")

        assert commit_one(store, creation) == Accepted("root", HandleRef("tasks", "t_01"))

        expected = commands.RunRow(
            run_id="root",
            session_id="s",
            root_id="root",
            parent_id=None,
            depth=0,
            path="root",
            agent="researcher",
            label="a look around",
            dialect="mine",
            key="k",
            handle=HandleRef("tasks", "t_01"),
            awaited=True,
            run_spec=RUN_SPEC.digest(),
            driver_id="alice",
            accepted_at=10.0,
            cancelled_at=None,
            format=1,
            seq=1,
            progress=commands.Progress(phase="queued"),
        )
        assert store.run("root") == expected
        assert store.run_by_key("k") == expected
        assert store.events("root") == [(1, replace(creation.accepted, handle=HandleRef("tasks", "t_01")))]
        assert store.run_spec(RUN_SPEC.digest()) == RUN_SPEC

    def test_an_unknown_run_is_not_found(self, store: Store) -> None:
        assert store.run("root") is None
        assert store.run_by_key("k") is None
        assert store.runs(RunQuery()) == []
        assert store.events("root") == []
        assert store.inbox("root") == []
        with pytest.raises(StoreCorrupt, match=RUN_SPEC.digest()):
            store.run_spec(RUN_SPEC.digest())

    def test_a_repeated_key_returns_the_same_run(self, store: Store) -> None:
        first = accept("first", key="r/1/0", space="tasks")
        again = accept("second", key="r/1/0", space="tasks")

        answers = store.commit("alice", [first, again])

        handle = HandleRef("tasks", "t_01")
        assert answers == [Accepted("first", handle), Accepted("first", handle, existed=True)]
        assert store.run("second") is None
        assert store.handles("s", "tasks") == [("t_01", "first", None)]

    def test_a_repeated_key_returns_the_run_after_everything_ended(self, store: Store) -> None:
        fixtures.create_tree(store)
        commit_one(store, accept("again", parent="root", key="k"))
        commit_one(store, commands.CancelTree(run_id="root", item=Cancel(key="c"), at=20.0))
        commit_one(store, CloseSession(session_id="s", how="delete"))

        assert commit_one(store, accept("later", parent="root", key="k")) == Accepted("again", existed=True)

    def test_runs_without_a_key_are_distinct(self, store: Store) -> None:
        create_runs(store, accept("first"), accept("second"))

        assert run_ids(store.runs(RunQuery())) == ["second", "first"]

    def test_a_session_must_exist(self, store: Store) -> None:
        answers = store.commit("alice", [accept("a", session_id="nowhere"), accept("b")])

        assert answers == [NotCreated("session_unknown", "nowhere"), Accepted("b")]
        assert run_ids(store.runs(RunQuery())) == ["b"]

    def test_only_root_runs_are_created_in_an_archived_session(self, store: Store) -> None:
        commit_one(store, OpenSession(session_id="old", at=2.0))
        commit_one(store, CloseSession(session_id="old", how="archive"))

        root = accept("reader", session_id="old")
        child = accept("child", session_id="old", parent="reader", space="tasks")

        assert store.commit("alice", [root, child]) == [Accepted("reader"), NotCreated("session_archived", "old")]
        assert run_ids(store.runs(RunQuery())) == ["reader"]
        assert store.handles("old", "tasks") == []

    def test_no_run_is_created_under_a_cancelled_ancestor(self, store: Store) -> None:
        fixtures.create_tree(store)
        commit_one(store, commands.CancelTree(run_id="root", item=Cancel(key="c"), at=20.0))

        assert commit_one(store, accept("late", parent="below", space="tasks")) == NotCreated("cancelled", "below")
        assert store.run("late") is None
        assert store.handles("s", "tasks") == []

    def test_no_run_is_created_after_a_cancel_or_an_end_in_its_batch(self, store: Store) -> None:
        fixtures.create_tree(store)
        cancel = commands.CancelTree(run_id="two", item=Cancel(key="c"), at=20.0)
        end = fixtures.record("below", 2, fixtures.run_ended())

        answers = store.commit(
            "alice",
            [
                *(accept("first", parent="two"), accept("second", parent="two")),
                *(cancel, accept("third", parent="two"), accept("fourth", parent="below")),
                *(end, accept("fifth", parent="below")),
            ],
        )

        assert answers[:2] == [Accepted("first"), Accepted("second")]
        assert answers[3:5] == [NotCreated("cancelled", "two"), Accepted("fourth")]
        assert answers[5:] == [None, NotCreated("cancelled", "below")]

    def test_the_nearest_cancelled_ancestor_is_reported(self, store: Store) -> None:
        fixtures.create_tree(store)
        end_run(store, "one")
        end_run(store, "below")
        commit_one(store, commands.CancelTree(run_id="root", item=Cancel(key="c"), at=20.0))
        commit_one(store, accept("apart"))

        assert commit_one(store, accept("late", parent="below")) == NotCreated("cancelled", "below")
        assert commit_one(store, accept("later", parent="two")) == NotCreated("cancelled", "two")
        assert commit_one(store, accept("fine", parent="apart")) == Accepted("fine")

    def test_an_ended_parent_gets_no_children_but_an_ended_grandparent_does(self, store: Store) -> None:
        fixtures.create_tree(store)
        end_run(store, "one")

        assert commit_one(store, accept("late", parent="one")) == NotCreated("cancelled", "one")
        assert commit_one(store, accept("fine", parent="below")) == Accepted("fine")

    def test_handles_are_numbered_per_space_and_session(self, store: Store) -> None:
        commit_one(store, OpenSession(session_id="other", at=2.0))

        answers = store.commit(
            "alice",
            [
                accept("a", space="tasks"),
                accept("b", space="buzz"),
                accept("c", space="tasks"),
                accept("d", space="tasks", session_id="other"),
                accept("e"),
            ],
        )

        assert answers == [
            Accepted("a", HandleRef("tasks", "t_01")),
            Accepted("b", HandleRef("buzz", "t_01")),
            Accepted("c", HandleRef("tasks", "t_02")),
            Accepted("d", HandleRef("tasks", "t_01")),
            Accepted("e"),
        ]
        assert store.handles("s", "tasks") == [("t_01", "a", None), ("t_02", "c", None)]
        assert store.handles("s", "buzz") == [("t_01", "b", None)]
        assert store.handles("s", "unused") == []

    def test_a_retired_handle_is_not_reused(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks"), accept("b", space="tasks")])
        commit_one(store, commands.Retire(session_id="s", space="tasks", name="t_02", key="k"))

        assert commit_one(store, accept("c", space="tasks")) == Accepted("c", HandleRef("tasks", "t_03"))

    def test_a_handle_can_be_moved_to_a_new_run(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks"), accept("b", space="tasks")])
        end_run(store, "a")
        goes_on = accept("a again")
        goes_on = replace(goes_on, accepted=replace(goes_on.accepted, handle=HandleRef("tasks", "t_01")))

        assert commit_one(store, goes_on) == Accepted("a again", HandleRef("tasks", "t_01"))

        assert store.handles("s", "tasks") == [("t_01", "a again", None), ("t_02", "b", None)]
        assert store.events("a again") == [(1, goes_on.accepted)]
        assert fixtures.accepted_as_stored(goes_on, store) == goes_on.accepted

    def test_retire_returns_the_run_once_and_again_for_the_same_key(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks")])
        retire = commands.Retire(session_id="s", space="tasks", name="t_01", key="r/1/0")

        answers = store.commit(
            "alice", [retire, retire, replace(retire, key="r/2/0"), replace(retire, name="t_02"), retire]
        )

        assert answers == ["a", "a", None, None, "a"]
        assert store.handles("s", "tasks") == [("t_01", "a", "r/1/0")]

    def test_a_run_that_exists_cannot_be_accepted_again(self, store: Store) -> None:
        create_runs(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="run root exists already"):
            store.commit("alice", [accept("other"), accept("root")])

        assert run_ids(store.runs(RunQuery())) == ["root"]

    def test_a_run_must_bring_the_run_spec_it_names(self, store: Store) -> None:
        mismatched = replace(accept("root"), run_spec=RunSpec(agent="another"))

        with pytest.raises(StoreCorrupt, match=RUN_SPEC.digest()):
            store.commit("alice", [mismatched])

        assert store.run("root") is None

    def test_runs_are_listed_by_time_and_id_newest_first(self, store: Store) -> None:
        create_runs(store, accept("b", at=10.0), accept("a", at=10.0), accept("c", at=9.0))

        assert run_ids(store.runs(RunQuery())) == ["b", "a", "c"]
        assert run_ids(store.runs(RunQuery(limit=2))) == ["b", "a"]
        assert store.runs(RunQuery(limit=1)) == [fixtures.run_row(store, "b")]

    def test_a_run_query_filters_by_every_field(self, store: Store) -> None:
        fixtures.create_tree(store)
        commit_one(store, OpenSession(session_id="other", at=2.0))
        create_runs(
            store,
            accept("elsewhere", session_id="other", at=14.0),
            accept("of bob", driver_id="bob", at=15.0),
            accept("undriven", driver_id=None, at=16.0),
        )
        end_run(store, "two")

        def found(query: RunQuery) -> list[RunId]:
            return run_ids(store.runs(query))

        assert found(RunQuery()) == ["undriven", "of bob", "elsewhere", "below", "two", "one", "root"]
        assert found(RunQuery(session_id="other")) == ["elsewhere"]
        assert found(RunQuery(root_id="root")) == ["below", "two", "one", "root"]
        assert found(RunQuery(parent_id="root")) == ["two", "one"]
        assert found(RunQuery(parent_id="root", unfinished_only=True)) == ["one"]
        assert found(RunQuery(parent_id="unknown")) == []
        assert found(RunQuery(roots_only=True)) == ["undriven", "of bob", "elsewhere", "root"]
        assert found(RunQuery(roots_only=True, session_id="s", limit=1)) == ["undriven"]
        assert found(RunQuery(unfinished_only=True)) == ["undriven", "of bob", "elsewhere", "below", "one", "root"]
        assert found(RunQuery(driver_id="bob")) == ["of bob"]
        assert found(RunQuery(driver_id="alice", unfinished_only=True)) == ["elsewhere", "below", "one", "root"]
        assert found(RunQuery(undriven_only=True)) == ["undriven"]
        for run_id, session_id, space in (("n1", "s", "bg"), ("n2", "other", "bg"), ("n3", "s", "tasks")):
            commit_one(store, accept(run_id, session_id=session_id, space=space, at=17.0))
        assert found(RunQuery(handle_space="bg")) == ["n2", "n1"]
        assert found(RunQuery(handle_space="bg", session_id="s")) == ["n1"]
        assert found(RunQuery(dialect="mine", limit=1)) == ["n3"]
        assert found(RunQuery(dialect="other")) == []
        assert found(RunQuery(phase="ended")) == ["two"]
        assert found(RunQuery(except_phase="queued")) == ["two"]
        assert found(RunQuery(phase="queued", parent_id="root")) == ["one"]
        assert found(RunQuery(id_part="o")) == ["of bob", "two", "one"]
        assert found(RunQuery(id_part="root")) == ["root"]
        assert found(RunQuery(id_part="%")) == []
        everything = store.runs(RunQuery())
        for place, row in enumerate(everything):
            before = RunQuery(before=(row.accepted_at, row.run_id), limit=2)
            assert found(before) == [each.run_id for each in everything[place + 1 : place + 3]]
        assert found(RunQuery(run_ids=("two", "root", "unknown"))) == ["two", "root"]
        assert found(RunQuery(run_ids=("two", "root"), phase="ended")) == ["two"]
        assert found(RunQuery(run_ids=())) == []
        queries = (RunQuery(), RunQuery(session_id="s"), RunQuery(unfinished_only=True), RunQuery(limit=3))
        assert [store.count(query) for query in queries] == [10, 8, 9, 3]

    def test_runs_without_a_driver_are_adopted_once(self, store: Store) -> None:
        create_runs(store, accept("free", driver_id=None), accept("over", driver_id="alice"), accept("driven"))
        end_run(store, "over")
        everything = ("driven", "free", "over", "unknown")

        assert commit_one(store, commands.Adopt(driver_id="bob", run_ids=everything), "bob") == ("free",)
        assert commit_one(store, commands.Adopt(driver_id="alice", run_ids=everything), "alice") == ()
        assert fixtures.run_row(store, "free").driver_id == "bob"

    def test_a_tree_is_adopted_only_while_fewer_trees_are_at_work(self, store: Store) -> None:
        for name in ("first", "second", "third"):
            commit_one(store, accept(name, driver_id=None))

        def adopt(run_id: str, max_trees: int | None) -> commands.WriteResult:
            return commit_one(store, commands.Adopt(driver_id="bob", run_ids=(run_id,), max_trees=max_trees), "bob")

        assert (adopt("first", 1), adopt("second", 1), adopt("second", 2)) == (("first",), (), ("second",))
        parked = commands.Progress(phase="parked")
        store.commit("bob", [replace(fixtures.record("first", 2, fixtures.reply("a")), progress=parked)])
        assert (adopt("third", 1), adopt("third", 2)) == ((), ("third",))
        end_run(store, "second", "bob")
        assert store.count(RunQuery(driver_id="bob", unfinished_only=True)) == 2

    def test_max_running_counts_runs_of_all_drivers(self, store: Store) -> None:
        def limited(run_id: str, driver_id: str | None) -> commands.Accept:
            return replace(accept(run_id, driver_id=driver_id, space="tasks"), max_running=2)

        assert commit_one(store, limited("a", "alice")) == Accepted("a", HandleRef("tasks", "t_01"))
        assert commit_one(store, limited("undriven", None)) == Accepted("undriven", HandleRef("tasks", "t_02"))
        assert commit_one(store, limited("b", "bob")) == Accepted("b", HandleRef("tasks", "t_03"))

        assert commit_one(store, limited("c", "alice")) == NotCreated("too_many", "2")
        assert commit_one(store, accept("other", space="other")) == Accepted("other", HandleRef("other", "t_01"))
        end_run(store, "a")
        assert commit_one(store, limited("c", "alice")) == Accepted("c", HandleRef("tasks", "t_04"))

    def test_a_run_that_is_placed_for_another_driver_counts_as_running(self, store: Store) -> None:
        create_runs(store, accept("root"))
        placed = replace(accept("placed", parent="root", driver_id=None, space="tasks"), max_running=1)
        assert commit_one(store, placed) == Accepted("placed", HandleRef("tasks", "t_01"))
        assert fixtures.run_row(store, "placed").progress.phase == "placed"

        late = replace(accept("late", parent="root", space="tasks"), max_running=1)
        assert commit_one(store, late) == NotCreated("too_many", "1")
        assert commit_one(store, commands.Adopt(driver_id="bob", run_ids=("placed",)), "bob") == ("placed",)
        assert commit_one(store, late) == NotCreated("too_many", "1")

    def test_a_limit_counts_the_unfinished_runs_of_a_dialect_in_a_tree(self, store: Store) -> None:
        def limited(run_id: str, **options: Any) -> commands.Accept:
            limit = commands.RunLimit(root_ids=("root",), dialect="mine", runs=2)
            return replace(accept(run_id, parent="root", **options), limit=limit)

        create_runs(store, accept("root"), accept("elsewhere"))
        first = limited("first", key="call/1")
        assert commit_one(store, first) == Accepted("first")
        assert commit_one(store, accept("foreign", parent="root", dialect="other")) == Accepted("foreign")
        assert commit_one(store, limited("placed", driver_id=None)) == Accepted("placed")

        assert commit_one(store, limited("late", driver_id="bob")) == NotCreated("too_many", "2")
        assert commit_one(store, limited("late", driver_id=None)) == NotCreated("too_many", "2")
        assert commit_one(store, first) == Accepted("first", existed=True)
        assert store.commit("bob", [accept("alone", driver_id="bob"), limited("late", driver_id="bob")]) == [
            Accepted("alone"),
            NotCreated("too_many", "2"),
        ]
        end_run(store, "first")
        assert store.commit("bob", [limited("late", driver_id="bob"), limited("later", driver_id="bob")]) == [
            Accepted("late"),
            NotCreated("too_many", "2"),
        ]
        commit_one(store, commands.CancelTree(run_id="root", item=Cancel(key="stop"), at=20.0))
        assert commit_one(store, limited("under a cancelled run")) == NotCreated("cancelled", "root")

    def test_a_limit_counts_runs_that_have_lost_their_driver_until_they_end(self, store: Store) -> None:
        def limited(run_id: str) -> commands.Accept:
            limit = commands.RunLimit(root_ids=("root",), dialect="mine", runs=1)
            return replace(accept(run_id, parent="root"), limit=limit)

        create_runs(store, accept("root"), accept("child", parent="root", driver_id="bob"))
        assert commit_one(store, commands.DeclareDead(driver_id="bob")) is True
        assert commit_one(store, limited("late")) == NotCreated("too_many", "1")

        assert commit_one(store, commands.Adopt(driver_id="alice", run_ids=("child",))) == ("child",)
        assert commit_one(store, limited("late")) == NotCreated("too_many", "1")
        end_run(store, "child")
        assert commit_one(store, limited("late")) == Accepted("late")

    def test_a_cancelled_run_whose_driver_is_dead_is_not_counted(self, store: Store) -> None:
        limit = commands.RunLimit(root_ids=("root",), dialect="mine", runs=1)
        create_runs(store, accept("root"), accept("child", parent="root", driver_id="bob"))
        late = replace(accept("late", parent="root"), limit=limit)
        commit_one(store, commands.CancelTree(run_id="child", item=Cancel(key="stop"), at=20.0))
        assert commit_one(store, late) == NotCreated("too_many", "1")
        commit_one(store, commands.DeclareDead(driver_id="bob"))
        assert commit_one(store, late) == Accepted("late")

    def test_a_limit_can_count_the_ended_runs_of_several_trees(self, store: Store) -> None:
        limit = commands.RunLimit(root_ids=("root", "earlier"), dialect="mine", runs=2, with_ended=True)
        create_runs(store, accept("root"), accept("first", parent="root"))
        below_earlier = accept("second", parent="root")
        earlier = replace(below_earlier.accepted, root_id="earlier", parent_id="earlier")
        create_runs(store, accept("earlier"), replace(below_earlier, accepted=earlier))
        end_run(store, "first")
        end_run(store, "second")

        late = replace(accept("late", parent="root"), limit=limit)
        assert commit_one(store, late) == NotCreated("too_many", "2")
        assert commit_one(store, replace(late, limit=replace(limit, runs=3))) == Accepted("late")


class SessionContract(fixtures.StoreTestCase):
    """Sessions and key-value namespaces."""

    def test_a_session_is_opened_once(self, store: Store) -> None:
        assert commit_one(store, OpenSession(session_id="new", at=2.0)) is True
        assert commit_one(store, OpenSession(session_id="new", at=3.0)) is False
        assert commit_one(store, OpenSession(session_id="older", at=0.5)) is True

        assert store.session("new") == commands.SessionRow(session_id="new", created_at=2.0)
        assert store.session("nowhere") is None
        assert [session.session_id for session in store.sessions()] == ["older", "s", "new"]

    def test_an_archived_session_stays_archived(self, store: Store) -> None:
        assert commit_one(store, CloseSession(session_id="s", how="archive")) is True
        assert commit_one(store, CloseSession(session_id="s", how="archive")) is True
        assert commit_one(store, CloseSession(session_id="nowhere", how="archive")) is False
        assert commit_one(store, OpenSession(session_id="s", at=2.0)) is False

        assert store.sessions() == [commands.SessionRow(session_id="s", created_at=1.0, state="archived")]

    def test_deleting_a_session_deletes_namespaces_and_handles_but_not_runs(self, store: Store) -> None:
        commit_one(store, OpenSession(session_id="s2", at=2.0))
        store.commit(
            "alice",
            [
                accept("a", space="tasks"),
                accept("b", space="tasks", session_id="s2"),
                Change(space="context/s", decide=put("x", b"1")),
                Change(space="agents/s", decide=put("x", b"1")),
                Change(space="context/s2", decide=put("x", b"2")),
                Change(space="memory", decide=put("x", b"3")),
            ],
        )

        assert commit_one(store, CloseSession(session_id="s", how="delete")) is True
        assert commit_one(store, CloseSession(session_id="s", how="delete")) is False

        assert store.session("s") is None
        assert store.handles("s", "tasks") == []
        assert store.handles("s2", "tasks") == [("t_01", "b", None)]
        assert [dict(store.key_value(space)) for space in ("context/s", "agents/s", "context/s2", "memory")] == [
            {},
            {},
            {"x": b"2"},
            {"x": b"3"},
        ]
        assert run_ids(store.runs(RunQuery(session_id="s"))) == ["a"]

    def test_a_deleted_session_can_be_opened_again_empty(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks"), Change(space="context/s", decide=put("x", b"1"))])
        commit_one(store, CloseSession(session_id="s", how="delete"))

        assert commit_one(store, OpenSession(session_id="s", at=5.0)) is True

        assert store.session("s") == commands.SessionRow(session_id="s", created_at=5.0)
        assert dict(store.key_value("context/s")) == {}
        assert commit_one(store, accept("b", space="tasks")) == Accepted("b", HandleRef("tasks", "t_01"))
        assert store.handles("s", "tasks") == [("t_01", "b", None)]

    def test_a_change_decides_on_the_whole_namespace(self, store: Store) -> None:
        seen: list[dict[str, bytes]] = []

        def decide(key_value: Mapping[str, bytes]) -> Decision:
            seen.append(dict(key_value))
            return Decision(b"two", puts={"b": b"2", "c": b"3"}, drops=("a", "never there"))

        answers = store.commit(
            None,
            [
                Change(space="x", decide=put("a", b"1")),
                Change(space="x", decide=decide),
                Change(space="y", decide=decide),
            ],
        )

        assert answers == [b"", b"two", b"two"]
        assert seen == [{"a": b"1"}, {}]
        assert dict(store.key_value("x")) == {"b": b"2", "c": b"3"}
        assert dict(store.key_value("nothing")) == {}

    def test_a_keyed_change_records_its_charges_once(self, store: Store) -> None:
        charge = commands.Charge("actions/dig", 10.0, 3610.0, calls=1)
        change = Change(space="x", decide=lambda _: Decision(b"", charges=(charge,)), key="r/1/0")

        store.commit(None, [change, change])

        assert store.charges("actions/dig", 0.0) == [charge]

    def test_a_change_beyond_the_calls_of_a_window_changes_nothing(self, store: Store) -> None:
        def act(number: int, at: float, *, key: str | None = None) -> Change:
            hour = commands.Charge("actions/dig", at, at + 60.0, calls=1)
            day = commands.Charge("actions/day", at, at + 600.0, calls=1)
            limits = (commands.CallLimit("actions/dig", at - 60.0, 2), commands.CallLimit("actions/day", at - 600.0, 9))
            decision = Decision(b"done", puts={str(number): b""}, charges=(hour, day), within=limits)
            return Change(space="x", decide=lambda _: decision, key=key)

        full = commands.WindowFull("actions/dig")
        assert store.commit(None, [act(1, 10.0), act(2, 20.0), act(3, 30.0, key="r/1/0")]) == [b"done", b"done", full]
        assert store.commit(None, [act(4, 69.0)]) == [full]
        # The first charge is 60 seconds old; a refused key is free, and an answered one is not charged again.
        assert store.commit(None, [act(5, 70.0, key="r/1/0"), act(5, 70.0, key="r/1/0")]) == [b"done", b"done"]
        assert store.commit(None, [Change(space="x", decide=put("free", b""))]) == [b"1,2,5"]

        assert list(store.key_value("x")) == ["1", "2", "5", "free"]
        assert [charge.at for charge in store.charges("actions/dig", 0.0)] == [10.0, 20.0, 70.0]
        assert [charge.at for charge in store.charges("actions/day", 0.0)] == [10.0, 20.0, 70.0]

    def test_a_change_beyond_the_amounts_of_a_window_changes_nothing(self, store: Store) -> None:
        charges = (
            commands.Charge("day", 10.0, 99.0, input=1000, output=1000, cost=1000),
            commands.Charge("day", 20.0, 99.0, input=3, output=4, cost=50),
            commands.Charge("day", 30.0, 99.0, input=1, output=2, cost=5),
            commands.Charge("other", 30.0, 99.0, input=1000, output=1000, cost=1000),
        )
        commit_one(store, Change(space="x", decide=lambda _: Decision(b"", charges=charges)))

        def within(**amounts: int) -> Change:
            limit = commands.AmountLimit(window="day", after=10.0, **amounts)
            return Change(space="x", decide=lambda _: Decision(b"done", puts={str(amounts): b""}, within=(limit,)))

        fits: tuple[dict[str, int], ...]
        fits = ({"input": 4}, {"output": 6}, {"tokens": 10}, {"cost": 55}, {"input": 4, "cost": 55}, {})
        full = ({"input": 3}, {"output": 5}, {"tokens": 9}, {"cost": 54}, {"input": 4, "cost": 54}, {"cost": -1})
        assert store.commit(None, [within(**each) for each in fits]) == [b"done"] * len(fits)
        assert store.commit(None, [within(**each) for each in full]) == [commands.WindowFull("day")] * len(full)
        assert list(store.key_value("x")) == [str(each) for each in fits]

    def test_values_keep_insertion_order(self, store: Store) -> None:
        for name in ("c", "a", "b", "c"):
            commit_one(store, Change(space="x", decide=put(name, b"1")))

        assert list(store.key_value("x")) == ["c", "a", "b"]

    def test_a_repeated_key_returns_the_answer_without_deciding_again(self, store: Store) -> None:
        first = Change(space="x", decide=put("a", b"1"), key="r/1/0")
        again = Change(space="x", decide=put("a", b"other"), key="r/1/0")

        assert store.answered("r/1/0") is None
        assert store.commit(None, [first, again]) == [b"", b""]

        assert store.answered("r/1/0") == b""
        assert dict(store.key_value("x")) == {"a": b"1"}

    def test_a_change_without_a_key_is_applied_each_time(self, store: Store) -> None:
        change = Change(space="x", decide=put("a", b"1"))

        assert store.commit(None, [change, change]) == [b"", b"a"]

    def test_a_namespace_of_a_closed_session_is_not_changed(self, store: Store) -> None:
        commit_one(store, OpenSession(session_id="old", at=2.0))
        commit_one(store, Change(space="context/old", decide=put("a", b"1"), key="before", session_id="old"))
        commit_one(store, CloseSession(session_id="old", how="archive"))

        def change(session_id: str, key: str) -> Change:
            return Change(space=f"context/{session_id}", decide=put("b", b"2"), key=key, session_id=session_id)

        answers = store.commit(
            None, [change("old", "k"), change("nowhere", "k"), change("old", "before"), change("s", "k")]
        )

        assert answers == [
            commands.NamespaceClosed("session_archived"),
            commands.NamespaceClosed("session_unknown"),
            b"",
            b"",
        ]
        assert dict(store.key_value("context/old")) == {"a": b"1"}
        assert dict(store.key_value("context/nowhere")) == {}

    def test_a_decision_that_raises_rolls_back_its_batch(self, store: Store) -> None:
        def fail(key_value: Mapping[str, bytes]) -> Decision:
            raise LookupError(f"failed with {sorted(key_value)}")

        commit_one(store, Change(space="x", decide=put("first", b"1")))
        commit_one(store, Change(space="x", decide=put("second", b"2")))

        def drop(key_value: Mapping[str, bytes]) -> Decision:
            return Decision(b"", drops=("first",), puts={"second": b"changed"})

        with pytest.raises(LookupError, match="failed with"):
            store.commit(
                None,
                [
                    accept("root", space="tasks"),
                    Change(space="x", decide=drop, key="k"),
                    OpenSession(session_id="new", at=3.0),
                    CloseSession(session_id="s", how="delete"),
                    Change(space="x", decide=fail),
                ],
            )

        assert list(store.key_value("x").items()) == [("first", b"1"), ("second", b"2")]
        assert store.answered("k") is None
        assert [session.session_id for session in store.sessions()] == ["s"]
        assert store.handles("s", "tasks") == []
        assert store.run("root") is None
