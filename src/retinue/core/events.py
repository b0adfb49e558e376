"""Events of a run: a closed union (`Event`), stored in order by the run's driver.

A turn with k tool calls stores 1 + k events: `ReplyReceived`, which also records the intent to make all its calls, and
one `CallReturned` for each. All times (`at`) are Unix seconds; all costs are nanodollars, None if unknown.

Fields are only added, with defaults; any other change is a new format with an upcaster in the store's codec.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, field

from retinue.core.agent import RunSpec
from retinue.core.attachments import Attachment
from retinue.core.budget import Amount, Window
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.messages import Delta, Message, Reply
from retinue.core.policy import Policy
from retinue.core.run import Exchange, HandleRef, HistoryRef, Lifecycle, LimitMet, Limits, Outcome
from retinue.core.usage import NO_USAGE, Usage

Refusal = Literal["policy", "approval", "sandbox"]
"""Why a call was not made: the policy denies it, no approval was given, or no sandbox works on this machine."""

Advice = Literal["repeats", "call_form"]
"""What retinue told a model: that it repeats the same calls, or how a tool is called."""

CompactedBy = Literal["shortened", "summarised", "left_out"]
"""How a history was compacted: texts were shortened, older turns summarised, or left out without a summary."""

FORMAT = 1
"""The format that this version writes; it reads this one and all older ones."""


class RunAccepted(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="accepted"):
    """The run was created; the first event of every run.

    `run_spec` is the digest of its `RunSpec`, `task` its first input. `root_id`, `parent_id`, `depth` and `path` place
    it in its tree; `handle` is the name a dialect gave it, `label` a description, `key` its idempotency key. `inherits`
    refers to the history it was forked from. With `reserved` its limits are reserved in its parent's account, otherwise
    both share one budget. `after` lists the runs that must complete before it begins, with the names it uses for them.
    `windows` are its time-window limits and `format` is the event format.
    """

    at: float
    run_id: RunId
    session_id: SessionId
    root_id: RunId
    parent_id: RunId | None = None
    depth: int = 0
    path: str = "root"
    key: Key | None = None
    agent: str = ""
    run_spec: str = field(name="brief")
    task: str
    policy: Policy
    limits: Limits = Limits()
    lifecycle: Lifecycle = field(default=Lifecycle(), name="manner")
    inherits: HistoryRef | None = None
    handle: HandleRef | None = None
    label: str = ""
    dialect: str = ""
    reserved: bool = field(default=False, name="carved")
    windows: tuple[Window, ...] = ()
    after: tuple[tuple[RunId, str], ...] = ()
    format: int = FORMAT
    independent: bool = False
    """Bound by the policy configured for its agent instead of its parent's policy."""
    attachments: tuple[Attachment, ...] = ()
    """Images and files that belong to the task."""
    trace: str = ""
    """The W3C trace context in which the root of the tree was started; empty if it has a trace of its own."""


class RunAdopted(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="adopted"):
    """Driver `driver_id` took the run over; calls in flight before this event were interrupted."""

    at: float
    driver_id: DriverId


class RunLeft(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="left"):
    """The driver stopped working on the run; the run's deadline is paused until it is adopted.

    `at` is when it shut down, or its last heartbeat before it crashed.
    """

    at: float


class MailTaken(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="mail"):
    """Inbox items were taken and applied; the same transaction marks them as taken.

    `spent_before` is what the tree had used when limits for each input began to count anew.
    """

    at: float
    items: tuple[Item, ...]
    spent_before: Amount | None = None


class ReplyReceived(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="reply"):
    """The model replied to turn `turn` (counted from 1); this model call is never repeated.

    `cut_by` is the limit on tokens or cost whose rest was held for the reply and cut it off. `failed` and `failed_cost`
    are what failed attempts before the reply used. `estimated` and `estimated_cost` are what limits are charged for a
    reply whose provider counted nothing; the run's usage does not contain them. `duration` is the seconds of the model
    call, with pauses and failed attempts; None in events of earlier versions.
    """

    at: float
    turn: int
    reply: Reply
    cut_by: LimitMet | None = None
    failed: Usage = NO_USAGE
    failed_cost: int | None = 0
    estimated: Usage | None = None
    estimated_cost: int | None = None
    duration: float | None = None


class CallParked(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="parked"):
    """Tool call `index` of turn `turn` waits for an approval; `reason` says why one is needed."""

    at: float
    turn: int
    index: int
    tool: str
    reason: str = ""


class CallReturned(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="returned"):
    """Tool call `index` of turn `turn` returned `text`.

    `failed` marks an error result; `crashed` marks an exception other than `ToolError`. `refused` says why a call was
    not made: the policy or a person did not allow it, or no sandbox works on this machine. `tool` is the name that the
    model called, `duration` the seconds that the tool worked; None if it was not called, or by an earlier version.
    `attachments` are images and files that the model gets with the text.
    """

    at: float
    turn: int
    index: int
    text: str
    failed: bool = False
    crashed: bool = False
    refused: Refusal | None = None
    tool: str = ""
    duration: float | None = None
    attachments: tuple[Attachment, ...] = ()


STOPPED = "stopped"
"""The fault of a model call that was stopped together with its run."""


class TurnFailed(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="turn_failed"):
    """The model call of turn `turn` failed after all retries and fallbacks; the run ends, or only the exchange.

    `fault` and `error` are those of the last `ProviderError`, `partial` the text that arrived. `usage` and `cost` are
    what the failed calls used, `duration` the seconds that they took; None in events of earlier versions.

    With the fault `STOPPED` the call did not fail: it was stopped with its run, and its server had counted before. That
    ends nothing, and the turn may be made later.
    """

    at: float
    turn: int
    fault: str
    error: str
    partial: str = ""
    usage: Usage = NO_USAGE
    cost: int | None = 0
    duration: float | None = None


class WrapUpAsked(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="wrap_up"):
    """A limit was reached and the reserved wrap-up turn begins: `text` asks for a final answer, without tools."""

    at: float
    limit: LimitMet
    text: str


class RepairAsked(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="repair"):
    """The answer did not have the required form: `text` tells the model about `error` and asks for it again."""

    at: float
    error: str
    text: str


class AdviceGiven(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="advice"):
    """Retinue told the model `text`: that it repeats the same calls, or how a tool is called."""

    at: float
    about: Advice
    text: str


class ExchangeEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="exchange_ended"):
    """An exchange of a keep-alive run ended; the run is idle until its next input."""

    at: float
    exchange: Exchange


class HistoryCompacted(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="compacted"):
    """The first `replaced` messages of the history were replaced by `messages`; the originals stay in the log.

    `way` says how: texts shortened, older turns summarised by `model`, or left out without a summary. `before` and
    `after` are the size of a whole request in tokens, as far as known. `usage` and `cost` are those of the summary
    calls, failed ones included, `estimated` and `estimated_cost` what is estimated for those whose provider counted
    nothing, and `duration` the seconds that they took; they do not count as turns.
    """

    at: float
    replaced: int
    messages: tuple[Message, ...]
    way: CompactedBy = "summarised"
    before: int = 0
    after: int = 0
    model: str = ""
    usage: Usage = NO_USAGE
    cost: int | None = 0
    duration: float | None = None
    estimated: Usage = NO_USAGE
    estimated_cost: int = 0


class ResultCollected(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="collected"):
    """The run has read the outcome of its child `run_id`, so the child's end is not announced any more."""

    at: float
    key: Key
    run_id: RunId


class AgentChanged(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="agent_changed"):
    """The run was handed over to another agent: its history stays, `run_spec` and `policy` hold from here on."""

    at: float
    agent: str
    run_spec: RunSpec
    policy: Policy


class RunEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="ended"):
    """The run ended with `outcome`; always the last event of a run."""

    at: float
    outcome: Outcome


Event: TypeAlias = (
    RunAccepted
    | RunAdopted
    | RunLeft
    | MailTaken
    | ReplyReceived
    | CallParked
    | CallReturned
    | TurnFailed
    | WrapUpAsked
    | RepairAsked
    | AdviceGiven
    | ExchangeEnded
    | HistoryCompacted
    | ResultCollected
    | AgentChanged
    | RunEnded
)
"""Any event of a run."""


class TreeEvent(Struct, frozen=True, kw_only=True, gc=False):
    """An event or a delta of one run of a tree, and the place of that run in the tree.

    `run` and `parent` are ids; `parent` is None for a root run. `path` has the names from the root to the run. `seq`
    numbers the events of each run from 1; it is 0 for a delta, which is not stored. The first event of each run is its
    `RunAccepted`. `agent`, `label` and `handle` are the run's names.
    """

    run: RunId
    parent: RunId | None
    path: str
    event: Event | Delta
    seq: int = 0
    agent: str = ""
    label: str = ""
    handle: HandleRef | None = None
