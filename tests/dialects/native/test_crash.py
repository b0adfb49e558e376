"""Crashes during a delegation of `native`: the next process finds the runs and goes on."""

from contextlib import suppress
from pathlib import Path

import pytest

from retinue.core.errors import StoreError
from retinue.core.ports import Store
from retinue.providers.scripted import calls, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.native.harness import TASK, NativeHarness, about, run_agent, waits
from tests.dialects.recording import conversation


def story(store: Store) -> NativeHarness:
    """A root delegates to two at once, continues the first one, and cancels nothing."""
    return NativeHarness(
        together(run_agent("find it"), run_agent("look below", background=True, key="below")),
        about("message_agent", text="Since when?"),
        waits(),
        calls("list_agents"),
        says("Thanks."),
        tasks={
            "find it": [calls("grep", pattern="pool"), says("The pool.")],
            "look below": [calls("fetch", url="a"), says("Ten.")],
            "Since when?": [says("Tuesday.")],
        },
        store=store,
    )


async def told(harness: NativeHarness) -> dict[str, list[str]]:
    """Every run's conversation without the ids of runs, by path; ends are announced in the order of the ends."""
    found: dict[str, list[str]] = {}
    for row in harness.rows():
        lines = conversation((await harness.retinue.supervisor.replay(row.run_id)).history)
        for other in harness.rows():
            lines = [line.replace(other.run_id, other.path) for line in lines]
        found[row.path] = [line for line in lines if not line.startswith("user: [agent run")]
    return found


@pytest.mark.promise("NA-CRASH", "NA-KEY", "NA-MESSAGE-ENDED")
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

        assert (n, outcome.text, set(conversations)) == (n, "Thanks.", set(whole))
        for path in whole:
            if path != "root":
                assert (n, path, conversations[path]) == (n, path, whole[path])
        ends = {row.path: row.progress.outcome and row.progress.outcome.result for row in harness.rows()}
        assert ends == dict.fromkeys(whole, "completed"), n
        assert harness.answers()[:1] == undisturbed.answers()[:1], n
        harness.store.close()
    undisturbed.store.close()
