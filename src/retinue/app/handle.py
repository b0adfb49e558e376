"""Runs as programs and tools use them: `RunHandle`, `CallContext.spawn`, and `agent_tool`, an agent as a tool."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.attachments import Attachment, checked
from retinue.core.errors import BadInput, RunIsOver, ToolError, UnknownName
from retinue.core.events import Event, TreeEvent
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Close, Input, TextMessage
from retinue.core.messages import Delta
from retinue.core.policy import allows
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Exchange, Lifecycle, Limits, Outcome
from retinue.engine import RunView, SpawnRequest, Supervisor

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from retinue.dialects.context import DialectContext

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")  # defaults of type variables need Python 3.13

MAX_DEPTH = 8
"""Runs below a root by `CallContext.spawn`, one below the other, at most."""

MAX_TURNS = 50
"""The turn limit of a child whose agent and caller set none."""


def _unchanged(outcome: Outcome) -> Outcome:
    return outcome


class RunHandle(Generic[T]):
    """A handle on one run, whichever process started it; of a run with `output=Person` it is a `RunHandle[Person]`.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", says("The pool."), says("Since Tuesday.")))
    ...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
    ...         run = await r.spawn("Why is it slow?", keep_alive=True)
    ...         print((await run.answer()).text, (await run.ask("Since when?")).text)
    ...         print((await run.close()).exchanges)
    >>> asyncio.run(main())
    The pool. Since Tuesday.
    2
    """

    def __init__(
        self, supervisor: Supervisor, run_id: RunId, convert: Callable[[Outcome], Outcome] | None = None
    ) -> None:
        self.run_id = run_id
        self._supervisor = supervisor
        self._convert = convert or _unchanged

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    async def wait(self, timeout: float | None = None) -> Outcome[T]:
        """Wait for the end of the run and return its outcome. A wait that is cancelled leaves the run as it is.

        Raises `TimeoutError` if the run has not ended after `timeout` seconds; the run continues.
        """
        ended = await self._supervisor.wait([self.run_id], timeout=timeout, durable=True)
        if self.run_id not in ended:
            raise TimeoutError(f"run {self.run_id} has not ended within {timeout:g} s")
        return cast("Outcome[T]", self._convert(ended[self.run_id]))

    async def look(self) -> RunView:
        """The current view of the run: its state, usage and task. Raises `UnknownName` if there is no such run."""
        view = await self._supervisor.look(self.run_id)
        if view is None:
            raise UnknownName("run", self.run_id)
        (view,) = await self._supervisor.with_tasks([view])
        return view

    async def send(self, text: str, *, key: Key | None = None, attachments: Sequence[Attachment] = ()) -> None:
        """Send a message to the run: an active run reads it at its next turn, an idle one starts an exchange with it.

        A message with a `key` that was used before is not sent again. Raises `RunIsOver` if the run has ended.
        """
        item = TextMessage(key=key or self._supervisor.new_id(), text=text, attachments=checked(attachments))
        await self._supervisor.post(self.run_id, item, durable=True)

    async def ask(
        self, text: str, *, tools: bool = True, key: Key | None = None, attachments: Sequence[Attachment] = ()
    ) -> Exchange:
        """Send the next input to a run that was started with `keep_alive=True`, and wait for the answer.

        With `tools=False` the model may not call tools for this input. A `key` that was used before returns the answer
        to the earlier input. Raises `BadInput` if the run was not started with `keep_alive=True`.
        """
        run = await self._supervisor.replay(self.run_id)
        if not run.accepted.lifecycle.keep_alive:
            raise BadInput(f"run {self.run_id} takes no more input: start it with keep_alive=True, or use send()")
        item = Input(key=key or self._supervisor.new_id(), text=text, tools=tools, attachments=checked(attachments))
        if item.key not in run.inputs:  # a repeated key was posted already
            await self._supervisor.post(self.run_id, item, durable=True)
        return await self._supervisor.reply_to(self.run_id, item.key, durable=True)

    async def answer(self, number: int = 1) -> Exchange:
        """The answer to the run's `number`-th input, counted from 1; waits for it.

        If the run ended before that input, the exchange carries its outcome.
        """
        return await self._supervisor.exchange(self.run_id, number, durable=True)

    async def close(self) -> Outcome[T]:
        """End a run that was started with `keep_alive=True` after its current input, and wait for its outcome."""
        with suppress(RunIsOver):
            await self._supervisor.post(self.run_id, Close(key="close"), durable=True)
        return await self.wait()

    async def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Cancel the run and all its descendants; returns the ids of the runs that were cancelled."""
        return await self._supervisor.cancel(self.run_id, note=note)

    @overload
    def events(self, *, tree: Literal[False] = False, after: int = 0) -> AsyncIterator[Event | Delta]: ...
    @overload
    def events(self, *, tree: Literal[True], after: Mapping[RunId, int] | None = None) -> AsyncIterator[TreeEvent]: ...
    def events(
        self, *, tree: bool = False, after: int | Mapping[RunId, int] | None = None
    ) -> AsyncIterator[Event | Delta] | AsyncIterator[TreeEvent]:
        """The events of the run from start to end, and the deltas of replies that stream in this process.

        With `tree`, the events of all runs below it too; see `Retinue.events`.
        """
        return event_stream(self._supervisor, self.run_id, tree=tree, after=after)


def event_stream(
    supervisor: Supervisor, run_id: RunId, *, tree: bool, after: int | Mapping[RunId, int] | None
) -> AsyncIterator[Event | Delta] | AsyncIterator[TreeEvent]:
    """The events of one run, or of the tree below it; raises `BadInput` for a position of the other kind."""
    if tree:
        if isinstance(after, int):
            raise BadInput(f"after={after}: with tree=True give the number of the last event of each run, by its id")
        return supervisor.tree_events(run_id, after=after)
    if after is not None and not isinstance(after, int):
        raise BadInput("after is a mapping: without tree=True give the number of the last event")
    return supervisor.events(run_id, after=after or 0)


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
        policy, windows = dialects.grant(agent, context.policy)
        run_spec = replace(run_spec, output=caller.output, launch_config=caller.launch_config)
        restricted = dialects.supervisor.rules.restricted(policy or context.policy, agent)
        await dialects.supervisor.change_agent(context.run_id, run_spec, restricted, windows)

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
