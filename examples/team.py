"""A lead that delegates to two specialists with the dialect `spec`; they share findings through `shared_context`.

Run: `python examples/team.py`. It prints:

    The pool was made smaller by mistake. Report: Revert change 4711.
    root completed
    root/researcher/1 completed
    root/writer/2 completed
"""

import asyncio

import retinue
from retinue.testing import Script, ScriptedProvider, calls, says

AGENTS = [
    retinue.Agent(
        name="researcher",
        description="Finds causes in logs",
        system_prompt="Write what you find to shared context under findings.",
        tools=("shared_context",),
    ),
    retinue.Agent(
        name="writer",
        description="Writes short reports",
        system_prompt="Read findings from shared context and write a report.",
        tools=("shared_context",),
    ),
]

SCRIPT = (
    Script()
    .play(
        "main",
        calls("subagent", action="spawn", agent="researcher", task="Why is it slow?"),
        # The writer starts after the researcher, and is given its result.
        calls("subagent", action="spawn", agent="writer", task="Write the report.", depends_on=["t_01"]),
        calls("subagent", action="wait", task_ids=["t_01", "t_02"]),
        calls("subagent", action="collect", task_id="t_02"),
        says("The pool was made smaller by mistake. Report: Revert change 4711."),
    )
    .play(
        "researcher",
        calls("shared_context", action="write", key="findings", value="Change 4711 made the pool smaller."),
        says("Change 4711."),
    )
    .play("writer", calls("shared_context", action="read", key="findings"), says("Revert change 4711."))
)
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT)


async def main() -> None:
    async with retinue.open(provider=PROVIDER, agents=AGENTS, dialects=["spec"], home=retinue.MEMORY) as r:
        run = await r.spawn("Throughput dropped. Find out why, and have a report written.")
        print((await run.wait()).text)
        for view in sorted(await r.tree(run), key=lambda view: view.path):
            assert view.outcome is not None
            print(view.path, view.outcome.result)


asyncio.run(main())
