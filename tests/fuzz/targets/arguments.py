"""Arguments of the dialects' tools: any text gives a tool result or a documented error, never an internal one.

The first byte of an input chooses the dialect, the second the tool; the rest are the arguments of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import cache

import msgspec

from retinue.core.agent import Agent
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.events import CallReturned
from retinue.core.messages import AssistantMessage, Reply, ToolCall
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits
from retinue.dialects import registry
from retinue.dialects.buzzllm import requests as buzzllm_requests
from retinue.testing.harness import Harness
from retinue.testing.virtual_time import VirtualTimeLoop
from tests.fuzz.target import Target

DIALECTS = tuple(name for name in registry.names() if name != "buzzllm")
"""`buzzllm` starts a process for each call; of it only the parser is called."""


class OneCall:
    """A provider whose root model makes one call and then ends; every other model answers at once."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Call, or answer."""
        is_first = request.turn == 1 and "/" not in request.path
        return Reply(AssistantMessage("done", (self._call,) if is_first else ()))


@cache
def tools_of(dialect: str) -> tuple[str, ...]:
    """The names of a dialect's tools."""
    return tuple(registry.entry(dialect).tool_names)


def check(data: bytes) -> None:
    """The call ends the turn with a result, and the run completes."""
    which, tool, text = *(data[:2] + b"\0\0")[:2], data[2:].decode("utf-8", "replace")
    if which % (len(DIALECTS) + 1) == len(DIALECTS):
        with contextlib.suppress(RetinueError):
            buzzllm_requests.parse(text)
        return
    dialect = DIALECTS[which % (len(DIALECTS) + 1)]
    names = tools_of(dialect)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        results = runner.run(results_of(dialect, ToolCall(names[tool % len(names)], text)))
    assert results
    crashes = [result.text for result in results if result.crashed]  # an exception other than `ToolError`
    assert crashes == []


async def results_of(dialect: str, call: ToolCall) -> list[CallReturned]:
    """What the call returns; several results if a child makes the same call."""
    agents = [Agent(name="helper", model="one:x"), Agent(name="lead", model="one:x")]
    async with Harness(dialects=[dialect], agents=agents, providers={"one": OneCall(call)}) as r:
        outcome = await r.run("go", agent="lead", limits=Limits(max_turns=6, timeout=60.0))
        runs = [row.run_id for row in r.store.runs(RunQuery())]
        returned = [event for run_id in runs for event in r.events(run_id) if isinstance(event, CallReturned)]
    assert outcome.result in ("completed", "timed_out"), outcome.error
    return returned


def generate(rng: random.Random) -> bytes:
    """Arguments with the right names and any values."""
    head = bytes([rng.randrange(256), rng.randrange(256)])
    fields = rng.sample(NAMES, rng.randint(0, 6))
    return head + msgspec.json.encode({name: value(rng, 3) for name in fields})


def value(rng: random.Random, depth: int) -> object:
    """Any JSON value."""
    kind = rng.randrange(8 if depth else 6)
    match kind:
        case 0:
            return rng.choice(TEXTS)
        case 1:
            return rng.choice((0, 1, -1, 3, 2**31, 2**63 - 1, -(2**62), 10**15))
        case 2:
            return rng.choice((0.5, -1e300, 1e-9))
        case 3:
            return rng.choice((True, False, None))
        case 4 | 5:
            return rng.choice(NAMES)
        case 6:
            return [value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
        case _:
            return {rng.choice(NAMES): value(rng, depth - 1) for _ in range(rng.randint(0, 4))}


TEXTS = (
    "",
    " ",
    "/root",
    "/root/a",
    "worktree",
    "helper",
    "lead",
    "a" * 3000,
    "\0",
    "\ud7ff\ue000",
    "🦆",
    "../../etc",
    "{}",
    "[1]",
    "a\n[b] c",
    "-1",
)
NAMES = """
    action agent agent_name agent_id task task_prompt prompt label name handle handles ids id run_id task_id message
    content text to kind key value version prefix tools allowed_tools tool_subset model provider system_prompt max_turns
    timeout timeout_ms wait background mode context depends_on output summary_prompt readable_by writable_by budget
    limits max_tokens fork host_mode inherit filter limit offset ttl reason tasks messages intent params peer command
    query status all policy max_depth if_version task_name fork_turns reasoning_effort service_tier target path_prefix
    description subagent_type run_in_background isolation summary
""".split()  # noqa: SIM905  # a list of that many names is easier to read like this

TARGET = Target(
    check=check,
    seeds=tuple(
        bytes([which, tool]) + b'{"task": "a", "agent": "helper"}'
        for which in range(len(DIALECTS))
        for tool in range(6)
    ),
    words=(*(f'"{name}":'.encode() for name in NAMES), b"null", b"[]", b"{}", b'"a"', b"1e999", b"-1", b'"\\ud800"'),
    generate=generate,
    seconds=30.0,
    max_bytes=8192,
)
