"""Crashes during a delegation of `claude`: the next process finds the agents and goes on."""

from pathlib import Path

import pytest

from retinue.core.ports import Request, Store
from retinue.providers.scripted import Line, calls, says, together
from tests.dialects.claude.harness import DIG, ClaudeHarness, agent, background, by_id
from tests.dialects.crashes import crashes
from tests.dialects.recording import conversation


def when_both_are_told(request: Request) -> Line:
    """Wait for the messages about both ends in the background; then ask for the list, and end."""
    texts = [message.text for message in request.messages]
    if sum(text.startswith("[task-notification]") for text in texts) < 2:
        return says("Waiting.")
    return says("Thanks.") if texts[-1].startswith('{"agents"') else calls("ListAgents")


def story(store: Store) -> ClaudeHarness:
    """A root starts two agents, continues one of them, and asks for the list."""
    return ClaudeHarness(
        together(background("look below"), agent(DIG)),
        by_id("SendMessage", "to", message="Since when?"),
        *[when_both_are_told] * 8,
        tasks={
            DIG: [calls("grep", pattern="pool"), says("The pool.")],
            "look below": [calls("fetch", url="a"), says("Ten.")],
            "Since when?": [says("Tuesday.")],
        },
        store=store,
    )


async def told(harness: ClaudeHarness) -> dict[str, list[str]]:
    """The conversation of every agent, by path; and what the root was told, in the order of the agents."""
    found: dict[str, list[str]] = {}
    for row in harness.rows():
        lines = conversation((await harness.retinue.supervisor.replay(row.run_id)).history)
        for other in harness.rows():
            lines = [line.replace(other.run_id, other.path) for line in lines]
        is_root = row.path == "root"
        found[row.path] = sorted(line for line in lines if "task-notification" in line) if is_root else lines
    return found


@pytest.mark.promise("CL-CRASH")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_gives_the_same_answers(kind: str, tmp_path: Path) -> None:
    async for crash in crashes(kind, tmp_path, story, told):
        assert (crash.writes, crash.text, crash.told) == (crash.writes, "Thanks.", crash.whole)
        assert crash.harness.decoded()[-1] == crash.undisturbed.decoded()[-1], crash.writes
