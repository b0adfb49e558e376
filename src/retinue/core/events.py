"""The facts of a run: a closed union, stored in the order they happened by the one driver of the run.

A turn with k calls stores 1 + k of them: the reply, which is also the intent of all its calls, and one return each.
Fields are only ever added, with defaults; anything else is a new format with an upcaster in the store's codec.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, field

from retinue.core.budget import Window
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.messages import Message, Reply
from retinue.core.policy import Policy
from retinue.core.run import Exchange, HandleRef, HistoryRef, Lifecycle, LimitMet, Limits, Outcome
from retinue.core.usage import NO_USAGE, Usage

CompactedBy = Literal["shortened", "summarised", "left_out"]
"""How a conversation was made shorter."""

FORMAT = 1
"""The newest format of events that this retinue writes and knows."""


class RunAccepted(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="accepted"):
    """A run exists. `brief` names the blob of what it shares with its siblings, `task` is its first input.

    `carved` says that its limits were taken from its parent's; otherwise both draw on one pot. `after` are the runs
    that have to complete before it begins, with the names by which it knows them.
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
    """Bound by what the operator wrote down for its agent, and not by its parent's policy."""


class RunAdopted(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="adopted"):
    """Another driver took the run over: what was in flight before this is known to be interrupted."""

    at: float
    driver_id: DriverId


class RunLeft(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="left"):
    """Its driver went in good order: until somebody takes the run over, no time passes for it."""

    at: float


class MailTaken(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="mail"):
    """Items of the inbox were taken; the same transaction marks them so."""

    at: float
    items: tuple[Item, ...]


class ReplyReceived(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="reply"):
    """The model answered; from now on this call is never made again."""

    at: float
    turn: int
    reply: Reply


class CallParked(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="parked"):
    """A call waits for a person."""

    at: float
    turn: int
    index: int
    tool: str
    reason: str = ""


class CallReturned(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="returned"):
    """A call came to this; `crashed` marks an exception that the tool did not announce."""

    at: float
    turn: int
    index: int
    text: str
    failed: bool = False
    crashed: bool = False


class TurnFailed(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="turn_failed"):
    """The model could not be asked, after every attempt that was worth making; `usage` and `cost` were for nothing."""

    at: float
    turn: int
    fault: str
    error: str
    partial: str = ""
    usage: Usage = NO_USAGE
    cost: int | None = 0


class WrapUpAsked(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="wrap_up"):
    """A limit was met and the reserved last turn begins: the model is asked for what it has, without tools."""

    at: float
    limit: LimitMet
    text: str


class RepairAsked(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="repair"):
    """The answer was not of the form that was demanded: the model is told what is wrong, and asked again."""

    at: float
    error: str
    text: str


class ExchangeEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="exchange_ended"):
    """A run that stays has answered (or not) and is idle now."""

    at: float
    exchange: Exchange


class HistoryCompacted(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="compacted"):
    """The first `replaced` messages are represented by `messages` from now on; the originals stay in the log.

    `way` says how: texts were shortened, older turns summarised by `model`, or left out without a summary. `before` and
    `after` are the size of a whole question in tokens, as far as that is known. `usage` and `cost` are those of the
    calls that asked for a summary, also of one that was no use; none of them is a turn.
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


class AgentDefined(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="agent_defined"):
    """The run defined an agent in its session."""

    at: float
    key: Key
    name: str


class ResultCollected(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="collected"):
    """The run has read how a child ended, so its end need not be announced any more."""

    at: float
    key: Key
    run_id: RunId


class RunEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="ended"):
    """The last event of a run; nothing overwrites it."""

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
    | ExchangeEnded
    | HistoryCompacted
    | AgentDefined
    | ResultCollected
    | RunEnded
)
"""Any event of a run."""
