"""A person decides about risky calls: one is allowed, one is refused, and the model reads which.

Run: `python examples/approvals.py`. It prints:

    root asks to call deploy({"version":2})
    root asks to call deploy({"version":3})
    Version 2 is out, version 3 is not.
    deployed: [2]

In a program with users, answer from a web page or a chat: `approvals="wait"` parks the run, `r.approvals()` lists the
open questions, and `r.approve(question)` or `r.deny(question, note=...)` answers one, from any process.
"""

import asyncio

import retinue
from retinue.testing import Script, ScriptedProvider, calls, says

DEPLOYED: list[int] = []


@retinue.tool(risk="medium", acts=True)
def deploy(version: int) -> str:
    """Deploy a version."""
    DEPLOYED.append(version)
    return f"version {version} is deployed"


async def decide(question: retinue.Approval) -> bool:
    """Allow version 2 alone; a real program would ask a person here."""
    print(f"{question.path} asks to call {question.tool}({question.arguments})")
    return '"version":2' in question.arguments


SCRIPT = Script().play(
    "main", calls("deploy", version=2), calls("deploy", version=3), says("Version 2 is out, version 3 is not.")
)
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT)


async def main() -> None:
    async with retinue.open(provider=PROVIDER, tools=[deploy], approvals=decide, home=retinue.MEMORY) as r:
        print((await r.run("Deploy versions 2 and 3.")).text)
    print(f"deployed: {DEPLOYED}")


asyncio.run(main())
