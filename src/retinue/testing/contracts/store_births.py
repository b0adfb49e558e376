"""How runs begin to exist, which are refused, how they are named and how they are listed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.commands import (
    Accept,
    Accepted,
    Adopt,
    CancelTree,
    CloseSession,
    NotCreated,
    OpenSession,
    Progress,
    Retire,
    RunQuery,
    RunRow,
)
from retinue.core.errors import StoreCorrupt
from retinue.core.ids import RunId
from retinue.core.inbox import Cancel
from retinue.core.ports import Store
from retinue.core.run import HandleRef
from retinue.testing.contracts.store_case import (
    BRIEF,
    StoreCase,
    accept,
    accepted_as_stored,
    born,
    end,
    one,
    row,
    tree,
)


class BirthContract(StoreCase):
    """Accepting, naming and listing."""

    def test_an_accepted_run_has_its_row_its_first_event_and_its_brief(self, store: Store) -> None:
        birth = accept("root", key="k", space="tasks")

        assert one(store, birth) == Accepted("root", HandleRef("tasks", "t_01"))

        expected = RunRow(
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
            run_spec=BRIEF.digest(),
            driver_id="alice",
            accepted_at=10.0,
            cancelled_at=None,
            format=1,
            seq=1,
            progress=Progress(phase="queued"),
        )
        assert store.run("root") == expected
        assert store.run_by_key("k") == expected
        assert store.events("root") == [(1, replace(birth.accepted, handle=HandleRef("tasks", "t_01")))]
        assert store.run_spec(BRIEF.digest()) == BRIEF

    def test_what_was_never_accepted_is_not_there(self, store: Store) -> None:
        assert store.run("root") is None
        assert store.run_by_key("k") is None
        assert store.runs(RunQuery()) == []
        assert store.events("root") == []
        assert store.inbox("root") == []
        with pytest.raises(StoreCorrupt, match=BRIEF.digest()):
            store.run_spec(BRIEF.digest())

    def test_the_same_key_gives_the_same_run(self, store: Store) -> None:
        first = accept("first", key="r/1/0", space="tasks")
        again = accept("second", key="r/1/0", space="tasks")

        answers = store.commit("alice", [first, again])

        handle = HandleRef("tasks", "t_01")
        assert answers == [Accepted("first", handle), Accepted("first", handle, existed=True)]
        assert store.run("second") is None
        assert store.handles("s", "tasks") == [("t_01", "first", None)]

    def test_the_same_key_answers_the_same_when_everything_has_ended_since(self, store: Store) -> None:
        tree(store)
        one(store, accept("again", parent="root", key="k"))
        one(store, CancelTree(run_id="root", item=Cancel(key="c"), at=20.0))
        one(store, CloseSession(session_id="s", how="delete"))

        assert one(store, accept("later", parent="root", key="k")) == Accepted("again", existed=True)

    def test_runs_without_a_key_are_all_different(self, store: Store) -> None:
        born(store, accept("first"), accept("second"))

        assert ids(store.runs(RunQuery())) == ["second", "first"]

    def test_a_session_has_to_be_there_and_open(self, store: Store) -> None:
        one(store, OpenSession(session_id="old", at=2.0))
        one(store, CloseSession(session_id="old", how="archive"))

        answers = store.commit("alice", [accept("a", session_id="nowhere"), accept("b", session_id="old"), accept("c")])

        assert answers == [
            NotCreated("session_unknown", "nowhere"),
            NotCreated("session_archived", "old"),
            Accepted("c"),
        ]
        assert ids(store.runs(RunQuery())) == ["c"]

    def test_nothing_is_born_under_a_cancelled_ancestor(self, store: Store) -> None:
        tree(store)
        one(store, CancelTree(run_id="root", item=Cancel(key="c"), at=20.0))

        assert one(store, accept("late", parent="below", space="tasks")) == NotCreated("cancelled", "below")
        assert store.run("late") is None
        assert store.handles("s", "tasks") == []

    def test_the_nearest_cancelled_ancestor_is_named(self, store: Store) -> None:
        tree(store)
        end(store, "one")
        end(store, "below")
        one(store, CancelTree(run_id="root", item=Cancel(key="c"), at=20.0))
        one(store, accept("apart"))

        assert one(store, accept("late", parent="below")) == NotCreated("cancelled", "below")
        assert one(store, accept("later", parent="two")) == NotCreated("cancelled", "two")
        assert one(store, accept("fine", parent="apart")) == Accepted("fine")

    def test_an_ended_parent_has_no_more_children_but_an_ended_grandparent_may(self, store: Store) -> None:
        tree(store)
        end(store, "one")

        assert one(store, accept("late", parent="one")) == NotCreated("cancelled", "one")
        assert one(store, accept("fine", parent="below")) == Accepted("fine")

    def test_handles_count_up_in_each_space_of_each_session(self, store: Store) -> None:
        one(store, OpenSession(session_id="other", at=2.0))

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
        assert store.handles("s", "nobody's") == []

    def test_a_retired_handle_is_not_given_again(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks"), accept("b", space="tasks")])
        one(store, Retire(session_id="s", space="tasks", name="t_02", key="k"))

        assert one(store, accept("c", space="tasks")) == Accepted("c", HandleRef("tasks", "t_03"))

    def test_a_handle_that_a_run_brings_along_is_its_own_from_now_on(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks"), accept("b", space="tasks")])
        end(store, "a")
        goes_on = accept("a again")
        goes_on = replace(goes_on, accepted=replace(goes_on.accepted, handle=HandleRef("tasks", "t_01")))

        assert one(store, goes_on) == Accepted("a again", HandleRef("tasks", "t_01"))

        assert store.handles("s", "tasks") == [("t_01", "a again", None), ("t_02", "b", None)]
        assert store.events("a again") == [(1, goes_on.accepted)]
        assert accepted_as_stored(goes_on, store) == goes_on.accepted

    def test_retiring_answers_the_run_once_and_for_the_same_key_again(self, store: Store) -> None:
        store.commit("alice", [accept("a", space="tasks")])
        retire = Retire(session_id="s", space="tasks", name="t_01", key="r/1/0")

        answers = store.commit(
            "alice", [retire, retire, replace(retire, key="r/2/0"), replace(retire, name="t_02"), retire]
        )

        assert answers == ["a", "a", None, None, "a"]
        assert store.handles("s", "tasks") == [("t_01", "a", "r/1/0")]

    def test_a_run_that_exists_cannot_be_accepted_again(self, store: Store) -> None:
        born(store, accept("root"))

        with pytest.raises(StoreCorrupt, match="run root exists already"):
            store.commit("alice", [accept("other"), accept("root")])

        assert ids(store.runs(RunQuery())) == ["root"]

    def test_a_run_has_to_bring_the_brief_it_names(self, store: Store) -> None:
        wrong = replace(accept("root"), run_spec=RunSpec(agent="someone else"))

        with pytest.raises(StoreCorrupt, match=BRIEF.digest()):
            store.commit("alice", [wrong])

        assert store.run("root") is None

    def test_runs_are_listed_newest_first_and_ties_by_id(self, store: Store) -> None:
        born(store, accept("b", at=10.0), accept("a", at=10.0), accept("c", at=9.0))

        assert ids(store.runs(RunQuery())) == ["b", "a", "c"]
        assert ids(store.runs(RunQuery(limit=2))) == ["b", "a"]
        assert store.runs(RunQuery(limit=1)) == [row(store, "b")]

    def test_a_list_can_be_narrowed_in_every_way(self, store: Store) -> None:
        tree(store)
        one(store, OpenSession(session_id="other", at=2.0))
        born(
            store,
            accept("elsewhere", session_id="other", at=14.0),
            accept("of bob", driver_id="bob", at=15.0),
            accept("nobody's", driver_id=None, at=16.0),
        )
        end(store, "two")

        def found(query: RunQuery) -> list[RunId]:
            return ids(store.runs(query))

        assert found(RunQuery()) == ["nobody's", "of bob", "elsewhere", "below", "two", "one", "root"]
        assert found(RunQuery(session_id="other")) == ["elsewhere"]
        assert found(RunQuery(root_id="root")) == ["below", "two", "one", "root"]
        assert found(RunQuery(parent_id="root")) == ["two", "one"]
        assert found(RunQuery(parent_id="root", unfinished_only=True)) == ["one"]
        assert found(RunQuery(parent_id="nobody")) == []
        assert found(RunQuery(roots_only=True)) == ["nobody's", "of bob", "elsewhere", "root"]
        assert found(RunQuery(roots_only=True, session_id="s", limit=1)) == ["nobody's"]
        assert found(RunQuery(unfinished_only=True)) == ["nobody's", "of bob", "elsewhere", "below", "one", "root"]
        assert found(RunQuery(driver_id="bob")) == ["of bob"]
        assert found(RunQuery(driver_id="alice", unfinished_only=True)) == ["elsewhere", "below", "one", "root"]
        assert found(RunQuery(undriven_only=True)) == ["nobody's"]
        for run_id, session_id, space in (("n1", "s", "bg"), ("n2", "other", "bg"), ("n3", "s", "tasks")):
            one(store, accept(run_id, session_id=session_id, space=space, at=17.0))
        assert found(RunQuery(handle_space="bg")) == ["n2", "n1"]
        assert found(RunQuery(handle_space="bg", session_id="s")) == ["n1"]

    def test_runs_that_nobody_drives_can_be_adopted_once(self, store: Store) -> None:
        born(store, accept("free", driver_id=None), accept("over", driver_id="alice"), accept("driven"))
        end(store, "over")
        everything = ("driven", "free", "over", "unknown")

        assert one(store, Adopt(driver_id="bob", run_ids=everything), "bob") == ("free",)
        assert one(store, Adopt(driver_id="alice", run_ids=everything), "alice") == ()
        assert row(store, "free").driver_id == "bob"

    def test_a_session_has_room_for_so_many_runs_of_a_kind_whoever_drives_them(self, store: Store) -> None:
        def spawn_request(run_id: str, driver_id: str | None) -> Accept:
            return replace(accept(run_id, driver_id=driver_id, space="tasks"), max_running=2)

        assert one(store, spawn_request("a", "alice")) == Accepted("a", HandleRef("tasks", "t_01"))
        assert one(store, spawn_request("nobodys", None)) == Accepted("nobodys", HandleRef("tasks", "t_02"))
        assert one(store, spawn_request("b", "bob")) == Accepted("b", HandleRef("tasks", "t_03"))

        assert one(store, spawn_request("c", "alice")) == NotCreated("too_many", "2")
        assert one(store, accept("other", space="other")) == Accepted("other", HandleRef("other", "t_01"))
        end(store, "a")
        assert one(store, spawn_request("c", "alice")) == Accepted("c", HandleRef("tasks", "t_04"))


def ids(rows: Sequence[RunRow]) -> list[RunId]:
    """The names of the runs in a list."""
    return [found.run_id for found in rows]
