"""Crashes during a delegation of `xzatoma`: the next process finds the subagents and goes on."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.core.errors import StoreError
from retinue.core.ports import Request, Store
from retinue.dialects.base import DialectEntry
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import XzatomaSettings
from retinue.dialects.xzatoma.dialect import XzatomaDialect
from retinue.providers.scripted import Line, hangs
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.recording import conversation
from tests.dialects.xzatoma.harness import ROOT, TASK, XzatomaHarness, answered, says, subagent, uses


def story(store: Store) -> XzatomaHarness:
    """A root delegates once; its subagent looks, delegates once itself, and both are asked for a summary."""
    return XzatomaHarness(
        subagent(max_turns=2),
        says("Thanks."),
        tasks={
            "find it": [subagent("below", "look below"), uses("grep"), says("The pool.")],
            "look below": [uses("grep", pattern="pool"), says("Looked."), says("Twenty.")],
        },
        store=store,
    )


async def told(harness: XzatomaHarness) -> dict[str, list[str]]:
    """Every run's whole conversation, by label."""
    runs = {label: await harness.retinue.supervisor.replay(row.run_id) for label, row in harness.rows().items()}
    return {label: conversation(run.history) for label, run in runs.items()}


@pytest.mark.promise("XZ-KEYED")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_changes_nothing_but_the_time(kind: str, tmp_path: Path) -> None:
    def new_store(name: str) -> Store:
        return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")

    undisturbed = story(new_store("undisturbed"))
    async with undisturbed:
        assert (await undisturbed.run(TASK, key="root")).text == "Thanks."
        whole = await told(undisturbed)
        writes = undisturbed.written
    assert undisturbed.answers(ROOT) == [answered("The pool.", turns=3, limited=True)]
    assert undisturbed.answers("dig") == [answered("Twenty.", label="below", depth=2, turns=3)]

    cut_short = 0
    for n in range(writes + 1):
        harness = story(new_store(str(n)))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        paths = {row.run_id: row.path for row in harness.rows().values()}
        stored = {(paths[run_id], turn) for run_id, turn in harness.replies()}
        cut_short += any(row.progress.phase != "ended" for row in harness.rows().values())
        asked = len(harness.provider.asked)

        await harness.open(adopt=True)
        outcome = await harness.run(TASK, key="root")
        conversations = await told(harness)
        await harness.close()

        assert (n, outcome.text, conversations) == (n, "Thanks.", whole)
        assert harness.answers(ROOT) == undisturbed.answers(ROOT), n
        again = {(question.path, question.turn) for question in harness.provider.asked[asked:]}
        assert stored & again == set(), n
        ends = {label: row.progress.outcome and row.progress.outcome.result for label, row in harness.rows().items()}
        assert ends == dict.fromkeys(whole, "completed"), n
        harness.provider.script.verify()
        harness.store.close()
    undisturbed.store.close()
    assert cut_short > 20  # so many of these lives ended in the middle of the story


@pytest.mark.promise("XZ-KEYED", "XZ-SETTINGS")
async def test_a_subagent_that_todays_settings_would_refuse_is_still_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives: list[str] = []

    def looks(_: Request) -> Line:
        return says("Looked.") if len(lives) > 1 else hangs()

    def ever_smaller(entry: DialectEntry, dialect_context: DialectContext, settings: object) -> XzatomaDialect:
        lives.append(entry.name)
        return XzatomaDialect(dialect_context, XzatomaSettings(max_depth=3 - len(lives), persistence_enabled=True))

    monkeypatch.setattr(DialectEntry, "make", ever_smaller)
    harness = XzatomaHarness(
        subagent(),
        says("Thanks."),
        tasks={
            "find it": [subagent("below", "look below"), says("Found."), says("The pool.")],
            "look below": [looks, says("Twenty.")],
        },
    )
    async with harness:
        await harness.retinue.spawn(TASK, key="root")
        await asyncio.sleep(1)
        await harness.restart()
        assert (await harness.run(TASK, key="root")).text == "Thanks."

    assert harness.answers("dig") == [answered("Twenty.", label="below", depth=2)]
