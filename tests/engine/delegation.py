"""A delegation tool without a dialect: starts children and returns their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.app.retinue import Retinue
from retinue.core.agent import RESULTS_PLACEHOLDER, ToolKind, ToolSpec
from retinue.core.budget import Window
from retinue.core.commands import RunQuery
from retinue.core.errors import Refused, ToolError
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, ToolResult
from retinue.core.run import Lifecycle, Limits, Outcome
from retinue.engine import SpawnRequest, StartedRun, Supervisor
from retinue.providers.scripted import ScriptedReply, calls
from retinue.testing.harness import Harness
from tests.internals import live_run


class DelegateArguments(Struct, forbid_unknown_fields=True):
    """Arguments of the tool: `times` children of one agent, with the tasks `task`, `task 2`, `task 3`..."""

    agent: str
    task: str = "dig"
    times: int = 1
    wait: bool = True
    limits: Limits = Limits()
    lifecycle: Lifecycle = Lifecycle()
    reserved: bool = False
    tools: tuple[str, ...] | None = None
    max_depth: int | None = None
    max_running: int | None = None
    space: str | None = None
    max_output: int | None = None
    windows: tuple[Window, ...] = ()
    after: tuple[str, ...] = ()
    """Agents of the caller's children that have to complete first."""


class Delegate:
    """A keyed tool: a repeated call finds its existing children."""

    spec = ToolSpec("delegate", "Let another agent work.")
    kind: ToolKind = "keyed"
    risk = Risk.LOW
    timeout: float | None = None
    waits = True
    stoppable = True

    def __init__(self) -> None:
        self.retinue: Callable[[], Retinue] = _no_retinue
        """Where the children are started; another retinue after a restart."""
        self.started: list[StartedRun] = []
        """All children that this tool started, in order."""

    @property
    def _supervisor(self) -> Supervisor:
        return self.retinue().supervisor

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Start the children, and wait for them if `wait` is set."""
        order = msgspec.json.decode(arguments, type=DelegateArguments)
        try:
            children = [await self._spawn(order, number, context) for number in range(1, order.times + 1)]
        except Refused as refusal:
            raise ToolError(f"{type(refusal).__name__}: {refusal}") from refusal
        self.started += children
        if not order.wait:
            return ToolResult("started")
        ended = await self._supervisor.wait([child.run_id for child in children])
        return ToolResult("\n".join(outcome_text(ended[child.run_id]) for child in children))

    async def _spawn(self, order: DelegateArguments, number: int, context: CallContext) -> StartedRun:
        caller = live_run(self.retinue(), context.run_id)
        offered = caller.run_spec.offered if order.tools is None else order.tools
        rows = await self._supervisor.list(RunQuery(parent_id=context.run_id)) if order.after else []
        siblings = {row.agent: row.run_id for row in rows}
        spawn_request = SpawnRequest(
            agent=order.agent,
            run_spec=replace(
                caller.run_spec,
                agent=order.agent,
                offered=offered,
                max_output=order.max_output,
                system=f"You work with:\n{RESULTS_PLACEHOLDER}" if order.after else caller.run_spec.system,
            ),
            after=tuple((siblings[agent], agent) for agent in order.after),
            task=order.task if number == 1 else f"{order.task} {number}",
            limits=order.limits,
            lifecycle=order.lifecycle,
            reserved=order.reserved,
            max_depth=order.max_depth,
            max_running=order.max_running,
            windows=order.windows,
            handle_space=order.space,
            handle_format="t_{:02}",
        )
        key = context.key if number == 1 else f"{context.key}/{number}"
        return await self._supervisor.spawn(spawn_request, session_id=context.session_id, caller=context, key=key)


def outcome_text(outcome: Outcome) -> str:
    """The outcome of a child as its parent's model reads it."""
    return f"{outcome.result}: {outcome.text or outcome.error}"


def delegates(agent: str, **order: object) -> ScriptedReply:
    """A reply that delegates to `agent`."""
    return calls("delegate", agent=agent, **order)


def with_delegation(*, tools: tuple[Any, ...] = (), **options: Any) -> tuple[Harness, Delegate]:
    """A harness whose agents can delegate, and the delegation tool."""
    delegate = Delegate()
    harness = Harness(tools=(delegate, *tools), dialects=(), **options)
    delegate.retinue = lambda: harness.retinue
    return harness, delegate


def _no_retinue() -> Retinue:
    raise AssertionError("the tool does not know its retinue yet")
