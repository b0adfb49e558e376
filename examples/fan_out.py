"""Four sub-agents under one budget: the tree cannot spend more than its root was given.

Run: `python examples/fan_out.py`. It prints:

    root: exhausted, $0.01
    api.log: completed, $0.26
    db.log: completed, $0.26
    queue.log: completed, $0.18
    web.log: exhausted, $0.00
    all: $0.70 of $0.70

The answer about queue.log is cut at what was left of the budget, and web.log is not begun.
"""

import asyncio

import retinue
from retinue.testing import Script, ScriptedProvider, calls, says

FILES = ("api.log", "db.log", "queue.log", "web.log")
TASKS = [{"label": name, "task_prompt": f"Read {name}."} for name in FILES]

SCRIPT = Script().play("main", calls("parallel_subagent", tasks=TASKS, max_concurrent=1), says("Some logs are read."))
for name in FILES:
    SCRIPT.play("main", says("Nothing unusual. " * 400), task=f"Read {name}.")
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT, prices={"": (30_000, 150_000)})  # nanodollars per input and output token
BUDGET = retinue.Limits(max_cost=0.70)  # dollars


async def main() -> None:
    async with retinue.open(provider=PROVIDER, dialects=["xzatoma"], home=retinue.MEMORY) as r:
        run = await r.spawn("Look into all logs.", limits=BUDGET)
        await run.wait()
        views = sorted(await r.tree(run), key=lambda view: view.path)
    for view in views:
        assert view.outcome is not None
        print(f"{view.label or 'root'}: {view.outcome.result}, ${dollars(view.cost):.2f}")
    print(f"all: ${sum(dollars(view.cost) for view in views):.2f} of ${BUDGET.max_cost:.2f}")


def dollars(cost: int | None) -> float:
    return (cost or 0) / 1e9  # costs that were measured are whole nanodollars


asyncio.run(main())
