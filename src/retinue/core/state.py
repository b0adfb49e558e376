"""A run as its events tell it: the fold.

Only `apply` changes a `Run`, one event at a time, in place: the state is a linear value with one owner, so that a long
run costs as much per event as a short one. Whatever the engine needs after a crash has to be in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.events import (
    CallParked,
    CallReturned,
    Event,
    ExchangeEnded,
    HistoryCompacted,
    MailTaken,
    RepairAsked,
    ReplyReceived,
    ResultCollected,
    RunAccepted,
    RunAdopted,
    RunEnded,
    RunLeft,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.history import NOT_MADE, NOT_OFFERED, UNFINISHED, History, forked
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Answer, Cancel, ChildEnded, Close, Deadline, DependencyEnded, Input, Item, TextMessage
from retinue.core.messages import AssistantMessage, Stop, ToolCall, ToolMessage, UserMessage
from retinue.core.run import Exchange, LimitMet, Outcome
from retinue.core.usage import NO_USAGE, Usage, add_cost


class OpenCall:
    """A call of the last reply: from its intent until all calls of that reply have returned."""

    __slots__ = ("answer", "call", "index", "parked_at", "result", "since", "why_parked")

    def __init__(self, index: int, call: ToolCall, since: int) -> None:
        self.index = index
        self.call = call
        self.since = since
        """The event since which it may start: the reply, or a person's yes."""
        self.parked_at: float | None = None
        self.why_parked = ""
        self.answer: Answer | None = None
        self.result: CallReturned | None = None

    @property
    def waits_for_a_person(self) -> bool:
        """Parked, and nobody has answered yet."""
        return self.parked_at is not None and self.answer is None and self.result is None


class Run:
    """Where a run stands after the events applied so far."""

    __slots__ = (
        "accepted",
        "adopted_seq",
        "answering",
        "calls_made",
        "closing",
        "compactions",
        "context",
        "cost",
        "dependencies",
        "exchange_turns",
        "exchanges",
        "failure",
        "final",
        "heard",
        "history",
        "inputs",
        "latest_input",
        "left_at",
        "open",
        "outcome",
        "parked_seconds",
        "parked_since",
        "policy",
        "repairs",
        "run_spec",
        "seen",
        "seq",
        "stop",
        "system",
        "taken",
        "text",
        "tool_crash",
        "tools_on",
        "turns",
        "unreturned",
        "usage",
        "wrapping",
    )

    def __init__(self, accepted: RunAccepted, run_spec: RunSpec, inherited: History | None = None) -> None:
        self.accepted = accepted
        self.policy = accepted.policy
        """What the run may do; a driver that takes it over cuts this by the settings of its day."""
        self.run_spec = run_spec
        self.system = run_spec.system
        """The system text as sent: the brief's, with the results of the runs that this one waited for."""
        self.dependencies: dict[RunId, DependencyEnded] = {}
        """How the runs ended that this one waits for."""
        self.history = self._beginning(accepted, inherited)
        self.seq = 1
        self.turns = 0
        self.exchange_turns = 0
        self.calls_made = 0
        self.usage: Usage = NO_USAGE
        self.cost: int | None = 0
        self.context = 0
        """The tokens of the first `heard` messages and what is sent with them, as a vendor counted; 0 if unknown."""
        self.heard = 0
        self.compactions = 0
        """How often the history was made shorter since the last reply."""
        self.latest_input = ""
        """The last input after the task."""
        self.text = ""
        """The last words of the model in this exchange; what a reader gets if the run stops here."""
        self.stop: Stop = "end"
        self.open: list[OpenCall] = []
        self.unreturned = 0
        """How many of them have no result yet."""
        self.answering = True
        """An exchange is under way (otherwise the run is idle)."""
        self.tools_on = True
        self.final = False
        """The last reply asked for nothing: the exchange is answered."""
        self.closing = False
        self.wrapping: LimitMet | None = None
        self.repairs = 0
        """How often in this exchange the model was asked for its answer in the form that was demanded."""
        self.failure: TurnFailed | None = None
        self.tool_crash: tuple[int, str] | None = None
        self.exchanges: list[Exchange] = []
        self.parked_seconds = 0.0
        """How long a person or a driver was waited for so far, without the wait that began at `parked_since`."""
        self.parked_since: float | None = None
        self.left_at: float | None = None
        """Since when nobody drives it, if its driver said so."""
        self.adopted_seq = 0
        self.seen: set[RunId] = set()
        self.inputs: dict[Key, int] = {}
        """Which exchange each input began, counted from 1."""
        self.taken: set[Key] = set()
        """Keys of mail that is part of the run already, so that a repeated one is noticed."""
        self.outcome: Outcome | None = None

    @staticmethod
    def _beginning(accepted: RunAccepted, inherited: History | None) -> History:
        last_turns = accepted.inherits.last_turns if accepted.inherits else None
        history = History() if inherited is None else forked(inherited, last_turns=last_turns)
        history.append(UserMessage(text=accepted.task))
        return history

    @property
    def run_id(self) -> RunId:
        """The run's own name."""
        return self.accepted.run_id

    def is_stale(self, call: OpenCall) -> bool:
        """Whether the call could have been started by a driver that is gone."""
        return call.since < self.adopted_seq

    @property
    def is_pending(self) -> bool:
        """Whether it has not begun yet, because it waits for other runs."""
        return any(run_id not in self.dependencies for run_id, _ in self.accepted.after)

    def outcome_as(self, result: Exchange, *, error: str = "", unstopped: tuple[str, ...] = ()) -> Outcome:
        """An outcome with this run's totals."""
        return Outcome(
            result=result.result,
            reason=result.reason,
            text=result.text,
            error=error or result.error,
            structured=result.structured,
            usage=self.usage,
            cost=self.cost,
            turns=self.turns,
            exchanges=len(self.exchanges) + (1 if self.answering else 0),
            limit=result.limit,
            unstopped=unstopped,
        )


def fold(events: Iterable[tuple[int, Event]], run_spec: RunSpec, inherited: History | None = None) -> Run:
    """The run that these numbered events tell of; the first has to be its acceptance."""
    numbered = iter(events)
    _, first = next(numbered, (0, None))
    if not isinstance(first, RunAccepted):
        found = "nothing" if first is None else type(first).__name__
        raise ValueError(f"a run begins with its acceptance, not with {found}")
    run = Run(first, run_spec, inherited)
    for seq, event in numbered:
        apply(run, seq, event)
    return run


def apply(run: Run, seq: int, event: Event) -> None:
    """Let `event`, the `seq`-th of the run, have happened; one that was applied already changes nothing."""
    if seq <= run.seq:
        return
    run.seq = seq
    match event:
        case RunAccepted():
            pass  # the first event made the run
        case RunAdopted(at=at):
            run.adopted_seq = seq
            if run.left_at is not None and run.parked_since is None:
                run.parked_seconds += max(0.0, at - run.left_at)
            run.left_at = None
        case RunLeft(at=at):
            run.left_at = at
        case MailTaken(items=items, at=at):
            run.taken.update(item.key for item in items)
            for item in _with_peers_joined(items):
                _read(run, seq, item, at)
        case ReplyReceived():
            _hear(run, seq, event)
        case CallParked(index=index, at=at, reason=reason):
            run.open[index].parked_at = at
            run.open[index].why_parked = reason
            if run.parked_since is None:
                run.parked_since = at
        case CallReturned():
            _return(run, event)
        case TurnFailed():
            run.failure = event
            run.usage += event.usage
            run.cost = add_cost(run.cost, event.cost)
            if event.partial:
                run.text = event.partial
        case WrapUpAsked(limit=limit, text=text):
            _close_turn(run, NOT_MADE)
            run.wrapping = limit
            run.tools_on = False
            run.final = False
            run.history.append(UserMessage(text=text, origin="engine"))
        case RepairAsked(text=text):
            _close_turn(run, NOT_MADE)
            run.repairs += 1
            run.final = False
            run.history.append(UserMessage(text=text, origin="engine"))
        case ExchangeEnded(exchange=exchange):
            _close_turn(run, NOT_MADE)
            run.exchanges.append(exchange)
            run.answering = False
            run.wrapping = None
        case HistoryCompacted():
            _compact(run, event)
        case ResultCollected(run_id=run_id):
            run.seen.add(run_id)
        case RunEnded(outcome=outcome):
            # Whoever continues this conversation later has to find a result for every call.
            _close_turn(run, NOT_MADE if outcome.result == "exhausted" else UNFINISHED)
            _keep_unfinished_words(run, outcome)
            run.outcome = outcome
        case _:
            assert_never(event)


def _hear(run: Run, seq: int, event: ReplyReceived) -> None:
    reply = event.reply
    run.turns += 1
    run.exchange_turns += 1
    if reply.usage is not None:
        run.usage += reply.usage
    run.cost = add_cost(run.cost, reply.cost)
    run.history.append(reply.message)
    usage = reply.usage or NO_USAGE
    # What a model only thought is mostly not sent again.
    run.context = usage.input + max(0, usage.output - usage.reasoning) if usage.input else 0
    run.heard = len(run.history)
    run.compactions = 0
    run.stop = reply.stop
    if reply.message.text:
        run.text = reply.message.text
    run.open = [OpenCall(index, call, seq) for index, call in enumerate(reply.message.calls)]
    run.unreturned = len(run.open)
    run.final = not run.open


def _compact(run: Run, event: HistoryCompacted) -> None:
    run.history.replace_first(event.replaced, event.messages)
    run.context, run.heard = event.after, len(run.history)
    run.compactions += 1
    run.usage += event.usage
    run.cost = add_cost(run.cost, event.cost)


def _return(run: Run, event: CallReturned) -> None:
    call = run.open[event.index]
    if call.result is None:
        run.unreturned -= 1
    call.result = event
    run.calls_made += 1
    if event.crashed:
        run.tool_crash = (event.turn, event.text)
    if run.unreturned == 0:
        _close_turn(run)


def _close_turn(run: Run, otherwise: str = "") -> None:
    """Results enter the history in the order of the calls, whatever the order in which they came.

    A call that has none, because the turn ends without it, gets the text `otherwise`.
    """
    missing = otherwise if run.tools_on else NOT_OFFERED
    for call in run.open:
        result = call.result
        text, failed = (missing, True) if result is None else (result.text, result.failed)
        run.history.append(ToolMessage(name=call.call.name, call_id=call.call.id, text=text, failed=failed))
    run.open = []
    run.unreturned = 0


def _keep_unfinished_words(run: Run, outcome: Outcome) -> None:
    """What the model was saying when the run was stopped: whoever continues the conversation has heard it."""
    spoken = run.failure.partial if run.failure is not None else outcome.text if outcome.text != run.text else ""
    if spoken.strip() and outcome.result != "completed" and not isinstance(run.history[-1], AssistantMessage):
        run.history.append(AssistantMessage(text=spoken))


def _with_peers_joined(items: tuple[Item, ...]) -> Iterator[Item]:
    """The items, with what peers said one after another made one message; news of children always stands alone."""
    joined: TextMessage | None = None
    for item in items:
        if joined is not None and isinstance(item, TextMessage) and item.origin == "peer":
            joined = replace(joined, text=f"{joined.text}\n\n{item.text}")
            continue
        if joined is not None:
            yield joined
            joined = None
        if isinstance(item, TextMessage) and item.origin == "peer":
            joined = item
        else:
            yield item
    if joined is not None:
        yield joined


def _read(run: Run, seq: int, item: Item, at: float) -> None:
    match item:
        case TextMessage(text=text, origin=origin):
            _begin_exchange_if_idle(run)
            run.final = False
            run.history.append(UserMessage(text=text, origin=origin))
        case Input(text=text, tools=tools, origin=origin):
            _begin_exchange_if_idle(run)
            run.inputs[item.key] = len(run.exchanges) + 1
            run.tools_on = tools
            run.latest_input = text
            run.history.append(UserMessage(text=text, origin=origin))
        case Answer(turn=turn, index=index):
            _hear_answer(run, seq, item, turn, index, at)
        case ChildEnded(notice=notice, run_id=run_id):
            news = run_id not in run.seen
            run.seen.add(run_id)
            if notice and news:
                _begin_exchange_if_idle(run)
                run.final = False
                run.history.append(UserMessage(text=notice, origin="notice"))
        case DependencyEnded(run_id=run_id):
            run.dependencies[run_id] = item
            run.system = run.run_spec.system_with([(each.name, each.text) for each in run.dependencies.values()])
        case Close():
            run.closing = True
        case Cancel() | Deadline():
            pass  # taken together with the end they cause
        case _:
            assert_never(item)


def _hear_answer(run: Run, seq: int, item: Answer, turn: int, index: int, at: float) -> None:
    if turn != run.turns or not 0 <= index < len(run.open) or not run.open[index].waits_for_a_person:
        return  # answered twice, or about a turn that is over
    call = run.open[index]
    call.answer = item
    call.since = seq
    # Waiting for a person does not count as the run's time; calls parked together wait together.
    if run.parked_since is not None and not any(other.waits_for_a_person for other in run.open):
        run.parked_seconds += max(0.0, at - run.parked_since)
        run.parked_since = None


def _begin_exchange_if_idle(run: Run) -> None:
    if not run.answering:
        run.answering = True
        run.tools_on = True
        run.exchange_turns = 0
        run.repairs = 0
        run.text = ""
    run.final = False
