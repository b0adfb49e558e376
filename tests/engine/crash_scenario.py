"""The scenario of the crash tests.

Four runs, a blocking call inside a parallel one, a follow-up exchange in each child, an approval, a message from a
second process, and a call that must not happen twice.

Run as a program it is one process that drives the scenario: `python -m tests.engine.crash_scenario HOME NUMBER`.
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
    """The replies of all models. Children have the agent of their parent and are distinguished by their task."""
    return (
        Script()
        .play(
            "lead",
            together(
                _delegates("dig", "Dig for the cause"),
                _delegates("scan", "Scan and deploy"),
                calls("measure", what="pool"),
            ),
            calls("notify", text="we know more"),
            _summary,
        )
        .play(
            "lead",
            _delegates("deeper", "Look below"),
            _report_results("dig found"),
            says("dug: pool"),
            task="Dig for the cause",
        )
        .play(
            "lead", calls("measure", what="threads"), says("below: threads"), says("checked below"), task="Look below"
        )
        .play("lead", calls("deploy", version=2), says("scanned"), says("deployed"), task="Scan and deploy")
    )


def _delegates(label: str, task: str) -> ScriptedReply:
    return calls("subagent", label=label, task_prompt=task)


def _report_results(what: str) -> Callable[[Request], Line]:
    def line(request: Request) -> Line:
        results = [message.text for message in request.messages if isinstance(message, ToolMessage)]
        return says(f"{what}: {'checked below' if 'checked below' in ''.join(results) else 'nothing'}")

    return line


def _summary(request: Request) -> Line:
    everything = "\n".join(message.text for message in request.messages)
    below = "checked below" if "dug: pool" in everything else "unchecked"
    deployed = "deployed" if '"output":"deployed"' in everything else "not deployed"
    day = "Tuesday" if MAIL in everything else "some day"
    return says(f"The pool shrank ({below}; {deployed}), and it was {day}.")


def tools(effect: Callable[[str], None]) -> tuple[Tool, ...]:
    """The tools of the scenario; `effect` is called for each irreversible effect."""

    @tool
    async def deploy(version: int) -> str:
        """Put a version into production; needs an approval."""
        effect(f"deployed {version}")
        return "done"

    @tool
    async def notify(text: str) -> str:
        """Send a notification."""
        effect(f"notified {text}")
        return "sent"

    @tool(kind="pure")
    async def measure(what: str) -> str:
        """Measure something."""
        return f"{what}: 20"

    return deploy, notify, measure


async def run_scenario(retinue: Retinue) -> Outcome:
    """Begin the scenario, or continue it."""
    return await retinue.run(TASK, agent="lead", key=KEY)


async def act_as_second_process(retinue: Retinue, *, pause: float) -> None:
    """Send the message once there is a live run, and approve every call, until cancelled."""
    sent = False
    while True:
        for view in await retinue.list():
            if not sent and view.state != "ended":
                await retinue.send(view.run_id, MAIL, key="the-mail")
                sent = True
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
        outcome = await run_scenario(retinue)
        print(f"answer: {outcome.text}", flush=True)


if __name__ == "__main__":
    asyncio.run(_life(Path(sys.argv[1]), sys.argv[2]))
