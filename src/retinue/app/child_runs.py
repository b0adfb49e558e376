"""Runs that tools start: `CallContext.spawn`, and `agent_tool`, an agent that other agents call as a tool."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.app.handle import RunHandle
from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.errors import BadInput, ToolError, UnknownName
from retinue.core.ids import Key
from retinue.core.policy import allows
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Lifecycle, Limits
from retinue.engine import SpawnRequest

if TYPE_CHECKING:
    from retinue.dialects.context import DialectContext

MAX_DEPTH = 8
"""Runs below a root by `CallContext.spawn`, one below the other, at most."""

MAX_TURNS = 50
"""The turn limit of a child whose agent and caller set none."""


class ChildRuns:
    """Starts runs below a run that is calling a tool; `delegation` has the tools of dialects at a depth."""

    def __init__(
        self, dialect_context: DialectContext, delegation: Callable[[Sequence[str], int], tuple[str, ...]]
    ) -> None:
        self._dialect_context = dialect_context
        self._delegation = delegation

    async def spawn_child(
        self,
        context: CallContext,
        task: str,
        *,
        agent: str | None = None,
        model: str | None = None,
        tools: Sequence[str] | None = None,
        limits: Limits | None = None,
        key: str | None = None,
        label: str = "",
    ) -> RunHandle:
        """See `CallContext.spawn`."""
        dialects = self._dialect_context
        key = _child_key(context.key, agent or "", task, key)
        known = dialects.known(agent) if agent is not None else None
        if agent is not None and known is None:
            raise UnknownName("agent", agent, tuple(each.name for each in dialects.agents))
        if not task.strip():
            raise BadInput("the task of a spawned run is empty: say what to do")
        caller = dialects.run_spec_of(context.run_id)
        policy, windows = dialects.grant(agent, context.policy) if agent is not None else (None, ())
        run_spec = dialects.run_spec_for(
            caller,
            agent=agent or (caller.identity or caller.agent),
            system="" if known is None else known.system_prompt,
            offered=(
                *self._offered(dialects, known, context, tools),
                *self._delegation(caller.dialects, context.depth + 1),
            ),
            model=model or ("" if known is None else known.model),
            fallback=() if known is None or model else known.fallback,
        )
        request = SpawnRequest(
            agent=run_spec.agent,
            run_spec=run_spec,
            task=task,
            limits=_limits(known, limits),
            policy=policy,
            windows=windows,
            lifecycle=Lifecycle(awaited=True),
            label=label,
            max_depth=MAX_DEPTH,
        )
        started = await dialects.spawn(request, context, key=key)
        return RunHandle(dialects.supervisor, started.run_id)

    async def hand_over(self, context: CallContext, agent: str) -> None:
        """Let the caller go on as another agent; see `handoff`."""
        dialects = self._dialect_context
        caller = dialects.run_spec_of(context.run_id)
        known = dialects.known(agent)
        if known is None:
            raise UnknownName("agent", agent, tuple(each.name for each in dialects.agents))
        if caller.agent == agent:
            return  # the call is made again after a crash
        delegation = tuple(name for name in context.offered if name not in dialects.tool_names)
        run_spec = dialects.run_spec_for(
            caller,
            agent=agent,
            system=known.system_prompt,
            offered=(*self._offered(dialects, known, context, None), *delegation),
            model=known.model,
            fallback=known.fallback,
        )
        policy, _ = dialects.grant(agent, context.policy)
        run_spec = replace(run_spec, output=caller.output, launch_config=caller.launch_config)
        restricted = dialects.supervisor.rules.restricted(policy or context.policy, agent)
        dialects.supervisor.change_agent(context.run_id, run_spec, restricted)

    def _offered(
        self, dialects: DialectContext, agent: Agent | None, context: CallContext, tools: Sequence[str] | None
    ) -> tuple[str, ...]:
        """The tools of the child: those that are asked for, else those of its agent, else those of the caller."""
        if tools is not None:
            if unknown := [name for name in tools if name not in dialects.tool_names]:
                raise UnknownName("tool", unknown[0], tuple(dialects.tool_names))
            named = tuple(tools)
        else:
            named = context.offered if agent is None else agent.tools
        return tuple(name for name in named if name in dialects.tool_names and allows(context.policy, name))


def _limits(agent: Agent | None, asked: Limits | None) -> Limits:
    own = Limits() if agent is None else agent.limits_with(agent.max_turns)
    given = own if asked is None else asked
    return replace(given, max_turns=given.max_turns or own.max_turns or MAX_TURNS, wrap_up=True)


def _child_key(call: Key, agent: str, task: str, key: str | None) -> Key:
    """The idempotency key of a child: the call, and what tells its children apart."""
    part = key if key is not None else hashlib.sha256(f"{agent}\0{task}".encode(errors="replace")).hexdigest()[:16]
    return f"{call}/{part}"


class _Task(Struct, forbid_unknown_fields=True):
    task: str


PARAMETERS = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, with everything that is needed for it"}},
    "required": ["task"],
    "additionalProperties": False,
}


class AgentTool(Tool):
    """An agent as a tool: a call starts a run of it, and its answer is the result. Made by `retinue.agent_tool`."""

    kind: ToolKind = "keyed"
    waits = True

    def __init__(self, agent: Agent, name: str | None = None) -> None:
        self.agent = agent
        description = agent.description or f"Give a task to the agent {agent.name} and read its answer."
        self.spec: ToolSpec = ToolSpec(name or agent.name, description, msgspec.json.encode(PARAMETERS).decode())

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            request = msgspec.json.decode(arguments, type=_Task)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise ToolError(f"{self.spec.name} takes one argument, task, a text: {error}") from error
        run = await context.spawn(request.task, agent=self.agent.name)
        outcome = await run.wait()
        if outcome.ok:
            return ToolResult(outcome.text)
        reason = outcome.error or outcome.reason
        partial = f"\nIts text so far:\n{outcome.text}" if outcome.text else ""
        return ToolResult(f"{self.agent.name} gave no answer ({outcome.result}): {reason}{partial}", failed=True)


class HandoffTool(Tool):
    """Hands the run that calls it over to an agent. Made by `retinue.handoff`."""

    kind: ToolKind = "idempotent"

    def __init__(self, agent: Agent, name: str | None = None) -> None:
        self.agent = agent
        about = f" {agent.description}" if agent.description else ""
        description = f"Hand this conversation over to the agent {agent.name}, which answers from here on.{about}"
        self.spec: ToolSpec = ToolSpec(name or f"handoff_to_{agent.name}", description)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        if context.spawner is None:
            raise ToolError("a handoff works in calls of runs")
        await context.spawner.hand_over(context, self.agent.name)
        return ToolResult(f"You are {self.agent.name} now. Go on with the conversation.")


def handoff(agent: Agent, name: str | None = None) -> Tool:
    """A tool with which a run goes on as another agent: with its system prompt, tools, model and policy.

    The run, its history, limits and id stay; the rights of the run bound the new agent. Only an agent that has the tool
    can hand over; give the other one a handoff of its own to come back. The tool is named `handoff_to_NAME`.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, calls, says
    >>> billing = retinue.Agent(name="billing", description="Knows invoices", system_prompt="You know invoices.")
    >>> script = Script().play("main", calls("handoff_to_billing"), lambda ask: says(ask.system))
    >>> async def main() -> None:
    ...     async with retinue.open(
    ...         provider=ScriptedProvider(script), tools=[retinue.handoff(billing)], dialects=(), home=retinue.MEMORY
    ...     ) as r:
    ...         print((await r.run("My invoice is wrong.")).text)
    >>> asyncio.run(main())
    You know invoices.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] callers may be untyped
        raise BadInput(f"handoff: expected a retinue.Agent, found {type(agent).__name__}")
    return HandoffTool(agent, name)


def agent_tool(agent: Agent, name: str | None = None) -> Tool:
    """A tool that gives a task to an agent, for `tools=` of `retinue.open` or of another agent.

    The agent need not be in `agents=`. A call runs it below the caller, under the caller's limits and rights, and
    returns its answer. After a crash the call finds the run that it had started. `name` is the name of the tool, else
    that of the agent.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, calls, says
    >>> writer = retinue.Agent(name="writer", description="Writes a haiku", system_prompt="You write haiku.")
    >>> script = Script().play("main", calls("writer", task="On pools."), lambda ask: says(ask.messages[-1].text))
    >>> model = ScriptedProvider(script.play("writer", says("Ten threads wait in line.")))
    >>> async def main() -> None:
    ...     async with retinue.open(
    ...         provider=model, tools=[retinue.agent_tool(writer)], dialects=(), home=retinue.MEMORY
    ...     ) as r:
    ...         print((await r.run("A haiku, please.")).text)
    >>> asyncio.run(main())
    Ten threads wait in line.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] callers may be untyped
        raise BadInput(f"agent_tool: expected a retinue.Agent, found {type(agent).__name__}")
    return AgentTool(agent, name)
