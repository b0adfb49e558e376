"""Run one agent from a program and read its outcome.

Run: `python examples/hello.py`. It prints:

    It was the connection pool.
    completed after 1 turn(s)
"""

import asyncio

import retinue
from retinue.testing import Script, ScriptedProvider, says

# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(Script().play("main", says("It was the connection pool.")))


async def main() -> None:
    async with retinue.open(provider=PROVIDER, home=retinue.MEMORY) as r:
        outcome = await r.run("Why did throughput drop?")
    print(outcome.text)
    print(f"{outcome.result} after {outcome.turns} turn(s)")


asyncio.run(main())
