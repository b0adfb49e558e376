"""What the tests of the store contract share: a store to work on, and the smallest runs, events and drivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.commands import (
    Accept,
    Accepted,
    DriverRow,
    OpenSession,
    Record,
    RegisterDriver,
    RunRow,
    Write,
    WriteResult,
)
from retinue.core.events import Event, ReplyReceived, RunAccepted, RunEnded
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.policy import Policy
from retinue.core.ports import Store
from retinue.core.run import Lifecycle, Outcome
from retinue.core.usage import Usage

BRIEF = RunSpec(agent="researcher", system="You look things up.", offered=("search",), provider="scripted", model="m")


class StoreCase:
    """One store per test, in which the drivers `alice` and `bob` have enlisted and the session `s` is open."""

    def open_store(self, folder: Path) -> Store:
        """The store to be tested. One that persists shows the same when it is opened in the same folder again."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A store with two drivers and a session."""
        store = self.open_store(tmp_path)
        store.commit(None, [enlist("alice"), enlist("bob"), OpenSession(session_id="s", at=1.0)])
        yield store
        store.close()


def enlist(driver_id: DriverId) -> RegisterDriver:
    """A driver begins."""
    return RegisterDriver(driver=driver(driver_id))


def driver(driver_id: DriverId, *, beat: int = 0) -> DriverRow:
    """A driver as the store knows it."""
    return DriverRow(driver_id=driver_id, host="here", process=f"process of {driver_id}", beat=beat, lease=2.5)


def accept(
    run_id: RunId,
    *,
    parent: RunId | None = None,
    driver_id: DriverId | None = "alice",
    key: Key | None = None,
    session_id: SessionId = "s",
    at: float = 10.0,
    space: str | None = None,
    dialect: str = "spec",
) -> Accept:
    """A run asks to exist; with a parent, as its child in the tree of `root`."""
    accepted = RunAccepted(
        at=at,
        run_id=run_id,
        session_id=session_id,
        root_id="root" if parent else run_id,
        parent_id=parent,
        depth=1 if parent else 0,
        path="root/child" if parent else "root",
        key=key,
        agent="researcher",
        run_spec=BRIEF.digest(),
        task="find it",
        policy=Policy(),
        lifecycle=Lifecycle(awaited=True),
        label="a look around",
        dialect=dialect,
    )
    return Accept(accepted=accepted, run_spec=BRIEF, driver_id=driver_id, handle_space=space, handle_format="t_{:02d}")


def born(store: Store, *children_created: Accept) -> None:
    """Let these runs exist."""
    answers = store.commit(None, children_created)
    assert answers == [Accepted(birth.accepted.run_id) for birth in children_created]


def tree(store: Store, *, driver_id: DriverId | None = "alice") -> None:
    """A root with two children and a grandchild, under the first child."""
    born(
        store,
        accept("root", driver_id=driver_id, at=10.0),
        accept("one", parent="root", driver_id=driver_id, at=11.0),
        accept("two", parent="root", driver_id=driver_id, at=12.0),
        accept("below", parent="one", driver_id=driver_id, at=13.0),
    )


def said(text: str, turn: int = 1) -> ReplyReceived:
    """The model said something."""
    message = AssistantMessage(text=text)
    return ReplyReceived(at=20.0 + turn, turn=turn, reply=Reply(message=message, usage=Usage(7, 3), cost=50))


def over(text: str = "done") -> RunEnded:
    """The run has answered."""
    outcome = Outcome(result="completed", reason="answered", text=text, usage=Usage(7, 3), cost=50, turns=1)
    return RunEnded(at=30.0, outcome=outcome)


def record(run_id: RunId, seq: int, *events: Event) -> Record:
    """Events for a run's log, from number `seq` on."""
    return Record(run_id=run_id, seq=seq, events=events)


def end(store: Store, run_id: RunId, driver_id: DriverId = "alice") -> None:
    """Let a run that has only been accepted end."""
    store.commit(driver_id, [record(run_id, 2, over())])


def one(store: Store, write: Write, driver_id: DriverId | None = None) -> WriteResult:
    """Commit one write and return its answer."""
    (answer,) = store.commit(driver_id, [write])
    return answer


def row(store: Store, run_id: RunId) -> RunRow:
    """The row of a run that is there."""
    found = store.run(run_id)
    assert found is not None
    return found


def accepted_as_stored(birth: Accept, store: Store) -> RunAccepted:
    """An acceptance with the handle that the store gave."""
    return replace(birth.accepted, handle=row(store, birth.accepted.run_id).handle)
