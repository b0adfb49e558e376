"""The next step of a run (`next_step`), decided from its state and inputs alone.

Starting a run, recovering it, resuming it after an approval and moving it to another machine are all this one decision.
`StepInput.busy` says what the engine has in flight; after a crash it is empty, and the next step starts the work again.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.agent import ValidatedOutput
from retinue.core.compaction import ContextOverflow
from retinue.core.events import Advice
from retinue.core.inbox import (
    URGENT,
    ApprovalAnswer,
    Cancel,
    ChildEnded,
    Close,
    Deadline,
    DependencyEnded,
    Input,
    Item,
    TextMessage,
)
from retinue.core.limit_text import limit_text
from retinue.core.run import EndReason, Exchange, LimitMet, Result
from retinue.core.state import Run

READ_AT_TURN_BOUNDARY = (TextMessage, ChildEnded, ApprovalAnswer)
"""Inbox items that a run takes at its next turn boundary."""

MAX_REPAIRS = 2
"""Repairs of the output form in one exchange."""

REPEATS_BEFORE_ADVICE = 3
"""Replies in a row with equal calls and equal results after which the model is told so."""

MAX_CUTS = 3
"""Replies in a row that may be cut off within a call, or before any text."""

MODEL = -1
"""The index of the model call among the indices of tool calls in flight."""


WaitsFor = Literal["model", "calls", "approval", "child", "mail", "dependency"]
"""What a run waits for."""


class StepInput(Struct, gc=False):
    """Inputs of `next_step` besides the run's state.

    `inbox` are the untaken items, `busy` the indices of calls in flight (and `MODEL`), `children` the number of
    children to wait for, `spent` a budget limit that was reached. `validated` is the result of validating
    `answer_to_validate`. `overflow` says that the history must be compacted before the model is called. `held` says
    that a run whose dependencies have ended may not begin yet. `repeats` counts the replies in a row with equal calls
    and equal results; 0 if one of the calls may be repeated, as a dialect's tools may.
    """

    inbox: Sequence[Item] = ()
    busy: AbstractSet[int] = frozenset()
    children: int = 0
    spent: LimitMet | None = None
    validated: ValidatedOutput | None = None
    overflow: ContextOverflow | None = None
    held: bool = False
    repeats: int = 0


class TakeInbox(Struct, frozen=True):
    """Take these items from the inbox."""

    items: tuple[Item, ...]


class CallModel(Struct, frozen=True):
    """Call the model; with `tools` off no tools are offered."""

    tools: bool
    wrap_up: bool = False


class Compact(Struct, frozen=True):
    """Compact the history before the model is called; a wrap-up turn spends nothing on a summary."""

    overflow: ContextOverflow
    wrap_up: bool = False


class RunTools(Struct, frozen=True):
    """Start these tool calls of the last reply."""

    indices: tuple[int, ...]


class WrapUp(Struct, frozen=True):
    """A limit was reached: begin the reserved wrap-up turn."""

    limit: LimitMet


class Repair(Struct, frozen=True):
    """The answer does not have the required form, or `is_cut` and empty: ask the model for it again."""

    error: str
    is_cut: bool = False


class Advise(Struct, frozen=True):
    """Tell the model that it repeats the same calls, or how a tool is called; then call it again."""

    about: Advice
    repeats: int = 0
    error: str = ""


class Wait(Struct, frozen=True):
    """Nothing to do until `why` happens."""

    why: WaitsFor


class EndExchange(Struct, frozen=True):
    """The exchange is over; the run stays alive for the next input."""

    exchange: Exchange


class EndRun(Struct, frozen=True):
    """End the run; `taken` are the inbox items that ended it."""

    exchange: Exchange
    taken: tuple[Item, ...] = ()


class AlreadyEnded(Struct, frozen=True):
    """The run has ended before."""


Step: TypeAlias = (
    TakeInbox | CallModel | Compact | RunTools | WrapUp | Repair | Advise | Wait | EndExchange | EndRun | AlreadyEnded
)


def next_step(run: Run, given: StepInput) -> Step:
    """The next thing to do for a run. Pure: asking changes nothing."""
    if run.outcome is not None:
        return AlreadyEnded()
    for item in given.inbox:
        if isinstance(item, URGENT):
            return _stopped(run, item)
    if run.accepted.lifecycle.hosted:
        return _hosted(run, given)
    if run.accepted.after and (step := _before_begin(run, given)) is not None:
        return step
    if run.failure is not None:
        ended = _exchange(run, "failed", "model_error", run.failure.error)
        return EndExchange(ended) if run.accepted.lifecycle.per_input else EndRun(ended)
    if run.tool_crash is not None and run.accepted.lifecycle.crash_fails:
        return EndRun(_exchange(run, "failed", "tool_error", run.tool_crash[1]))
    if MODEL in given.busy:
        return Wait("model")
    if run.open:
        return _with_open_calls(run, given)
    return _at_turn_boundary(run, given)


def _hosted(run: Run, given: StepInput) -> Step:
    """The step of a run without a model: it takes what it is sent, and ends when it is closed and has no children."""
    if given.inbox:
        return TakeInbox(tuple(given.inbox))
    if not run.closing:
        return Wait("mail")
    return Wait("child") if given.children else EndRun(_exchange(run, "completed", "closed", ""))


def _before_begin(run: Run, given: StepInput) -> Step | None:
    """The step of a run with dependencies; None once all have completed and the run may begin."""
    if ended := tuple(item for item in given.inbox if isinstance(item, DependencyEnded)):
        return TakeInbox(ended)
    for dependency in run.dependencies.values():
        if not dependency.ok:
            error = f"Dependency {dependency.name} failed: {dependency.text}"
            return EndRun(_exchange(run, "failed", "dependency", error))
    return Wait("dependency") if run.is_pending or given.held else None


def answer_to_validate(run: Run) -> str | None:
    """The text that would be the run's final answer, if its run spec requires a certain form."""
    if run.run_spec.output is None or not run.in_exchange or run.outcome is not None:
        return None
    if run.final or (run.open and not run.tools_on):
        return run.history[-1].text
    return None


def _stopped(run: Run, item: Cancel | Deadline) -> EndRun:
    if isinstance(item, Cancel):
        return EndRun(_exchange(run, "cancelled", item.reason, item.note or "cancelled"), (item,))
    return EndRun(_exchange(run, "timed_out", "deadline", f"the run did not finish within {item.seconds:g} s"), (item,))


def _with_open_calls(run: Run, given: StepInput) -> Step:
    if not run.tools_on:
        return _answered(run, given)  # no tool was offered: these calls are not made, and the text is the answer
    if given.inbox and (answers := tuple(item for item in given.inbox if isinstance(item, ApprovalAnswer))):
        return TakeInbox(answers)
    if given.busy and len(given.busy) == run.unreturned:
        return Wait("calls")  # all in flight: do not scan a thousand calls each time one returns
    if run.cuts >= MAX_CUTS:
        return _cut_too_often(run)
    untouched = not given.busy and not any(call.result or call.parked_at is not None for call in run.open)
    if untouched and (limit := _limit_on_open_calls(run)):
        return _limited(run, limit)
    ready = tuple(
        call.index
        for call in run.open
        if call.result is None and call.index not in given.busy and not call.awaits_approval
    )
    if ready:
        return RunTools(ready)
    return Wait("calls" if given.busy else "approval")


def _limit_on_open_calls(run: Run) -> LimitMet | None:
    """The limit that forbids making the calls of the last reply, if one does."""
    limits = run.accepted.limits
    made = run.calls_made - run.calls_before
    if limits.max_calls is not None and made + len(run.open) > limits.max_calls:
        return LimitMet("max_calls", made + len(run.open), limits.max_calls)
    # Without another turn the model would not read the results.
    return _turn_limit(run, wrap_up_included=True)


def _turn_limit(run: Run, *, wrap_up_included: bool = False) -> LimitMet | None:
    """The turn limit that is reached, if any; the wrap-up turn is kept back unless it is included."""
    limits = run.accepted.limits
    if limits.max_turns is None and limits.exchange_turns is None:
        return None
    for used, limit in ((run.turns, limits.max_turns), (run.exchange_turns, limits.exchange_turns)):
        # With a limit of one turn there is no turn left for a wrap-up.
        reserved = 1 if limits.wrap_up and not wrap_up_included and limit is not None and limit > 1 else 0
        if limit is not None and used >= limit - reserved:
            return LimitMet("max_turns", used, limit)
    return None


def _at_turn_boundary(run: Run, given: StepInput) -> Step:
    if not run.in_exchange and (first := _first_input(given)):
        return TakeInbox((first,))
    # A turn that the server has paused goes on first: a message would end it in the middle.
    takes_messages = given.inbox and not run.paused
    messages = tuple(item for item in given.inbox if isinstance(item, READ_AT_TURN_BOUNDARY)) if takes_messages else ()
    # An answer in the last allowed turn is final: no turn is left to read more. An idle run takes messages all the
    # same: one that it has no turn left to answer ends the run, instead of staying in the inbox for ever.
    if messages and run.wrap_up_limit is None:
        is_last_answer = run.in_exchange and run.final and _turn_limit(run, wrap_up_included=True)
        if not is_last_answer:
            return TakeInbox(messages)
    if not run.in_exchange:
        return _idle(run, given)
    if run.final:
        return _answered(run, given)
    if given.spent is not None:
        return _limited(run, given.spent)
    # The turn reserved for an answer may be used to repair one.
    if run.wrap_up_limit is None and (limit := _turn_limit(run, wrap_up_included=run.repairs > 0)):
        return _limited(run, limit)
    if _asks_again(run):
        return Advise("repeats", repeats=run.repeats)
    if given.repeats > 1 and run.wrap_up_limit is None and (step := _repeating(run, given.repeats)) is not None:
        return step
    if given.overflow is not None:
        return Compact(given.overflow, wrap_up=run.wrap_up_limit is not None)
    return CallModel(tools=run.tools_on and run.wrap_up_limit is None, wrap_up=run.wrap_up_limit is not None)


def _asks_again(run: Run) -> bool:
    """Whether a model that writes its calls as text has asked for a result that it has; it is told once.

    Such a model often does not see that the result of its call is there, also of a call that delegates.
    """
    return (
        run.is_same_result
        and run.writes_calls
        and "repeats" not in run.advised
        and run.wrap_up_limit is None
        and run.accepted.limits.max_repeats is not None
    )


def _repeating(run: Run, repeats: int) -> Step | None:
    """The step after so many replies in a row with equal calls and results; None if there are few of them."""
    most = run.accepted.limits.max_repeats
    if most is None:
        return None
    if repeats >= most:
        return _limited(run, LimitMet("looping", repeats, most))
    if repeats >= REPEATS_BEFORE_ADVICE and "repeats" not in run.advised:
        return Advise("repeats", repeats=repeats)
    return None


def _first_input(given: StepInput) -> Input | None:
    """The first input, if no message precedes it; messages after an input belong to the exchange that it begins."""
    first = next((item for item in given.inbox if isinstance(item, (Input, *READ_AT_TURN_BOUNDARY))), None)
    return first if isinstance(first, Input) else None


def _idle(run: Run, given: StepInput) -> Step:
    if closes := tuple(item for item in given.inbox if isinstance(item, Close)):
        return TakeInbox(closes)
    return EndRun(run.exchanges[-1]) if run.closing else Wait("mail")


def _answered(run: Run, given: StepInput) -> Step:
    is_silent = run.writes_calls and bool(run.last_calls) and not run.text
    if (run.call_error or is_silent) and _may_call_again(run):
        return Advise("call_form", error=run.call_error)
    if given.children:
        return Wait("child")
    validated = given.validated
    if run.cuts and not run.open and run.cut_by is None and run.wrap_up_limit is None:
        if run.cuts < MAX_CUTS and run.repairs < MAX_REPAIRS and not _turn_limit(run, wrap_up_included=True):
            return Repair("", is_cut=True)
        return _cut_too_often(run)
    if validated is not None and validated.error and _can_be_repaired(run):
        return Repair(_output_error(run, validated))
    ended = _final_exchange(run, validated)
    run_is_over = run.wrap_up_limit is not None and not _ends_only_the_exchange(run, run.wrap_up_limit)
    return EndExchange(ended) if run.accepted.lifecycle.keep_alive and not run_is_over else EndRun(ended)


def _may_call_again(run: Run) -> bool:
    """Whether the model may be told once how a tool is called."""
    return (
        "call_form" not in run.advised
        and run.tools_on
        and run.wrap_up_limit is None
        and not _turn_limit(run, wrap_up_included=True)
    )


def _cut_too_often(run: Run) -> Step:
    """The end after replies of which nothing could be used; without it, a run would ask until its last turn."""
    times = "once" if run.cuts == 1 else f"{run.cuts} times in a row"
    error = (
        f"the reply was cut off at the output limit {times}, before it was complete; raise max_output_tokens, lower "
        "the effort, or ask for smaller pieces"
    )
    ended = _exchange(run, "failed", "length", error, limit=run.cut_by)
    return EndExchange(ended) if run.accepted.lifecycle.per_input else EndRun(ended)


def _can_be_repaired(run: Run) -> bool:
    return (
        run.repairs < MAX_REPAIRS
        and run.wrap_up_limit is None
        and run.stop != "refusal"
        and not _turn_limit(run, wrap_up_included=True)
    )


def _output_error(run: Run, validated: ValidatedOutput) -> str:
    return f"it was cut off at the output limit; {validated.error}" if run.stop == "length" else validated.error


def _final_exchange(run: Run, validated: ValidatedOutput | None) -> Exchange:
    value = validated.value if validated is not None and not validated.error else None
    if run.wrap_up_limit is not None:
        return _exhausted(run, run.wrap_up_limit, structured=value)
    if run.stop == "refusal":
        return _exchange(run, "failed", "refusal", "the model declined to answer")
    if validated is not None and validated.error:
        error = f"the answer is not of the form that was demanded: {_output_error(run, validated)}"
        return _exchange(run, "failed", "bad_output", error)
    # A text of the demanded form is in the last reply alone.
    text = run.answer.text if run.run_spec.output is None else run.history[-1].text
    reason = "empty" if not text.strip() else "length" if run.stop == "length" else "answered"
    return _exchange(run, "completed", reason, "", text=text, structured=value, limit=run.cut_by)


def _limited(run: Run, limit: LimitMet) -> Step:
    """The step after a limit: the wrap-up turn if one is reserved, otherwise the end of the exchange or of the run."""
    if run.accepted.limits.wrap_up and run.wrap_up_limit is None and not _turn_limit(run, wrap_up_included=True):
        return WrapUp(limit)
    ended = _exhausted(run, run.wrap_up_limit or limit)  # not what the wrap-up itself would have needed
    if run.accepted.lifecycle.keep_alive and _ends_only_the_exchange(run, limit):
        return EndExchange(ended)
    return EndRun(ended)


def _ends_only_the_exchange(run: Run, limit: LimitMet) -> bool:
    """Whether a keep-alive run may continue with its next input after this limit."""
    if run.accepted.lifecycle.per_input and limit.reason != "max_turns":
        return True
    max_turns = run.accepted.limits.max_turns
    return limit.reason in ("max_turns", "looping") and (max_turns is None or run.turns < max_turns)


def _exhausted(run: Run, limit: LimitMet, structured: object = None) -> Exchange:
    if limit.reason == "max_turns":
        limit = _turn_limit(run, wrap_up_included=True) or limit  # the wrap-up turn is used now, too
    return _exchange(run, "exhausted", limit.reason, limit_text(limit), structured=structured, limit=limit)


def _exchange(
    run: Run,
    result: Result,
    reason: EndReason,
    error: str,
    *,
    text: str | None = None,
    structured: object = None,
    limit: LimitMet | None = None,
) -> Exchange:
    text = run.text if text is None else text
    return Exchange(
        result=result,
        reason=reason,
        text=text,
        error=error,
        structured=structured,
        turns=run.exchange_turns,
        limit=limit,
        citations=run.answer.citations if text and text == run.answer.text else (),
    )
