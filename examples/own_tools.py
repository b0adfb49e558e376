"""A tool surface of your own over one object: functions, and a `Tool` whose risk depends on its arguments.

Run: `python examples/own_tools.py`. It prints:

    balance: 100
    person asked about: move {"cents":500}
    Small amounts only.
    balance: 90

Tools that start runs can also be a dialect of your own: docs/how-to/own-dialect.md.
"""

import asyncio
from functools import partial
from typing import Annotated

import msgspec

import retinue
from retinue.ports import CallRisk, PreparedCall, Risk, Tool, ToolResult, ToolSpec
from retinue.testing import Script, ScriptedProvider, calls, says


class Account:
    """What the tools work on."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


class Arguments(msgspec.Struct):
    """The arguments of `move`."""

    cents: Annotated[int, msgspec.Meta(gt=0)]


class Move(Tool):
    """Takes cents from the account; more than 50 at once needs a person."""

    spec = ToolSpec(
        name="move",
        description="Move cents out of the account.",
        parameters='{"type":"object","properties":{"cents":{"type":"integer"}},"required":["cents"]}',
    )

    def __init__(self, account: Account) -> None:
        self._account = account

    def prepare(self, arguments: str) -> PreparedCall:
        cents = amount(arguments)
        risk = Risk.MEDIUM if cents is None or cents > 50 else Risk.LOW
        return PreparedCall(arguments, CallRisk(risk, acts=True), partial(self.call, arguments))

    async def call(self, arguments: str, context: retinue.CallContext) -> ToolResult:
        cents = amount(arguments)
        if cents is None:
            raise retinue.ToolError("cents has to be a number above 0")
        self._account.cents -= cents
        return ToolResult("moved")


def amount(arguments: str) -> int | None:
    """The cents in the arguments of a call, which are whatever the model wrote; None without a valid amount."""
    try:
        return msgspec.json.decode(arguments, type=Arguments).cents
    except msgspec.MsgspecError:
        return None


async def refuse(question: retinue.Approval) -> bool:
    print(f"person asked about: {question.tool} {question.arguments}")
    return False


SCRIPT = Script().play(
    "main", calls("balance"), calls("move", cents=10), calls("move", cents=500), says("Small amounts only.")
)
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT)


async def main() -> None:
    account = Account(100)

    @retinue.tool(kind="pure")
    def balance() -> int:
        """Read the balance of the account, in cents."""
        print(f"balance: {account.cents}")
        return account.cents

    tools = [balance, Move(account)]
    async with retinue.open(provider=PROVIDER, tools=tools, approvals=refuse, dialects=(), home=retinue.MEMORY) as r:
        print((await r.run("Move 10, then 500 cents.")).text)
    print(f"balance: {account.cents}")


asyncio.run(main())
