"""A run's limits, lifecycle options, history reference, exchanges, approvals and outcome."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from msgspec import Struct, StructMeta, field

from retinue.core.budget import Dimension
from retinue.core.errors import BadInput, RunFailed
from retinue.core.ids import Key, RunId
from retinue.core.messages import Citation
from retinue.core.usage import MAX_COST, NANO, NO_USAGE, Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)  # defaults of type variables need Python 3.13

State = Literal["queued", "working", "waiting", "idle", "interrupted", "ended"]
"""State of a run; an interrupted run can be resumed, an ended one cannot."""

WaitingFor = Literal["child", "approval", "mail", "time", "dependency"]

Result = Literal["completed", "failed", "cancelled", "timed_out", "exhausted"]
"""How a run ended."""

EndReason = Literal[
    "answered",  # the model gave a final answer
    "empty",  # the model's final answer was empty
    "length",  # the model was cut off at its output limit
    "refusal",  # the model declined
    "bad_output",  # the final answer did not have the required form and could not be repaired
    "closed",  # a keep-alive run was closed
    "max_turns",
    "max_tokens",
    "max_cost",
    "max_calls",
    "looping",  # the model repeated the same calls with the same results
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


def nanodollars(dollars: float | Decimal) -> int:
    """An amount of dollars in nanodollars; raises `BadInput` for one that is negative or no number.

    >>> nanodollars(0.25), nanodollars(Decimal("1.50")), nanodollars(2)
    (250000000, 1500000000, 2000000000)
    """
    given = cast("object", dollars)
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        kind = type(given).__name__
        raise BadInput(f"max_cost={given!r:.80} is a {kind}; expected dollars as an int, float or Decimal, or None")
    try:
        amount = Decimal(str(dollars)) * NANO
        whole = int(amount.to_integral_value())
    except (ArithmeticError, ValueError) as error:
        raise BadInput(f"max_cost={dollars!r} is not an amount of dollars") from error
    if not 0 <= whole <= MAX_COST:
        raise BadInput(f"max_cost={dollars!r} is not an amount of dollars: expected 0 to {MAX_COST // NANO:,}")
    return whole


_WHOLE_NUMBERS = (
    "max_turns",
    "exchange_turns",
    "max_input_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_nanodollars",
    "max_calls",
    "max_repeats",
)
_SECONDS = ("timeout", "model_timeout", "first_timeout", "idle_timeout", "tool_timeout", "retry_for")


if TYPE_CHECKING:
    _LimitsType = StructMeta
else:

    class _LimitsType(StructMeta):
        """Converts `max_cost` from dollars when limits are made by a caller.

        A `Struct` has no `__init__`, and its `__post_init__` cannot tell the dollars of a caller from what is stored,
        because decoding runs it, too.
        """

        def __call__(self, *, max_cost=None, **fields):
            if max_cost is not None:
                if fields.get("max_nanodollars") is not None:
                    raise BadInput("Limits: max_cost and max_nanodollars are the same limit: give one of them")
                fields["max_nanodollars"] = nanodollars(max_cost)
            return super().__call__(**fields)


class Limits(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, metaclass=_LimitsType):
    """Limits of a run; None is unlimited. Times are in seconds.

    `max_cost` is in dollars, as an int, a float or a Decimal. `max_nanodollars` is the same limit as the exact number
    that is stored (under the name `max_cost`) and compared with costs; `msgspec.structs.replace` takes this one.

    Times are stored under the names `seconds`, `model_seconds`, and so on.

    `max_turns` bounds the whole run, `exchange_turns` each exchange of a keep-alive run. `first_timeout` bounds the
    silence of a model before the first token, `idle_timeout` the silence after it; the first is never the shorter one.
    `retry_for` is how long an overloaded model is called again. `max_repeats` bounds the replies in a row with equal
    calls and equal results; calls of a dialect's tools do not count. With `wrap_up`, the last turn is reserved: a run
    that reaches a limit is asked once, without tools, for an answer.

    >>> a_quarter_dollar = Limits(max_turns=20, max_cost=0.25, wrap_up=True)
    >>> a_quarter_dollar.max_turns, a_quarter_dollar.max_tokens, a_quarter_dollar.max_cost
    (20, None, 0.25)
    >>> a_quarter_dollar.max_nanodollars
    250000000
    >>> Limits(max_turns="20")
    Traceback (most recent call last):
    retinue.core.errors.BadInput: Limits: max_turns='20' is a str; expected an int or None
    """

    max_turns: int | None = None
    exchange_turns: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    max_nanodollars: int | None = field(default=None, name="max_cost")
    max_calls: int | None = None
    max_repeats: int | None = 5
    timeout: float | None = field(default=None, name="seconds")
    model_timeout: float = field(default=600.0, name="model_seconds")
    first_timeout: float = field(default=300.0, name="first_seconds")
    idle_timeout: float = field(default=120.0, name="idle_seconds")
    tool_timeout: float = field(default=600.0, name="tool_seconds")
    retry_for: float = 600.0
    wrap_up: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            max_turns: int | None = None,
            exchange_turns: int | None = None,
            max_input_tokens: int | None = None,
            max_output_tokens: int | None = None,
            max_tokens: int | None = None,
            max_cost: float | Decimal | None = None,
            max_nanodollars: int | None = None,
            max_calls: int | None = None,
            max_repeats: int | None = 5,
            timeout: float | None = None,
            model_timeout: float = 600.0,
            first_timeout: float = 300.0,
            idle_timeout: float = 120.0,
            tool_timeout: float = 600.0,
            retry_for: float = 600.0,
            wrap_up: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise BadInput(f"Limits: {name}={value!r:.80} is a {type(value).__name__}; expected an int or None")
        for name in _SECONDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise BadInput(f"Limits: {name}={value!r:.80} is a {type(value).__name__}; expected seconds")

    @property
    def max_cost(self) -> float | None:
        """The limit on cost in dollars."""
        return None if self.max_nanodollars is None else self.max_nanodollars / NANO


CHAT = "chat"
"""Label of the root runs of a chat: a chain of runs, each of which inherits the history of the previous one.

Stored runs are recognised as a chat by this label alone. Root runs that a caller starts with it, each with the history
of the previous one, are a chat too.
"""


HOST = "host"
"""Label of hosted root runs, alone or before a colon; alone for programs with a loop of their own."""

MCP_HOST = f"{HOST}:mcp"
"""Label of the root runs of MCP clients."""


def is_hosted(label: str) -> bool:
    """Whether a root run with this label is hosted: it has no model, and calls are made in its name.

    >>> is_hosted(HOST), is_hosted(MCP_HOST), is_hosted("hostile")
    (True, True, False)
    """
    return label.partition(":")[0] == HOST


class HistoryRef(Struct, frozen=True, gc=False, omit_defaults=True):
    """Inherited history of a fork: that of `run_id` after its event `upto`, or only its `last_turns`.

    With `compact` it is compacted before the first model call, although it may fit the model.
    """

    run_id: RunId
    upto: int
    last_turns: int | None = None
    compact: bool = False


class HandleRef(Struct, frozen=True, gc=False):
    """Name of a run in a dialect's name space: `t_01` in the space `spec` of its session."""

    space: str
    name: str


class Lifecycle(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Lifecycle options of a run towards its parent or caller; each dialect chooses its own.

    `keep_alive` keeps the run idle after an answer, waiting for more input. `awaited` means that the caller blocks on
    it. `announce` posts its end to the parent's inbox. `on_parent_end` says whether the run is cancelled, kept or
    waited for when its parent ends. `crash_fails` ends the run when a tool raises an exception other than `ToolError`
    (otherwise the model reads it). With `per_input` the limits of a keep-alive run apply to each input, and a limit or
    a failed model call ends the exchange and not the run; only a time limit still ends the run. A `hosted` run calls no
    model: its calls come from a program outside, and it stays idle until it is closed and its children have ended.
    """

    keep_alive: bool = field(default=False, name="stays")
    awaited: bool = False
    announce: bool = False
    on_parent_end: Literal["cancel", "keep", "wait"] = "cancel"
    crash_fails: bool = False
    per_input: bool = False
    hosted: bool = False


class LimitMet(Struct, frozen=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """The limit that stopped a run: its reason, the amount used and the limit.

    A limit on tokens or cost has a `dimension`; costs are in nanodollars. `left` is what the limit left, and `needed`
    the least that the next call needed of it. For an answer that was cut off, `held` is the number of output tokens
    that the limit left for it. `account` is the run above, or the window, whose limit it is; empty for the run's own.
    """

    reason: EndReason
    used: int
    limit: int
    dimension: Dimension | None = None
    left: int = 0
    needed: int = 0
    held: int = 0
    account: str = ""


class Outcome(Struct, Generic[T_co], frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended; of a run with `output=Person` it is an `Outcome[Person]`.

    `result` is the broad outcome, `reason` the precise one; `text` is the final answer, or the last text of the model
    if there is none; `error` explains any result but success. An empty answer is `completed` with the reason `empty`.
    `structured` is the answer as a JSON value if the run required one, and `output` the answer as the required type;
    `output` and `unwrap` raise `RunFailed` if there is no answer, so that a failure is not taken for one. `usage`,
    `cost`, `turns` and `exchanges` are totals; `estimated` and `estimated_cost` are what is estimated for replies whose
    provider counted nothing, and not part of these; `limit` is the limit that was reached, or that cut the answer off;
    `unstopped` names tool calls that could not be stopped. `citations` are the sources that the vendor's own tools gave
    for parts of `text`.

    >>> Outcome(result="completed", reason="answered", text="42").ok
    True
    >>> Outcome(result="completed", reason="empty").ok
    False
    >>> Outcome(result="timed_out", reason="deadline", error="no time left").unwrap()
    Traceback (most recent call last):
    retinue.core.errors.RunFailed: the run timed out: no time left
    """

    result: Result
    reason: EndReason
    text: str = ""
    error: str = ""
    structured: object = None
    typed: object = None
    """The answer as the type of `output=`; set in the process that waits, and never stored."""
    artifacts: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    cost: int | None = 0
    turns: int = 0
    exchanges: int = 1
    limit: LimitMet | None = None
    unstopped: tuple[str, ...] = ()
    citations: tuple[Citation, ...] = ()
    estimated: Usage = NO_USAGE
    estimated_cost: int = 0

    @property
    def ok(self) -> bool:
        """Whether the run completed with an answer that is not empty."""
        return self.result == "completed" and self.reason != "empty"

    @property
    def output(self) -> T_co:
        """The answer: as the type of `output=`, as a JSON value where a schema was required, else the text.

        Raises `RunFailed` if the run has no answer.
        """
        if not self.ok:
            raise RunFailed(self)
        if self.typed is not None:
            return cast("T_co", self.typed)
        return cast("T_co", self.text if self.structured is None else self.structured)

    def unwrap(self) -> T_co:
        """`output`, or `RunFailed` if the run has no answer."""
        return self.output


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
    citations: tuple[Citation, ...] = ()


class Approval(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A pending approval: a tool call that waits for a person to allow or deny it.

    `arguments` are those that the tool will read (`ToolCall.understood`), not the text that the model wrote.

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
        """Identifies the approval when it is answered."""
        return f"{self.run_id}/{self.turn}/{self.index}"
