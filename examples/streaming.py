"""A live view of a run: words as they stream in, and a line for each tool call; the same loop can feed a web page.

Run: `python examples/streaming.py`. It prints:

    [call] search_logs {"query":"pool"}
    [result] pool exhausted at 09:14
    The pool was exhausted at 09:14.
    [end] completed

Deltas are shown and never stored; events are stored before they are shown, so a view can begin anew at any time. A
connection may break in the middle of an answer, which then starts again: `DiscardDelta` says so, and a view that can
remove text removes it.
"""

import asyncio

import retinue
from retinue.events import CallReturned, ReplyReceived, RunEnded
from retinue.messages import DiscardDelta, TextDelta
from retinue.testing import Script, ScriptedProvider, calls, streams


@retinue.tool(kind="pure")
def search_logs(query: str) -> str:
    """Search the logs."""
    return f"{query} exhausted at 09:14"


SCRIPT = Script().play(
    "main", calls("search_logs", query="pool"), streams("The pool ", "was exhausted ", "at 09:14.", every=0.1)
)
# For a real model, change the next line to PROVIDER = "anthropic", and pass model="NAME" to `retinue.open`.
PROVIDER = ScriptedProvider(SCRIPT)


async def main() -> None:
    async with retinue.open(provider=PROVIDER, tools=[search_logs], dialects=(), home=retinue.MEMORY) as r:
        run = await r.spawn("When did it begin?")
        async for item in run.events():
            match item:
                case TextDelta(text=text):
                    print(text, end="", flush=True)
                case DiscardDelta():
                    print("\n[broken off, starts again]")
                case ReplyReceived(reply=reply):
                    print("\n" if reply.message.text else "", end="")
                    for call in reply.message.calls:
                        print(f"[call] {call.name} {call.arguments}")
                case CallReturned(text=text):
                    print(f"[result] {text}")
                case RunEnded(outcome=outcome):
                    print(f"[end] {outcome.result}")
                case _:
                    pass


asyncio.run(main())
