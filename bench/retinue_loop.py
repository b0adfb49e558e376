"""The workload through retinue: the lead and every worker are runs, with limits, accounts, policy and a journal.

The delegation tool is a minimal dialect: it starts a child run of the caller and waits for it, under the key of its
call, so that it would find the child again after a crash.
"""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec.structs import replace

import retinue
from bench.work import (
    DELEGATE,
    ECHO,
    LEAD,
    TASK,
    WORKER,
    Cost,
    Job,
    Work,
    job_from_arguments,
    measure,
    run_side,
)
from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.ids import RunId
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Lifecycle
from retinue.engine import SpawnRequest, Supervisor


class Delegation(msgspec.Struct):
    """The arguments of the delegation tool."""

    task: str


_decode = msgspec.json.Decoder(Delegation).decode


class Delegate:
    """A keyed tool that runs a worker and returns its answer."""

    kind: ToolKind = "keyed"
    risk = Risk.LOW
    timeout: float | None = None
    waits = True
    stoppable = True

    def __init__(self) -> None:
        name, description, parameter, about = DELEGATE
        schema = {
            "type": "object",
            "properties": {parameter: {"type": "string", "description": about}},
            "required": [parameter],
        }
        self.spec = ToolSpec(name, description, msgspec.json.encode(schema).decode())
        self.supervisor: Supervisor | None = None
        self.answers: dict[tuple[RunId, int], str] = {}
        """The answers of the workers, by the lead and the index of its call."""

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Start a worker and wait for its answer."""
        assert self.supervisor is not None
        caller = self.supervisor.live(context.run_id)
        assert caller is not None
        spawn_request = SpawnRequest(
            agent="worker",
            run_spec=replace(caller.run.run_spec, agent="worker", system=WORKER, offered=("echo",)),
            task=_decode(arguments).task,
            lifecycle=Lifecycle(awaited=True),
            max_depth=1,
        )
        child = await self.supervisor.spawn(
            spawn_request, session_id=context.session_id, caller=context, key=context.key
        )
        ended = await self.supervisor.wait([child.run_id])
        text = ended[child.run_id].text
        self.answers[context.run_id, context.index] = text
        return ToolResult(text)


def echo_tool(kind: ToolKind) -> Tool:
    """The tool of the workers, as a user would write it."""
    name, description, _, _ = ECHO

    async def echo(text: str) -> str:
        return text

    return retinue.tool(name=name, description=description, kind=kind)(echo)


async def side(job: Job) -> Cost:
    """Measure rounds as root runs of one open retinue."""
    delegate = Delegate()
    async with retinue.open(
        provider="openai-chat",
        base_url=job.url,
        tools=[delegate, echo_tool(cast("ToolKind", job.tool_kind))],
        agents=[Agent(name="lead", system_prompt=LEAD, tools=("delegate",))],
        dialects=(),
        home=None if job.store else job.home,
        store=job.store or None,
    ) as r:
        delegate.supervisor = r.supervisor

        async def do(work: Work) -> list[str]:
            lead = await r.spawn(TASK, agent="lead", model=work.model)
            outcome = await lead.wait()
            assert outcome.ok, outcome
            return [*(delegate.answers.pop((lead.run_id, index)) for index in range(work.workers)), outcome.text]

        return await measure(job, do)


if __name__ == "__main__":
    job = job_from_arguments()
    run_side(job, lambda: side(job))
