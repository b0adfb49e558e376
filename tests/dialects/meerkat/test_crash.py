"""Crashes of `meerkat` processes: the next process finds every sub-agent, and no message is lost or doubled."""

import asyncio
import json
import random
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StoreError
from retinue.core.messages import ToolMessage, UserMessage
from retinue.core.ports import Request, Store
from retinue.core.state import STILL_OPEN, Run
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.providers.scripted import Line, LineFunction, calls, hangs, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.meerkat.harness import COMMS, MANY, TASK, MeerkatHarness, fork, slowly, spawn, started

TURNS = 40
SENT = '{"status":"sent"}'


def lead(request: Request) -> Line:
    """The root starts one of each kind, writes to the host, and when all is in, cancels it and looks around."""
    history = "\n".join(message.text for message in request.messages)
    if request.turn == 1:
        return together(spawn("dig"), fork("look below"), spawn("keep the books", host_mode=True))
    names = re.findall(r'"name":"([a-z-]+-[0-9a-f]{12})"', history)
    if request.turn == 2:
        body = {"to": names[2], "intent": "count", "params": [1]}
        return together(calls("send_message", to=names[2], body="ping"), calls("send_request", **body))
    if not all(word in history for word in ("Task: dig", "Task: look below", "a trace", "pong")):
        return says("Waiting.")
    if "previous_state" not in history:
        return calls("agent_cancel", agent_id=started(request.messages)[2])
    if "total_count" not in history:
        return together(calls("agent_list"), calls("send_message", to=names[2], body="still there?"))
    return says("Done.")


def serves(request: Request) -> Line:
    """The host answers what it has not answered yet."""
    last = request.messages[-1]
    if isinstance(last, UserMessage) and "# Task" not in last.text:
        return calls("send_message", to="parent", body=f"pong to {len(last.text)} characters")
    return says("Ready.")


def story(store: Store) -> MeerkatHarness:
    return MeerkatHarness(
        *[lead] * TURNS,
        spawned={"dig": [calls("send_message", to="parent", body="a trace"), says("The pool.")]},
        forked={"look below": [calls("grep", pattern="x"), says("Nothing.")]},
        hosts={"keep the books": [serves] * TURNS},
        settings=COMMS,
        store=store,
    )


async def lived(harness: MeerkatHarness) -> dict[str, Run]:
    """Every run by its agent, as the store tells it; the order of births is a matter of time."""
    rows = harness.rows()
    assert len({row.agent for row in rows}) == len(rows)
    return {row.agent: await harness.retinue.supervisor.replay(row.run_id) for row in rows}


def told(run: Run) -> list[str]:
    """The user messages of a conversation, with the same word for all ids, one by one where they were joined."""
    texts = [message.text for message in run.history if isinstance(message, UserMessage)]
    plain = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12}", "ID", "\n\n".join(texts))
    return sorted(re.split(r"\n\n(?=\[)", plain))


def results(run: Run) -> Counter[str]:
    return Counter(message.text for message in run.history if isinstance(message, ToolMessage))


MESSAGES = {
    "main": {
        TASK,
        "[message from sub-agent-ID]\na trace",
        "[sub-agent sub-agent-ID completed] Task: dig\nThe pool.",
        "[sub-agent fork-ID completed] Task: look below\nNothing.",
    },
    "host": {"[message from parent]\nping", "[request ID from parent: count] [1]"},
}
"""What has to be read once, and only once; how the host's answers are joined is a matter of time."""


@pytest.mark.promise("MK-CRASH", "MK-HOST", "MK-FORK-HISTORY", "MK-CANCEL")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_loses_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    def new_store(name: str) -> Store:
        return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")

    undisturbed = story(new_store("undisturbed"))
    await undisturbed.open()
    assert (await undisturbed.run(TASK, key="root")).text == "Done."
    _check(await lived(undisturbed), "undisturbed")
    writes = undisturbed.written
    await undisturbed.close()

    cut_short = 0
    for n in range(writes + 1):
        harness = story(new_store(str(n)))
        with suppress(StoreError):
            await harness.open(killed_after=n)
            await harness.run(TASK, key="root")
        await harness.kill()
        paths = {row.run_id: row.path for row in harness.rows()}
        stored = {(paths[run_id], turn) for run_id, turn in harness.replies()}
        cut_short += any(row.progress.phase != "ended" for row in harness.rows())
        asked = len(harness.provider.asked)

        await harness.open(adopt=True)
        outcome = await harness.run(TASK, key="root")
        runs = await lived(harness)
        await harness.close()

        assert (n, outcome.result, outcome.text) == (n, "completed", "Done.")
        again = {(question.path, question.turn) for question in harness.provider.asked[asked:]}
        assert stored & again == set(), n
        _check(runs, f"killed after write {n}")
        harness.store.close()
    undisturbed.store.close()
    assert cut_short > 30


@pytest.mark.promise("MK-CRASH")
@pytest.mark.parametrize("luck", range(12))
async def test_nor_do_many_crashes_one_after_another(luck: int) -> None:
    chance = random.Random(luck)
    harness = story(MemoryStore())
    for _ in range(200):
        with suppress(StoreError):
            await harness.open(adopt=True, killed_after=chance.randint(3, 12))
            await harness.run(TASK, key="root")
        await harness.kill()
        if any(row.agent == "main" and row.progress.phase == "ended" for row in harness.rows()):
            break

    await harness.open(adopt=True)
    assert (await harness.run(TASK, key="root")).text == "Done."
    _check(await lived(harness), f"luck {luck}")
    await harness.close()


def _check(runs: dict[str, Run], life: str) -> None:
    ends = {agent: run.outcome and run.outcome.result for agent, run in runs.items()}
    assert ends == {
        "main": "completed",
        "sub-agent": "completed",
        "fork": "completed",
        "host": "cancelled",
    }, life
    for agent, expected in MESSAGES.items():
        counted = Counter(told(runs[agent]))
        assert {text: counted[text] for text in expected} == dict.fromkeys(expected, 1), life
        assert [text for text in counted if counted[text] > 1] == [], life
    assert any("pong" in text for text in told(runs["main"])), life
    root = results(runs["main"])
    assert root[SENT] == 2, life
    assert root["Execution failed: Peer offline (no ack received)"] == 1, life
    assert sum('"success":true' in text for text in root) == 1, life
    assert sum('"total_count":3' in text for text in root) == 1, life
    assert results(runs["sub-agent"]) == {SENT: 1}, life
    pongs = results(runs["host"])[SENT]
    assert pongs == sum(text.count("pong") for text in told(runs["main"])), life
    inherited, repaired = runs["fork"].history[:2], runs["fork"].history[2:5]
    assert inherited == runs["main"].history[:2], life
    assert [message.text for message in repaired] == [STILL_OPEN] * 3, life
    told_ids = [json.loads(text)["agent_id"] for text in root if '"name":' in text and '"agent_id"' in text]
    assert sorted(told_ids) == sorted(run.run_id for agent, run in runs.items() if agent != "main"), life


# ---- after a restart ------------------------------------------------------------------------------------------------


class TwoLives(MeerkatHarness):
    """A harness whose root is silent in its first life, once its children are done."""

    def __init__(self, *lines: Any, **options: Any) -> None:
        self.lives = 0
        super().__init__(*lines, **options)

    async def open(self, **how: Any) -> Any:
        """The next life."""
        self.lives += 1
        return await super().open(**how)

    def later(self, line: LineFunction) -> LineFunction:
        """A line for the second life only."""

        def only_then(request: Request) -> Line:
            return hangs() if self.lives == 1 else line(request)

        return only_then


@pytest.mark.promise("MK-RESTART", "MK-COMMS-OFFLINE", "MK-NOTICE-ONCE")
async def test_sub_agents_that_ended_before_a_restart_are_still_known() -> None:
    def asks(request: Request) -> Line:
        first, second, third = started(request.messages)
        peer = re.findall(r'"name":"([a-z0-9-]+)"', "".join(each.text for each in request.messages))[0]
        return together(
            calls("agent_status", agent_id=first),
            calls("agent_cancel", agent_id=second),
            calls("agent_status", agent_id=third),
            calls("agent_list"),
            calls("list_peers"),
            calls("send_message", to=peer, body="still there?"),
        )

    harness = TwoLives(
        together(spawn("one"), fork("two"), spawn("three", host_mode=True, budget={"max_turns": 0})),
        says("Waiting."),
        settings=COMMS,
        spawned={"one": [says("1.")]},
        forked={"two": [says("2.")]},
    )
    harness.script("main", harness.later(asks), says("Thanks."))
    async with harness:
        await harness.retinue.spawn(TASK, key="root")
        await asyncio.sleep(1)
        await harness.restart()
        assert (await harness.run(TASK, key="root")).text == "Thanks."

    texts = harness.texts()[3:]
    rows = harness.rows()[1:]
    one, two, three = (row.run_id for row in rows)
    assert json.loads(texts[0]) == {
        "agent_id": one,
        "state": "completed",
        "output": "1.",
        "is_final": True,
        "duration_ms": 0,
        "tokens_used": rows[0].progress.usage.total,
    }
    assert json.loads(texts[1])["previous_state"] == "completed"
    assert json.loads(texts[2])["state"] == "completed"
    listed = json.loads(texts[3])
    assert [row["id"] for row in listed["agents"]] == [one, two, three]
    assert (listed["completed_count"], listed["running_count"]) == (3, 0)
    assert texts[4:] == ['{"peers":[]}', "Execution failed: Peer offline (no ack received)"]


@pytest.mark.promise("MK-RESTART", "MK-KEPT")
async def test_after_a_restart_too_only_the_last_256_are_known() -> None:
    def asks(request: Request) -> Line:
        ids = started(request.messages)
        return together(*(calls("agent_status", agent_id=ids[nth]) for nth in (43, 44, 299)), calls("agent_list"))

    harness = TwoLives(
        together(*(spawn(f"task {n}") for n in range(300))),
        says("Waiting."),
        settings=MeerkatSettings(concurrency_limits=MANY),
    )
    harness.script("main", harness.later(asks), says("Thanks."))
    harness.script("sub-agent", says("Done."))
    async with harness:
        await harness.retinue.spawn(TASK, key="root")
        await asyncio.sleep(1)
        await harness.restart()
        await harness.run(TASK, key="root")

    forgotten, oldest, newest, listed = harness.texts()[300:]
    assert forgotten.startswith("Execution failed: Sub-agent not found: ")
    assert [json.loads(text)["output"] for text in (oldest, newest)] == ["Done.", "Done."]
    assert json.loads(listed)["total_count"] == 256


@pytest.mark.promise("MK-NAMES", "MK-IDS", "MK-RESTART")
async def test_names_are_not_used_twice_however_soon_the_next_life_begins() -> None:
    harness = TwoLives(
        together(*(spawn(f"task {n}") for n in range(50))), settings=MeerkatSettings(concurrency_limits=MANY)
    )
    harness.script("main", harness.later(lambda _: together(*(spawn(f"more {n}") for n in range(50)))), says("Thanks."))
    harness.script("main", says("Thanks."))
    harness.script("sub-agent", slowly("Done.", 99))
    async with harness:
        await harness.retinue.spawn(TASK, key="root")
        await asyncio.sleep(1)
        await harness.restart()  # in one millisecond, while fifty have been borrowed
        await harness.run(TASK, key="root")

    ids = [json.loads(text)["agent_id"] for text in harness.texts()]
    assert ids == sorted(ids)
    assert len({json.loads(text)["name"] for text in harness.texts()}) == 100
