"""A loop of your own: another program's agent delegates with the tools of retinue, and its own model decides.

Run: `python examples/own_loop.py`. It prints:

    the model calls run_agent
    the model calls wait_agents
    The pool has 10 connections, and 40 workers share them.

The loop below has nothing of retinue but the surface. `ask` stands for your client: send `surface.openai()` or
`surface.anthropic()` as the tools, and return the message of the reply. The sub-agents run in retinue, on any provider.
"""

import asyncio
import json
from typing import Any

import retinue
from retinue.testing import Script, ScriptedProvider, says

# For a real model, leave `provider` out and give `model="anthropic:claude-sonnet-4-5"`.
WORKERS = ScriptedProvider(Script().play("general", says("It has 10 connections, and 40 workers share them.")))


def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply of your own model, in the form of OpenAI's chat completions."""
    names = [tool["function"]["name"] for tool in tools]
    assert "run_agent" in names
    results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
    match len(results):
        case 0:
            return called("run_agent", task="How large is the pool?", background=True)
        case 1:
            return called("wait_agents", runs=[results[0]["run"]])
        case _:
            answer: str = results[1]["runs"][0]["answer"]
            return {"role": "assistant", "content": answer.replace("It has", "The pool has")}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def main() -> None:
    async with retinue.surface("native", provider=WORKERS, home=retinue.MEMORY) as surface:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Why is checkout slow?"}]
        while True:
            reply = ask(messages, surface.openai())
            messages.append(reply)
            if "tool_calls" not in reply:
                print(reply["content"])
                return
            for call in reply["tool_calls"]:
                print(f"the model calls {call['function']['name']}")
                result = await surface.call(call["function"]["name"], call["function"]["arguments"], key=call["id"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.text})


asyncio.run(main())
