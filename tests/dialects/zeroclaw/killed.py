"""A process that hands out tasks in the background and is killed: `python -m tests.dialects.zeroclaw.killed`.

Its arguments are the folder with everything, the number of tasks, and whether it begins or goes on.
"""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import retinue
from retinue.core.agent import Agent
from retinue.core.ports import Request
from retinue.core.run import Limits
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, says, together
from retinue.store.sqlite.store import SqliteStore

TASK = "Hand out."
LOOKS = itertools.count()


def asked(number: int) -> str:
    """The task of one of them."""
    return f"task {number:04d}"


def script(tasks: int) -> Script:
    """One reply with all tasks; each task is a call and an answer."""
    handed_out = together(
        *(calls("delegate", agent="worker", prompt=asked(number), background=True) for number in range(tasks))
    )

    def answers(request: Request) -> Line:
        return says(f"done {request.messages[0].text}")

    return Script().play("main", handed_out, says("Handed out.")).play("worker", calls("look"), answers)


@retinue.tool(kind="pure")
async def look() -> str:
    """Look; in the life that is killed every other look takes for ever, so that only some tasks end in it."""
    if sys.argv[3] == "begin" and next(LOOKS) % 2:
        await asyncio.Event().wait()
    return "seen"


async def main(folder: Path, tasks: int, begin: bool) -> None:
    """Begin, or go on with what another process left."""
    provider = ScriptedProvider(script(tasks), latency=0.02, log=folder / "answered.log")
    worker = Agent(name="worker", tools=("look",), limits=Limits())
    os.chdir(folder)
    async with retinue.open(
        provider=provider,
        model="m",
        tools=[look],
        agents=[worker],
        dialects=["zeroclaw"],
        store=SqliteStore(folder / "store.db"),
        session="s",
        adopt=not begin,
    ) as r:
        if begin:
            await (await r.spawn(TASK, key="root")).wait()
            print("handed out", flush=True)
        root = await r.spawn(TASK, key="root")
        await root.wait()
        await r.wait(*(view.run_id for view in await r.tree(root.run_id)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "begin"))
