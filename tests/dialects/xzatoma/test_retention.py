"""Retention of subagents' messages after the end of their tree, and the model of subagents."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.app.open import open_read_only
from retinue.core.errors import BadInput, NotKept, StoreError
from retinue.core.events import ReplyReceived, RunEnded
from retinue.core.ports import Store
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.dialects.xzatoma.transcripts import KeptTranscripts, SubagentTranscript
from retinue.providers.scripted import Script, hangs
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.recording import conversation
from tests.dialects.xzatoma.harness import (
    ROOT,
    TASK,
    RecordingProvider,
    XzatomaHarness,
    answered,
    says,
    subagent,
    uses,
)

FOUND = (says("It is the pool."), says("The pool is too small."))
DROPS = XzatomaSettings()
SUMMARY = "Summarize your findings concisely"


def nested(store: Store | None = None, settings: XzatomaSettings = DROPS, *, latency: float = 0.0) -> XzatomaHarness:
    return XzatomaHarness(
        subagent(),
        says("Thanks."),
        tasks={
            "find it": [uses("grep"), subagent("below", "look below"), *FOUND],
            "look below": [says("Looked."), says("Twenty.")],
        },
        store=store,
        settings=settings,
        latency=latency,
    )


async def conversations(store: Store) -> list[SubagentTranscript]:
    async with open_read_only(store=store) as archive:
        kept = KeptTranscripts(archive.supervisor)
        return await kept.read(await kept.rows())


@pytest.mark.promise("XZ-DROPPED")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_messages_are_dropped_at_the_end_of_the_tree_and_outcomes_stay(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "retinue.db")
    harness = nested(store)
    async with harness:
        root = await harness.retinue.spawn(TASK)
        assert (await root.wait()).text == "Thanks."
        dig = harness.rows()["dig"]
        with pytest.raises(NotKept, match=f"the messages of run {dig.run_id} were not kept"):
            await harness.retinue.supervisor.replay(dig.run_id)
        assert [event async for event in harness.retinue.events(dig.run_id)] == []

        assert (harness.events(dig.run_id), harness.store.inbox(dig.run_id)) == ([], [])
        outcomes = {label: harness.outcome(label) for label in ("dig", "below")}
        assert {label: ended and ended.text for label, ended in outcomes.items()} == {
            "dig": "The pool is too small.",
            "below": "Twenty.",
        }
        assert harness.answers(ROOT) == [answered("The pool is too small.", turns=4)]
        assert await KeptTranscripts(harness.retinue.supervisor).rows() == []
    store.close()


@pytest.mark.promise("XZ-DROPPED")
async def test_while_the_tree_lives_nothing_is_dropped_and_nothing_is_listed() -> None:
    harness = XzatomaHarness(subagent(), hangs(), tasks={"find it": FOUND}, settings=DROPS)
    await harness.open()
    root = await harness.retinue.spawn(TASK)
    await asyncio.sleep(1)
    assert len(harness.events(harness.rows()["dig"].run_id)) > 4
    assert await KeptTranscripts(harness.retinue.supervisor).rows() == []

    await root.cancel()
    await root.wait()
    assert harness.events(harness.rows()["dig"].run_id) == []
    await harness.close()


@pytest.mark.promise("XZ-DROPPED")
async def test_a_subscriber_of_a_subagent_receives_its_end() -> None:
    harness = nested(latency=1.0)
    async with harness:
        root = await harness.retinue.spawn(TASK)
        async for event in root.events():
            if isinstance(event, ReplyReceived):
                break
        await asyncio.sleep(0.1)
        events = [event async for event in harness.retinue.events(harness.rows()["dig"].run_id)]
        await root.wait()

    assert isinstance(events[-1], RunEnded)


@pytest.mark.promise("XZ-DROPPED", "XZ-KEYED")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_leaves_no_message_behind(kind: str, tmp_path: Path) -> None:
    def new_store(name: str) -> Store:
        return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")

    undisturbed = nested(new_store("undisturbed"))
    async with undisturbed:
        await undisturbed.run(TASK, key="root")
        writes = undisturbed.written
    undisturbed.store.close()

    for n in range(writes + 1):
        harness = nested(new_store(str(n)))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        await harness.open(adopt=True)
        assert (await harness.run(TASK, key="root")).text == "Thanks.", n
        await harness.close()

        left = {label: harness.events(row.run_id) for label, row in harness.rows().items() if label}
        assert left == {"dig": [], "below": []}, n
        assert harness.answers(ROOT) == [answered("The pool is too small.", turns=4)], n
        assert dict(harness.store.key_value("xzatoma-trees")) == {}, n
        harness.store.close()


@pytest.mark.promise("XZ-DROPPED")
async def test_messages_that_a_fork_began_with_stay_until_it_has_ended() -> None:
    harness = XzatomaHarness(subagent(), says("Thanks."), tasks={"find it": FOUND}, settings=DROPS, latency=1.0)
    harness.script("main", says("Hm."), task="And larger?")
    async with harness:
        root = await harness.retinue.spawn(TASK)
        await asyncio.sleep(2.5)
        dig = harness.rows()["dig"].run_id
        fork = await harness.retinue.fork(dig, "And larger?", keep_alive=True)
        await root.wait()
        assert len(harness.events(dig)) > 2

        await harness.retinue.cancel(fork)
        await fork.wait()
        assert harness.events(dig) == []


@pytest.mark.promise("XZ-KEPT")
async def test_kept_conversations_can_be_read_again() -> None:
    harness = nested(settings=XzatomaSettings(persistence_enabled=True))
    await harness.play()

    below, dig = await conversations(harness.store)
    rows = harness.rows()
    assert (dig.id, dig.parent_id, dig.depth, dig.label) == (rows["dig"].run_id, None, 1, "dig")
    assert (below.id, below.parent_id, below.depth, below.label) == (rows["below"].run_id, dig.id, 2, "below")
    assert conversation(below.messages) == [
        "user: look below",
        "assistant: Looked.",
        f"user: {SUMMARY}",
        "assistant: Twenty.",
    ]
    assert (dig.status, dig.turns_used, dig.max_turns_reached) == ("complete", 4, False)
    assert (dig.task, dig.allowed_tools) == ("find it", ("fetch", "grep", "file_ops"))


@pytest.mark.promise("XZ-KEPT")
async def test_a_subagent_at_work_can_be_looked_at() -> None:
    harness = XzatomaHarness(subagent(), tasks={"find it": [uses("grep"), hangs()]})
    await harness.open()
    root = await harness.retinue.spawn(TASK)
    await asyncio.sleep(1)
    kept = KeptTranscripts(harness.retinue.supervisor)
    (found,) = await kept.read(await kept.rows())
    await root.cancel()
    await root.wait()
    (ended,) = await kept.read(await kept.rows())
    await harness.close()

    assert (found.status, found.turns_used, found.completed_at) == ("running", 1, None)
    assert (ended.status, conversation(ended.messages)) == ("failed", conversation(found.messages))


@pytest.mark.promise("XZ-KEPT-COPY")
async def test_kept_conversations_are_copied_to_a_database_of_ones_own(tmp_path: Path) -> None:
    copies = tmp_path / "more" / "conversations.db"
    harness = nested(settings=XzatomaSettings(persistence_enabled=True, persistence_path=str(copies)))
    await harness.play()

    assert await conversations(SqliteStore(copies)) == await conversations(harness.store)
    assert dict(harness.store.key_value("xzatoma-trees")) == {}


@pytest.mark.promise("XZ-KEPT-COPY")
async def test_a_copy_that_cannot_be_made_fails_nothing_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    copies = tmp_path / "file" / "conversations.db"
    harness = nested(settings=XzatomaSettings(persistence_enabled=True, persistence_path=str(copies)))
    assert (await harness.play()).text == "Thanks."
    assert "could not be copied" in caplog.text

    (tmp_path / "file").unlink()
    await harness.open()
    await harness.close()

    assert len(await conversations(SqliteStore(copies))) == 2


# ---- whose model ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-OVERRIDE")
@pytest.mark.parametrize(
    ("override", "elsewhere", "model"),
    [
        ({"model": "small"}, False, "small"),
        ({"model": "second:small"}, True, "small"),
        ({"provider": "second"}, True, "m"),
        ({"provider": "second", "model": "ollama:odd"}, True, "ollama:odd"),
        ({}, False, "m"),
    ],
)
async def test_settings_choose_the_model_of_subagents(override: dict[str, Any], elsewhere: bool, model: str) -> None:
    tasks = {"find it": [subagent("below", "look below"), *FOUND], "look below": FOUND}
    second = RecordingProvider(Script())
    for task, lines in tasks.items() if elsewhere else ():
        second.script.play("main", *lines, task=task)
    harness = XzatomaHarness(
        subagent(),
        says("ok"),
        tasks={} if elsewhere else tasks,
        settings=XzatomaSettings(persistence_enabled=True, **override),
        providers={"second": second},
    )
    await harness.play()
    second.script.verify()

    asked = second if elsewhere else harness.recorder
    subagents = [question for question in asked.requests if question.path != "root"]
    assert [question.model for question in subagents] == [model] * 5
    assert {question.model for question in harness.recorder.requests if question.path == "root"} == {"m"}


@pytest.mark.promise("XZ-OVERRIDE")
async def test_an_unknown_provider_is_refused_at_the_start() -> None:
    harness = XzatomaHarness(settings=XzatomaSettings(provider="copilot"))
    with pytest.raises(BadInput) as refused:
        await harness.open()

    assert str(refused.value).startswith("Invalid subagent provider override: copilot. Must be one of: anthropic, ")
