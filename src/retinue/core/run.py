"""One agent at work: what it may use, how it was started, and how it ended."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from retinue.core.ids import Key, RunId
from retinue.core.usage import NO_USAGE, Usage

State = Literal["queued", "working", "waiting", "idle", "interrupted", "ended"]
"""Where a run stands; an interrupted run can be resumed, an ended one cannot."""

WaitingFor = Literal["child", "approval", "mail", "time", "dependency"]

Result = Literal["completed", "failed", "cancelled", "timed_out", "exhausted"]
"""How a run ended."""

EndReason = Literal[
    "answered",  # the model gave a final answer
    "empty",  # the model ended without a word
    "length",  # the model was cut off at its output limit
    "refusal",  # the model declined
    "bad_output",  # the final answer was not of the form that was demanded, and could not be repaired
    "closed",  # a run that stays was told that no more input comes
    "max_turns",
    "max_tokens",
    "max_cost",
    "max_calls",
    "window",
    "deadline",
    "cancelled",
    "parent_ended",
    "model_error",
    "tool_error",
    "dependency",
    "bug",
]
"""Why a run ended, in more detail than `Result`."""


class Limits(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """How much a run may use; None is unlimited. Costs are in nanodollars, times in seconds.

    `max_turns` bounds the whole run, `exchange_turns` each exchange of a run that stays. A model that has begun to
    answer may be silent for `idle_seconds`; before, while it thinks or reads, for `first_seconds` (never less).
    With `wrap_up`, the last turn is set aside: a run that meets a limit is asked once, without tools, for what it has.

    >>> a_quarter_dollar = Limits(max_turns=20, max_cost=250_000_000, wrap_up=True)
    >>> a_quarter_dollar.max_turns, a_quarter_dollar.max_tokens
    (20, None)
    """

    max_turns: int | None = None
    exchange_turns: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    max_cost: int | None = None
    max_calls: int | None = None
    seconds: float | None = None
    model_seconds: float = 600.0
    first_seconds: float = 300.0
    idle_seconds: float = 120.0
    tool_seconds: float = 600.0
    wrap_up: bool = False


CHAT = "chat"
"""The label of a chat's root runs: one for each stretch of it, and all but the first inherit from the one before."""


class HistoryRef(Struct, frozen=True, gc=False, omit_defaults=True):
    """A fork's inheritance: another run's history as it stood after its event `upto`, or only its last turns."""

    run_id: RunId
    upto: int
    last_turns: int | None = None


class HandleRef(Struct, frozen=True, gc=False):
    """The name a dialect gave a run: `t_01` in the space `spec` of its session."""

    space: str
    name: str


class Lifecycle(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """How a run behaves towards whoever started it; each dialect has its own manners.

    `stays` keeps the run idle for more input after an answer. `awaited` means the caller blocks on it. `announce` puts
    its end into the parent's inbox. `on_parent_end` says what becomes of it when its parent ends. `crash_fails` ends
    the run when a tool raises something unexpected (otherwise the model reads it).
    """

    keep_alive: bool = field(default=False, name="stays")
    awaited: bool = False
    announce: bool = False
    on_parent_end: Literal["cancel", "keep", "wait"] = "cancel"
    crash_fails: bool = False


class LimitMet(Struct, frozen=True, gc=False):
    """Which limit stopped a run, with the numbers that a message about it needs."""

    reason: EndReason
    used: int
    limit: int


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended: immutable, with whatever text there was.

    `reason` is finer than `result`; `error` explains anything but success. An empty answer is `completed` with the
    reason `empty`: never dressed up, never lost. `structured` is the answer as a plain JSON value, where one was
    demanded.

    >>> Outcome(result="completed", reason="answered", text="42").ok
    True
    >>> Outcome(result="completed", reason="empty").ok
    False
    """

    result: Result
    reason: EndReason
    text: str = ""
    error: str = ""
    structured: object = None
    artifacts: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    cost: int | None = 0
    turns: int = 0
    exchanges: int = 1
    limit: LimitMet | None = None
    unstopped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the run gave an answer, and not an empty one."""
        return self.result == "completed" and self.reason != "empty"


class Exchange(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The result of one input to a run: its answer, or why there is none; `RunHandle.ask` returns it.

    >>> Exchange(result="completed", reason="answered", text="Since Tuesday.", turns=1).text
    'Since Tuesday.'
    """

    result: Result
    reason: EndReason
    text: str = ""
    error: str = ""
    structured: object = None
    turns: int = 0
    limit: LimitMet | None = None


class Approval(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A question to a person: may this run make this call?

    >>> Approval(run_id="r1", path="root", turn=3, index=0, tool="deploy", arguments='{"version":2}').id
    'r1/3/0'
    """

    run_id: RunId
    path: str
    turn: int
    index: int
    tool: str
    arguments: str
    reason: str = ""

    @property
    def id(self) -> Key:
        """What an answer names."""
        return f"{self.run_id}/{self.turn}/{self.index}"
