"""Runs whose model is the agent program of these tests, and what that program was sent."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import retinue
from retinue import Agent, Policy, Retinue
from retinue.core.events import CallReturned, Event, ReplyReceived
from retinue.engine import Approver
from retinue.providers.acp import AgentProgram
from retinue.providers.catalog import provider_config
from retinue.tools.dependencies import ToolOptions

AGENT = Path(__file__).with_name("agent.py")

PYTHON = os.path.realpath(sys.executable)
"""An interpreter outside the checkout: programs that agents could have written are not started."""

FULL = Policy(autonomy="full", max_actions_per_hour=1000)  # pyright: ignore[reportArgumentType] normalised
SUPERVISED = Policy(max_actions_per_hour=1000)

Step = list[Any]


class Scene:
    """An agent program with its script, and the folder that it works in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "agent.log"

    def environment(self, *turns: Sequence[Step], resumed: Sequence[Sequence[Step]] = (), **abilities: Any) -> None:
        """Set the variables of the next program: its turns, and what it can do."""
        given = {"loadSession": True, **abilities}
        (self.folder / "script.json").write_text(json.dumps(turns))
        os.environ |= {
            "SCRIPT": str(self.folder / "script.json"),
            "RESUMED": json.dumps(resumed),
            "ABILITIES": json.dumps(given),
            "LOG": str(self.log),
        }

    def program(
        self, *, sandbox: bool = False, readable: tuple[str, ...] = (), writable: tuple[str, ...] = ()
    ) -> AgentProgram:
        return AgentProgram(
            command=(PYTHON, str(AGENT)),
            env=("SCRIPT", "RESUMED", "ABILITIES", "LOG"),
            sandbox=sandbox,
            readable=readable,
            writable=writable,
        )

    @asynccontextmanager
    async def open(
        self,
        *turns: Sequence[Step],
        resumed: Sequence[Sequence[Step]] = (),
        abilities: dict[str, Any] | None = None,
        program: AgentProgram | None = None,
        policy: Policy = FULL,
        approvals: Approver = "deny",
        model: str = "helper:default",
    ) -> AsyncGenerator[Retinue]:
        """A retinue whose model is the agent."""
        self.environment(*turns, resumed=resumed, **abilities or {})
        config = provider_config("helper", wire="acp", program=program or self.program())
        async with retinue.open(
            model=model,
            home=retinue.MEMORY,
            dialects=(),
            provider_configs=[config],
            policy=policy,
            approvals=approvals,
            agents=[Agent(name="worker", workspace=str(self.folder))],
            tool_options=ToolOptions(sandbox="off") if program is None else ToolOptions(),
        ) as opened:
            yield opened

    def sent(self, method: str) -> list[dict[str, Any]]:
        """The parameters of what the program was sent with this method."""
        return [each["params"] for each in self.messages() if each.get("method") == method]

    def prompts(self) -> list[str]:
        """The texts of all prompts."""
        return [
            "|".join(block.get("text", block["type"]) for block in each["prompt"])
            for each in self.sent("session/prompt")
        ]

    def messages(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if "pids" not in line]

    async def pids(self) -> list[int]:
        """The processes of the agent, once it has told them."""
        for _ in range(600):
            lines = self.log.read_text().splitlines() if self.log.exists() else []
            for line in lines:
                if '"pids"' in line and line.endswith("}"):
                    return json.loads(line)["pids"]
            await asyncio.sleep(0.05)
        raise AssertionError("the agent has told no processes")


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that are still there, after a moment."""
    for _ in range(100):
        left = [pid for pid in pids if _is_alive(pid)]
        if not left:
            break
        time.sleep(0.05)
    return [pid for pid in pids if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def calls_of(events: Sequence[Event]) -> list[tuple[str, dict[str, Any], str, bool]]:
    """The calls of a run: the tool, its arguments, the result, and whether it failed."""
    found: list[tuple[str, dict[str, Any], str, bool]] = []
    asked: list[Any] = []
    for event in events:
        if isinstance(event, ReplyReceived):
            asked = list(event.reply.message.calls)
        elif isinstance(event, CallReturned):
            call = asked[event.index]
            found.append((call.name, json.loads(call.arguments), event.text, event.failed))
    return found


def update(**fields: Any) -> str:
    """The line of a `session/update`."""
    params = {"sessionId": "s-1", "update": fields}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})


def question(id: int, *, option: str = "yes", kind: str = "allow_once") -> str:
    """The line of a question about an edit, with one option."""
    call = {"toolCallId": str(id), "title": f"t{id}", "kind": "edit"}
    params = {"sessionId": "s-1", "toolCall": call, "options": [{"optionId": option, "name": "x", "kind": kind}]}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params})
