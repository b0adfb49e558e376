"""The factory of meerkat's document, `AgentFactory::new(store_path).builtins(true).subagents(true)`, in Python.

Run it in this folder: `python factory.py`. For a real model, write `model="anthropic:claude-sonnet-4-5"`.
"""

import asyncio

import retinue


async def main() -> None:
    settings = retinue.MeerkatSettings(
        default_model="inherit",
        default_budget=20_000,
        concurrency_limits=retinue.ConcurrencyLimits(max_children_per_agent=2),
    )
    async with retinue.open(
        model="scripted:lines.json",
        dialects=["meerkat"],
        dialect_settings={"meerkat": settings},
        home=retinue.MEMORY,
    ) as r:
        outcome = await r.run("Which service has no connections left?", tools=["grep"])
    print(outcome.text)


asyncio.run(main())
