"""Store contract: sessions and key-value namespaces."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from retinue.core.commands import (
    Accepted,
    Change,
    Charge,
    CloseSession,
    Decision,
    NamespaceClosed,
    OpenSession,
    RunQuery,
    SessionRow,
)
from retinue.core.ports import Store
from retinue.core.run import HandleRef
from retinue.testing.contracts.store.fixtures import StoreTestCase, accept, commit_one, put, run_ids


class SessionContract(StoreTestCase):
    """Sessions and key-value namespaces."""

    def test_a_session_is_opened_once(self, store: Store) -> None:
        assert commit_one(store, OpenSession(session_id="new", at=2.0)) is True
        assert commit_one(store, OpenSession(session_id="new", at=3.0)) is False
        assert commit_one(store, OpenSession(session_id="older", at=0.5)) is True

        assert store.session("new") == SessionRow(session_id="new", created_at=2.0)
        assert store.session("nowhere") is None
        assert [session.session_id for session in store.sessions()] == ["older", "s", "new"]

    def test_an_archived_session_stays_archived(self, store: Store) -> None:
        assert commit_one(store, CloseSession(session_id="s", how="archive")) is True
        assert commit_one(store, CloseSession(session_id="s", how="archive")) is True
        assert commit_one(store, CloseSession(session_id="nowhere", how="archive")) is False
        assert commit_one(store, OpenSession(session_id="s", at=2.0)) is False

        assert store.sessions() == [SessionRow(session_id="s", created_at=1.0, state="archived")]

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

        assert store.session("s") == SessionRow(session_id="s", created_at=5.0)
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
        charge = Charge("actions/dig", 10.0, 3610.0, calls=1)
        change = Change(space="x", decide=lambda _: Decision(b"", charges=(charge,)), key="r/1/0")

        store.commit(None, [change, change])

        assert store.charges("actions/dig", 0.0) == [charge]

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

        assert answers == [NamespaceClosed("session_archived"), NamespaceClosed("session_unknown"), b"", b""]
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
