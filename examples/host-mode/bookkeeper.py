"""A root that keeps a bookkeeper: a sub-agent that stays, and answers whenever it gets a message."""

import asyncio
import re

import retinue
from retinue.messages import UserMessage
from retinue.ports import Request
from retinue.testing import Line, Script, ScriptedProvider, calls, says


def lead(request: Request) -> Line:
    """What a model might do: start the bookkeeper, write to it, and wait for its answer."""
    heard = "\n".join(message.text for message in request.messages)
    if request.turn == 1:
        return calls("agent_spawn", prompt="You keep the books. Add up what you are sent.", host_mode=True)
    name = re.findall(r'"name":"(sub-agent-[0-9a-f]+)"', heard)[0]
    if request.turn == 2:
        return calls("send_request", to=name, intent="book", params={"cents": 250})
    if "so far" not in heard:
        return says("I wait for the bookkeeper.")
    return says(re.findall(r"so far: \d+ cents", heard)[-1])


def bookkeeper(request: Request) -> Line:
    """The other side: an answer to every message, and nothing to do in between."""
    last = request.messages[-1]
    if isinstance(last, UserMessage) and last.text.startswith("[request "):
        booked = sum(int(cents) for cents in re.findall(r'"cents":(\d+)', last.text))
        return calls("send_message", to="parent", body=f"so far: {booked} cents")
    return says("Ready.")


async def main() -> None:
    """Run it once, and show all runs of the tree."""
    mind = ScriptedProvider(Script().play("main", *[lead] * 9).play("host", *[bookkeeper] * 9))
    settings = {"meerkat": retinue.MeerkatSettings(enable_comms=True)}
    async with retinue.open(provider=mind, dialects=["meerkat"], dialect_settings=settings, home=retinue.MEMORY) as r:
        run = await r.spawn("Book 2.50 and tell me the sum.")
        print((await run.wait()).text)
        for view in reversed(await r.tree(run)):
            assert view.outcome is not None
            print(view.agent, view.outcome.result, view.outcome.reason)


asyncio.run(main())
