"""The tool port: what an agent can call, and the context of a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from msgspec import Struct

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.policy import Policy, Risk
from retinue.core.run import HandleRef


class ToolResult(Struct, frozen=True, gc=False):
    """What a call came to; `failed` marks a text that tells of a failure."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Who calls a tool, and under which rights.

    `key` is the same when the call is entered again after a crash; `again` says that this may be such a time.

    >>> import asyncio, retinue
    >>> from retinue.providers.scripted import Script, ScriptedProvider, calls, says
    >>> @retinue.tool(kind="pure")
    ... def whoami(context: retinue.CallContext) -> str:
    ...     return f"{context.agent} at depth {context.depth}, turn {context.turn}"
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", calls("whoami"), lambda ask: says(ask.messages[-1].text)))
    ...     async with retinue.open(provider=model, tools=[whoami], home=retinue.MEMORY, dialects=()) as r:
    ...         print((await r.run("Who are you?")).text)
    >>> asyncio.run(main())
    main at depth 0, turn 1
    """

    run_id: RunId
    session_id: SessionId
    root_id: RunId
    key: Key
    turn: int
    index: int
    depth: int
    agent: str
    path: str
    handle: HandleRef | None
    policy: Policy
    offered: tuple[str, ...]
    again: bool = False
    workspace: str = ""
    """The folder that the run works in; empty means the process's own."""
    identity: str = ""
    """Whose memory the run has: its agent, or the agent that it works for under another name."""
    memory_from: tuple[str, ...] = ()
    """Whose memory it may read besides."""


class CallRisk(Struct, frozen=True, gc=False):
    """What there is to lose by one call; `acts` marks one that changes something and counts as an action."""

    risk: Risk
    acts: bool = False


class Tool(Protocol):
    """Something an agent can use.

    `call` gets the arguments as the model wrote them. It returns a result, raises `ToolError` with a text that the
    model can act on, or raises anything else for what should not have happened. `timeout` of None means the run's
    own limit; `waits` marks a tool that waits for other runs and has no deadline of its own (see also `WaitsAtTimes`).
    """

    @property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        ...

    @property
    def kind(self) -> ToolKind:
        """What a crash in the middle means."""
        ...

    @property
    def risk(self) -> Risk:
        """How much there is to lose."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds a call may take."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the call waits for other runs."""
        ...

    @property
    def stoppable(self) -> bool:
        """Whether cancelling the call stops the work; a thread, for one, goes on."""
        ...

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make the call."""
        ...


@runtime_checkable
class KnowsWhyHidden(Protocol):
    """A tool with words of its own for a run that calls it without being offered it."""

    def why_hidden(self, context: CallContext) -> str | None:
        """What the model reads; None for the usual words."""
        ...


@runtime_checkable
class HasCompanion(Protocol):
    """A tool that is of little use without another, which is offered with it."""

    @property
    def companion(self) -> str | None:
        """The name of the other tool, if there is one."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """A tool whose calls differ in what there is to lose, or that can say more than its risk."""

    def assess(self, arguments: str) -> CallRisk:
        """The weight of a call with these arguments, as the model wrote them; never raises."""
        ...


def assess_call(tool: Tool, arguments: str) -> CallRisk:
    """What there is to lose by this call of `tool`."""
    # Asked at every call; isinstance() of a protocol would take longer than all the rest.
    assess: Callable[[str], CallRisk] | None = getattr(tool, "assess", None)
    return CallRisk(tool.risk) if assess is None else assess(arguments)


@runtime_checkable
class Foresees(Protocol):
    """A tool that can tell ahead that a policy closes a call, so that nobody is asked about it in vain."""

    def closed_by(self, policy: Policy, arguments: str) -> str | None:
        """Why nobody can approve a call with these arguments, in words for the model; never raises."""
        ...


def closed_by(policy: Policy, tool: Tool, arguments: str) -> str | None:
    """Why a policy closes this call of `tool`, as far as the tool itself can tell."""
    foresees: Callable[[Policy, str], str | None] | None = getattr(tool, "closed_by", None)  # see assess_call
    return None if foresees is None else foresees(policy, arguments)


@runtime_checkable
class WaitsAtTimes(Protocol):
    """A tool that waits for other runs in some of its calls only."""

    def waits_with(self, arguments: str) -> bool:
        """Whether a call with these arguments waits, as the model wrote them; never raises."""
        ...


def does_wait(tool: Tool, arguments: str) -> bool:
    """Whether this call of `tool` waits for other runs."""
    if not tool.waits:
        return False
    narrowed: Callable[[str], bool] | None = getattr(tool, "waits_with", None)  # see assess_call
    return narrowed is None or narrowed(arguments)


class Toolbox(Protocol):
    """All tools that this process has."""

    def find(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects sees it."""
        ...


class ToolWrapper:
    """Hands on everything that a tool can be asked, also what not every tool knows."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    @property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        return self.tool.spec

    @property
    def kind(self) -> ToolKind:
        """What a crash in the middle means."""
        return self.tool.kind

    @property
    def risk(self) -> Risk:
        """How much there is to lose."""
        return self.tool.risk

    @property
    def timeout(self) -> float | None:
        """Seconds a call may take."""
        return self.tool.timeout

    @property
    def waits(self) -> bool:
        """Whether the call waits for other runs."""
        return self.tool.waits

    @property
    def stoppable(self) -> bool:
        """Whether cancelling the call stops the work."""
        return self.tool.stoppable

    @property
    def companion(self) -> str | None:
        """The tool that is offered with it, if there is one."""
        return getattr(self.tool, "companion", None)

    def assess(self, arguments: str) -> CallRisk:
        """What there is to lose by this call."""
        return assess_call(self.tool, arguments)

    def closed_by(self, policy: Policy, arguments: str) -> str | None:
        """Why a policy closes this call, as far as the tool can tell."""
        return closed_by(policy, self.tool, arguments)

    def waits_with(self, arguments: str) -> bool:
        """Whether this call waits for other runs."""
        return does_wait(self.tool, arguments)

    def why_hidden(self, context: CallContext) -> str | None:
        """What a run reads that calls it without being offered it; None for the usual words."""
        return self.tool.why_hidden(context) if isinstance(self.tool, KnowsWhyHidden) else None

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make the call."""
        return await self.tool.call(arguments, context)
