"""State of a run, computed by folding its events, and its message history, which forks share.

Only `apply` changes a `Run`, one event at a time and in place, so that a long run costs as much per event as a short
one; a `Run` has one owner. Everything the engine needs after a crash has to be in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import assert_never, overload

import msgspec
from msgspec.structs import replace

from retinue.core import inbox
from retinue.core.agent import RunSpec
from retinue.core.budget import Amount
from retinue.core.events import (
    STOPPED,
    Advice,
    AdviceGiven,
    AgentChanged,
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
from retinue.core.ids import Key, RunId
from retinue.core.messages import AssistantMessage, Message, Stop, ToolCall, ToolMessage, UserMessage
from retinue.core.run import Approval, Exchange, LimitMet, Outcome
from retinue.core.text import NOT_JSON
from retinue.core.usage import NO_USAGE, Usage, add_cost

STILL_OPEN = (
    "[you are a fork of the conversation above: a sub-agent with a task of your own, which follows. This call goes on "
    "in the original conversation; its result is not available here]"
)
NOT_MADE = "[this call was not made: a limit was reached]"
NOT_OFFERED = "[this call was not made: no tool was offered]"
UNFINISHED = "[the run ended before this call returned; it may or may not have happened]"
LEFT_OUT = "[earlier parts of this conversation were left out]"


class History(Sequence[Message]):
    """A sequence of messages: segments inherited from other runs, then this run's own.

    A fork refers to its parent's list and the number of inherited messages, so the parent can append without affecting
    the fork. The segments of a fork's fork are kept side by side instead of nested, so a conversation continued a
    thousand times is read in one pass. A shared list is changed only by appending.
    """

    __slots__ = ("_inherited", "_own", "_pieces")

    def __init__(self, base: History | None = None) -> None:
        self._pieces: tuple[tuple[Sequence[Message], int], ...] = ()
        self._inherited = 0
        self._own: list[Message] = []
        if base is not None:
            self._pieces = (*base._pieces, (base._own, len(base._own))) if base._own else base._pieces
            self._inherited = len(base)

    def append(self, message: Message) -> None:
        self._own.append(message)

    def replace_first(self, count: int, by: Sequence[Message]) -> None:
        """Replace the first `count` messages by `by`; existing forks are not affected."""
        kept = self[count:]
        self._pieces, self._inherited = ((tuple(by), len(by)),), len(by)
        self._own = kept

    @property
    def inherited(self) -> int:
        return self._inherited

    def __len__(self) -> int:
        return self._inherited + len(self._own)

    def __iter__(self) -> Iterator[Message]:
        if not self._pieces:
            return iter(self._own)
        return chain(chain.from_iterable(islice(piece, length) for piece, length in self._pieces), self._own)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if not self._pieces:
            return self._own[index]
        if isinstance(index, slice):
            return self._slice(index)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        for piece, length in self._pieces:
            if index < length:
                return piece[index]
            index -= length
        return self._own[index]

    def _slice(self, wanted: slice) -> list[Message]:
        start, stop, step = wanted.indices(len(self))
        if start >= self._inherited and step > 0:  # only own messages: skip the walk through inherited ones
            return self._own[start - self._inherited : max(start, stop) - self._inherited : step]
        return list(self)[wanted]


def forked(parent: History, *, last_turns: int | None = None) -> History:
    """A history that begins with the current messages of `parent`, with a placeholder result for each open call.

    Providers reject a conversation with a tool call that has no result; the placeholder says that the call continues
    in the original conversation.
    """
    child = History(parent) if last_turns is None else _recent(parent, last_turns)
    for repair in unanswered(child, STILL_OPEN):
        child.append(repair)
    return child


def unanswered(history: Sequence[Message], text: str) -> list[ToolMessage]:
    """A failed result with `text` for each call of the last message, if that is a reply."""
    last = history[-1] if history else None
    return not_made(last.calls, text) if isinstance(last, AssistantMessage) else []


def not_made(calls: Sequence[ToolCall], text: str) -> list[ToolMessage]:
    return [ToolMessage(name=call.name, call_id=call.id, text=text, failed=True) for call in calls]


def _recent(parent: History, turns: int) -> History:
    """The last `turns` turns, beginning with a user message and never with a result without its call."""
    starts = [i for i, message in enumerate(parent) if isinstance(message, AssistantMessage)]
    child = History()
    if turns > 0:
        start = starts[-turns] if len(starts) >= turns else 0
        while start > 0 and isinstance(parent[start - 1], UserMessage):
            start -= 1
        if start > 0 and not isinstance(parent[start], UserMessage):
            child.append(UserMessage(text=LEFT_OUT, origin="engine"))
        for message in parent[start:]:
            child.append(message)
    return child


class OpenCall:
    """A tool call of the last reply, until all calls of that reply have returned."""

    __slots__ = ("answer", "call", "index", "parked_at", "parked_reason", "result", "since")

    def __init__(self, index: int, call: ToolCall, since: int) -> None:
        self.index = index
        self.call = call
        self.since = since
        """Number of the event after which it may start: the reply, or the answer that approved it."""
        self.parked_at: float | None = None
        self.parked_reason = ""
        self.answer: inbox.ApprovalAnswer | None = None
        self.result: CallReturned | None = None

    @property
    def awaits_approval(self) -> bool:
        """Whether the call is parked and its approval has not been answered."""
        return self.parked_at is not None and self.answer is None and self.result is None


class Run:
    """State of a run after the events applied so far."""

    # fmt: off
    __slots__ = (
        "accepted", "adopted_seq", "advised", "answer", "call_error", "calls_before", "calls_made", "closing",
        "compactions", "context", "cost", "counted_messages", "cut_by", "cuts", "dependencies", "estimated",
        "estimated_cost", "exchange_at", "exchange_turns", "exchanges", "failure", "final", "history", "in_exchange",
        "inputs", "is_same_result", "last_calls", "latest_input", "left_at", "open", "outcome", "parked_before",
        "parked_seconds", "parked_since", "paused", "policy", "repairs", "repeats", "reply_tokens", "run_spec",
        "seen", "seq", "spent_before", "stop", "system", "taken", "text", "tool_crash", "tools_on", "turns",
        "unreturned", "usage", "wrap_up_limit", "writes_calls",
    )
    # fmt: on

    def __init__(self, accepted: RunAccepted, run_spec: RunSpec, inherited: History | None = None) -> None:
        self.accepted = accepted
        self.policy = accepted.policy
        """The run's policy; a driver that adopts the run narrows it by its own configuration."""
        self.run_spec = run_spec
        self.system = run_spec.system
        """The system text as sent: that of the run spec, with the results of the run's dependencies."""
        self.dependencies: dict[RunId, inbox.DependencyEnded] = {}
        """The ended ones of the runs that must complete before this one begins."""
        last_turns = accepted.inherits.last_turns if accepted.inherits else None
        self.history = History() if inherited is None else forked(inherited, last_turns=last_turns)
        self.history.append(UserMessage(text=accepted.task, attachments=accepted.attachments))
        self.seq = 1
        self.turns = 0
        self.exchange_turns = 0
        self.exchange_at = accepted.at
        """When the exchange began."""
        self.calls_made = 0
        self.calls_before = 0
        """Calls that a limit for each input does not count: those made before the last input."""
        self.spent_before: Amount | None = None
        """What the tree had used before the last input, if limits apply to each input."""
        self.usage: Usage = NO_USAGE
        self.cost: int | None = 0
        self.estimated: Usage = NO_USAGE
        self.estimated_cost = 0
        """What limits are charged for replies whose provider counted nothing; `usage` and `cost` do not contain it."""
        self.context = 0
        """Tokens of a request with the first `counted_messages` messages, as the vendor counted; 0 if unknown."""
        self.counted_messages = 0
        self.compactions = 0
        """Compactions of the history since the last reply."""
        self.latest_input = ""
        """The last input after the task."""
        self.text = ""
        """The last text of the model in this exchange; the outcome's text if the run stops here."""
        self.answer = AssistantMessage()
        """The last reply; after a pause, its text and those before the pause."""
        self.paused = False
        """Whether the vendor's server has paused in the last reply, and goes on with it when it is sent back."""
        self.stop: Stop = "end"
        self.cut_by: LimitMet | None = None
        """The limit that cut off the last reply, if one did."""
        self.cuts = 0
        """How many replies in a row were cut off at the output limit within a call, or before any text."""
        self.reply_tokens = 0
        """Output tokens of the last reply; 0 if they were not counted."""
        self.open: list[OpenCall] = []
        self.unreturned = 0
        """Number of open calls without a result."""
        self.in_exchange = not accepted.lifecycle.hosted
        """Whether an exchange is in progress; otherwise the run is idle."""
        self.tools_on = True
        self.final = False
        """Whether the last reply made no calls, so that the exchange is answered."""
        self.closing = False
        self.wrap_up_limit: LimitMet | None = None
        """The limit that began the wrap-up turn, during that turn."""
        self.repairs = 0
        """Repairs of the output form in this exchange."""
        self.repeats = 0
        """Replies in a row with equal calls and equal results, the last one included."""
        self.last_calls: list[OpenCall] = []
        """The calls of the last reply whose calls have all returned."""
        self.call_error = ""
        """Why the last reply, meant as a call, could not be read as one; empty for any other reply."""
        self.writes_calls = False
        """Whether the model has written calls as text, as small models do."""
        self.is_same_result = False
        """Whether the last calls had the results of those before, whatever their arguments."""
        self.advised: frozenset[Advice] = frozenset()
        """What the model was told about its calls in this exchange, and since it last made other calls."""
        self.failure: TurnFailed | None = None
        self.tool_crash: tuple[int, str] | None = None
        self.exchanges: list[Exchange] = []
        self.parked_seconds = 0.0
        """Total time spent waiting for approvals or a driver, without the wait that began at `parked_since`."""
        self.parked_since: float | None = None
        self.parked_before = 0.0
        """The `parked_seconds` at the beginning of the exchange."""
        self.left_at: float | None = None
        """When the last driver stopped working on the run, while the run has no driver."""
        self.adopted_seq = 0
        self.seen: set[RunId] = set()
        self.inputs: dict[Key, int] = {}
        """Number of the exchange that each input began, counted from 1."""
        self.taken: set[Key] = set()
        """Keys of taken inbox items, to recognise repeated ones."""
        self.outcome: Outcome | None = None

    @property
    def run_id(self) -> RunId:
        return self.accepted.run_id

    def open_questions(self) -> list[Approval]:
        """The calls that wait for a person."""
        accepted = self.accepted
        return [
            Approval(
                run_id=accepted.run_id,
                path=accepted.path,
                turn=self.turns,
                index=call.index,
                tool=call.call.name,
                arguments=call.call.understood,
                reason=call.parked_reason,
            )
            for call in self.open
            if call.awaits_approval
        ]

    def is_stale(self, call: OpenCall) -> bool:
        return call.since < self.adopted_seq

    @property
    def is_pending(self) -> bool:
        """Whether the run has not begun because some of its dependencies have not ended."""
        return any(run_id not in self.dependencies for run_id, _ in self.accepted.after)

    def outcome_as(self, result: Exchange, *, error: str = "", unstopped: tuple[str, ...] = ()) -> Outcome:
        """`result` as an outcome, with this run's totals."""
        return Outcome(
            result=result.result,
            reason=result.reason,
            text=result.text,
            error=error or result.error,
            structured=result.structured,
            usage=self.usage,
            cost=self.cost,
            turns=self.turns,
            exchanges=len(self.exchanges) + (1 if self.in_exchange else 0),
            limit=result.limit,
            unstopped=unstopped,
            citations=result.citations,
            estimated=self.estimated,
            estimated_cost=self.estimated_cost,
        )


def fold(events: Iterable[tuple[int, Event]], run_spec: RunSpec, inherited: History | None = None) -> Run:
    """The state of a run after its numbered events, the first of which must be `RunAccepted`."""
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
    """Apply event number `seq` to the run; an event that was applied before changes nothing."""
    if seq <= run.seq:
        return
    run.seq = seq
    match event:  # the events of every turn first: the cases are compared in order
        case ReplyReceived():
            _apply_reply(run, seq, event)
        case CallReturned():
            _apply_return(run, event)
        case RunAccepted():
            pass  # the first event made the run
        case RunAdopted(at=at):
            run.adopted_seq = seq
            if run.left_at is not None and run.parked_since is None:
                run.parked_seconds += max(0.0, at - run.left_at)
            run.left_at = None
        case RunLeft(at=at):
            # The last sign of life of a driver that crashed may be older than the run, or than its exchange.
            run.left_at = max(at, run.accepted.at, run.exchange_at)
        case MailTaken(items=items, at=at, spent_before=spent_before):
            run.taken.update(item.key for item in items)
            if spent_before is not None:
                run.spent_before = spent_before
            for item in _with_peer_messages_joined(items):
                _apply_item(run, seq, item, at)
        case CallParked(index=index, at=at, reason=reason):
            run.open[index].parked_at = at
            run.open[index].parked_reason = reason
            if run.parked_since is None:
                run.parked_since = at
        case TurnFailed():
            run.usage += event.usage
            run.cost = add_cost(run.cost, event.cost)
            if event.fault != STOPPED:
                run.failure = event
            if event.partial:
                run.text = event.partial
        case WrapUpAsked(limit=limit, text=text):
            _close_turn(run, NOT_MADE)
            run.wrap_up_limit = limit
            run.tools_on = False
            run.final = run.paused = False
            run.history.append(UserMessage(text=text, origin="engine"))
        case RepairAsked(text=text):
            _close_turn(run, NOT_MADE)
            run.repairs += 1
            run.final = False
            run.history.append(UserMessage(text=text, origin="engine"))
        case AdviceGiven(about=about, text=text):
            run.advised = frozenset((*run.advised, about))
            run.final = False
            run.history.append(UserMessage(text=text, origin="engine"))
        case ExchangeEnded(exchange=exchange):
            _close_turn(run, NOT_MADE)
            _keep_unfinished_text(run, exchange)
            run.exchanges.append(exchange)
            run.in_exchange = run.paused = False
            run.wrap_up_limit = None
            run.failure = None
        case HistoryCompacted():
            _apply_compaction(run, event)
        case AgentChanged(run_spec=run_spec, policy=policy):
            run.run_spec, run.policy = run_spec, policy
            run.system = run_spec.system_with([(ended.name, ended.text) for ended in run.dependencies.values()])
        case ResultCollected(run_id=run_id):
            run.seen.add(run_id)
        case RunEnded(outcome=outcome):
            # A run that continues this conversation later needs a result for every call.
            _close_turn(run, NOT_MADE if outcome.result == "exhausted" else UNFINISHED)
            _keep_unfinished_text(run, outcome)
            run.outcome = outcome
        case _:
            assert_never(event)


def _apply_reply(run: Run, seq: int, event: ReplyReceived) -> None:
    reply = event.reply
    run.turns += 1
    run.exchange_turns += 1
    if reply.usage is not None:
        run.usage += reply.usage
    run.cost = add_cost(run.cost, reply.cost)
    if event.failed.total:
        run.usage += event.failed
        run.cost = add_cost(run.cost, event.failed_cost)
    if event.estimated is not None:
        run.estimated += event.estimated
        run.estimated_cost += event.estimated_cost or 0
    run.history.append(reply.message)
    usage = reply.usage or NO_USAGE
    # Reasoning is usually not sent again.
    run.context = usage.input + max(0, usage.output - usage.reasoning) if usage.input else 0
    run.reply_tokens = usage.output
    run.counted_messages = len(run.history)
    run.compactions = 0
    run.stop, run.cut_by = reply.stop, event.cut_by
    run.call_error = reply.call_error
    run.writes_calls = run.writes_calls or reply.calls_in_text
    if run.paused:
        run.answer = joined(run.answer, reply.message)
    else:
        run.answer = reply.message
    run.paused = reply.stop == "pause" and not reply.message.calls
    if run.answer.text:
        run.text = run.answer.text
    run.cuts = run.cuts + 1 if reply.stop == "length" and is_cut(reply.message) else 0
    run.open = [OpenCall(index, call, seq) for index, call in enumerate(reply.message.calls)]
    run.unreturned = len(run.open)
    run.final = not run.open and not run.paused


def joined(first: AssistantMessage, second: AssistantMessage) -> AssistantMessage:
    """The text of two replies of one turn, the first of which paused, with the citations of both.

    >>> from retinue.core.messages import Citation
    >>> joined(AssistantMessage("It is "), AssistantMessage("42.", citations=(Citation("u", end=3),))).citations
    (Citation(url='u', title='', quote='', start=6, end=9),)
    """
    shift = len(first.text)
    moved = (replace(each, start=each.start + shift, end=each.end + shift) for each in second.citations)
    return AssistantMessage(first.text + second.text, citations=(*first.citations, *moved))


def is_cut(message: AssistantMessage) -> bool:
    """Whether a reply that ended at the output limit lost a call or its whole answer; a cut text is an answer."""
    if message.calls:
        return is_unfinished(message.calls[-1])
    return not message.text.strip()


def is_unfinished(call: ToolCall) -> bool:
    """Whether the arguments of a call are no whole JSON object.

    >>> is_unfinished(ToolCall("write", '{"path": "a", "text": "once up')), is_unfinished(ToolCall("ls", "{}"))
    (True, False)
    """
    try:
        return not isinstance(msgspec.json.decode(call.arguments), dict)
    except NOT_JSON:
        return True


def _apply_compaction(run: Run, event: HistoryCompacted) -> None:
    run.history.replace_first(event.replaced, event.messages)
    run.context, run.counted_messages = event.after, len(run.history)
    run.compactions += 1
    run.usage += event.usage
    run.cost = add_cost(run.cost, event.cost)
    if event.estimated.total:  # the sum would be a new object, which is stored although it is empty
        run.estimated += event.estimated
    run.estimated_cost += event.estimated_cost


def _apply_return(run: Run, event: CallReturned) -> None:
    call = run.open[event.index]
    if call.result is None:
        run.unreturned -= 1
    call.result = event
    run.calls_made += 1
    if event.crashed:
        run.tool_crash = (event.turn, event.text)
    if run.unreturned == 0:
        _count_repeats(run)
        _close_turn(run)


def _count_repeats(run: Run) -> None:
    """Compare the returned calls with those of the reply before; texts are compared, not copied."""
    run.is_same_result = len(run.open) == len(run.last_calls) and all(map(_has_same_result, run.open, run.last_calls))
    if run.is_same_result and all(map(_has_same_arguments, run.open, run.last_calls)):
        run.repeats += 1
    else:
        run.repeats = 1
        run.advised -= {"repeats"}
    run.last_calls = run.open


def _has_same_result(call: OpenCall, other: OpenCall) -> bool:
    mine, others = call.result, other.result
    return (
        mine is not None
        and others is not None
        and call.call.name == other.call.name
        and mine.text == others.text
        and mine.attachments == others.attachments
    )


def _has_same_arguments(call: OpenCall, other: OpenCall) -> bool:
    return call.call.arguments == other.call.arguments


def _forget_repeats(run: Run) -> None:
    """A new message may be a reason to make the same call again."""
    run.repeats = 0
    run.is_same_result = False
    run.last_calls = []


def _close_turn(run: Run, placeholder: str = "") -> None:
    """Append the results of all open calls to the history, in order; a missing one is a failed result `placeholder`."""
    placeholder = placeholder if run.tools_on else NOT_OFFERED
    for call in run.open:
        result = call.result
        name, call_id = call.call.name, call.call.id
        if result is None:
            message = ToolMessage(name=name, call_id=call_id, text=placeholder, failed=True)
        else:
            message = ToolMessage(name, result.text, call_id, result.failed, result.attachments)
        run.history.append(message)
    run.open = []
    run.unreturned = 0


def _keep_unfinished_text(run: Run, end: Outcome | Exchange) -> None:
    """Append the partial reply of a stopped run or exchange to the history: subscribers have received it already."""
    partial = run.failure.partial if run.failure is not None else end.text if end.text != run.text else ""
    if partial.strip() and end.result != "completed" and not isinstance(run.history[-1], AssistantMessage):
        run.history.append(AssistantMessage(text=partial))


def _with_peer_messages_joined(items: tuple[inbox.Item, ...]) -> Iterator[inbox.Item]:
    """The items with successive peer messages joined into one; notices of children are never joined."""
    joined: inbox.TextMessage | None = None
    for item in items:
        if joined is not None and isinstance(item, inbox.TextMessage) and item.origin == "peer":
            joined = replace(joined, text=f"{joined.text}\n\n{item.text}")
            continue
        if joined is not None:
            yield joined
            joined = None
        if isinstance(item, inbox.TextMessage) and item.origin == "peer":
            joined = item
        else:
            yield item
    if joined is not None:
        yield joined


def _apply_item(run: Run, seq: int, item: inbox.Item, at: float) -> None:
    match item:
        case inbox.TextMessage(text=text, origin=origin):
            _begin_exchange_if_idle(run, at)
            _forget_repeats(run)
            run.final = False
            run.history.append(UserMessage(text=text, origin=origin, attachments=item.attachments))
        case inbox.Input(text=text, tools=tools, origin=origin):
            _begin_exchange_if_idle(run, at)
            if run.accepted.lifecycle.per_input:
                run.calls_before = run.calls_made
            run.inputs[item.key] = len(run.exchanges) + 1
            run.tools_on = tools
            run.latest_input = text
            run.history.append(UserMessage(text=text, origin=origin, attachments=item.attachments))
        case inbox.ApprovalAnswer(turn=turn, index=index):
            _apply_approval_answer(run, seq, item, turn, index, at)
        case inbox.ChildEnded(notice=notice, run_id=run_id):
            is_new = run_id not in run.seen
            run.seen.add(run_id)
            if notice and is_new:
                _begin_exchange_if_idle(run, at)
                _forget_repeats(run)
                run.final = False
                run.history.append(UserMessage(text=notice, origin="notice"))
        case inbox.DependencyEnded(run_id=run_id):
            run.dependencies[run_id] = item
            run.system = run.run_spec.system_with([(ended.name, ended.text) for ended in run.dependencies.values()])
        case inbox.Close():
            run.closing = True
        case inbox.Cancel() | inbox.Deadline():
            pass  # recorded together with the end that they cause
        case _:
            assert_never(item)


def _apply_approval_answer(run: Run, seq: int, item: inbox.ApprovalAnswer, turn: int, index: int, at: float) -> None:
    if turn != run.turns or not 0 <= index < len(run.open) or not run.open[index].awaits_approval:
        return  # answered before, or for an earlier turn
    call = run.open[index]
    call.answer = item
    call.since = seq
    # Waiting for an approval does not count towards the deadline; overlapping waits count once.
    if run.parked_since is not None and not any(other.awaits_approval for other in run.open):
        run.parked_seconds += max(0.0, at - run.parked_since)
        run.parked_since = None


def _begin_exchange_if_idle(run: Run, at: float) -> None:
    if not run.in_exchange and not run.accepted.lifecycle.hosted:
        run.in_exchange = True
        run.exchange_at = at
        run.parked_before = run.parked_seconds
        run.tools_on = True
        run.exchange_turns = 0
        run.repairs = 0
        run.advised = frozenset()
        _forget_repeats(run)
        run.cuts = 0
        run.text = ""
        run.answer = AssistantMessage()
    run.final = False
