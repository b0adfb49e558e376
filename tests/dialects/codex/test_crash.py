"""Crashes during a delegation of `codex`: the next process finds the agents and goes on."""

from pathlib import Path

import pytest

from retinue.core.ports import Store
from retinue.providers.scripted import calls, says, together
from tests.dialects.codex.harness import DIG, CodexHarness, spawn, wait
from tests.dialects.crashes import crashes
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
    async for crash in crashes(kind, tmp_path, story, told):
        assert (crash.writes, crash.text, crash.told) == (crash.writes, "Thanks.", crash.whole)
        crash.undisturbed.provider.script.verify()
        assert crash.harness.texts()[-1] == crash.undisturbed.texts()[-1], crash.writes
