"""Crashes during a delegation of `codex`: the next process finds the agents and goes on."""

from contextlib import suppress
from pathlib import Path

import pytest

from retinue.core.errors import StoreError
from retinue.core.ports import Store
from retinue.providers.scripted import calls, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.codex.harness import DIG, CodexHarness, spawn, wait
from tests.dialects.native.harness import TASK
from tests.dialects.recording import conversation


def story(store: Store) -> CodexHarness:
    """A root starts two agents, gives one of them another task, and asks for the list."""
    return CodexHarness(
        together(spawn("dig", DIG), spawn("below", "look below")),
        wait(),
        wait(),
        calls("followup_task", target="dig", message="Since when?"),
        wait(),
        calls("list_agents"),
        says("Thanks."),
        tasks={
            DIG: [calls("grep", pattern="pool"), says("The pool.")],
            "look below": [calls("fetch", url="a"), says("Ten.")],
            "Since when?": [says("Tuesday.")],
        },
        store=store,
    )


async def told(harness: CodexHarness) -> dict[str, list[str]]:
    """The conversation of every agent, by path; and what the root was told, in the order of the agents."""
    found: dict[str, list[str]] = {}
    for row in harness.rows():
        lines = conversation((await harness.retinue.supervisor.replay(row.run_id)).history)
        is_root = row.path == "root"
        found[row.path] = sorted(line for line in lines if "FINAL_ANSWER" in line) if is_root else lines
    return found


@pytest.mark.promise("CX-CRASH")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_gives_the_same_answers(kind: str, tmp_path: Path) -> None:
    def new_store(name: str) -> Store:
        return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")

    undisturbed = story(new_store("undisturbed"))
    async with undisturbed:
        assert (await undisturbed.run(TASK, key="root")).text == "Thanks."
        whole = await told(undisturbed)
        writes = undisturbed.written

    for n in range(writes + 1):
        harness = story(new_store(str(n)))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        await harness.open(adopt=True)
        outcome = await harness.run(TASK, key="root")
        conversations = await told(harness)
        await harness.close()

        assert (n, outcome.text, conversations) == (n, "Thanks.", whole)
        ends = {row.path: row.progress.outcome and row.progress.outcome.result for row in harness.rows()}
        assert ends == dict.fromkeys(whole, "completed"), n
        assert harness.texts()[-1] == undisturbed.texts()[-1], n
        harness.store.close()
    undisturbed.store.close()
