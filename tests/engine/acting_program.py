"""A program for tests of shared limits: `python -m tests.engine.acting_program PLACE ACTIONS LIMIT NAME`.

PLACE is a folder for a SQLite store, or the address of a PostgreSQL store. It reports `ready`, waits for a line on
stdin, makes that many actions in one reply under a limit of actions per hour, and reports how many were made.
"""

import asyncio
import sys

import retinue
from retinue.core.events import CallReturned
from retinue.core.policy import NO_ACTIONS_LEFT
from retinue.providers.scripted import Script, ScriptedProvider, calls, says, together
from tests.dispatch.worker.stage import at


@retinue.tool(acts=True)
async def act() -> str:
    """Change something."""
    return "did"


async def main(place: str, actions: int, limit: int, name: str) -> None:
    """Act once a line was read."""
    script = Script().play("main", together(*(calls("act") for _ in range(actions))), says("done"))
    async with retinue.open(
        provider=ScriptedProvider(script),
        **at(place),
        session=name,
        dialects=(),
        tools=(act,),
        policy=retinue.Policy(max_actions_per_hour=limit),
    ) as r:
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        handle = await r.spawn("go")
        await handle.wait()
        texts = [event.text async for event in handle.events() if isinstance(event, CallReturned)]
        assert set(texts) <= {"did", NO_ACTIONS_LEFT}, texts
        print(texts.count("did"), texts.count(NO_ACTIONS_LEFT), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
