"""A run that stays for more questions: each answer remembers the earlier ones, until the run is closed.

Run: `python examples/conversation.py`. It prints:

    > Why is it slow?
    The connection pool is too small.
    > Since when?
    Since change 4711, on Tuesday.
    2 exchanges, completed
"""

import asyncio

import retinue
from retinue.testing import Script, ScriptedProvider, says

SCRIPT = Script().play("main", says("The connection pool is too small."), says("Since change 4711, on Tuesday."))
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT)


async def main() -> None:
    async with retinue.open(provider=PROVIDER, dialects=(), home=retinue.MEMORY) as r:
        first, second = "Why is it slow?", "Since when?"
        run = await r.spawn(first, keep_alive=True)
        print(f"> {first}\n{(await run.answer()).text}")
        print(f"> {second}\n{(await run.ask(second)).text}")
        outcome = await run.close()
    print(f"{outcome.exchanges} exchanges, {outcome.result}")


asyncio.run(main())
