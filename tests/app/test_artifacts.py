"""Truncated results can be read by runs that inherit the history from another tree, and by no others."""

import re

from retinue.app.handle import RunHandle
from retinue.core.events import CallReturned
from retinue.core.ports import Request
from retinue.providers.scripted import ScriptedReply, calls, says
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from retinue.tools.artifacts import artifact_id
from retinue.tools.dependencies import ToolOptions
from retinue.tools.function import tool

LOG = "".join(f"line {number:03}\n" for number in range(100))


@tool
async def log() -> str:
    """A long text."""
    return LOG


def read_artifact(request: Request) -> ScriptedReply:
    """Call the artifact tool for the first result in the history, as its notice says."""
    texts = (message.text for message in request.messages)
    notice = next(match for text in texts if (match := re.search(r'"id": "(a_\w+)"', text)))
    return calls("artifact_read", id=notice[1], offset=495)


def open_harness(store: MemoryStore) -> Harness:
    return Harness(
        store=store, dialects=(), tools=[log, "artifact_read"], tool_options=ToolOptions(max_result=500, sandbox="off")
    )


def call_results(r: Harness, run: RunHandle) -> list[str]:
    return [event.text for event in r.events(run.run_id) if isinstance(event, CallReturned)]


async def test_a_run_with_inherited_history_can_read_its_artifacts() -> None:
    store = MemoryStore()
    async with open_harness(store) as first:
        first.script("main", calls("log"), says("seen"))
        run = await first.retinue.spawn("look at the log")
        await run.wait()
    async with open_harness(store) as second:
        second.script("main", says("no"), task="wait for it")
        second.script("main", read_artifact, says("read"), task="and the rest?")
        between = await second.retinue.fork(run, "wait for it")
        await between.wait()
        last = await second.retinue.fork(between, "and the rest?")
        await last.wait()
        assert call_results(second, last) == [LOG[495:]]


async def test_an_unrelated_run_cannot_read_the_artifacts() -> None:
    store = MemoryStore()
    async with open_harness(store) as r:
        r.script("main", calls("log"), says("seen"), task="look at the log")
        run = await r.retinue.spawn("look at the log")
        await run.wait()
        artifact = artifact_id(f"{run.run_id}/1/0")
        r.script("main", calls("artifact_read", id=artifact), says("no"), task="what did others see?")
        other = await r.retinue.spawn("what did others see?")
        await other.wait()
        assert f'"id": "{artifact}"' in call_results(r, run)[0]
        assert call_results(r, other) == [
            f"There is no artifact {artifact!r}. Artifacts belong to the tree of runs that made them."
        ]
