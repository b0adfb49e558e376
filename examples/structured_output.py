"""An answer as data: a type is demanded, an answer that does not fit is asked for again, and the value is checked.

Run: `python examples/structured_output.py`. It prints:

    Incident(cause='pool size 20', severity='high', services=['api', 'queue'])
    2 turns: the first answer had no severity
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import msgspec

import retinue
from retinue.testing import Script, ScriptedProvider, says


@dataclass
class Incident:
    cause: str
    severity: Literal["low", "high"]
    services: list[str]


SCRIPT = Script().play(
    "main",
    says('{"cause": "pool size 20", "services": ["api", "queue"]}'),
    says('{"cause": "pool size 20", "severity": "high", "services": ["api", "queue"]}'),
)
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT)


async def main() -> None:
    async with retinue.open(provider=PROVIDER, dialects=(), home=retinue.MEMORY) as r:
        outcome = await r.run("Classify the incident.", output=Incident)
    print(msgspec.convert(outcome.structured, Incident))
    print(f"{outcome.turns} turns: the first answer had no severity")


asyncio.run(main())
