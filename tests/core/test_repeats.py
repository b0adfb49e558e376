"""`next_step` for a model that repeats its calls, or writes a call that cannot be read."""

from __future__ import annotations

import pytest

from retinue.core.events import AdviceGiven, CallReturned, Event, MailTaken, ReplyReceived, WrapUpAsked
from retinue.core.inbox import TextMessage
from retinue.core.messages import AssistantMessage, Reply, ToolCall
from retinue.core.run import Exchange, Lifecycle, LimitMet, Limits
from retinue.core.state import Run, fold
from retinue.core.step import Advise, CallModel, EndExchange, EndRun, Step, StepInput, WrapUp, next_step
from tests.core.random_runs import RUN_SPEC, acceptance

LOOPING = "the model made the same calls with the same results in 5 replies in a row (max_repeats)"
TOLD = AdviceGiven(at=3.0, about="repeats", text="the same again")


def turns(number: int, *, arguments: str = "{}", text: str = "nothing") -> list[Event]:
    """So many replies with one call, and its results."""
    message = AssistantMessage(calls=(ToolCall("look", arguments),))
    reply = ReplyReceived(at=1.0, turn=1, reply=Reply(message, stop="calls"))
    return [reply, CallReturned(at=2.0, turn=1, index=0, text=text)] * number


def run_after(*events: Event, limits: Limits | None = None, lifecycle: Lifecycle | None = None) -> Run:
    return fold(enumerate((acceptance(limits=limits, lifecycle=lifecycle), *events), start=1), RUN_SPEC)


def step_after(*events: Event, limits: Limits | None = None, lifecycle: Lifecycle | None = None) -> Step:
    run = run_after(*events, limits=limits, lifecycle=lifecycle)
    return next_step(run, StepInput(repeats=run.repeats))


def test_at_the_third_equal_reply_the_model_is_told_once() -> None:
    assert step_after(*turns(2)) == CallModel(tools=True)
    assert step_after(*turns(3)) == Advise("repeats", repeats=3)
    assert step_after(*turns(3), TOLD) == CallModel(tools=True)
    assert step_after(*turns(3), TOLD, *turns(1)) == CallModel(tools=True)


def test_at_the_fifth_equal_reply_the_run_ends_as_looping() -> None:
    limit = LimitMet("looping", 5, 5)

    ended = step_after(*turns(3), TOLD, *turns(2))

    assert ended == EndRun(Exchange(result="exhausted", reason="looping", error=LOOPING, turns=5, limit=limit))


@pytest.mark.parametrize(("limit", "number"), [(2, 2), (3, 3), (9, 9)])
def test_the_limit_decides_after_how_many_equal_replies_a_run_ends(limit: int, number: int) -> None:
    limits = Limits(max_repeats=limit)

    before = step_after(*turns(min(number - 1, 3)), TOLD, *turns(max(0, number - 4)), limits=limits)
    after = step_after(*turns(number), limits=limits)

    assert before == CallModel(tools=True)
    assert isinstance(after, EndRun)


def test_without_the_limit_a_model_may_repeat_itself() -> None:
    assert step_after(*turns(50), limits=Limits(max_repeats=None)) == CallModel(tools=True)


def test_other_arguments_or_another_result_begin_a_new_count() -> None:
    for other in (turns(1, arguments='{"at": 1}'), turns(1, text="something")):
        assert run_after(*turns(4), *other).repeats == 1
        assert run_after(*turns(2), *other, *turns(2)).repeats == 2
        assert step_after(*turns(3), TOLD, *other, *turns(3)) == Advise("repeats", repeats=3)


def test_a_new_message_begins_a_new_count() -> None:
    message = MailTaken(at=3.0, items=(TextMessage(key="m", text="go on"),))

    assert run_after(*turns(4), message, *turns(1)).repeats == 1


def test_with_a_wrap_up_turn_a_looping_model_is_asked_for_an_answer() -> None:
    limits, limit = Limits(wrap_up=True, max_turns=50), LimitMet("looping", 5, 5)
    asked = WrapUpAsked(at=4.0, limit=limit, text="answer now")
    answer = ReplyReceived(at=5.0, turn=6, reply=Reply(AssistantMessage("nothing found")))

    assert step_after(*turns(5), limits=limits) == WrapUp(limit)
    ended = step_after(*turns(5), asked, answer, limits=limits)
    assert isinstance(ended, EndRun)
    assert (ended.exchange.result, ended.exchange.reason, ended.exchange.text) == (
        "exhausted",
        "looping",
        "nothing found",
    )


def test_a_keep_alive_run_ends_only_its_exchange_as_looping() -> None:
    ended = step_after(*turns(5), lifecycle=Lifecycle(keep_alive=True))

    assert isinstance(ended, EndExchange)
    assert ended.exchange.reason == "looping"


# ---- calls that cannot be read --------------------------------------------------------------------------------------

ATTEMPT = ReplyReceived(at=1.0, turn=1, reply=Reply(AssistantMessage("{look}"), call_error="its JSON cannot be read"))
EXPLAINED = AdviceGiven(at=2.0, about="call_form", text="call like this")


def test_a_failed_attempt_at_a_call_is_answered_once_with_how_to_call() -> None:
    answered = Exchange(result="completed", reason="answered", text="{look}", turns=2)

    assert step_after(ATTEMPT) == Advise("call_form", error="its JSON cannot be read")
    assert step_after(ATTEMPT, EXPLAINED) == CallModel(tools=True)
    assert step_after(ATTEMPT, EXPLAINED, ATTEMPT) == EndRun(answered)


def test_a_failed_attempt_in_the_last_turn_is_the_answer() -> None:
    answered = Exchange(result="completed", reason="answered", text="{look}", turns=1)

    assert step_after(ATTEMPT, limits=Limits(max_turns=1)) == EndRun(answered)
