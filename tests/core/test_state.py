"""The fold: the state of a run after its events, unaffected by crashes and repeated events."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from retinue.core.inbox import ApprovalAnswer, Cancel, ChildEnded, Close, Deadline, Input, Item, TextMessage
from retinue.core.messages import AssistantMessage, Message, Reply, ToolCall, ToolMessage, UserMessage
from retinue.core.run import Exchange, HistoryRef, LimitMet, Outcome
from retinue.core.state import LEFT_OUT, NOT_MADE, NOT_OFFERED, STILL_OPEN, UNFINISHED, History, Run, apply, fold
from retinue.core.usage import Usage
from tests.core.random_runs import RUN_SPEC, Simulation, acceptance, snapshot

SEEDS = st.integers(0, 2**32 - 1)
ANSWERED = Exchange(result="completed", reason="answered", text="done", turns=1)
TURNS = LimitMet("max_turns", 1, 1)


ENDED = ExchangeEnded(at=2.0, exchange=Exchange(result="completed", reason="answered"))


def run_after(*events: Event, accepted: RunAccepted | None = None, inherited: History | None = None) -> Run:
    return fold(enumerate((accepted or acceptance(), *events), start=1), RUN_SPEC, inherited)


def reply(
    text: str = "", *calls: str, usage: Usage | None = None, cost: int | None = 0, at: float = 1.0
) -> ReplyReceived:
    """A reply with a call of each named tool; the names are also their ids."""
    message = AssistantMessage(text, tuple(ToolCall(name, "{}", name) for name in calls))
    return ReplyReceived(at=at, turn=1, reply=Reply(message, usage=usage, cost=cost))


def returned(index: int, text: str, *, failed: bool = False, crashed: bool = False) -> CallReturned:
    return CallReturned(at=2.0, turn=1, index=index, text=text, failed=failed, crashed=crashed)


def parked(index: int, at: float) -> CallParked:
    return CallParked(at=at, turn=1, index=index, tool="tool", reason="it may do harm")


def taken(*items: Item, at: float = 3.0) -> MailTaken:
    return MailTaken(at=at, items=items)


def answer(index: int, *, turn: int = 1, allow: bool = True) -> ApprovalAnswer:
    return ApprovalAnswer(key=f"answer {turn}/{index}", turn=turn, index=index, allow=allow)


def result(name: str, text: str, *, failed: bool = False) -> ToolMessage:
    return ToolMessage(name, text, call_id=name, failed=failed)


def messages_after_task(run: Run) -> list[Message]:
    assert run.history[0] == UserMessage("task")
    return run.history[1:]


# ---- beginnings ---------------------------------------------------------------------------------------------------


def test_a_new_run_has_its_task_and_zero_usage() -> None:
    accepted = acceptance(task="find it")

    run = run_after(accepted=accepted)

    assert snapshot(run) == {
        "advised": frozenset(),
        "answer": AssistantMessage(),
        "is_same_result": False,
        "writes_calls": False,
        "call_error": "",
        "paused": False,
        "last_calls": [],
        "repeats": 0,
        "accepted": accepted,
        "run_spec": RUN_SPEC,
        "adopted_seq": 0,
        "in_exchange": True,
        "calls_made": 0,
        "calls_before": 0,
        "closing": False,
        "compactions": 0,
        "context": 0,
        "cost": 0,
        "dependencies": dict[str, object](),
        "exchange_turns": 0,
        "estimated": Usage(),
        "estimated_cost": 0,
        "exchange_at": 0.0,
        "exchanges": [],
        "failure": None,
        "final": False,
        "counted_messages": 0,
        "cut_by": None,
        "cuts": 0,
        "history": [UserMessage("find it")],
        "inputs": dict[str, int](),
        "latest_input": "",
        "left_at": None,
        "open": [],
        "outcome": None,
        "parked_seconds": 0.0,
        "parked_before": 0.0,
        "parked_since": None,
        "policy": accepted.policy,
        "repairs": 0,
        "reply_tokens": 0,
        "seen": set[str](),
        "seq": 1,
        "spent_before": None,
        "stop": "end",
        "system": RUN_SPEC.system,
        "taken": set[str](),
        "text": "",
        "tool_crash": None,
        "tools_on": True,
        "turns": 0,
        "unreturned": 0,
        "usage": Usage(),
        "wrap_up_limit": None,
    }
    assert run.run_id == "run"


@pytest.mark.parametrize(
    ("events", "found"),
    [([], "nothing"), ([(1, RunAdopted(at=0.0, driver_id="d"))], "RunAdopted")],
)
def test_a_log_must_begin_with_run_accepted(events: list[tuple[int, Event]], found: str) -> None:
    with pytest.raises(ValueError, match=f"^a run begins with its acceptance, not with {found}$"):
        fold(events, RUN_SPEC)


def test_a_fork_begins_with_its_inherited_history_and_its_task() -> None:
    parent = run_after(reply("", "fork"))

    child = run_after(inherited=parent.history)

    assert list(child.history) == [
        UserMessage("task"),
        AssistantMessage("", (ToolCall("fork", "{}", "fork"),)),
        result("fork", STILL_OPEN, failed=True),
        UserMessage("task"),
    ]
    assert list(parent.history) == list(child.history)[:2]


def test_a_fork_may_inherit_only_the_last_turns() -> None:
    parent = run_after(reply("one", "look"), returned(0, "seen"), reply("two"))
    accepted = acceptance()
    accepted = type(accepted)(
        at=0.0,
        run_id="child",
        session_id="session",
        root_id="run",
        run_spec="",
        task="go on",
        policy=accepted.policy,
        inherits=HistoryRef("run", parent.seq, last_turns=1),
    )

    child = run_after(accepted=accepted, inherited=parent.history)

    assert list(child.history) == [UserMessage(LEFT_OUT, "engine"), AssistantMessage("two"), UserMessage("go on")]


# ---- replies and calls --------------------------------------------------------------------------------------------


def test_replies_are_counted_with_their_usage_and_cost() -> None:
    run = run_after(
        reply("first", "look", usage=Usage(input=10, output=1), cost=5),
        returned(0, "seen"),
        reply("second", usage=Usage(input=20, cached=10), cost=6),
    )

    assert (run.turns, run.exchange_turns, run.calls_made) == (2, 2, 1)
    assert (run.usage, run.cost) == (Usage(input=30, output=1, cached=10), 11)
    assert (run.text, run.final, run.open) == ("second", True, [])


def test_missing_usage_counts_as_zero_and_an_unknown_cost_stays_unknown() -> None:
    run = run_after(reply("first", "look", cost=None), returned(0, "seen"), reply("second", cost=6))

    assert (run.usage, run.cost) == (Usage(), None)


def test_an_empty_reply_keeps_the_last_text() -> None:
    run = run_after(reply("let me look", "look"), returned(0, "seen"), reply(""))

    assert (run.text, run.final) == ("let me look", True)


def test_results_enter_the_history_together_in_call_order() -> None:
    run = run_after(reply("", "a", "b", "c"), returned(2, "third"), returned(0, "first"))
    assert len(run.history) == 2
    assert [call.result is not None for call in run.open] == [True, False, True]

    apply(run, 5, returned(1, "second", failed=True))

    assert list(run.history)[2:] == [result("a", "first"), result("b", "second", failed=True), result("c", "third")]
    assert (run.open, run.calls_made, run.tool_crash) == ([], 3, None)


def test_calls_without_unique_ids_are_matched_by_index() -> None:
    twins = AssistantMessage("", (ToolCall("a"), ToolCall("a"), ToolCall("a", "{}", "x"), ToolCall("a", "{}", "x")))

    run = run_after(
        ReplyReceived(at=1.0, turn=1, reply=Reply(twins)),
        *(returned(index, f"result {index}") for index in (3, 1, 0, 2)),
    )

    assert [message.text for message in run.history[2:]] == ["result 0", "result 1", "result 2", "result 3"]


def test_a_tool_crash_is_recorded_with_its_turn() -> None:
    run = run_after(reply("", "a"), returned(0, "ZeroDivisionError", failed=True, crashed=True))

    assert run.tool_crash == (1, "ZeroDivisionError")
    assert run.history[-1] == result("a", "ZeroDivisionError", failed=True)


def test_a_failed_turn_does_not_count_and_keeps_the_partial_text() -> None:
    failed = TurnFailed(at=2.0, turn=1, fault="cut", error="the line was cut", partial="half a sen")

    run = run_after(failed)

    assert (run.failure, run.text, run.turns) == (failed, "half a sen", 0)


def test_a_failed_turn_without_text_keeps_the_last_text() -> None:
    run = run_after(
        reply("let me look", "look"),
        returned(0, "seen"),
        TurnFailed(at=2.0, turn=2, fault="auth", error="no key"),
    )

    assert run.text == "let me look"


# ---- adoption and approvals ---------------------------------------------------------------------------------------


def test_open_calls_are_stale_after_an_adoption() -> None:
    run = run_after(reply("", "a"))
    assert not run.is_stale(run.open[0])

    apply(run, 3, RunAdopted(at=2.0, driver_id="other"))

    assert run.is_stale(run.open[0])


def test_a_call_approved_after_an_adoption_is_not_stale() -> None:
    run = run_after(reply("", "a"), parked(0, 2.0), RunAdopted(at=2.0, driver_id="other"), taken(answer(0)))

    assert not run.is_stale(run.open[0])
    assert not run.open[0].awaits_approval


def test_a_call_approved_before_an_adoption_is_stale() -> None:
    run = run_after(reply("", "a"), parked(0, 2.0), taken(answer(0)), RunAdopted(at=4.0, driver_id="other"))

    assert run.is_stale(run.open[0])


def test_time_without_a_driver_after_a_clean_shutdown_does_not_count() -> None:
    run = run_after(RunLeft(at=10.0), RunAdopted(at=70.0, driver_id="other"))
    assert (run.parked_seconds, run.left_at) == (60.0, None)

    apply(run, run.seq + 1, RunAdopted(at=90.0, driver_id="third"))  # after a crash: no clean shutdown was recorded
    assert run.parked_seconds == 60.0


def test_overlapping_waits_for_approval_and_driver_count_once() -> None:
    left = (RunLeft(at=10.0), RunAdopted(at=70.0, driver_id="other"))
    run = run_after(reply("", "a"), parked(0, 2.0), *left)
    assert (run.parked_seconds, run.parked_since) == (0.0, 2.0)


def test_only_the_first_answer_to_a_parked_call_of_this_turn_counts() -> None:
    first = answer(0, allow=False)
    run = run_after(
        reply("", "a", "b"),
        parked(0, 2.0),
        taken(answer(0, turn=0), answer(0, turn=2), answer(1), answer(2), answer(-1), answer(-2)),
    )
    assert [call.answer for call in run.open] == [None, None]

    apply(run, 5, taken(first))
    apply(run, 6, taken(answer(0, allow=True)))

    assert [call.answer for call in run.open] == [first, None]
    assert run.open[0].since == 5


def test_an_approval_answer_without_open_calls_is_ignored() -> None:
    run = run_after(reply("done"), taken(answer(0), answer(-1)))

    assert messages_after_task(run) == [AssistantMessage("done")]


def test_a_returned_parked_call_does_not_await_approval() -> None:
    run = run_after(reply("", "a", "b"), parked(0, 2.0), parked(1, 2.0))
    assert [call.awaits_approval for call in run.open] == [True, True]
    assert [call.parked_reason for call in run.open] == ["it may do harm", "it may do harm"]

    apply(run, run.seq + 1, returned(0, "yes"))

    assert [call.awaits_approval for call in run.open] == [False, True]


def test_overlapping_parked_calls_count_once() -> None:
    run = run_after(reply("", "a", "b"), parked(0, 10.0), parked(1, 15.0), taken(answer(0), at=30.0))
    assert (run.parked_seconds, run.parked_since) == (0.0, 10.0)

    apply(run, 6, taken(answer(1), at=60.0))

    assert (run.parked_seconds, run.parked_since) == (50.0, None)


def test_consecutive_parked_calls_are_not_counted_twice() -> None:
    run = run_after(
        reply("", "a", "b"),
        parked(0, 0.0),
        taken(answer(0), at=100.0),
        parked(1, 100.0),
        taken(answer(1), at=150.0),
    )

    assert run.parked_seconds == 150.0


def test_a_clock_set_back_never_reduces_parked_time() -> None:
    run = run_after(reply("", "a"), parked(0, 100.0), taken(answer(0), at=40.0))

    assert run.parked_seconds == 0.0


# ---- inbox --------------------------------------------------------------------------------------------------------


def test_keys_of_taken_items_are_recorded() -> None:
    run = run_after(
        taken(TextMessage(key="a", text="x"), Close(key="b"), Cancel(key="c"), Deadline(key="d", seconds=1))
    )

    assert run.taken == {"a", "b", "c", "d"}


def test_a_message_after_an_answer_makes_it_not_final() -> None:
    run = run_after(reply("done"), taken(TextMessage(key="a", text="and this?", origin="peer")))

    assert messages_after_task(run) == [AssistantMessage("done"), UserMessage("and this?", "peer")]
    assert (run.final, run.text, run.exchange_turns) == (False, "done", 1)


@pytest.mark.parametrize(
    "item",
    [
        TextMessage(key="a", text="next"),
        Input(key="a", text="next"),
        ChildEnded(key="a", run_id="child", result="failed", notice="next"),
    ],
)
def test_an_idle_run_begins_a_new_exchange_with_any_message(item: Item) -> None:
    idle = (reply("done"), ExchangeEnded(at=2.0, exchange=ANSWERED))
    run = run_after(*idle)
    assert (run.in_exchange, run.exchange_turns, run.text) == (False, 1, "done")

    apply(run, run.seq + 1, taken(item))

    assert (run.in_exchange, run.exchange_turns, run.text, run.final) == (True, 0, "", False)
    assert (run.turns, run.exchanges, run.tools_on) == (1, [ANSWERED], True)
    assert run.history[-1].text == "next"


def test_an_input_without_tools_disables_them_for_its_exchange() -> None:
    end = ExchangeEnded(at=2.0, exchange=ANSWERED)
    run = run_after(reply("one"), end, taken(Input(key="a", text="sum up", tools=False)))
    assert not run.tools_on

    apply(run, run.seq + 1, taken(TextMessage(key="b", text="briefly")))
    assert not run.tools_on

    for event in (reply("two"), end, taken(TextMessage(key="c", text="more"))):
        apply(run, run.seq + 1, event)
    assert run.tools_on


def test_a_childs_end_is_a_message_of_origin_notice() -> None:
    run = run_after(taken(ChildEnded(key="a", run_id="child", result="completed", notice="[child completed]")))

    assert messages_after_task(run) == [UserMessage("[child completed]", "notice")]
    assert run.seen == {"child"}


def test_a_childs_end_without_a_notice_adds_no_message() -> None:
    run = run_after(reply("done"), taken(ChildEnded(key="a", run_id="child", result="completed")))

    assert messages_after_task(run) == [AssistantMessage("done")]
    assert (run.seen, run.final) == ({"child"}, True)


def test_a_collected_childs_end_is_not_announced() -> None:
    run = run_after(
        ResultCollected(at=1.0, key="k", run_id="child"),
        reply("done"),
        taken(ChildEnded(key="a", run_id="child", result="completed", notice="[child completed]")),
    )

    assert messages_after_task(run) == [AssistantMessage("done")]
    assert (run.seen, run.final) == ({"child"}, True)


def test_close_marks_the_run_as_closing() -> None:
    assert run_after(taken(Close(key="a"))).closing


# ---- wrap-up, repairs, ends, compaction ---------------------------------------------------------------------------


def test_repairs_are_counted_per_exchange_and_sent_as_engine_messages() -> None:
    repair = RepairAsked(at=2.0, error="odd", text="once more")
    run = run_after(reply("seven"), repair, reply("nine"), repair)
    later = run_after(reply("seven"), repair, reply("eight"), ENDED, taken(Input(key="more", text="more")))

    assert list(run.history)[1:] == [
        AssistantMessage("seven"),
        UserMessage("once more", "engine"),
        AssistantMessage("nine"),
        UserMessage("once more", "engine"),
    ]
    assert (run.repairs, run.final, run.in_exchange) == (2, False, True)
    assert later.repairs == 0


def test_a_repair_closes_calls_made_without_offered_tools() -> None:
    asked = taken(Input(key="more", text="more", tools=False))
    run = run_after(reply("one"), ENDED, asked, reply("two", "a"), RepairAsked(at=2.0, error="odd", text="once more"))

    assert list(run.history)[-2:] == [result("a", NOT_OFFERED, failed=True), UserMessage("once more", "engine")]


def test_a_wrap_up_closes_open_calls_and_disables_tools() -> None:
    run = run_after(reply("hm", "a", "b"), WrapUpAsked(at=2.0, limit=TURNS, text="what have you got?"))

    assert list(run.history)[2:] == [
        result("a", NOT_MADE, failed=True),
        result("b", NOT_MADE, failed=True),
        UserMessage("what have you got?", "engine"),
    ]
    assert (run.open, run.wrap_up_limit, run.tools_on, run.final, run.calls_made) == ([], TURNS, False, False, 0)


def test_an_exchange_end_closes_open_calls_and_the_wrap_up() -> None:
    exhausted = Exchange(result="exhausted", reason="max_turns", limit=TURNS)
    run = run_after(
        WrapUpAsked(at=1.0, limit=TURNS, text="what have you got?"),
        reply("hm", "a"),
        ExchangeEnded(at=2.0, exchange=exhausted),
    )

    assert run.history[-1] == result("a", NOT_OFFERED, failed=True)
    assert (run.open, run.in_exchange, run.exchanges, run.wrap_up_limit) == ([], False, [exhausted], None)


def test_open_calls_at_an_exchange_end_get_the_not_made_result() -> None:
    run = run_after(reply("hm", "a"), ExchangeEnded(at=2.0, exchange=ANSWERED))

    assert run.history[-1] == result("a", NOT_MADE, failed=True)


@pytest.mark.parametrize(("how", "text"), [("cancelled", UNFINISHED), ("failed", UNFINISHED), ("exhausted", NOT_MADE)])
def test_a_runs_end_leaves_a_result_for_every_call(how: str, text: str) -> None:
    outcome = {
        "cancelled": Outcome(result="cancelled", reason="cancelled"),
        "failed": Outcome(result="failed", reason="tool_error"),
        "exhausted": Outcome(result="exhausted", reason="max_calls"),
    }[how]

    run = run_after(reply("", "a", "b"), returned(1, "known"), RunEnded(at=3.0, outcome=outcome))

    assert list(run.history)[2:] == [result("a", text, failed=True), result("b", "known")]
    assert (run.outcome, run.open) == (outcome, [])


@pytest.mark.parametrize(
    ("before", "outcome", "last"),
    [
        ([], Outcome(result="cancelled", reason="cancelled", text="It was "), "It was "),
        (
            [TurnFailed(at=2.0, turn=1, fault="cut", error="no", partial="It was ")],
            Outcome(result="failed", reason="model_error", text="It was "),
            "It was ",
        ),
        (
            [reply("Let me look.", "ls"), returned(0, "a b")],
            Outcome(result="cancelled", reason="cancelled", text="Let me look."),
            "a b",
        ),
        ([reply("Done.")], Outcome(result="cancelled", reason="cancelled", text="Done."), "Done."),
    ],
    ids=["stopped", "broken", "between turns", "after the answer"],
)
def test_the_partial_reply_of_a_stopped_run_is_kept_once(before: list[Event], outcome: Outcome, last: str) -> None:
    run = run_after(*before, RunEnded(at=3.0, outcome=outcome))

    spoken = [message.text for message in run.history if isinstance(message, AssistantMessage)]
    assert run.history[-1].text == last
    assert len(spoken) == 1


def test_a_compacted_history_continues_after_its_summary() -> None:
    summary = UserMessage("[summary]", "engine")
    run = run_after(
        reply("", "a"),
        returned(0, "seen"),
        taken(TextMessage(key="w", text="and?")),
        HistoryCompacted(at=4.0, replaced=3, messages=(summary,)),
        reply("done"),
    )

    assert list(run.history) == [summary, UserMessage("and?"), AssistantMessage("done")]


def test_usage_of_a_summary_counts_without_counting_as_a_turn() -> None:
    summary = UserMessage("[summary]", "engine")
    compacted = HistoryCompacted(
        at=4.0, replaced=2, messages=(summary,), before=90, after=20, usage=Usage(input=30, output=5), cost=7
    )
    run = run_after(reply("one", usage=Usage(input=80, output=10, reasoning=4), cost=4), compacted)

    assert (run.usage, run.cost, run.turns) == (Usage(input=110, output=15, reasoning=4), 11, 1)
    assert (run.context, run.counted_messages, run.compactions) == (20, 1, 1)


def test_a_reply_updates_the_context_size_and_resets_compactions() -> None:
    run = run_after(
        reply("one"),
        HistoryCompacted(at=4.0, replaced=1, messages=(UserMessage("[summary]", "engine"),), after=20),
        reply("two", usage=Usage(input=80, output=10, reasoning=4)),
    )

    assert (run.context, run.counted_messages, run.compactions) == (86, 3, 0)


def test_a_second_acceptance_changes_only_the_sequence_number() -> None:
    run = run_after(reply("done"))
    before = snapshot(run)

    apply(run, 3, acceptance(task="another"))

    assert snapshot(run) == before | {"seq": 3}


def test_an_outcome_has_the_totals_of_its_run() -> None:
    run = run_after(reply("one", usage=Usage(input=3), cost=4))

    assert run.outcome_as(ANSWERED, unstopped=("shell",)) == Outcome(
        result="completed",
        reason="answered",
        text="done",
        usage=Usage(input=3),
        cost=4,
        turns=1,
        exchanges=1,
        unstopped=("shell",),
    )


def test_an_outcome_counts_an_exchange_in_progress() -> None:
    run = run_after(reply("one"), ExchangeEnded(at=2.0, exchange=ANSWERED))
    assert run.outcome_as(ANSWERED).exchanges == 1

    apply(run, run.seq + 1, taken(TextMessage(key="a", text="more")))

    assert run.outcome_as(ANSWERED).exchanges == 2


def test_an_outcome_keeps_limit_and_error_unless_given_an_error() -> None:
    exhausted = Exchange(result="exhausted", reason="max_turns", error="too long", limit=TURNS)
    run = run_after()

    assert (run.outcome_as(exhausted).error, run.outcome_as(exhausted).limit) == ("too long", TURNS)
    assert run.outcome_as(exhausted, error="far too long").error == "far too long"


# ---- properties ---------------------------------------------------------------------------------------------------


@given(seed=SEEDS)
def test_repeated_events_change_nothing(seed: int) -> None:
    simulation = Simulation(seed).finish()

    stuttering = [numbered for numbered in simulation.log for _ in range(2)]

    assert snapshot(fold(stuttering, simulation.run_spec, simulation.inherited)) == snapshot(simulation.run)


@given(seed=SEEDS)
def test_replaying_a_log_with_overlaps_gives_the_same_run(seed: int) -> None:
    simulation = Simulation(seed).finish()
    random = Random(seed)

    stumbling: list[tuple[int, Event]] = []
    done = 0
    while done < len(simulation.log):
        back = random.randint(0, done)
        done = random.randint(done + 1, len(simulation.log))
        stumbling += simulation.log[back:done]

    assert snapshot(fold(stumbling, simulation.run_spec, simulation.inherited)) == snapshot(simulation.run)


@given(seed=SEEDS)
def test_folding_in_two_parts_equals_folding_at_once(seed: int) -> None:
    simulation = Simulation(seed).finish()
    middle = Random(seed).randint(1, len(simulation.log))

    run = fold(simulation.log[:middle], simulation.run_spec, simulation.inherited)
    for seq, event in simulation.log[middle:]:
        apply(run, seq, event)

    assert snapshot(run) == snapshot(simulation.run)


@given(seed=SEEDS)
def test_folding_does_not_change_the_inherited_history(seed: int) -> None:
    simulation = Simulation(seed)
    before = list(simulation.inherited or ())

    simulation.finish()

    assert list(simulation.inherited or ()) == before


def test_the_fold_appends_to_one_list_and_copies_no_message() -> None:
    run = run_after()
    own = run.history._own
    messages: list[Message] = []
    for seq in range(2, 2000, 2):
        received = reply(f"turn {seq}", "a")
        messages.append(received.reply.message)
        apply(run, seq, received)
        apply(run, seq + 1, returned(0, "seen"))

    assert run.history._own is own
    assert len(own) == 1 + 2 * len(messages)
    assert all(kept is said for kept, said in zip(own[1::2], messages, strict=True))
