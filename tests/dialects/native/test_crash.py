"""Crashes during a delegation of `native`: the next process finds the runs and goes on."""

from pathlib import Path

import pytest

from retinue.core.ports import Store
from retinue.providers.scripted import calls, says, together
from tests.dialects.crashes import crashes
from tests.dialects.native.harness import NativeHarness, about, run_agent, waits
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
    async for crash in crashes(kind, tmp_path, story, told):
        crash.undisturbed.provider.script.verify()
        n, whole = crash.writes, crash.whole
        assert (n, crash.text, set(crash.told)) == (n, "Thanks.", set(whole))
        for path in whole:
            if path != "root":
                assert (n, path, crash.told[path]) == (n, path, whole[path])
        assert crash.harness.answers()[:1] == crash.undisturbed.answers()[:1], n
