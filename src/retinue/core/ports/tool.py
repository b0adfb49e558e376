"""The tool port: the base class of everything that an agent can call, and the context of one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

from msgspec import Struct

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.attachments import Attachment
from retinue.core.errors import BadInput
from retinue.core.events import Refusal
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.policy import Policy, Risk
from retinue.core.run import HandleRef, Limits, Outcome

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

T = TypeVar("T")


class ToolResult(Struct, frozen=True, gc=False):
    """Result of a call as the model reads it; `failed` marks a failure, `refused` a call that was not made.

    `attachments` are images and files that the model gets with the text.
    """

    text: str
    failed: bool = False
    refused: Refusal | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedCall:
    """A call by a program outside, such as an MCP client, in the name of a hosted run.

    `max_wait` is the number of seconds after which the call has to return; None is no limit. The engine adds the runs
    that the call starts to `started`. With `approved` a person makes the call and needs no question about it. A caller
    that is not `identified` shares its session with others: it names runs by their ids, and is shown no others.

    >>> HostedCall(max_wait=45.0).started
    []
    """

    max_wait: float | None = None
    started: list[RunId] = field(default_factory=list["RunId"])
    approved: bool = False
    identified: bool = True


class ChildRun(Protocol):
    """A run that `CallContext.spawn` started; the object is a `retinue.RunHandle`."""

    run_id: RunId

    async def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for the end of the run; raises `TimeoutError` after `timeout` seconds."""
        ...

    async def send(self, text: str, *, key: Key | None = None) -> None:
        """Send a message to the run."""
        ...

    async def cancel(self, note: str = "") -> tuple[RunId, ...]:
        """Cancel the run and all below it."""
        ...


class Spawner(Protocol):
    """Starts runs below the run that made a call."""

    async def spawn_child(
        self,
        context: CallContext,
        task: str,
        *,
        agent: str | None,
        model: str | None,
        tools: Sequence[str] | None,
        limits: Limits | None,
        key: str | None,
        label: str,
    ) -> ChildRun: ...

    async def hand_over(self, context: CallContext, agent: str) -> None:
        """Let the run of a call go on as another agent, from its next turn on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The run that calls a tool, and its rights.

    `key` stays the same when recovery makes the call again after a crash; `again` marks a call that may be such a
    repetition.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, calls, says
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
    """Working folder of the run; empty for that of the process."""
    identity: str = ""
    """Agent whose memory the run has: its own agent, or the agent that it works for under another name."""
    memory_from: tuple[str, ...] = ()
    """Other agents whose memory the run may read."""
    host: HostedCall | None = None
    """The call of a program outside; None for a call of a model."""
    trace: str = ""
    """The W3C trace context (`traceparent`) for what the call causes; empty without tracing."""
    spawner: Spawner | None = field(default=None, compare=False, repr=False)
    """Starts runs below the caller; use `spawn`."""

    async def spawn(
        self,
        task: str,
        *,
        agent: str | None = None,
        model: str | None = None,
        tools: Sequence[str] | None = None,
        limits: Limits | None = None,
        key: str | None = None,
        label: str = "",
    ) -> ChildRun:
        """Start a run below the one that made this call, in its tree and under its limits, and return its handle.

        - `agent`: the name of an agent; without one, a run with the caller's tools and no system prompt.
        - `model`, `tools`, `limits`: instead of those of the agent. The rights of the caller bound the child.
        - `key`: tells several children of one call apart; needed only if the same agent gets the same task twice in a
          call whose order of spawns may change.

        After a crash, a tool of kind `keyed` is called again, and the same spawn returns the run that it had started. A
        child that is still at work when the run above it ends is cancelled. Raises `Refused` if the tree is cancelled
        or too deep, `UnknownName` for an unknown agent or tool.
        """
        if self.spawner is None:
            raise BadInput("this call has no retinue to start a run in: context.spawn works in calls of runs")
        return await self.spawner.spawn_child(
            self, task, agent=agent, model=model, tools=tools, limits=limits, key=key, label=label
        )


class CallRisk(Struct, frozen=True, gc=False):
    """Risk of one call; `acts` marks a call that changes something and counts as an action."""

    risk: Risk
    acts: bool = False


def _denied_by_no_policy(policy: Policy) -> str | None:
    return None


class PreparedCall(Struct, frozen=True):
    """One call of a tool with its arguments read: its risk, whether a policy denies it, and how to make it.

    `arguments` is the text that the model wrote. `waits` marks a call that waits for other runs and has no deadline.
    `denied_by` returns the reason, for the model, why a policy denies the call whatever a person answers; None if it
    does not. `risk`, `waits` and `denied_by` raise nothing. `run` makes the call; see `Tool.call`. `group` names the
    calls that are alike: a person can approve all calls of one group in a run; empty for all calls of the tool.

    `examine`, if there is one, is awaited where the permission is decided: for a call whose risk depends on files, or
    whose arguments take long to read. It returns the same call with its final risk, and raises nothing.
    """

    arguments: str
    risk: CallRisk
    run: Callable[[CallContext], Awaitable[ToolResult]]
    waits: bool = False
    denied_by: Callable[[Policy], str | None] = _denied_by_no_policy
    examine: Callable[[CallContext], Awaitable[PreparedCall]] | None = None
    group: str = ""


class Tool:
    """Base class of tools: what an agent can call.

    A subclass sets `spec` and overrides `call`. A subclass whose calls differ in risk, or that has to read the
    arguments before the call is permitted, overrides `prepare` instead and lets `call` run the prepared call.
    The engine calls `prepare` once per call, decides on what it returns, and then runs it.
    """

    spec: ToolSpec
    """Name, description and parameters, as the model reads them."""
    kind: ToolKind = "once"
    """What recovery does with a call that a crash interrupted."""
    risk: Risk = Risk.LOW
    acts: bool = False
    """Whether a call changes something and counts as an action."""
    timeout: float | None = None
    """Seconds a call may take; None for the limit of the run."""
    waits: bool = False
    """Whether calls wait for other runs; such a call has no deadline of its own."""
    stoppable: bool = True
    """Whether cancelling a call stops its work; a thread, for example, goes on."""
    ordered: bool = False
    """Whether calls of one reply take effect in their order there: each begins when the one before it has returned."""

    polls: bool = False
    """Whether equal calls in a row are normal, as of a tool that waits for something; they end no run as looping."""
    server: ServerToolSpec | None = None
    """Set for a tool that the model's vendor runs; `call` is never used."""
    effect: Literal["starts", "stops", "unknown"] = "unknown"
    """What a call does, for callers outside: it starts or continues runs, it stops runs, or that is not declared."""

    def prepare(self, arguments: str) -> PreparedCall:
        """Read the arguments of one call, as the model wrote them; raises nothing and changes nothing."""
        return PreparedCall(arguments, CallRisk(self.risk, self.acts), partial(self.call, arguments), self.waits)

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        """The spec that a run with these tools and this policy is shown: by default `spec`.

        A tool whose arguments are names that depend on the run lists them here. The result must depend on the
        arguments alone and keep its order: it is shared by all such runs, and is the beginning of a cached prompt.
        """
        return self.spec

    def spec_for_agent(self, agent: str, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        """The same for the runs of one agent: for a tool whose arguments cannot name its caller."""
        return self.spec_for(offered, policy)

    def why_hidden(self, context: CallContext) -> str | None:
        """Text for a run that calls the tool without being offered it; None for the engine's own text."""
        return None

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make one call with the arguments that the model wrote.

        Returns a result, raises `ToolError` with a text that the model can act on, or raises anything else for an
        unexpected failure.
        """
        raise NotImplementedError


class ToolLike(Protocol):
    """What an object needs to be used as a tool without inheriting from `Tool`; the rest has the defaults of `Tool`."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def kind(self) -> ToolKind: ...
    @property
    def risk(self) -> Risk: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def waits(self) -> bool: ...
    @property
    def stoppable(self) -> bool: ...
    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make one call; see `Tool.call`."""
        ...


def as_tool(tool: ToolLike) -> Tool:
    """The object itself if it is a `Tool`, else an adapter with the defaults of `Tool` for what the object lacks."""
    return tool if isinstance(tool, Tool) else _AdaptedTool(tool)


class _AdaptedTool(Tool):
    def __init__(self, tool: ToolLike) -> None:
        self._tool = tool
        self.spec = tool.spec
        for name in ("kind", "risk", "acts", "timeout", "waits", "stoppable", "ordered", "polls", "server", "effect"):
            setattr(self, name, getattr(tool, name, getattr(Tool, name)))

    def __repr__(self) -> str:
        return repr(self._tool)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self._tool.call(arguments, context)


class ToolWrapper(Tool):
    """A tool around another one: it has the same attributes, and a subclass overrides `run` to add to each call."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.spec = tool.spec
        self.kind: ToolKind = tool.kind
        self.risk = tool.risk
        self.acts = tool.acts
        self.timeout = tool.timeout
        self.waits = tool.waits
        self.stoppable = tool.stoppable
        self.ordered = tool.ordered
        self.polls = tool.polls
        self.server = tool.server
        self.effect: Literal["starts", "stops", "unknown"] = tool.effect

    def prepare(self, arguments: str) -> PreparedCall:
        return self._around(self.tool.prepare(arguments))

    def _around(self, inner: PreparedCall) -> PreparedCall:
        examine = None if inner.examine is None else partial(self._examine, inner.examine)
        run = partial(self.run, inner)
        return PreparedCall(inner.arguments, inner.risk, run, inner.waits, inner.denied_by, examine, inner.group)

    async def _examine(
        self, examine: Callable[[CallContext], Awaitable[PreparedCall]], context: CallContext
    ) -> PreparedCall:
        return self._around(await examine(context))

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return self.tool.spec_for(offered, policy)

    def spec_for_agent(self, agent: str, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return self.tool.spec_for_agent(agent, offered, policy)

    def why_hidden(self, context: CallContext) -> str | None:
        return self.tool.why_hidden(context)

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        """Make a prepared call of the inner tool."""
        return await call.run(context)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self.prepare(arguments).run(context)


class Toolbox(Protocol):
    """All tools of a process, by name."""

    def find(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects sees it."""
        ...

    def wrapped(self, tool: Tool, dialects: tuple[str, ...]) -> Tool:
        """A tool in the wrappers of these dialects, such as a log."""
        ...


def maker_of(cls: type[T]) -> type[T]:
    """A class to call in place of a frozen dataclass with slots: it makes instances of that class, twice as fast.

    A frozen dataclass assigns each field with `object.__setattr__`, which takes many times as long as a plain
    assignment; requests and contexts are made every turn. An instance begins as one of the returned class, whose fields
    can be assigned, and becomes one of `cls` when all of them are.

    >>> @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> point = maker_of(Point)(x=1)
    >>> type(point) is Point, point == Point(x=1, y=0)
    (True, True)
    >>> point.y = 3
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'y'
    """

    def freeze(made: T) -> None:
        made.__class__ = cls

    plain = dataclasses.make_dataclass(
        cls.__name__,
        [(each.name, object, _copied(each)) for each in dataclasses.fields(cls)],  # pyright: ignore[reportArgumentType]
        namespace={"__post_init__": freeze, "__doc__": cls.__doc__},  # without a text it would make one, slowly
        kw_only=True,
        repr=False,
        eq=False,
    )
    unfrozen = type(
        cls.__name__,
        (cls,),
        {
            "__slots__": (),
            "__init__": plain.__init__,
            "__post_init__": freeze,
            "__setattr__": object.__setattr__,
            "__delattr__": object.__delattr__,  # any other one would make assignments slow as well
        },
    )
    return cast("type[T]", unfrozen)


def _copied(each: dataclasses.Field[object]) -> object:
    if each.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=each.default_factory)
    return dataclasses.field() if each.default is dataclasses.MISSING else dataclasses.field(default=each.default)
