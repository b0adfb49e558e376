"""A provider of your own: any object with the method `answer`; this one counts words and has a price.

Run: `python examples/own_provider.py`. It prints:

    You wrote 4 words.
    4 input and 4 output tokens, 24 nanodollars

For a real model, send `request.messages` to it in `answer`, call `publish` for each piece that arrives, and raise
`retinue.ProviderError` where it fails. `retinue.testing.PROVIDER_PROMISES` has the tests for such a class.
"""

import asyncio

import retinue
from retinue.messages import AssistantMessage, Reply, TextDelta
from retinue.ports import Publish, Request

INPUT, OUTPUT = 1, 5
"""Nanodollars per token."""


class WordCounter:
    """Answers with the number of words of the last message."""

    name = "counter"

    async def answer(self, request: Request, publish: Publish) -> Reply:
        words = len(request.messages[-1].text.split())
        text = f"You wrote {words} words."
        publish(TextDelta(text))
        usage = retinue.Usage(input=words, output=len(text.split()))
        return Reply(AssistantMessage(text=text), usage=usage, cost=usage.input * INPUT + usage.output * OUTPUT)

    def price(self, model: str) -> tuple[int, int] | None:
        """Nanodollars per input and output token; budgets hold the worst case of a call before it is made."""
        return (INPUT, OUTPUT)


async def main() -> None:
    async with retinue.open(provider=WordCounter(), dialects=(), home=retinue.MEMORY) as r:
        outcome = await r.run("How long is this?")
    print(outcome.text)
    print(f"{outcome.usage.input} input and {outcome.usage.output} output tokens, {outcome.cost} nanodollars")


asyncio.run(main())
