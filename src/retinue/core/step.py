"""What a run does next, decided from its state alone.

Starting a run, recovering it, waking it from an approval and moving it to another machine are all this one question.
What the engine has in flight is told by `StepInput.busy`; after a crash nothing is, and the answer starts it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.agent import ValidatedOutput
from retinue.core.compaction import ContextOverflow
from retinue.core.inbox import (
    URGENT,
    Answer,
    Cancel,
    ChildEnded,
    Close,
    Deadline,
    DependencyEnded,
    Input,
    Item,
    TextMessage,
)
from retinue.core.run import EndReason, Exchange, LimitMet, Result
from retinue.core.state import Run

NEWS = (TextMessage, ChildEnded, Answer)
"""What a run reads at its next turn boundary."""

MAX_REPAIRS = 2
"""How often in one exchange a model is asked again for an answer in the form that was demanded."""

MODEL = -1
"""Stands among the indices of calls in flight for the model itself."""


WaitsFor = Literal["model", "calls", "approval", "child", "mail", "dependency"]
"""What has to happen before a run does anything more."""


class StepInput(Struct, gc=False):
    """What surrounds a run: its untaken mail, what is in flight, children it has to wait for, a spent allowance.

    `judged` is the verdict on `answer_to_judge`, where there is one. `crowded` says that the model cannot be asked
    before the history is shorter. `held` says that a run that waited for others has no place to begin yet.
    """

    inbox: Sequence[Item] = ()
    busy: AbstractSet[int] = frozenset()
    children: int = 0
    spent: LimitMet | None = None
    validated: ValidatedOutput | None = None
    overflow: ContextOverflow | None = None
    held: bool = False


class Take(Struct, frozen=True):
    """Take these items out of the inbox."""

    items: tuple[Item, ...]


class Ask(Struct, frozen=True):
    """Ask the model; with `tools` off none is offered."""

    tools: bool
    wrap_up: bool = False


class Compact(Struct, frozen=True):
    """Make the history shorter before the model is asked; a wrap-up turn spends nothing on a summary."""

    overflow: ContextOverflow
    wrap_up: bool = False


class Perform(Struct, frozen=True):
    """Make these calls of the last reply."""

    indices: tuple[int, ...]


class WrapUp(Struct, frozen=True):
    """A limit was met: begin the reserved last turn."""

    limit: LimitMet


class Repair(Struct, frozen=True):
    """The answer is not of the form that was demanded: ask for it once more."""

    error: str


class Wait(Struct, frozen=True):
    """Nothing to do until something arrives."""

    why: WaitsFor


class EndExchange(Struct, frozen=True):
    """This input is answered; stay for the next."""

    exchange: Exchange


class End(Struct, frozen=True):
    """The run is over; `taken` is the mail that ended it."""

    exchange: Exchange
    taken: tuple[Item, ...] = ()


class Rest(Struct, frozen=True):
    """The run has ended already."""


Step: TypeAlias = Take | Ask | Compact | Perform | WrapUp | Repair | Wait | EndExchange | End | Rest

EXPLAINED: dict[EndReason, str] = {
    "max_turns": "the turn limit was reached without a final answer",
    "max_tokens": "the token budget is spent",
    "max_cost": "the cost budget (in nanodollars) is spent",
    "max_calls": "the tool call budget is spent",
    "window": "the allowance of this period is spent",
}


def next_step(run: Run, now: StepInput) -> Step:
    """The one thing to do next."""
    if run.outcome is not None:
        return Rest()
    for item in now.inbox:
        if isinstance(item, URGENT):
            return _stopped(run, item)
    if run.accepted.after and (step := _before_it_begins(run, now)) is not None:
        return step
    if run.failure is not None:
        return End(_exchange(run, "failed", "model_error", run.failure.error))
    if run.tool_crash is not None and run.accepted.lifecycle.crash_fails:
        return End(_exchange(run, "failed", "tool_error", run.tool_crash[1]))
    if MODEL in now.busy:
        return Wait("model")
    if run.open:
        return _with_open_calls(run, now)
    return _at_the_boundary(run, now)


def _before_it_begins(run: Run, now: StepInput) -> Step | None:
    """What a run does that waits for others to complete; None once they all have, and there is a place for it."""
    if arrived := tuple(item for item in now.inbox if isinstance(item, DependencyEnded)):
        return Take(arrived)
    for ended in run.dependencies.values():
        if not ended.ok:
            return End(_exchange(run, "failed", "dependency", f"Dependency {ended.name} failed: {ended.text}"))
    return Wait("dependency") if run.is_pending or now.held else None


def answer_to_judge(run: Run) -> str | None:
    """The words that would be the run's final answer, if they have to be of a certain form."""
    if run.run_spec.output is None or not run.answering or run.outcome is not None:
        return None
    if run.final or (run.open and not run.tools_on):
        return run.history[-1].text
    return None


def _stopped(run: Run, item: Cancel | Deadline) -> End:
    if isinstance(item, Cancel):
        return End(_exchange(run, "cancelled", item.reason, item.note or "cancelled"), (item,))
    return End(_exchange(run, "timed_out", "deadline", f"the run did not finish within {item.seconds:g} s"), (item,))


def _with_open_calls(run: Run, now: StepInput) -> Step:
    if not run.tools_on:
        return _answered(run, now)  # no tool was offered: these calls are not made, and the words are the answer
    answers = tuple(item for item in now.inbox if isinstance(item, Answer))
    if answers:
        return Take(answers)
    if now.busy and len(now.busy) == run.unreturned:
        return Wait("calls")  # all under way: a thousand of them need not be looked at each time one returns
    untouched = not now.busy and not any(call.result or call.parked_at is not None for call in run.open)
    if untouched and (limit := _calls_are_too_many(run)):
        return _limited(run, limit)
    ready = tuple(
        call.index
        for call in run.open
        if call.result is None and call.index not in now.busy and not call.waits_for_a_person
    )
    if ready:
        return Perform(ready)
    return Wait("calls" if now.busy else "approval")


def _calls_are_too_many(run: Run) -> LimitMet | None:
    """The limit that forbids making the calls of the last reply, if one does."""
    limits = run.accepted.limits
    if limits.max_calls is not None and run.calls_made + len(run.open) > limits.max_calls:
        return LimitMet("max_calls", run.calls_made + len(run.open), limits.max_calls)
    # Nobody would read what these calls come to, so they are not made.
    return _turns_are_used_up(run, wrap_up_included=True)


def _turns_are_used_up(run: Run, *, wrap_up_included: bool = False) -> LimitMet | None:
    limits = run.accepted.limits
    for used, limit in ((run.turns, limits.max_turns), (run.exchange_turns, limits.exchange_turns)):
        # One turn cannot be both the work and its wrap-up.
        reserved = 1 if limits.wrap_up and not wrap_up_included and limit is not None and limit > 1 else 0
        if limit is not None and used >= limit - reserved:
            return LimitMet("max_turns", used, limit)
    return None


def _at_the_boundary(run: Run, now: StepInput) -> Step:
    if not run.answering and (first := _first_input(now)):
        return Take((first,))
    news = tuple(item for item in now.inbox if isinstance(item, NEWS))
    # An answer that came with the last turn stands: there would be none left to say more. Whoever is idle has answered
    # before, and news that it cannot answer any more end it, instead of lying there for ever.
    has_the_last_word = run.answering and run.final and _turns_are_used_up(run, wrap_up_included=True)
    if news and run.wrapping is None and not has_the_last_word:
        return Take(news)
    if not run.answering:
        return _idle(run, now)
    if run.final:
        return _answered(run, now)
    if now.spent is not None:
        return _limited(run, now.spent)
    # The turn that is set aside for an answer is well used on repairing one.
    if run.wrapping is None and (limit := _turns_are_used_up(run, wrap_up_included=run.repairs > 0)):
        return _limited(run, limit)
    if now.overflow is not None:
        return Compact(now.overflow, wrap_up=run.wrapping is not None)
    return Ask(tools=run.tools_on and run.wrapping is None, wrap_up=run.wrapping is not None)


def _first_input(now: StepInput) -> Input | None:
    """The input that came before any news: words said after an input belong to the exchange that it begins."""
    first = next((item for item in now.inbox if isinstance(item, (Input, *NEWS))), None)
    return first if isinstance(first, Input) else None


def _idle(run: Run, now: StepInput) -> Step:
    if closes := tuple(item for item in now.inbox if isinstance(item, Close)):
        return Take(closes)
    return End(run.exchanges[-1]) if run.closing else Wait("mail")


def _answered(run: Run, now: StepInput) -> Step:
    if now.children:
        return Wait("child")
    validated = now.validated
    if validated is not None and validated.error and _can_be_repaired(run):
        return Repair(_what_is_wrong(run, validated))
    ended = _final_exchange(run, validated)
    run_is_over = run.wrapping is not None and not _ends_only_the_exchange(run, run.wrapping)
    return EndExchange(ended) if run.accepted.lifecycle.keep_alive and not run_is_over else End(ended)


def _can_be_repaired(run: Run) -> bool:
    return (
        run.repairs < MAX_REPAIRS
        and run.wrapping is None
        and run.stop != "refusal"
        and not _turns_are_used_up(run, wrap_up_included=True)
    )


def _what_is_wrong(run: Run, validated: ValidatedOutput) -> str:
    return f"it was cut off at the output limit; {validated.error}" if run.stop == "length" else validated.error


def _final_exchange(run: Run, validated: ValidatedOutput | None) -> Exchange:
    value = validated.value if validated is not None and not validated.error else None
    if run.wrapping is not None:
        return _exhausted(run, run.wrapping, structured=value)
    if run.stop == "refusal":
        return _exchange(run, "failed", "refusal", "the model declined to answer")
    if validated is not None and validated.error:
        error = f"the answer is not of the form that was demanded: {_what_is_wrong(run, validated)}"
        return _exchange(run, "failed", "bad_output", error)
    text = run.history[-1].text
    reason = "empty" if not text.strip() else "length" if run.stop == "length" else "answered"
    return _exchange(run, "completed", reason, "", text=text, structured=value)


def _limited(run: Run, limit: LimitMet) -> Step:
    """A limit was met: the reserved turn if there is one, else the end of the exchange or of the run."""
    if run.accepted.limits.wrap_up and run.wrapping is None and not _turns_are_used_up(run, wrap_up_included=True):
        return WrapUp(limit)
    ended = _exhausted(run, limit)
    if run.accepted.lifecycle.keep_alive and _ends_only_the_exchange(run, limit):
        return EndExchange(ended)
    return End(ended)


def _ends_only_the_exchange(run: Run, limit: LimitMet) -> bool:
    """Whether a run that stays may go on with its next input after it met this limit."""
    max_turns = run.accepted.limits.max_turns
    return limit.reason == "max_turns" and (max_turns is None or run.turns < max_turns)


def _exhausted(run: Run, limit: LimitMet, structured: object = None) -> Exchange:
    error = f"{EXPLAINED[limit.reason]}: used {limit.used}, limit {limit.limit}"
    return Exchange(
        result="exhausted",
        reason=limit.reason,
        text=run.text,
        error=error,
        structured=structured,
        turns=run.exchange_turns,
        limit=limit,
    )


def _exchange(
    run: Run,
    result: Result,
    reason: EndReason,
    error: str,
    *,
    text: str | None = None,
    structured: object = None,
) -> Exchange:
    words = run.text if text is None else text
    return Exchange(
        result=result, reason=reason, text=words, error=error, structured=structured, turns=run.exchange_turns
    )
