"""A store with many runs, made by the store's own commands: what lists, trees and resumes have to work on.

`python -m bench.many_runs FOLDER RUNS` makes one; a million runs take some minutes and a gigabyte.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from retinue.core import commands
from retinue.core.agent import RunSpec
from retinue.core.events import ReplyReceived, RunAccepted, RunEnded
from retinue.core.ids import RandomIds, RunId, SessionId
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.policy import Policy
from retinue.core.ports import Store
from retinue.core.run import Lifecycle, Outcome
from retinue.core.usage import Usage
from retinue.store.sqlite import SqliteStore

RUN_SPEC = RunSpec(agent="worker", system="You work.", provider="openai-chat", model="m")
SESSIONS = 10
BATCH = 2_000
"""Writes of one commit."""
FIRST = 1_700_000_000.0
"""When the first run was accepted."""


def fill(
    store: Store, runs: int, *, per_tree: int = 10, unfinished: int = 0, own_sessions: bool = False
) -> list[RunId]:
    """Add that many runs in trees of that size, the last `unfinished` ones without an end; their ids, oldest first.

    With `own_sessions` each tree has a session without a name, as `retinue run` gives it; otherwise they share a few.
    """
    ids = RandomIds()
    sessions = [ids.new() for _ in range(0, runs, per_tree)] if own_sessions else [f"s{n}" for n in range(SESSIONS)]
    for start in range(0, len(sessions), BATCH):
        chosen = sessions[start : start + BATCH]
        store.commit(None, [commands.OpenSession(session_id=session_id, at=FIRST) for session_id in chosen])
    run_ids: list[RunId] = []
    writes = _writes(runs, per_tree, runs - unfinished, ids, sessions, run_ids)
    while batch := list(islice(writes, BATCH)):
        store.commit(None, batch)
    return run_ids


def _writes(
    runs: int, per_tree: int, ended: int, ids: RandomIds, sessions: list[SessionId], run_ids: list[RunId]
) -> Iterator[commands.Accept | commands.Record]:
    digest = RUN_SPEC.digest()
    ends: list[RunId] = []
    root = ""
    for number in range(runs):
        run_id, at = ids.new(), FIRST + number
        run_ids.append(run_id)
        is_root = number % per_tree == 0
        if is_root:
            yield from (_end(each, at) for each in ends)  # a parent that has ended accepts no children
            root, ends = run_id, []
        accepted = RunAccepted(
            at=at,
            run_id=run_id,
            session_id=sessions[number // per_tree % len(sessions)],
            root_id=root,
            parent_id=None if is_root else root,
            depth=0 if is_root else 1,
            path="lead" if is_root else "lead/worker",
            agent="lead" if is_root else "worker",
            run_spec=digest,
            task="Look into it.",
            policy=Policy(),
            lifecycle=Lifecycle(awaited=not is_root),
        )
        yield commands.Accept(accepted=accepted, run_spec=RUN_SPEC, driver_id=None)
        if number < ended:
            ends.append(run_id)
    yield from (_end(each, FIRST + runs) for each in ends)


def _end(run_id: RunId, at: float) -> commands.Record:
    usage = Usage(700, 30)
    reply = Reply(AssistantMessage("It was the pool."), usage=usage, cost=50)
    outcome = Outcome(result="completed", reason="answered", text="It was the pool.", usage=usage, cost=50, turns=1)
    events = (ReplyReceived(at=at, turn=1, reply=reply), RunEnded(at=at, outcome=outcome))
    return commands.Record(run_id=run_id, seq=2, events=events)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_runs", description=__doc__)
    parser.add_argument("folder", type=Path, help="the state folder (RETINUE_HOME)")
    parser.add_argument("runs", type=int)
    parser.add_argument("--per-tree", type=int, default=10)
    parser.add_argument("--unfinished", type=int, default=0)
    options = parser.parse_args()
    store = SqliteStore(options.folder / "retinue.db")
    fill(store, options.runs, per_tree=options.per_tree, unfinished=options.unfinished)
    store.close()


if __name__ == "__main__":
    main()
