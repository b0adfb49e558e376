"""Actions of one reply take effect in their order there, whatever each of them takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest

import retinue
from retinue.engine.store_access import Handles, JournalKeyValue
from retinue.providers.scripted import ScriptedReply, says, together
from tests.dialects.spec.harness import ROOT, Answer, SpecHarness, answers, context, other_work, subagent

RESEARCHER = retinue.Agent(name="researcher", system_prompt="You research.", tools=("work",), max_turns=2)
WRITER = retinue.Agent(name="writer", system_prompt="You write.")
TOOLS: list[str] = []
DEFINED = {"name": "checker", "description": "Checks.", "system_prompt": "You check.", "tools": TOOLS}


class Delays:
    """Delays every query of the store: the n-th task that asks waits for the n-th delay, each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, delays: Sequence[float]) -> None:
        self._delays = delays
        self._tasks: dict[asyncio.Task[Any] | None, float] = {}
        look, find = JournalKeyValue.look, Handles.find

        async def delayed_look(key_value: JournalKeyValue, space: str) -> Mapping[str, bytes]:
            await self._delay()
            return await look(key_value, space)

        async def delayed_find(handles: Handles, session_id: str, space: str, name: str) -> str | None:
            await self._delay()
            return await find(handles, session_id, space, name)

        monkeypatch.setattr(JournalKeyValue, "look", delayed_look)
        monkeypatch.setattr(Handles, "find", delayed_find)

    async def _delay(self) -> None:
        task = asyncio.current_task()
        delay = self._tasks.setdefault(task, self._delays[len(self._tasks) % len(self._delays)])
        await asyncio.sleep(delay)


async def played(*lines: ScriptedReply) -> list[Answer]:
    harness = SpecHarness(agents=(RESEARCHER, WRITER))
    for _ in range(3):
        harness.script.play("researcher", other_work(5), says("The pool is 10."))
        harness.script.play("writer", says("Summarized."))
        harness.script.play("checker", says("Checked."))
    harness.script.play(ROOT, *lines)
    async with harness.open() as opened:
        handle = await opened.spawn("Go.")
        await handle.wait()
        return await answers(opened, handle.run_id)


@pytest.mark.parametrize("delays", list(permutations((0.0, 0.01, 0.02, 0.03))))
async def test_a_task_may_depend_on_one_that_the_same_reply_spawns(
    delays: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    Delays(monkeypatch, delays)
    read = await played(
        together(
            subagent("spawn", agent="researcher", task="Look."),
            subagent("spawn", agent="writer", task="Write.", depends_on=["t_01"]),
            subagent("spawn", agent="writer", task="Write more.", depends_on=["t_01", "t_02"]),
            subagent("status", task_id="t_03"),
        ),
        subagent("wait", task_ids=["t_03"]),
        says("done"),
    )

    assert [answer.get("status") for answer in read[:4]] == ["running", "pending", "pending", "pending"]
    assert [answer["task_id"] for answer in read[:4]] == ["t_01", "t_02", "t_03", "t_03"]
    assert read[4] == {"done": ["t_03"], "pending": [], "timed_out": False}


@pytest.mark.parametrize("delays", list(permutations((0.0, 0.01, 0.02))))
async def test_other_references_within_a_reply(delays: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    Delays(monkeypatch, delays)
    read = await played(
        together(
            subagent("define", **DEFINED),
            subagent("spawn", agent="checker", task="Check."),
            context("write", key="a", value="1"),
            context("read", key="a"),
            context("write", key="a", value="2"),
            context("delete", key="a"),
            subagent("spawn", agent="researcher", task="Look."),
            subagent("wait", task_ids=["t_02"]),
            subagent("collect", task_id="t_02"),
            subagent("cancel", task_id="t_02"),
            subagent("collect", task_id="t_02"),
        ),
        says("done"),
    )

    assert read[1]["task_id"] == "t_01"
    assert (read[3]["value"], read[4]["version"]) == ("1", 2)
    assert "error" not in read[5]
    assert read[6]["task_id"] == "t_02"
    assert (read[8]["error"], read[9]["status"], read[10]["error"]) == (
        "TASK_NOT_READY",
        "cancelled",
        "TASK_NOT_FOUND",
    )
    assert read[7] == {"done": ["t_02"], "pending": [], "timed_out": False}
