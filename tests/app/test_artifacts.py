"""Long results that were cut: who can read on when a conversation goes on in another tree."""

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


def reads_on(request: Request) -> ScriptedReply:
    """Ask for the rest of the first result in the history, as its notice says."""
    told = next(found for message in request.messages if (found := re.search(r'"id": "(a_\w+)"', message.text)))
    return calls("artifact_read", id=told[1], offset=495)


def stage(store: MemoryStore) -> Harness:
    return Harness(
        store=store, dialects=(), tools=[log, "artifact_read"], tool_options=ToolOptions(max_result=500, sandbox="off")
    )


def returned(r: Harness, run: RunHandle) -> list[str]:
    return [event.text for event in r.events(run.run_id) if isinstance(event, CallReturned)]


async def test_a_conversation_that_goes_on_elsewhere_can_still_read_what_was_cut() -> None:
    store = MemoryStore()
    async with stage(store) as first:
        first.script("main", calls("log"), says("seen"))
        run = await first.retinue.spawn("look at the log")
        await run.wait()
    async with stage(store) as second:
        second.script("main", says("no"), task="wait for it")
        second.script("main", reads_on, says("read"), task="and the rest?")
        between = await second.retinue.fork(run, "wait for it")
        await between.wait()
        last = await second.retinue.fork(between, "and the rest?")
        await last.wait()
        assert returned(second, last) == [LOG[495:]]


async def test_another_conversation_cannot() -> None:
    store = MemoryStore()
    async with stage(store) as r:
        r.script("main", calls("log"), says("seen"), task="look at the log")
        run = await r.retinue.spawn("look at the log")
        await run.wait()
        kept = artifact_id(f"{run.run_id}/1/0")
        r.script("main", calls("artifact_read", id=kept), says("no"), task="what did others see?")
        other = await r.retinue.spawn("what did others see?")
        await other.wait()
        assert f'"id": "{kept}"' in returned(r, run)[0]
        assert returned(r, other) == [
            f"There is no artifact {kept!r}. Artifacts belong to the tree of runs that made them."
        ]
