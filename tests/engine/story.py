"""The story that every crash test tells: four runs, a blocking call inside a parallel one, a follow-up exchange in each
child, an approval, mail from a second process, and a call that must not happen twice.

Run as a program it is one life of the owner: `python -m tests.engine.story HOME LIFE`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.agent import Agent
from retinue.core.messages import ToolMessage
from retinue.core.policy import Policy
from retinue.core.ports import Request, Tool
from retinue.core.run import Outcome
from retinue.providers.scripted import Line, Script, ScriptedProvider, ScriptedReply, calls, says, together
from retinue.tools.function import tool

KEY = "the-story"
TASK = "Why is it slow?"
MAIL = "Also name the day."
ANSWER = "The pool shrank (checked below; deployed), and it was Tuesday."
AGENTS = (Agent(name="lead", system_prompt="You lead.", tools=("deploy", "notify", "measure")),)
POLICY = Policy(always_ask=("deploy",))
OPTIONS: dict[str, Any] = {"agents": AGENTS, "dialects": ("xzatoma",), "policy": POLICY, "approvals": "wait"}


def script() -> Script:
    """What everyone says. The children keep the name of their parent's agent and are told apart by their task."""
    return (
        Script()
        .play(
            "lead",
            together(
                _asks("dig", "Dig for the cause"), _asks("scan", "Scan and deploy"), calls("measure", what="pool")
            ),
            calls("notify", text="we know more"),
            _sums_up,
        )
        .play(
            "lead",
            _asks("deeper", "Look below"),
            _says_what_it_heard("dig found"),
            says("dug: pool"),
            task="Dig for the cause",
        )
        .play(
            "lead", calls("measure", what="threads"), says("below: threads"), says("checked below"), task="Look below"
        )
        .play("lead", calls("deploy", version=2), says("scanned"), says("deployed"), task="Scan and deploy")
    )


def _asks(label: str, task: str) -> ScriptedReply:
    return calls("subagent", label=label, task_prompt=task)


def _says_what_it_heard(what: str) -> Callable[[Request], Line]:
    def line(request: Request) -> Line:
        heard = [message.text for message in request.messages if isinstance(message, ToolMessage)]
        return says(f"{what}: {'checked below' if 'checked below' in ''.join(heard) else 'nothing'}")

    return line


def _sums_up(request: Request) -> Line:
    everything = "\n".join(message.text for message in request.messages)
    below = "checked below" if "dug: pool" in everything else "unchecked"
    deployed = "deployed" if '"output":"deployed"' in everything else "not deployed"
    day = "Tuesday" if MAIL in everything else "some day"
    return says(f"The pool shrank ({below}; {deployed}), and it was {day}.")


def tools(effect: Callable[[str], None]) -> tuple[Tool, ...]:
    """The tools of the story; `effect` hears of what cannot be taken back."""

    @tool
    async def deploy(version: int) -> str:
        """Put a version into production; a person is asked first."""
        effect(f"deployed {version}")
        return "done"

    @tool
    async def notify(text: str) -> str:
        """Tell everyone."""
        effect(f"notified {text}")
        return "sent"

    @tool(kind="pure")
    async def measure(what: str) -> str:
        """Measure something."""
        return f"{what}: 20"

    return deploy, notify, measure


async def tell(retinue: Retinue) -> Outcome:
    """Begin the story, or go on with it."""
    return await retinue.run(TASK, agent="lead", key=KEY)


async def be_the_second_process(retinue: Retinue, *, pause: float) -> None:
    """Send the mail once there is somebody to read it, and say yes to every question, for as long as one lives."""
    told = False
    while True:
        for view in await retinue.list():
            if not told and view.state != "ended":
                await retinue.send(view.run_id, MAIL, key="the-mail")
                told = True
        for question in await retinue.approvals():
            await retinue.approve(question)
        await asyncio.sleep(pause)


async def _life(home: Path, life: str) -> None:
    effects = home / "effects"
    model = ScriptedProvider(script(), latency=0.01, log=home / f"asked-{life}")

    def effect(what: str) -> None:
        with effects.open("a") as file:
            file.write(what + "\n")

    async with open_retinue(
        provider=model, home=home, tools=tools(effect), adopt=True, lease=2.0, **OPTIONS
    ) as retinue:
        print("alive", flush=True)
        outcome = await tell(retinue)
        print(f"answer: {outcome.text}", flush=True)


if __name__ == "__main__":
    asyncio.run(_life(Path(sys.argv[1]), sys.argv[2]))
