"""`next_step`: each rule as an example, then thousands of random simulations."""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.core.events import (
    CallParked,
    CallReturned,
    Event,
    ExchangeEnded,
    MailTaken,
    RepairAsked,
    ReplyReceived,
    RunEnded,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.inbox import ApprovalAnswer, Cancel, ChildEnded, Close, Deadline, Input, Item, TextMessage
from retinue.core.messages import AssistantMessage, Reply, Stop, ToolCall, ToolMessage, UserMessage
from retinue.core.run import EndReason, Exchange, Lifecycle, LimitMet, Limits, Outcome
from retinue.core.state import STILL_OPEN, Run, apply, fold
from retinue.core.step import (
    MODEL,
    AlreadyEnded,
    CallModel,
    EndExchange,
    EndRun,
    Repair,
    RunTools,
    Step,
    StepInput,
    TakeInbox,
    Wait,
    WrapUp,
    next_step,
)
from tests.core.random_runs import (
    NO_RESULT,
    RUN_SPEC,
    Simulation,
    acceptance,
    assert_every_call_has_one_result,
    results_of,
)

KEEP_ALIVE = Lifecycle(keep_alive=True)
SPENT = LimitMet("max_tokens", 900, 1000)
ANSWERED = Exchange(result="completed", reason="answered", text="done", turns=1)
NEXT_INPUT = Input(key="input", text="next")
NOTICE = ChildEnded(key="ended", run_id="child", result="completed", notice="[child completed]")


def run_after(*events: Event, limits: Limits | None = None, lifecycle: Lifecycle | None = None) -> Run:
    return fold(enumerate((acceptance(limits=limits, lifecycle=lifecycle), *events), start=1), RUN_SPEC)


def reply(text: str = "", *calls: str, stop: Stop = "end") -> ReplyReceived:
    message = AssistantMessage(text, tuple(ToolCall(name) for name in calls))
    return ReplyReceived(at=1.0, turn=1, reply=Reply(message, stop=stop))


def returned(index: int = 0, *, crashed: bool = False) -> CallReturned:
    return CallReturned(at=2.0, turn=1, index=index, text="result", failed=crashed, crashed=crashed)


def parked(index: int = 0) -> CallParked:
    return CallParked(at=2.0, turn=1, index=index, tool="a")


def taken(*items: Item) -> MailTaken:
    return MailTaken(at=3.0, items=items)


def answer(index: int = 0, *, turn: int = 1) -> ApprovalAnswer:
    return ApprovalAnswer(key=f"answer {turn}/{index}", turn=turn, index=index, allow=True)


def words(text: str = "hear me") -> TextMessage:
    return TextMessage(key=f"words {text}", text=text)


def idle(exchange: Exchange = ANSWERED) -> tuple[Event, ...]:
    return reply("done"), ExchangeEnded(at=2.0, exchange=exchange)


def wrap_up(limit: LimitMet) -> WrapUpAsked:
    return WrapUpAsked(at=2.0, limit=limit, text="what have you got?")


def step(
    run: Run, *inbox: Item, busy: frozenset[int] = frozenset(), children: int = 0, spent: LimitMet | None = None
) -> Step:
    return next_step(run, StepInput(inbox, busy, children, spent))


def busy(*indices: int) -> frozenset[int]:
    return frozenset(indices)


# ---- model calls and answers --------------------------------------------------------------------------------------


def test_a_run_begins_by_calling_the_model() -> None:
    assert step(run_after()) == CallModel(tools=True)


def test_a_model_call_in_flight_is_awaited() -> None:
    run = run_after()

    assert step(run, busy=busy(MODEL)) == Wait("model")
    assert step(run, words(), NEXT_INPUT, busy=busy(MODEL)) == Wait("model")


def test_tool_results_lead_to_another_model_call() -> None:
    assert step(run_after(reply("", "a"), returned())) == CallModel(tools=True)


def test_a_reply_without_calls_ends_the_run() -> None:
    assert next_step(run_after(reply("done")), StepInput()) == EndRun(ANSWERED)


@pytest.mark.parametrize(
    ("last", "result", "reason", "text", "error"),
    [
        (reply("done"), "completed", "answered", "done", ""),
        (reply("done", stop="calls"), "completed", "answered", "done", ""),
        (reply("so I was say", stop="length"), "completed", "length", "so I was say", ""),
        (reply(""), "completed", "empty", "", ""),
        (reply(" \n"), "completed", "empty", " \n", ""),
        (reply("", stop="refusal"), "failed", "refusal", "let me look", "the model declined to answer"),
    ],
)
def test_the_answer_is_the_last_reply_even_if_empty(
    last: ReplyReceived, result: Literal["completed", "failed"], reason: EndReason, text: str, error: str
) -> None:
    run = run_after(reply("let me look", "a"), returned(), last)

    exchange = Exchange(result=result, reason=reason, text=text, error=error, turns=2)
    assert step(run) == EndRun(exchange)
    assert run.outcome_as(exchange).ok == (reason in ("answered", "length"))


CUT_CALL = AssistantMessage("", (ToolCall("write", '{"path": "a", "text": "once up'),))
CUT_OFF = (
    "the reply was cut off at the output limit {times}, before it was complete; raise max_output_tokens, lower the "
    "effort, or ask for smaller pieces"
)


EMPTY = AssistantMessage()


def cut_reply(message: AssistantMessage = EMPTY) -> ReplyReceived:
    return ReplyReceived(at=1.0, turn=1, reply=Reply(message, stop="length"))


def test_an_answer_that_was_cut_before_its_first_word_is_asked_for_again() -> None:
    asked = RepairAsked(at=2.0, error="", text="shorter")
    run = run_after(cut_reply(), asked, cut_reply(), asked, cut_reply())

    assert next_step(run_after(cut_reply()), StepInput()) == Repair("", is_cut=True)
    assert next_step(run_after(cut_reply(), asked, reply("done")), StepInput()) == EndRun(replace(ANSWERED, turns=2))
    error = CUT_OFF.format(times="3 times in a row")
    assert next_step(run, StepInput()) == EndRun(Exchange(result="failed", reason="length", error=error, turns=3))


def test_three_replies_in_a_row_that_were_cut_within_a_call_end_the_run() -> None:
    cut = (cut_reply(CUT_CALL), returned())

    assert next_step(run_after(*cut, cut[0]), StepInput()) == RunTools((0,))
    assert next_step(run_after(*cut, reply("", "a"), returned(), *cut, cut[0]), StepInput()) == RunTools((0,))
    error = CUT_OFF.format(times="3 times in a row")
    assert next_step(run_after(*cut, *cut, cut[0]), StepInput()) == EndRun(
        Exchange(result="failed", reason="length", error=error, turns=3)
    )


def test_a_whole_call_of_a_reply_that_was_cut_is_made() -> None:
    whole = cut_reply(AssistantMessage("", (ToolCall("ls", "{}"),)))

    assert next_step(run_after(whole, returned(), whole, returned(), whole), StepInput()) == RunTools((0,))


def test_an_answer_waits_for_awaited_children() -> None:
    run = run_after(reply("done"))

    assert step(run, children=2) == Wait("child")
    assert step(run, NOTICE, children=1) == TakeInbox((NOTICE,))
    assert step(run, children=0) == EndRun(ANSWERED)


def test_a_childs_notice_leads_to_another_turn() -> None:
    assert step(run_after(reply("done"), taken(NOTICE)), children=1) == CallModel(tools=True)


def test_running_children_do_not_block_model_calls() -> None:
    assert step(run_after(), children=3) == CallModel(tools=True)


def test_an_ended_run_has_no_further_steps() -> None:
    run = run_after(RunEnded(at=1.0, outcome=Outcome(result="cancelled", reason="cancelled")))

    assert step(run, Cancel(key="c"), words(), spent=SPENT) == AlreadyEnded()


# ---- calls --------------------------------------------------------------------------------------------------------


def test_all_calls_of_a_reply_start_together() -> None:
    assert step(run_after(reply("", "a", "b"))) == RunTools((0, 1))


def test_calls_in_flight_or_returned_are_not_started_again() -> None:
    run = run_after(reply("", "a", "b", "c"), returned(1))

    assert step(run, busy=busy(0, 2)) == Wait("calls")
    assert step(run, busy=busy(0)) == RunTools((2,))


def test_after_a_crash_calls_without_a_result_start_again() -> None:
    assert step(run_after(reply("", "a", "b", "c"), returned(1))) == RunTools((0, 2))


def test_a_parked_call_does_not_block_other_calls() -> None:
    run = run_after(reply("", "a", "b"), parked(0))

    assert step(run) == RunTools((1,))
    assert step(run, busy=busy(1)) == Wait("calls")
    assert step(run_after(reply("", "a", "b"), parked(0), returned(1))) == Wait("approval")


def test_an_approval_is_taken_while_other_calls_are_in_flight() -> None:
    run = run_after(reply("", "a", "b"), parked(0))

    assert step(run, words(), answer(0), busy=busy(1)) == TakeInbox((answer(0),))

    apply(run, run.seq + 1, taken(answer(0)))
    assert step(run, words(), busy=busy(1)) == RunTools((0,))


def test_an_approval_answer_for_no_open_call_is_taken_and_ignored() -> None:
    late = answer(7, turn=3)

    assert step(run_after(reply("", "a")), late) == TakeInbox((late,))
    assert step(run_after(), late) == TakeInbox((late,))
    assert step(run_after(taken(late))) == CallModel(tools=True)


def test_messages_wait_until_all_calls_have_returned() -> None:
    assert step(run_after(reply("", "a")), words(), busy=busy(0)) == Wait("calls")
    assert step(run_after(reply("", "a")), words()) == RunTools((0,))


def test_a_tool_crash_is_reported_to_the_model() -> None:
    assert step(run_after(reply("", "a"), returned(crashed=True))) == CallModel(tools=True)


def test_a_tool_crash_fails_a_run_with_crash_fails() -> None:
    run = run_after(reply("hm", "a", "b"), returned(1, crashed=True), lifecycle=Lifecycle(crash_fails=True))

    assert step(run, busy=busy(0)) == EndRun(
        Exchange(result="failed", reason="tool_error", text="hm", error="result", turns=1)
    )


def test_a_tool_error_never_fails_the_run() -> None:
    failed = CallReturned(at=2.0, turn=1, index=0, text="no such file", failed=True)

    assert step(run_after(reply("", "a"), failed, lifecycle=Lifecycle(crash_fails=True))) == CallModel(tools=True)


def test_a_failed_turn_ends_the_run_with_the_partial_text() -> None:
    failed = TurnFailed(at=2.0, turn=1, fault="cut", error="the line was cut", partial="half a")

    for lifecycle in (Lifecycle(), KEEP_ALIVE):
        assert step(run_after(failed, lifecycle=lifecycle), words()) == EndRun(
            Exchange(result="failed", reason="model_error", text="half a", error="the line was cut")
        )


# ---- inbox --------------------------------------------------------------------------------------------------------


def test_messages_are_taken_together_and_in_order_at_a_turn_boundary() -> None:
    inbox = (words("one"), NEXT_INPUT, NOTICE, Close(key="close"), words("two"), answer())

    expected = TakeInbox((words("one"), NOTICE, words("two"), answer()))

    assert step(run_after(), *inbox) == expected
    assert step(run_after(reply("done")), *inbox) == expected
    assert step(run_after(), *inbox, spent=SPENT) == expected


def test_inputs_and_closes_wait_for_the_current_exchange() -> None:
    inbox = (NEXT_INPUT, Close(key="close"))

    assert step(run_after(lifecycle=KEEP_ALIVE), *inbox) == CallModel(tools=True)
    assert step(run_after(reply("done"), lifecycle=KEEP_ALIVE), *inbox) == EndExchange(ANSWERED)


def test_a_run_without_keep_alive_never_takes_an_input() -> None:
    assert step(run_after(reply("done")), NEXT_INPUT) == EndRun(ANSWERED)


def test_an_idle_run_waits_for_mail() -> None:
    assert step(run_after(*idle(), lifecycle=KEEP_ALIVE)) == Wait("mail")


def test_a_message_ends_an_idle_run_without_turns_left() -> None:
    said = TextMessage(key="w", text="hello?")
    limits = Limits(max_turns=1)

    assert step(run_after(*idle(), limits=limits, lifecycle=KEEP_ALIVE), said) == TakeInbox((said,))
    ended = step(run_after(*idle(), taken(said), limits=limits, lifecycle=KEEP_ALIVE))
    assert isinstance(ended, EndRun)
    assert (ended.exchange.result, ended.exchange.reason) == ("exhausted", "max_turns")


def test_an_idle_run_takes_one_input_at_a_time_and_then_closes() -> None:
    later = Input(key="later", text="later")
    close = Close(key="close")
    run = run_after(*idle(), lifecycle=KEEP_ALIVE)

    assert step(run, close, NEXT_INPUT, later) == TakeInbox((NEXT_INPUT,))
    assert step(run, close) == TakeInbox((close,))

    apply(run, run.seq + 1, taken(close))
    assert step(run) == EndRun(ANSWERED)


def test_a_message_before_an_input_begins_its_own_exchange() -> None:
    run = run_after(*idle(), lifecycle=KEEP_ALIVE)

    assert step(run, words(), NEXT_INPUT) == TakeInbox((words(),))
    assert step(run, NOTICE, NEXT_INPUT, words()) == TakeInbox((NOTICE, words()))


def test_a_message_after_an_input_belongs_to_that_exchange() -> None:
    run = run_after(*idle(), lifecycle=KEEP_ALIVE)
    inbox = (NEXT_INPUT, words("about that"))
    assert step(run, *inbox) == TakeInbox((NEXT_INPUT,))

    apply(run, run.seq + 1, taken(NEXT_INPUT))

    assert step(run, words("about that")) == TakeInbox((words("about that"),))


def test_an_input_may_be_answered_without_tools() -> None:
    run = run_after(*idle(), taken(Input(key="i", text="sum up", tools=False)), lifecycle=KEEP_ALIVE)

    assert step(run) == CallModel(tools=False)


def test_calls_without_offered_tools_are_not_made() -> None:
    no_tools = taken(Input(key="i", text="sum up", tools=False))

    for text in ("in short", ""):
        run = run_after(*idle(), no_tools, reply(text, "a"), lifecycle=KEEP_ALIVE)
        answered = Exchange(result="completed", reason="answered" if text else "empty", text=text, turns=1)
        assert step(run, answer(0, turn=2), words()) == EndExchange(answered)
        assert step(run, children=1) == Wait("child")


def test_a_closed_run_still_answers_messages() -> None:
    run = run_after(*idle(), taken(Close(key="close")), lifecycle=KEEP_ALIVE)

    assert step(run, words()) == TakeInbox((words(),))

    for event in (taken(words()), reply("also done")):
        apply(run, run.seq + 1, event)
    last = Exchange(result="completed", reason="answered", text="also done", turns=1)
    assert step(run) == EndExchange(last)

    apply(run, run.seq + 1, ExchangeEnded(at=9.0, exchange=last))
    assert step(run) == EndRun(last)


@pytest.mark.parametrize(
    "run",
    [
        run_after(),
        run_after(reply("hm", "a", "b"), parked(1)),
        run_after(reply("hm")),
        run_after(*idle(), lifecycle=KEEP_ALIVE),
        run_after(wrap_up(SPENT), limits=Limits(wrap_up=True)),
        run_after(TurnFailed(at=1.0, turn=1, fault="auth", error="no key")),
        run_after(reply("", "a"), returned(crashed=True), lifecycle=Lifecycle(crash_fails=True)),
    ],
    ids=["new", "with open calls", "answered", "idle", "wrapping up", "failed", "crashed"],
)
def test_cancel_and_deadline_stop_a_run_in_every_state(run: Run) -> None:
    text, turns = run.text, run.exchange_turns
    cancel = Cancel(key="c", reason="parent_ended", note="the parent has ended")
    deadline = Deadline(key="d", seconds=1.5)
    stopped = Exchange(result="cancelled", reason="parent_ended", text=text, error="the parent has ended", turns=turns)
    late = Exchange(
        result="timed_out", reason="deadline", text=text, error="the run did not finish within 1.5 s", turns=turns
    )
    flying = busy(MODEL, 0, 1)

    assert step(run, words(), cancel, deadline, busy=flying, children=1) == EndRun(stopped, (cancel,))
    assert step(run, answer(), deadline, cancel, busy=flying, spent=SPENT) == EndRun(late, (deadline,))


def test_a_cancel_without_a_note_has_a_default_error() -> None:
    cancel = Cancel(key="c")

    assert step(run_after(), cancel) == EndRun(
        Exchange(result="cancelled", reason="cancelled", error="cancelled"), (cancel,)
    )


# ---- limits -------------------------------------------------------------------------------------------------------


def exhausted(limit: LimitMet, *, turns: int, explained: str, text: str = "") -> Exchange:
    error = f"{explained}: used {limit.used}, limit {limit.limit}"
    return Exchange(result="exhausted", reason=limit.reason, text=text, error=error, turns=turns, limit=limit)


def out_of_turns(used: int, limit: int, *, turns: int | None = None, text: str = "") -> Exchange:
    explained = "the turn limit was reached without a final answer"
    turns = used if turns is None else turns
    return exhausted(LimitMet("max_turns", used, limit), turns=turns, explained=explained, text=text)


def test_the_last_allowed_turn_may_answer() -> None:
    assert step(run_after(reply("done"), limits=Limits(max_turns=1))) == EndRun(ANSWERED)


def test_calls_of_the_last_allowed_reply_are_not_made() -> None:
    run = run_after(reply("hm", "a"), limits=Limits(max_turns=1))

    assert step(run) == EndRun(out_of_turns(1, 1, text="hm"))


def test_a_message_after_the_last_turn_ends_the_run_at_its_limit() -> None:
    run = run_after(reply("done"), taken(words()), limits=Limits(max_turns=1))

    assert step(run) == EndRun(out_of_turns(1, 1, text="done"))


def test_calls_within_the_limit_are_finished_after_a_crash() -> None:
    run = run_after(reply("", "a", "b"), returned(0), limits=Limits(max_calls=2, max_turns=2))

    assert step(run) == RunTools((1,))


def test_a_run_with_zero_turns_never_calls_the_model() -> None:
    for wraps in (False, True):
        assert step(run_after(limits=Limits(max_turns=0, wrap_up=wraps))) == EndRun(out_of_turns(0, 0))


def test_a_reply_that_exceeds_max_calls_makes_no_calls() -> None:
    limits = Limits(max_calls=3)
    explained = "the tool call budget is spent"
    assert step(run_after(reply("", "a", "b", "c"), limits=limits)) == RunTools((0, 1, 2))

    run = run_after(reply("", "a", "b"), returned(0), returned(1), reply("two more", "a", "b"), limits=limits)

    limit = LimitMet("max_calls", 4, 3)
    assert step(run) == EndRun(exhausted(limit, turns=2, explained=explained, text="two more"))
    assert run.calls_made == 2


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (LimitMet("max_tokens", 12, 10), "the token budget is spent: used 12, limit 10"),
        (
            LimitMet("max_cost", 12_000_000, 10_000_000, dimension="cost", needed=2_000_000),
            "the cost limit is spent: used $0.012, limit $0.01; the next call would have cost at least $0.002",
        ),
        (
            LimitMet("window", 6, 10, dimension="input", left=4, needed=5, account="spec/s"),
            "the input token budget (max_input_tokens) that several runs share leaves too little for the next call: "
            "used 6, limit 10, left 4, needed at least 5",
        ),
    ],
)
def test_a_spent_allowance_ends_the_run_with_the_numbers(limit: LimitMet, error: str) -> None:
    ended = EndRun(Exchange(result="exhausted", reason=limit.reason, text="hm", error=error, turns=1, limit=limit))

    for lifecycle in (Lifecycle(), KEEP_ALIVE):
        assert step(run_after(reply("hm", "a"), returned(), lifecycle=lifecycle), spent=limit) == ended


def test_an_existing_answer_needs_no_budget() -> None:
    assert step(run_after(reply("done")), spent=SPENT) == EndRun(ANSWERED)


def test_each_exchange_of_a_keep_alive_run_has_its_own_turns() -> None:
    limits = Limits(exchange_turns=1, max_turns=5)
    run = run_after(reply("hm", "a"), limits=limits, lifecycle=KEEP_ALIVE)
    ended = out_of_turns(1, 1, text="hm")
    assert step(run) == EndExchange(ended)

    apply(run, run.seq + 1, ExchangeEnded(at=2.0, exchange=ended))
    assert step(run, NEXT_INPUT) == TakeInbox((NEXT_INPUT,))

    apply(run, run.seq + 1, taken(NEXT_INPUT))
    assert step(run) == CallModel(tools=True)


def test_exchange_turns_also_bound_runs_without_keep_alive() -> None:
    run = run_after(reply("hm", "a"), limits=Limits(exchange_turns=1))

    assert step(run) == EndRun(out_of_turns(1, 1, text="hm"))


def test_max_turns_end_a_keep_alive_run() -> None:
    limits = Limits(max_turns=2, exchange_turns=2)
    run = run_after(reply("", "a"), returned(), reply("hm", "a"), limits=limits, lifecycle=KEEP_ALIVE)

    assert step(run) == EndRun(out_of_turns(2, 2, text="hm"))


def test_max_calls_end_a_keep_alive_run() -> None:
    limits = Limits(max_calls=1, exchange_turns=1)
    run = run_after(reply("hm", "a", "b"), limits=limits, lifecycle=KEEP_ALIVE)
    limit = LimitMet("max_calls", 2, 1)

    assert step(run) == EndRun(exhausted(limit, turns=1, explained="the tool call budget is spent", text="hm"))


def test_an_input_without_turns_left_ends_a_keep_alive_run() -> None:
    run = run_after(*idle(), taken(NEXT_INPUT), limits=Limits(max_turns=1, exchange_turns=3), lifecycle=KEEP_ALIVE)

    assert step(run) == EndRun(out_of_turns(1, 1, turns=0))


# ---- the wrap-up turn ---------------------------------------------------------------------------------------------

WITH_WRAP_UP = Limits(max_turns=3, wrap_up=True)
TWO_OF_THREE = LimitMet("max_turns", 2, 3)


def test_the_wrap_up_turn_is_within_the_limit_and_reads_results() -> None:
    run = run_after(reply("", "a"), returned(), reply("hm", "a"), limits=WITH_WRAP_UP)
    assert step(run) == RunTools((0,))

    apply(run, run.seq + 1, returned())
    assert step(run) == WrapUp(TWO_OF_THREE)

    apply(run, run.seq + 1, wrap_up(TWO_OF_THREE))
    assert step(run) == CallModel(tools=False, wrap_up=True)

    apply(run, run.seq + 1, reply("this is what I have"))
    assert step(run) == EndRun(
        exhausted(
            LimitMet("max_turns", 3, 3),  # the wrap-up turn included
            turns=3,
            explained="the turn limit was reached without a final answer",
            text="this is what I have",
        )
    )


def test_calls_beyond_max_calls_lead_to_a_wrap_up() -> None:
    run = run_after(reply("", "a", "b"), limits=Limits(max_calls=1, wrap_up=True))

    assert step(run) == WrapUp(LimitMet("max_calls", 2, 1))


@pytest.mark.parametrize("limit", [SPENT, LimitMet("max_calls", 4, 3)])
def test_calls_of_the_wrap_up_reply_are_not_made(limit: LimitMet) -> None:
    run = run_after(
        reply("hm", "a"), returned(), wrap_up(limit), reply("", "a"), limits=Limits(max_calls=3, wrap_up=True)
    )

    ended = step(run)

    assert isinstance(ended, EndRun)
    assert (ended.exchange.result, ended.exchange.limit, ended.exchange.text) == ("exhausted", limit, "hm")


def test_a_wrap_up_without_budget_ends_the_run() -> None:
    run = run_after(reply("hm", "a"), returned(), limits=Limits(wrap_up=True))
    assert step(run, spent=SPENT) == WrapUp(SPENT)

    apply(run, run.seq + 1, wrap_up(SPENT))

    assert step(run, spent=SPENT) == EndRun(exhausted(SPENT, turns=1, explained="the token budget is spent", text="hm"))


def test_messages_wait_during_a_wrap_up() -> None:
    run = run_after(wrap_up(SPENT), limits=Limits(wrap_up=True))
    assert step(run, words(), NOTICE, answer()) == CallModel(tools=False, wrap_up=True)

    apply(run, run.seq + 1, reply("this is it"))

    assert step(run, words(), children=1) == Wait("child")
    assert isinstance(step(run, words()), EndRun)


def test_a_wrapped_up_exchange_does_not_end_a_keep_alive_run() -> None:
    limits = Limits(exchange_turns=2, max_turns=9, wrap_up=True)
    one_of_two = LimitMet("max_turns", 1, 2)
    run = run_after(reply("", "a"), returned(), limits=limits, lifecycle=KEEP_ALIVE)
    assert step(run) == WrapUp(one_of_two)

    for event in (wrap_up(one_of_two), reply("as far as I got")):
        apply(run, run.seq + 1, event)
    ended = exhausted(
        LimitMet("max_turns", 2, 2),
        turns=2,
        explained="the turn limit was reached without a final answer",
        text="as far as I got",
    )
    assert step(run) == EndExchange(ended)

    for event in (ExchangeEnded(at=4.0, exchange=ended), taken(NEXT_INPUT)):
        apply(run, run.seq + 1, event)
    assert step(run, words()) == TakeInbox((words(),))
    assert step(run) == CallModel(tools=True)


@pytest.mark.parametrize("limit", [SPENT, LimitMet("max_turns", 3, 3), LimitMet("max_calls", 4, 3)])
def test_a_wrap_up_of_a_run_limit_ends_a_keep_alive_run(limit: LimitMet) -> None:
    limits = Limits(max_turns=3, exchange_turns=3, wrap_up=True)
    run = run_after(
        reply("", "a"), returned(), reply("", "a"), returned(), wrap_up(limit), reply("so far"),
        limits=limits, lifecycle=KEEP_ALIVE,
    )  # fmt: skip

    ended = step(run)

    assert isinstance(ended, EndRun)
    assert (ended.exchange.limit, ended.exchange.text) == (limit, "so far")


# ---- random runs --------------------------------------------------------------------------------------------------


@settings(max_examples=10 * settings().max_examples)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_runs_keep_every_invariant(seed: int) -> None:
    """`Simulation` checks each step (see `random_runs`); these assertions are about the whole run."""
    simulation = Simulation(seed).finish()
    run, limits = simulation.run, simulation.limits
    messages = simulation.full_conversation()

    assert_every_call_has_one_result(run.history)
    results = [message.text for message in messages if isinstance(message, ToolMessage) and message.text != STILL_OPEN]
    assert [None if text in NO_RESULT else text for text in results] == results_of(simulation.log)
    inputs = [message.text for message in messages if isinstance(message, UserMessage)]
    assert [
        text for text in inputs if not text.startswith(("of old", "task", "wrap up", "repair", "advice"))
    ] == simulation.texts_taken()
    assert limits.max_turns is None or run.turns <= limits.max_turns
    assert limits.max_calls is None or run.calls_made <= limits.max_calls
    assert max(Counter(simulation.wrap_ups).values(), default=0) <= 1
    assert (
        max(simulation.performed.values(), default=0) <= 2 + simulation.crashes
    )  # once, again after a yes, again after a crash
    assert run.turns == sum(isinstance(event, ReplyReceived) for _, event in simulation.log)
    assert run.outcome is not None
    assert run.outcome.exchanges == len(run.exchanges) + (1 if run.in_exchange else 0)
    if simulation.run_spec.output is not None and run.outcome.result == "completed":
        assert run.outcome.structured is not None


def test_random_runs_cover_all_steps_events_and_end_reasons() -> None:
    """Otherwise the property above would cover less than it claims."""
    simulations = [Simulation(seed).finish() for seed in range(400)]

    assert {type(step) for simulation in simulations for step in simulation.steps} == set(get_args(Step))
    assert {type(event) for simulation in simulations for _, event in simulation.log} == set(get_args(Event))
    waits = {step.why for simulation in simulations for step in simulation.steps if isinstance(step, Wait)}
    assert waits == {"model", "calls", "approval", "child", "mail"}
    ends = {simulation.run.outcome.reason for simulation in simulations if simulation.run.outcome is not None}
    assert ends == {
        "answered", "empty", "length", "refusal", "bad_output", "max_turns", "max_tokens", "max_cost", "max_calls",
        "looping", "window", "deadline", "cancelled", "model_error", "tool_error",
    }  # fmt: skip
