"""What becomes of subagents' messages at the end of their tree in `xzatoma`, and where their model comes from."""

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
from retinue.dialects.xzatoma.transcripts import KeptTranscripts, Transcript
from retinue.providers.scripted import Script, hangs
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.xzatoma.stage import ROOT, TASK, Listening, Stage, answered, said, says, subagent, uses

FOUND = (says("It is the pool."), says("The pool is too small."))
DROPS = XzatomaSettings()
SUMMARY = "Summarize your findings concisely"


def nested(store: Store | None = None, settings: XzatomaSettings = DROPS, *, latency: float = 0.0) -> Stage:
    return Stage(
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


async def conversations(store: Store) -> list[Transcript]:
    async with open_read_only(store=store) as archive:
        kept = KeptTranscripts(archive.supervisor)
        return await kept.read(await kept.rows())


@pytest.mark.promise("XZ-DROPPED")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_messages_are_dropped_at_the_end_of_the_tree_and_outcomes_stay(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "retinue.db")
    stage = nested(store)
    async with stage:
        root = await stage.retinue.spawn(TASK)
        assert (await root.wait()).text == "Thanks."
        dig = stage.rows()["dig"]
        with pytest.raises(NotKept, match=f"the messages of run {dig.run_id} were not kept"):
            await stage.retinue.supervisor.replay(dig.run_id)
        assert [event async for event in stage.retinue.events(dig.run_id)] == []

        assert (stage.events(dig.run_id), stage.store.inbox(dig.run_id)) == ([], [])
        outcomes = {label: stage.outcome(label) for label in ("dig", "below")}
        assert {label: ended and ended.text for label, ended in outcomes.items()} == {
            "dig": "The pool is too small.",
            "below": "Twenty.",
        }
        assert stage.answers(ROOT) == [answered("The pool is too small.", turns=4)]
        assert await KeptTranscripts(stage.retinue.supervisor).rows() == []
    store.close()


@pytest.mark.promise("XZ-DROPPED")
async def test_while_the_tree_lives_nothing_is_dropped_and_nothing_is_listed() -> None:
    stage = Stage(subagent(), hangs(), tasks={"find it": FOUND}, settings=DROPS)
    await stage.open()
    root = await stage.retinue.spawn(TASK)
    await asyncio.sleep(1)
    assert len(stage.events(stage.rows()["dig"].run_id)) > 4
    assert await KeptTranscripts(stage.retinue.supervisor).rows() == []

    await root.cancel()
    await root.wait()
    assert stage.events(stage.rows()["dig"].run_id) == []
    await stage.close()


@pytest.mark.promise("XZ-DROPPED")
async def test_a_reader_of_a_subagent_hears_of_its_end() -> None:
    stage = nested(latency=1.0)
    async with stage:
        root = await stage.retinue.spawn(TASK)
        async for event in root.events():
            if isinstance(event, ReplyReceived):
                break
        await asyncio.sleep(0.1)
        heard = [event async for event in stage.retinue.events(stage.rows()["dig"].run_id)]
        await root.wait()

    assert isinstance(heard[-1], RunEnded)


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
        stage = nested(new_store(str(n)))
        with suppress(StoreError):
            await stage.open(killed_after=n)
        if stage.alive:
            with suppress(StoreError):
                await stage.run(TASK, key="root")
            await stage.kill()
        await stage.open(adopt=True)
        assert (await stage.run(TASK, key="root")).text == "Thanks.", n
        await stage.close()

        left = {label: stage.events(row.run_id) for label, row in stage.rows().items() if label}
        assert left == {"dig": [], "below": []}, n
        assert stage.answers(ROOT) == [answered("The pool is too small.", turns=4)], n
        assert dict(stage.store.key_value("xzatoma-trees")) == {}, n
        stage.store.close()


@pytest.mark.promise("XZ-DROPPED")
async def test_messages_that_a_fork_began_with_stay_until_it_has_ended() -> None:
    stage = Stage(subagent(), says("Thanks."), tasks={"find it": FOUND}, settings=DROPS, latency=1.0)
    stage.script("main", says("Hm."), task="And larger?")
    async with stage:
        root = await stage.retinue.spawn(TASK)
        await asyncio.sleep(2.5)
        dig = stage.rows()["dig"].run_id
        fork = await stage.retinue.fork(dig, "And larger?", keep_alive=True)
        await root.wait()
        assert len(stage.events(dig)) > 2

        await stage.retinue.cancel(fork)
        await fork.wait()
        assert stage.events(dig) == []


@pytest.mark.promise("XZ-KEPT")
async def test_kept_conversations_can_be_read_again() -> None:
    stage = nested(settings=XzatomaSettings(persistence_enabled=True))
    await stage.play()

    below, dig = await conversations(stage.store)
    rows = stage.rows()
    assert (dig.id, dig.parent_id, dig.depth, dig.label) == (rows["dig"].run_id, None, 1, "dig")
    assert (below.id, below.parent_id, below.depth, below.label) == (rows["below"].run_id, dig.id, 2, "below")
    assert said(below.messages) == ["user: look below", "assistant: Looked.", f"user: {SUMMARY}", "assistant: Twenty."]
    assert (dig.status, dig.turns_used, dig.max_turns_reached) == ("complete", 4, False)
    assert (dig.task, dig.allowed_tools) == ("find it", ("fetch", "grep", "file_ops"))


@pytest.mark.promise("XZ-KEPT")
async def test_a_subagent_at_work_can_be_looked_at() -> None:
    stage = Stage(subagent(), tasks={"find it": [uses("grep"), hangs()]})
    await stage.open()
    root = await stage.retinue.spawn(TASK)
    await asyncio.sleep(1)
    kept = KeptTranscripts(stage.retinue.supervisor)
    (found,) = await kept.read(await kept.rows())
    await root.cancel()
    await root.wait()
    (ended,) = await kept.read(await kept.rows())
    await stage.close()

    assert (found.status, found.turns_used, found.completed_at) == ("running", 1, None)
    assert (ended.status, said(ended.messages)) == ("failed", said(found.messages))


@pytest.mark.promise("XZ-KEPT-COPY")
async def test_kept_conversations_are_copied_to_a_database_of_ones_own(tmp_path: Path) -> None:
    copies = tmp_path / "more" / "conversations.db"
    stage = nested(settings=XzatomaSettings(persistence_enabled=True, persistence_path=str(copies)))
    await stage.play()

    assert await conversations(SqliteStore(copies)) == await conversations(stage.store)
    assert dict(stage.store.key_value("xzatoma-trees")) == {}


@pytest.mark.promise("XZ-KEPT-COPY")
async def test_a_copy_that_cannot_be_made_fails_nothing_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    copies = tmp_path / "file" / "conversations.db"
    stage = nested(settings=XzatomaSettings(persistence_enabled=True, persistence_path=str(copies)))
    assert (await stage.play()).text == "Thanks."
    assert "could not be copied" in caplog.text

    (tmp_path / "file").unlink()
    await stage.open()
    await stage.close()

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
async def test_the_settings_say_whose_model_subagents_have(
    override: dict[str, Any], elsewhere: bool, model: str
) -> None:
    tasks = {"find it": [subagent("below", "look below"), *FOUND], "look below": FOUND}
    second = Listening(Script())
    for task, lines in tasks.items() if elsewhere else ():
        second.script.play("main", *lines, task=task)
    stage = Stage(
        subagent(),
        says("ok"),
        tasks={} if elsewhere else tasks,
        settings=XzatomaSettings(persistence_enabled=True, **override),
        providers={"second": second},
    )
    await stage.play()
    second.script.verify()

    asked = second if elsewhere else stage.listening
    subagents = [question for question in asked.heard if question.path != "root"]
    assert [question.model for question in subagents] == [model] * 5
    assert {question.model for question in stage.listening.heard if question.path == "root"} == {"m"}


@pytest.mark.promise("XZ-OVERRIDE")
async def test_a_provider_that_nobody_knows_is_refused_at_the_start() -> None:
    stage = Stage(settings=XzatomaSettings(provider="copilot"))
    with pytest.raises(BadInput) as refused:
        await stage.open()

    assert str(refused.value).startswith("Invalid subagent provider override: copilot. Must be one of: anthropic, ")
