"""Fixtures of the store contract: a store per test, and small runs, events and drivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.core import commands
from retinue.core.agent import RunSpec
from retinue.core.events import Event, ReplyReceived, RunAccepted, RunEnded
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.policy import Policy
from retinue.core.ports import Store
from retinue.core.run import Lifecycle, Outcome
from retinue.core.usage import Usage

RUN_SPEC = RunSpec(
    agent="researcher", system="You look things up.", offered=("search",), provider="scripted", model="m"
)


class StoreTestCase:
    """One store per test, with the registered drivers `alice` and `bob` and the open session `s`."""

    def open_store(self, folder: Path) -> Store:
        """Open the store under test. A persistent store has the same content when opened in the same folder again."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.open_store(tmp_path)
        store.commit(None, [register("alice"), register("bob"), commands.OpenSession(session_id="s", at=1.0)])
        yield store
        store.close()


def register(driver_id: DriverId) -> commands.RegisterDriver:
    return commands.RegisterDriver(driver=driver_row(driver_id))


def driver_row(driver_id: DriverId, *, beat: int = 0) -> commands.DriverRow:
    return commands.DriverRow(driver_id=driver_id, host="here", process=f"process of {driver_id}", beat=beat, lease=2.5)


def accept(
    run_id: RunId,
    *,
    parent: RunId | None = None,
    driver_id: DriverId | None = "alice",
    key: Key | None = None,
    session_id: SessionId = "s",
    at: float = 10.0,
    space: str | None = None,
    dialect: str = "mine",
) -> commands.Accept:
    """The write that creates a run; with a parent, as its child in the tree of `root`."""
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
        run_spec=RUN_SPEC.digest(),
        task="find it",
        policy=Policy(),
        lifecycle=Lifecycle(awaited=True),
        label="a look around",
        dialect=dialect,
    )
    return commands.Accept(
        accepted=accepted, run_spec=RUN_SPEC, driver_id=driver_id, handle_space=space, handle_format="t_{:02d}"
    )


def create_runs(store: Store, *creations: commands.Accept) -> None:
    """Commit these writes and check that all runs were created."""
    answers = store.commit(None, creations)
    assert answers == [commands.Accepted(creation.accepted.run_id) for creation in creations]


def create_tree(store: Store, *, driver_id: DriverId | None = "alice") -> None:
    """Create a root with two children, and a grandchild under the first."""
    create_runs(
        store,
        accept("root", driver_id=driver_id, at=10.0),
        accept("one", parent="root", driver_id=driver_id, at=11.0),
        accept("two", parent="root", driver_id=driver_id, at=12.0),
        accept("below", parent="one", driver_id=driver_id, at=13.0),
    )


def reply(text: str, turn: int = 1) -> ReplyReceived:
    message = AssistantMessage(text=text)
    return ReplyReceived(at=20.0 + turn, turn=turn, reply=Reply(message=message, usage=Usage(7, 3), cost=50))


def run_ended(text: str = "done") -> RunEnded:
    """The end of a run that completed with `text`."""
    outcome = Outcome(result="completed", reason="answered", text=text, usage=Usage(7, 3), cost=50, turns=1)
    return RunEnded(at=30.0, outcome=outcome)


def record(run_id: RunId, seq: int, *events: Event) -> commands.Record:
    return commands.Record(run_id=run_id, seq=seq, events=events)


def end_run(store: Store, run_id: RunId, driver_id: DriverId = "alice") -> None:
    store.commit(driver_id, [record(run_id, 2, run_ended())])


def commit_one(store: Store, write: commands.Write, driver_id: DriverId | None = None) -> commands.WriteResult:
    (answer,) = store.commit(driver_id, [write])
    return answer


def run_row(store: Store, run_id: RunId) -> commands.RunRow:
    found = store.run(run_id)
    assert found is not None
    return found


def accepted_as_stored(creation: commands.Accept, store: Store) -> RunAccepted:
    """The first event of a created run, with the handle assigned by the store."""
    return replace(creation.accepted, handle=run_row(store, creation.accepted.run_id).handle)


def run_ids(rows: Sequence[commands.RunRow]) -> list[RunId]:
    return [row.run_id for row in rows]


def put(name: str, value: bytes) -> commands.Decide:
    """A decision that puts one value and answers with the names that were there before."""
    return lambda content: commands.Decision(b",".join(sorted(map(str.encode, content))), puts={name: value})
