"""`next_step` of a run whose history is too long for its model."""

from retinue.core.compaction import ContextOverflow
from retinue.core.events import Event, MailTaken, ReplyReceived, WrapUpAsked
from retinue.core.inbox import Cancel, Input, TextMessage
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.run import Exchange, LimitMet, Limits
from retinue.core.state import Run, apply
from retinue.core.step import MODEL, Compact, EndRun, StepInput, TakeInbox, Wait, next_step
from tests.core.random_runs import RUN_SPEC, acceptance

OVERFLOW = ContextOverflow(window=1000, reserved=200)
SPENT = LimitMet("max_tokens", 90, 100)


def run_after(*events: Event, limits: Limits | None = None) -> Run:
    run = Run(acceptance(limits=limits or Limits()), RUN_SPEC)
    for seq, event in enumerate(events, start=2):
        apply(run, seq, event)
    return run


def test_the_history_is_compacted_before_the_next_model_call() -> None:
    assert next_step(run_after(), StepInput(overflow=OVERFLOW)) == Compact(OVERFLOW)


def test_messages_are_taken_before_the_compaction() -> None:
    words = TextMessage(key="w", text="hear me")

    assert next_step(run_after(), StepInput((words,), overflow=OVERFLOW)) == TakeInbox((words,))


def test_a_compaction_in_flight_is_awaited_and_can_be_cancelled() -> None:
    cancel = Cancel(key="c")

    assert next_step(run_after(), StepInput(busy={MODEL}, overflow=OVERFLOW)) == Wait("model")
    stopped = next_step(run_after(), StepInput((cancel,), busy={MODEL}, overflow=OVERFLOW))
    assert stopped == EndRun(Exchange(result="cancelled", reason="cancelled", error="cancelled"), (cancel,))


def test_a_limit_precedes_compaction_and_wrap_up_skips_the_summary() -> None:
    wrapping = run_after(WrapUpAsked(at=1.0, limit=SPENT, text="now"), limits=Limits(wrap_up=True))

    ended = next_step(run_after(), StepInput(spent=SPENT, overflow=OVERFLOW))
    assert isinstance(ended, EndRun)
    assert ended.exchange.limit == SPENT
    assert next_step(wrapping, StepInput(overflow=OVERFLOW)) == Compact(OVERFLOW, wrap_up=True)


def test_an_existing_answer_needs_no_compaction() -> None:
    answered = run_after(ReplyReceived(at=1.0, turn=1, reply=Reply(AssistantMessage("done"))))

    assert isinstance(next_step(answered, StepInput(overflow=OVERFLOW)), EndRun)


def test_the_latest_input_is_recorded() -> None:
    run = run_after(MailTaken(at=1.0, items=(Input(key="i", text="and now?"),)))

    assert run.latest_input == "and now?"
