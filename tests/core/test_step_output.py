"""`next_step` for answers with a required form: end, repair, or fail."""

from __future__ import annotations

import pytest

from retinue.core.agent import ValidatedOutput
from retinue.core.events import Event, ExchangeEnded, MailTaken, RepairAsked, ReplyReceived, WrapUpAsked
from retinue.core.inbox import Input, TextMessage
from retinue.core.messages import AssistantMessage, Reply, Stop, ToolCall
from retinue.core.run import Exchange, Lifecycle, LimitMet, Limits
from retinue.core.state import Run, fold
from retinue.core.step import (
    CallModel,
    EndExchange,
    EndRun,
    Repair,
    StepInput,
    TakeInbox,
    Wait,
    answer_to_validate,
    next_step,
)
from tests.core.random_runs import SPEC_WITH_OUTPUT, acceptance

GOOD = ValidatedOutput({"n": 42})
BAD = ValidatedOutput(error="it is not JSON")
KEEP_ALIVE = Lifecycle(keep_alive=True)
REPAIR = RepairAsked(at=2.0, error="it is not JSON", text="once more")
FAILED = "the answer is not of the form that was demanded: it is not JSON"


def run_after(*events: Event, limits: Limits | None = None, lifecycle: Lifecycle | None = None) -> Run:
    return fold(enumerate((acceptance(limits=limits, lifecycle=lifecycle), *events), start=1), SPEC_WITH_OUTPUT)


def reply(text: str = "42", *calls: str, stop: Stop = "end") -> ReplyReceived:
    message = AssistantMessage(text, tuple(ToolCall(name) for name in calls))
    return ReplyReceived(at=1.0, turn=1, reply=Reply(message, stop=stop))


def test_only_a_final_answer_is_validated() -> None:
    idle = (reply(), ExchangeEnded(at=2.0, exchange=Exchange(result="completed", reason="answered")))
    without_tools = MailTaken(at=3.0, items=(Input(key="more", text="more", tools=False),))

    assert answer_to_validate(run_after()) is None
    assert answer_to_validate(run_after(reply("let me look", "a"))) is None
    assert answer_to_validate(run_after(reply())) == "42"
    assert answer_to_validate(run_after(reply(), REPAIR)) is None
    assert answer_to_validate(run_after(*idle, lifecycle=KEEP_ALIVE)) is None
    assert answer_to_validate(run_after(*idle, without_tools, reply("43", "a"), lifecycle=KEEP_ALIVE)) == "43"


def test_a_valid_answer_ends_the_run_with_its_value() -> None:
    ended = Exchange(result="completed", reason="answered", text="42", turns=1, structured={"n": 42})

    assert next_step(run_after(reply()), StepInput(validated=GOOD)) == EndRun(ended)
    assert next_step(run_after(reply(), lifecycle=KEEP_ALIVE), StepInput(validated=GOOD)) == EndExchange(ended)


def test_an_invalid_answer_is_repaired_twice_and_then_fails() -> None:
    bad = StepInput(validated=BAD)

    assert next_step(run_after(reply()), bad) == Repair("it is not JSON")
    assert next_step(run_after(reply(), REPAIR), StepInput()) == CallModel(tools=True)
    assert next_step(run_after(reply(), REPAIR, reply()), bad) == Repair("it is not JSON")
    assert next_step(run_after(reply(), REPAIR, reply(), REPAIR, reply("43")), bad) == EndRun(
        Exchange(result="failed", reason="bad_output", text="43", error=FAILED, turns=3)
    )


def test_a_repair_mentions_that_the_answer_was_cut_off() -> None:
    run = run_after(reply(stop="length"))

    assert next_step(run, StepInput(validated=BAD)) == Repair("it was cut off at the output limit; it is not JSON")


def test_a_refusal_is_not_repaired() -> None:
    ended = Exchange(result="failed", reason="refusal", text="42", error="the model declined to answer", turns=1)

    assert next_step(run_after(reply(stop="refusal")), StepInput(validated=BAD)) == EndRun(ended)


def test_messages_and_children_precede_the_repair() -> None:
    words = TextMessage(key="words", text="hear me")

    assert next_step(run_after(reply()), StepInput(inbox=(words,), validated=BAD)) == TakeInbox((words,))
    assert next_step(run_after(reply()), StepInput(children=1, validated=BAD)) == Wait("child")


def test_an_invalid_answer_without_turns_left_fails() -> None:
    run = run_after(reply(), limits=Limits(max_turns=1))

    assert next_step(run, StepInput(validated=BAD)) == EndRun(
        Exchange(result="failed", reason="bad_output", text="42", error=FAILED, turns=1)
    )


def test_the_wrap_up_turn_may_be_used_for_a_repair() -> None:
    limits = Limits(max_turns=2, wrap_up=True)

    assert next_step(run_after(reply(), limits=limits), StepInput(validated=BAD)) == Repair("it is not JSON")
    assert next_step(run_after(reply(), REPAIR, limits=limits), StepInput()) == CallModel(tools=True)


@pytest.mark.parametrize(("validated", "value"), [(GOOD, {"n": 42}), (BAD, None)])
def test_the_answer_of_a_wrap_up_is_not_repaired(validated: ValidatedOutput, value: object) -> None:
    met = LimitMet("max_tokens", 900, 1000)
    run = run_after(WrapUpAsked(at=2.0, limit=met, text="what have you got?"), reply(), limits=Limits(wrap_up=True))

    step = next_step(run, StepInput(validated=validated))

    assert isinstance(step, EndRun)
    assert (step.exchange.result, step.exchange.text, step.exchange.structured) == ("exhausted", "42", value)
