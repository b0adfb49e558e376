"""Every error that retinue raises on purpose, in one tree.

::

    RetinueError                      base class of all of them
    ├── BadInput                      invalid argument or file: fix the call
    │   ├── ConfigError               errors in a settings file: file, line, key, found, allowed of each
    │   ├── NotKept                   the run's messages were deleted at the end of its tree, as configured
    │   └── UnknownName               unknown agent, run, session, tool, dialect or provider
    ├── Refused                       a valid call that a rule forbids; attributes carry the facts
    │   ├── DepthExceeded             delegation deeper than the tree allows
    │   ├── TooManyRunning            the limit on concurrent runs is reached
    │   ├── NoAllowance               the parent's remaining budget is too small for the child
    │   ├── TreeCancelled             an ancestor is cancelled: no run can be created under it
    │   ├── SessionClosed             the session is archived or deleted
    │   ├── RunIsOver                 the run has ended and takes no more input
    │   ├── NotAdoptable              this process lacks a tool or provider of the run, or its format
    │   └── PolicyError               more rights than the parent has: field, asked, allowed
    ├── RunFailed                     a run ended without an answer: its outcome
    ├── ProviderError                 a model call failed: fault, status, partial text
    ├── ToolError                     a tool's expected failure: the model reads its text
    │   └── SandboxUnavailable        no sandbox on this machine: what to install or to allow
    └── StoreError                    the store cannot be reached or trusted
        ├── StoreUnavailable          the store rejects writes (disk full, read-only): runs stop where they are
        │   └── StoreNotOpened        the store could not be opened: nothing was started
        ├── StoreCorrupt              stored data is missing or damaged
        ├── UnknownFormat             written by a newer version of retinue, in a format of its own
        │   └── UnknownVariant            the same, with a value that this version does not know, as a new kind of event
        └── Fenced                    this process was declared dead: the store rejects its writes

A failure that a model can act on becomes a tool result; a failure that a person has to fix is raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from retinue.core.usage import NO_USAGE, Usage, dollar_text


class RetinueError(Exception):
    """Base class of all errors that retinue raises on purpose; the message says what to do.

    >>> try:
    ...     raise UnknownName("agent", "wirter", known=("writer",))
    ... except RetinueError as error:
    ...     print(error)
    unknown agent: 'wirter'; known: writer
    """


class BadInput(RetinueError):
    """An argument or file is invalid; fix the call and repeat it."""


class RunFailed(RetinueError):
    """A run ended without an answer. `outcome` says how; `Outcome.unwrap` and `run(..., check=True)` raise this.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", says("")))
    ...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
    ...         try:
    ...             await r.run("What is two and two?", check=True)
    ...         except retinue.RunFailed as failed:
    ...             print(failed, failed.outcome.result)
    >>> asyncio.run(main())
    the run gave an empty answer (empty) completed
    """

    def __init__(self, outcome: Any) -> None:  # an `Outcome`, whose module imports this one
        words = {"timed_out": "timed out", "exhausted": "reached a limit", "completed": "gave an empty answer"}
        how = words.get(outcome.result) or ("was cancelled" if outcome.result == "cancelled" else "failed")
        super().__init__(f"the run {how}" + (f": {outcome.error}" if outcome.error else f" ({outcome.reason})"))
        self.outcome = outcome


class UnknownName(BadInput):
    """An unknown name. `kind` says of what (agent, run, tool, ...), `known` lists the existing names."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...] = ()) -> None:
        suffix = f"; known: {', '.join(known)}" if known else ""
        super().__init__(f"unknown {kind}: {name!r}{suffix}")
        self.kind = kind
        self.name = name
        self.known = known


class NotKept(BadInput):
    """The messages of a run were deleted when its tree ended, as configured; only its outcome is stored."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the messages of run {run_id} were not kept")
        self.run_id = run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error or warning about a settings file: its position, the message, the value found and the values allowed.

    `line` and `column` count from 1 and are None where they are not known; `key` is the dotted path of the setting.

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
    """Whether a dialect's document prescribes the complaint, which is then printed without the key in front."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        is_whole = self.is_complete or not self.key or self.complaint.startswith(f"{self.key} ")
        return f"{place}: {self.complaint}" if is_whole else f"{place}: {self.key}: {self.complaint}"


class ConfigError(BadInput):
    """Errors in a settings file. `problems` has all of them; the message has one line for each."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Refused(RetinueError):
    """A valid call that a rule forbids; subclasses carry the facts as attributes.

    >>> try:
    ...     raise TooManyRunning(running=5, limit=5)
    ... except Refused as refusal:
    ...     print(refusal)
    5 runs are running already; the limit is 5
    """


class DepthExceeded(Refused):
    """A run at `depth` tried to delegate in a tree whose depth is limited to `max_depth`."""

    def __init__(self, *, depth: int, max_depth: int) -> None:
        super().__init__(f"cannot delegate at depth {depth}; this tree stops at {max_depth}")
        self.depth = depth
        self.max_depth = max_depth


class TooManyRunning(Refused):
    """`running` runs are running, which is the `limit`."""

    def __init__(self, *, running: int, limit: int) -> None:
        super().__init__(f"{running} runs are running already; the limit is {limit}")
        self.running = running
        self.limit = limit


class NoAllowance(Refused):
    """`account` has only `left` of `dimension` (tokens, cost, ...); a child asked to reserve `asked`."""

    def __init__(self, *, account: str, dimension: str, asked: int, left: int) -> None:
        has, wanted = (dollar_text(left), dollar_text(asked)) if dimension == "cost" else (str(left), str(asked))
        super().__init__(f"account {account} has {has} {dimension} left; {wanted} were asked for")
        self.account = account
        self.dimension = dimension
        self.asked = asked
        self.left = left


class TreeCancelled(Refused):
    """The ancestor `run_id` is cancelled or has ended, so no run can be created under it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} is cancelled; nothing can be started under it")
        self.run_id = run_id


class SessionClosed(Refused):
    """The session `session_id` is archived (read-only) or deleted, as `state` says."""

    def __init__(self, session_id: str, state: Literal["archived", "deleted"]) -> None:
        super().__init__(f"session {session_id!r} is {state}")
        self.session_id = session_id
        self.state = state


class RunIsOver(Refused):
    """The run `run_id` has ended with `result` and takes no more input."""

    def __init__(self, run_id: str, result: str) -> None:
        super().__init__(f"run {run_id} has ended ({result}) already")
        self.run_id = run_id
        self.result = result


class NotAdoptable(Refused):
    """This process cannot continue the run `run_id`; `reason` names what is missing."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id} cannot be continued here: {reason}")
        self.run_id = run_id
        self.reason = reason


class PolicyError(Refused):
    """A policy is invalid or wider than its parent's. `field` names the setting, `asked` and `allowed` its values.

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
"""Why a model call failed; the first five are transient (see `ProviderError.transient`)."""

BUSY = frozenset({429, 503, 529})
"""HTTP statuses of an overloaded server; other 5xx statuses mean an internal failure."""

TRANSIENT: frozenset[ProviderFault] = frozenset({"rate_limited", "overloaded", "unreachable", "cut", "timeout"})


class ProviderError(RetinueError):
    """A model call failed.

    `fault` classifies the failure and `status` is the HTTP status, if any. `partial` is the text that arrived before
    the failure. `retry_after` is the delay the provider asked for, in seconds. `usage` and `cost` are what the failed
    call used, as far as the provider reports it. `busy` says whether the provider is overloaded; None: decided by
    `status`. `slip` is set if the model wrote something that its own server rejected: what was wrong, in words for the
    model, which reads them before the next attempt. `is_priced` says that `cost` is what the server charged: without
    it, a cost of zero is replaced by the list price of the usage.

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
        slip: str = "",
    ) -> None:
        super().__init__(message)
        self.fault: ProviderFault = fault
        self.status = status
        self.retry_after = retry_after
        self.partial = partial
        self.usage = usage
        self.cost = cost
        self.busy = busy
        self.slip = slip
        self.is_priced = False

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.fault in TRANSIENT

    @property
    def wants_less(self) -> bool:
        """Whether the provider is overloaded, so that all callers should send fewer requests.

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
    """An expected failure of a tool; its text becomes the tool result that the model reads.

    >>> raise ToolError("there is no ticket T-9; ids run from T-1 to T-8")
    Traceback (most recent call last):
    retinue.core.errors.ToolError: there is no ticket T-9; ids run from T-1 to T-8
    """


class SandboxUnavailable(ToolError):
    """A program was not started because no sandbox works on this machine; the message says what to do."""


class StoreError(RetinueError):
    """The store cannot be reached or trusted."""


class StoreUnavailable(StoreError):
    """The store rejects writes; `reason` is the error of the operating system or database."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store cannot be written: {reason}; runs stopped where they were and can be resumed")
        self.reason = reason


class StoreNotOpened(StoreUnavailable):
    """The store could not be opened, so nothing was started; `reason` also says what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.args = (f"the store cannot be opened: {reason}",)


class StoreCorrupt(StoreError):
    """Stored data is missing, damaged or contradictory."""


class UnknownFormat(StoreError):
    """`what` was written in format `found` by a newer version of retinue; this version reads up to `known`."""

    def __init__(self, what: str, *, found: int, known: int) -> None:
        super().__init__(f"{what} has format {found}; this retinue knows up to {known}: upgrade retinue to drive it")
        self.what = what
        self.found = found
        self.known = known

    def named(self, what: str) -> UnknownFormat:
        """The same error with a name for what was written."""
        return UnknownFormat(what, found=self.found, known=self.known)


class UnknownVariant(UnknownFormat):
    """`what` was written by a newer version of retinue, which added `variant` to its format `known`.

    A variant is a value of a closed set, such as a kind of event; `path` says where it was found.
    """

    def __init__(self, what: str, *, variant: str, path: str, known: int) -> None:
        super().__init__(what, found=known, known=known)
        self.args = (
            f"{what} has {variant!r} at {path}, which this retinue does not know: a newer version wrote it; "
            "upgrade retinue to drive it",
        )
        self.variant = variant
        self.path = path

    def named(self, what: str) -> UnknownVariant:
        return UnknownVariant(what, variant=self.variant, path=self.path, known=self.known)


class Fenced(StoreError):
    """The driver `driver_id` (this process) was declared dead by another process; the store rejects its writes."""

    def __init__(self, driver_id: str) -> None:
        super().__init__(f"driver {driver_id} was declared dead and lost its runs; another process may be driving them")
        self.driver_id = driver_id
