"""What the engine needs from others, said as interfaces; whoever has these methods can be plugged in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from retinue.core.agent import Brief, Judged, Output, ToolKind, ToolSpec
from retinue.core.events import Event
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.mail import Item
from retinue.core.messages import Delta, Message, Reply
from retinue.core.policy import Policy, Risk
from retinue.core.records import Charge, Decide, DriverRow, RunQuery, RunRow, SessionRow, Write, Written
from retinue.core.run import HandleRef


class Clock(Protocol):
    """What time it is for people; timeouts use the event loop's own time."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...


class Ids(Protocol):
    """Where new names come from."""

    def new(self) -> str:
        """A name nobody has."""
        ...


Publish: TypeAlias = Callable[[Delta], None]


def _nobody_waits() -> None:
    """What a sign of life is for when no deadline runs."""


Judge: TypeAlias = Callable[[Output, str], Judged]
"""Holds a final answer against what was demanded; says the same about the same text, always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a model; `think` asks for reasoning where the model can.

    `output` is what the final answer has to be. A provider that can make its model keep to it does; the answer is
    checked in any case, and the model asked again where it is not of that form.

    `messages` is a live, append-only view: read it, keep nothing of it but the messages themselves. `run_id`, `agent`,
    `path` and `turn` say who asks, and `purpose` whether for a turn of the run or for a summary of its older ones; they
    go to no vendor. `memo` belongs to the wire for as long as the run lives, for what it has already encoded. `alive`
    is called for what comes from the server without being a piece of the answer, so that it does not seem silent.
    """

    model: str
    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    max_output: int | None = None
    temperature: float | None = None
    think: bool = False
    output: Output | None = None
    run_id: RunId = ""
    agent: str = ""
    path: str = ""
    turn: int = 1
    purpose: Literal["turn", "summary"] = "turn"
    memo: dict[str, object] = field(default_factory=dict[str, object])
    alive: Callable[[], None] = field(default=_nobody_waits, compare=False, repr=False)


class Provider(Protocol):
    """Who answers. Any object with this one method will do.

    `answer` makes one attempt. It calls `publish` for what streams in, in order, and returns the whole reply; it raises
    `ProviderError` when there is none, with what had arrived so far in `partial`. Being cancelled, it closes its
    connection and lets the cancellation through. It keeps no state between calls that a restart would lose.
    """

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`."""
        ...


@runtime_checkable
class Prices(Protocol):
    """A provider that knows what its models cost."""

    def price(self, model: str) -> tuple[int, int] | None:
        """Nanodollars per input and output token, or None where unknown."""
        ...


@runtime_checkable
class Windows(Protocol):
    """A provider that knows how much its models can read."""

    def window(self, model: str) -> int | None:
        """The tokens that a question and its answer may have together, or None where unknown."""
        ...


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
    ...     mind = ScriptedProvider(Script().play("main", calls("whoami"), lambda ask: says(ask.messages[-1].text)))
    ...     async with retinue.open(provider=mind, tools=[whoami], home=retinue.MEMORY, dialects=()) as r:
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


class Weight(Struct, frozen=True, gc=False):
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

    def weigh(self, arguments: str) -> Weight:
        """The weight of a call with these arguments, as the model wrote them; never raises."""
        ...


def weight_of(tool: Tool, arguments: str) -> Weight:
    """What there is to lose by this call of `tool`."""
    # Asked at every call; isinstance() of a protocol would take longer than all the rest.
    weigh: Callable[[str], Weight] | None = getattr(tool, "weigh", None)
    return Weight(tool.risk) if weigh is None else weigh(arguments)


@runtime_checkable
class Foresees(Protocol):
    """A tool that can tell ahead that a policy closes a call, so that nobody is asked about it in vain."""

    def closed_by(self, policy: Policy, arguments: str) -> str | None:
        """Why nobody can approve a call with these arguments, in words for the model; never raises."""
        ...


def closed_by(policy: Policy, tool: Tool, arguments: str) -> str | None:
    """Why a policy closes this call of `tool`, as far as the tool itself can tell."""
    foresees: Callable[[Policy, str], str | None] | None = getattr(tool, "closed_by", None)  # see weight_of
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
    narrowed: Callable[[str], bool] | None = getattr(tool, "waits_with", None)  # see weight_of
    return narrowed is None or narrowed(arguments)


class Toolbox(Protocol):
    """All tools that this process has."""

    def find(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects sees it."""
        ...


class Providers(Protocol):
    """All providers that this process can reach."""

    def find(self, name: str) -> Provider | None:
        """The provider of that name."""
        ...


class Meter(Protocol):
    """Who counts and measures for those that watch from outside; never raises, and costs little when nobody does.

    A name stands for one instrument, always used by the same of these methods.
    """

    def count(self, name: str, **attributes: str) -> None:
        """One more."""
        ...

    def move(self, name: str, change: int, **attributes: str) -> None:
        """So many more or fewer at this moment."""
        ...

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """One measured value of many."""
        ...


class NoMeter:
    """Where nobody watches."""

    def count(self, name: str, **attributes: str) -> None:
        """Nothing."""

    def move(self, name: str, change: int, **attributes: str) -> None:
        """Nothing."""

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """Nothing."""


class Shelf(Protocol):
    """Durable values by name, kept in spaces: shared context, defined agents, memory."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        """All that is on a shelf."""
        ...

    async def change(
        self,
        space: str,
        decide: Decide,
        *,
        key: Key | None = None,
        session_id: SessionId | None = None,
    ) -> Written:
        """Change a shelf by a pure decision; see `records.Change`."""
        ...


class Store(Protocol):
    """What is remembered.

    `commit` is called from one thread at a time, reads from any thread. `blocking` says whether they take real time
    (then the engine keeps them off its loop), `shared` whether other processes can reach it (then the engine beats
    its heart and looks for their mail). A commit is all or nothing: it raises `StoreUnavailable` if the store refuses,
    and `Fenced` if `driver_id` was declared dead, and then nothing of it happened.
    """

    @property
    def blocking(self) -> bool:
        """Whether calls take real time."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes can reach this store."""
        ...

    def commit(self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> list[Written]:
        """Make these writes happen, in order, as one; `durable` asks for the disk to have them."""
        ...

    def changed(self) -> bool:
        """Whether another process may have written since this was last asked."""
        ...

    def run(self, run_id: RunId) -> RunRow | None:
        """A run's row."""
        ...

    def run_by_key(self, key: Key) -> RunRow | None:
        """The run that a spawn with this key made."""
        ...

    def runs(self, query: RunQuery) -> list[RunRow]:
        """Rows, newest first."""
        ...

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        """A run's numbered events."""
        ...

    def brief(self, digest: str) -> Brief:
        """What runs share; raises `StoreCorrupt` when it is not there."""
        ...

    def mail(self, run_id: RunId) -> list[Item]:
        """A run's untaken items, in the order they were posted."""
        ...

    def mail_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        """The untaken items of all unfinished runs of a driver."""
        ...

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        """Names, runs and who retired them, in the order they were given."""
        ...

    def drivers(self) -> list[DriverRow]:
        """Every driver that has not left, dead ones included as long as they own unfinished runs."""
        ...

    def session(self, session_id: SessionId) -> SessionRow | None:
        """A session, if it is there."""
        ...

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        ...

    def shelf(self, space: str) -> Mapping[str, bytes]:
        """All that is on a shelf."""
        ...

    def answered(self, key: Key) -> bytes | None:
        """What a change with this key answered, if it happened."""
        ...

    def charges(self, window: str, since: float) -> list[Charge]:
        """What a window remembers from then on."""
        ...

    def close(self) -> None:
        """Let go of files and connections; nothing committed is lost."""
        ...


@runtime_checkable
class CommitsAtOnce(Protocol):
    """A store whose calls may take real time, but mostly do not."""

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[Written] | None:
        """The same as `commit`, if that waits for nobody: neither another process nor the disk. Else None, and nothing
        happened.
        """
        ...
