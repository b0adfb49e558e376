"""Every error that retinue raises on purpose, in one tree.

::

    RetinueError                      something retinue can explain
    ├── BadInput                      the caller handed in something wrong: fix the call
    │   ├── ConfigError               mistakes in a settings file: file, line, key, found, allowed of each
    │   ├── NotKept                   a run whose messages were dropped, as its settings say
    │   └── UnknownName               an agent, run, session, tool, dialect or provider that is not there
    ├── Refused                       the call was fine, the rules say no: facts say which rule
    │   ├── DepthExceeded             deeper than the tree allows
    │   ├── TooManyRunning            as many running already as the rule allows
    │   ├── NoAllowance               the parent has too little left to carve a child from
    │   ├── TreeCancelled             an ancestor is cancelled: nothing is born under it
    │   ├── SessionClosed             the session is archived or deleted
    │   ├── RunIsOver                 the run has ended: it takes no more input
    │   ├── NotAdoptable              this process lacks a tool or provider of the run, or its format
    │   └── PolicyError               more rights than the parent has: field, asked, allowed
    ├── ProviderError                 a model call failed: kind, status, what to do
    ├── ToolError                     a tool's own, expected failure: the model reads its text
    │   └── SandboxUnavailable        nothing here fences programs in: what to install, or what to allow
    ├── ToolCrashed                   a tool raised something it did not announce
    └── StoreError                    what is remembered cannot be reached or trusted
        ├── StoreUnavailable          the store refuses writes (disk full, read-only): runs stop where they are
        │   └── StoreNotOpened        it could not even be opened: nothing was begun
        ├── StoreCorrupt              what was read is not what was written
        ├── UnknownFormat             written by a newer retinue than this one
        └── Fenced                    this process was declared dead: nothing it writes is accepted

What a model can act on becomes a tool result; what a person has to fix is raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from retinue.core.usage import NO_USAGE, Usage


class RetinueError(Exception):
    """Something retinue can explain; the message says what to do.

    >>> try:
    ...     raise UnknownName("agent", "wirter", known=("writer",))
    ... except RetinueError as error:
    ...     print(error)
    unknown agent: 'wirter'; known: writer
    """


class BadInput(RetinueError):
    """The caller handed in something wrong."""


class UnknownName(BadInput):
    """A name that nothing answers to; the names that exist are listed."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...] = ()) -> None:
        listed = f"; known: {', '.join(known)}" if known else ""
        super().__init__(f"unknown {kind}: {name!r}{listed}")
        self.kind = kind
        self.name = name
        self.known = known


class NotKept(BadInput):
    """The messages of a run were dropped at the end of its tree, as its settings say; how it ended is still known."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the messages of run {run_id} were not kept")
        self.run_id = run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a file that a person wrote: where it is, what was found and what is allowed.

    >>> print(Problem(file="retinue.toml", line=12, key="agents.dig.max_turns", complaint="found 0; expected 1 up"))
    retinue.toml:12: agents.dig.max_turns: found 0; expected 1 up
    """

    file: str
    complaint: str
    line: int | None = None
    column: int | None = None
    key: str = ""
    found: str = ""
    allowed: str = ""
    is_complete: bool = field(default=False, compare=False)
    """Whether the complaint is a text that a published document prescribes, printed without the key in front."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        needs_no_key = self.is_complete or not self.key or self.complaint.startswith(f"{self.key} ")
        return f"{place}: {self.complaint}" if needs_no_key else f"{place}: {self.key}: {self.complaint}"


class ConfigError(BadInput):
    """Mistakes in a settings file, all that were found; the message has one line for each."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Refused(RetinueError):
    """The call was understood and the rules say no; the facts are attributes.

    >>> try:
    ...     raise TooManyRunning(running=5, limit=5)
    ... except Refused as refusal:
    ...     print(refusal)
    5 runs are running already; the limit is 5
    """


class DepthExceeded(Refused):
    """A run asked to delegate deeper than its tree allows."""

    def __init__(self, *, depth: int, max_depth: int) -> None:
        super().__init__(f"cannot delegate at depth {depth}; this tree stops at {max_depth}")
        self.depth = depth
        self.max_depth = max_depth


class TooManyRunning(Refused):
    """As many runs are running as the rule allows."""

    def __init__(self, *, running: int, limit: int) -> None:
        super().__init__(f"{running} runs are running already; the limit is {limit}")
        self.running = running
        self.limit = limit


class NoAllowance(Refused):
    """The parent has too little left to give a child its allowance."""

    def __init__(self, *, account: str, dimension: str, asked: int, left: int) -> None:
        super().__init__(f"account {account} has {left} {dimension} left; {asked} were asked for")
        self.account = account
        self.dimension = dimension
        self.asked = asked
        self.left = left


class TreeCancelled(Refused):
    """An ancestor is cancelled, so no run is born under it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} is cancelled; nothing can be started under it")
        self.run_id = run_id


class SessionClosed(Refused):
    """The session is archived (read-only) or deleted."""

    def __init__(self, session_id: str, state: Literal["archived", "deleted"]) -> None:
        super().__init__(f"session {session_id!r} is {state}")
        self.session_id = session_id
        self.state = state


class RunIsOver(Refused):
    """The run has ended and takes no more input."""

    def __init__(self, run_id: str, result: str) -> None:
        super().__init__(f"run {run_id} has ended ({result}) already")
        self.run_id = run_id
        self.result = result


class NotAdoptable(Refused):
    """This process cannot drive the run; the reason names what is missing."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id} cannot be continued here: {reason}")
        self.run_id = run_id
        self.reason = reason


class PolicyError(Refused):
    """A child asked for more than its parent has; `field` names the axis.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider
    >>> async def main() -> None:
    ...     policy = retinue.Policy(max_actions_per_hour=10)
    ...     async with retinue.open(provider=ScriptedProvider(Script()), policy=policy, home=retinue.MEMORY) as r:
    ...         try:
    ...             await r.spawn("Clean up.", policy=retinue.Policy(max_actions_per_hour=20))
    ...         except retinue.PolicyError as error:
    ...             print(error.field, error.asked, error.allowed)
    >>> asyncio.run(main())
    max_actions_per_hour 20 10
    """

    def __init__(self, message: str, *, field: str, asked: object = None, allowed: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.asked = asked
        self.allowed = allowed


ProviderFault = Literal[
    "rate_limited",
    "overloaded",
    "unreachable",
    "cut",
    "timeout",
    "auth",
    "bad_request",
    "too_long",
    "refused",
    "internal",
]
"""Why a model call failed; the first five are worth another attempt."""

BUSY = frozenset({429, 503, 529})
"""The statuses of servers that have too much to do; with others they failed for a reason of their own."""

TRANSIENT: frozenset[ProviderFault] = frozenset({"rate_limited", "overloaded", "unreachable", "cut", "timeout"})


class ProviderError(RetinueError):
    """A model call failed.

    `partial` is what had arrived before the failure; `retry_after` is the provider's own wish, in seconds. `usage` and
    `cost` are what was used for nothing, as far as the provider knows. `busy` is whether a provider that failed says
    that it has too much to do; None is what its status tells.

    >>> ProviderError("slow down", fault="rate_limited", retry_after=2.0).transient
    True
    >>> ProviderError("no such model", fault="bad_request").transient
    False
    """

    def __init__(
        self,
        message: str,
        *,
        fault: ProviderFault = "internal",
        status: int | None = None,
        retry_after: float | None = None,
        partial: str = "",
        usage: Usage = NO_USAGE,
        cost: int | None = 0,
        busy: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.fault: ProviderFault = fault
        self.status = status
        self.retry_after = retry_after
        self.partial = partial
        self.usage = usage
        self.cost = cost
        self.busy = busy

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.fault in TRANSIENT

    @property
    def wants_less(self) -> bool:
        """Whether the provider wants fewer requests, from everyone who asks it; one that merely broke does not.

        >>> ProviderError("on fire", fault="overloaded", status=500).wants_less
        False
        >>> ProviderError("overloaded", fault="overloaded", status=529).wants_less
        True
        """
        if self.fault != "overloaded":
            return self.fault == "rate_limited"
        busy = self.busy if self.busy is not None else self.status is None
        return busy or self.status in BUSY or self.retry_after is not None


class ToolError(RetinueError):
    """A tool's own, expected failure; its text is what the model reads.

    >>> raise ToolError("there is no ticket T-9; ids run from T-1 to T-8")
    Traceback (most recent call last):
    retinue.core.errors.ToolError: there is no ticket T-9; ids run from T-1 to T-8
    """


class SandboxUnavailable(ToolError):
    """A program cannot be started, because nothing on this machine would fence it in; says what to do about it."""


class ToolCrashed(RetinueError):
    """A tool raised something it did not announce."""

    def __init__(self, tool: str, details: str) -> None:
        super().__init__(f"tool {tool} failed unexpectedly: {details}")
        self.tool = tool
        self.details = details


class StoreError(RetinueError):
    """What is remembered cannot be reached or trusted."""


class StoreUnavailable(StoreError):
    """The store refuses writes; the reason is what the operating system or database said."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store cannot be written: {reason}; runs stopped where they were and can be resumed")
        self.reason = reason


class StoreNotOpened(StoreUnavailable):
    """The store could not even be opened, so nothing was begun; the reason also says what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.args = (f"the store cannot be opened: {reason}",)


class StoreCorrupt(StoreError):
    """What was read is not what was written."""


class UnknownFormat(StoreError):
    """A record written by a newer retinue than this one."""

    def __init__(self, what: str, *, found: int, known: int) -> None:
        super().__init__(f"{what} has format {found}; this retinue knows up to {known}: upgrade retinue to drive it")
        self.what = what
        self.found = found
        self.known = known


class Fenced(StoreError):
    """This process was declared dead by another; nothing it writes is accepted any more."""

    def __init__(self, driver_id: str) -> None:
        super().__init__(f"driver {driver_id} was declared dead and lost its runs; another process may be driving them")
        self.driver_id = driver_id
