"""Four dialects in one tree of five levels: a crash after any write changes neither the answer nor the limits."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StoreError
from retinue.core.ports import Store
from retinue.dialects.buzzllm import process_provider
from retinue.providers.scripted import says
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.fake_chat import FakeChat
from tests.dialects.mixed_scenario import PROCESS_TEXT, TREES, MixedHarness, Tree, stand_in

pytestmark = pytest.mark.real_time  # child processes
over_both_trees = pytest.mark.parametrize("make", TREES.values(), ids=TREES.keys())


@over_both_trees
async def test_four_dialects_work_in_one_tree_of_five_levels(make: Callable[[], Tree]) -> None:
    tree = make()
    async with FakeChat(says(PROCESS_TEXT)) as vendor:
        harness = MixedHarness(tree, MemoryStore(), vendor.base_url)
        outcome = await harness.life()
        await harness.close()
        record = harness.record()

    assert (outcome.result, outcome.text) == ("completed", tree.answer)
    assert {task: facts["dialect"] for task, facts in record.items() if facts["depth"]} == tree.shape
    assert {facts["depth"] for facts in record.values()} == {0, 1, 2, 3, 4}
    assert len(vendor.requests) == 1


async def undisturbed(tree: Tree) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The runs without a crash, what the root has left at its last turn, and the number of writes."""
    harness = MixedHarness(tree, MemoryStore())
    assert (await harness.life()).text == tree.answer
    writes = harness.written
    await harness.close()
    return harness.record(), dict(harness.model.left), writes


@over_both_trees
@pytest.mark.parametrize("kind", ["memory", pytest.param("sqlite", marks=pytest.mark.stress)])
async def test_a_crash_after_any_write_gives_the_same_answer_within_the_same_limits(
    make: Callable[[], Tree], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_provider, "COMMAND", stand_in())
    tree = make()
    expected, left, writes = await undisturbed(tree)
    cut_short = 0
    for number in range(writes + 1):
        store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{number}.db")
        harness = MixedHarness(tree, store)
        with suppress(StoreError):
            await harness.life(killed_after=number)
        await harness.kill()
        cut_short += any(row.progress.phase != "ended" for row in harness.rows())
        stored = {(row.path, turn) for row in harness.rows() for turn in range(1, row.progress.turns + 1)}
        asked = len(harness.model.asked)

        async with asyncio.timeout(30):
            outcome = await harness.life(adopt=True)
            await harness.close()

        where = f"killed after write {number}"
        assert (where, outcome.text) == (where, tree.answer)
        record = harness.record()
        for task, facts in expected.items():
            assert {"where": where, "task": task, **record[task]} == {"where": where, "task": task, **facts}
        assert record.keys() == expected.keys(), where
        assert harness.model.left == left, where
        assert stored & {(each.path, each.turn) for each in harness.model.asked[asked:]} == set(), where
        store.close()
    assert cut_short > 40
