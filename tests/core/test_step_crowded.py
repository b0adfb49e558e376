"""What a run does whose history is too long for its model."""

from retinue.core.compaction import ContextOverflow
from retinue.core.events import Event, MailTaken, ReplyReceived, WrapUpAsked
from retinue.core.inbox import Cancel, Input, TextMessage
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.run import Exchange, LimitMet, Limits
from retinue.core.state import Run, apply
from retinue.core.step import MODEL, Compact, EndRun, StepInput, TakeInbox, Wait, next_step
from tests.core.random_runs import BRIEF, acceptance

CROWDED = ContextOverflow(window=1000, reserved=200)
SPENT = LimitMet("max_tokens", 90, 100)


def run_after(*events: Event, limits: Limits | None = None) -> Run:
    run = Run(acceptance(limits=limits or Limits()), BRIEF)
    for seq, event in enumerate(events, start=2):
        apply(run, seq, event)
    return run


def test_it_makes_its_history_shorter_before_it_asks_again() -> None:
    assert next_step(run_after(), StepInput(overflow=CROWDED)) == Compact(CROWDED)


def test_what_others_said_meanwhile_is_taken_first_and_is_part_of_what_is_made_shorter() -> None:
    words = TextMessage(key="w", text="hear me")

    assert next_step(run_after(), StepInput((words,), overflow=CROWDED)) == TakeInbox((words,))


def test_it_does_so_once_at_a_time_and_can_be_stopped() -> None:
    cancel = Cancel(key="c")

    assert next_step(run_after(), StepInput(busy={MODEL}, overflow=CROWDED)) == Wait("model")
    stopped = next_step(run_after(), StepInput((cancel,), busy={MODEL}, overflow=CROWDED))
    assert stopped == EndRun(Exchange(result="cancelled", reason="cancelled", error="cancelled"), (cancel,))


def test_a_limit_goes_first_and_its_wrap_up_turn_spends_nothing_on_a_summary() -> None:
    wrapping = run_after(WrapUpAsked(at=1.0, limit=SPENT, text="now"), limits=Limits(wrap_up=True))

    ended = next_step(run_after(), StepInput(spent=SPENT, overflow=CROWDED))
    assert isinstance(ended, EndRun)
    assert ended.exchange.limit == SPENT
    assert next_step(wrapping, StepInput(overflow=CROWDED)) == Compact(CROWDED, wrap_up=True)


def test_an_answer_that_is_there_needs_no_room() -> None:
    answered = run_after(ReplyReceived(at=1.0, turn=1, reply=Reply(AssistantMessage("done"))))

    assert isinstance(next_step(answered, StepInput(overflow=CROWDED)), EndRun)


def test_the_last_input_is_known_for_the_summary() -> None:
    run = run_after(MailTaken(at=1.0, items=(Input(key="i", text="and now?"),)))

    assert run.latest_input == "and now?"
