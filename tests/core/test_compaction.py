"""Compaction plans: valid conversations come out, always shorter, and repeated compaction terminates."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.compaction import (
    KEPT_TURNS,
    MAX_COMPACTIONS_PER_TURN,
    MIN_SIZE,
    ContextOverflow,
    SizeTarget,
    Summarisation,
    Truncation,
    compacted_messages,
    cut_length,
    cut_middle,
    plan,
    size_target,
    summary_prompt,
    total_tokens,
    transcript,
)
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage

TASK = "Find the leak."


def turn(number: int, *results: int, words: int = 10, arguments: int = 2, thought: int = 0) -> list[Message]:
    """A reply with one call for each of `results`, which are the lengths of their results."""
    calls = tuple(
        ToolCall("look", '{"q":"' + "a" * arguments + '"}', f"c{number}-{index}") for index in range(len(results))
    )
    thinking = (Thinking("t" * thought, signature="s"),) if thought else ()
    said = AssistantMessage("w" * words, calls, thinking)
    return [said, *(ToolMessage("look", "r" * size, f"c{number}-{i}") for i, size in enumerate(results))]


def conversation(*turns: list[Message], task: str = TASK) -> list[Message]:
    return [UserMessage(task), *(message for each in turns for message in each)]


def apply(messages: Sequence[Message], found: Truncation | Summarisation, summary: str = "It drips.") -> list[Message]:
    return [*compacted_messages(found, TASK, summary), *messages[found.replaced :]]


def assert_valid(messages: Sequence[Message]) -> None:
    """What every vendor requires: a user message first, and each call followed by its result."""
    assert isinstance(messages[0], UserMessage)
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.calls] if isinstance(message, AssistantMessage) else []
    assert not waiting


SIZES = st.one_of(st.integers(0, 300), st.integers(0, 30_000))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = [UserMessage(TASK + "x" * draw(SIZES))]
    for number in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            messages.append(UserMessage("u" * draw(SIZES)))
        results = draw(st.lists(SIZES, max_size=3))
        messages += turn(number, *results, words=draw(SIZES), arguments=draw(SIZES), thought=draw(SIZES))
    if draw(st.booleans()):
        messages.append(UserMessage("u" * draw(SIZES)))
    return messages


@given(messages=conversations(), share=st.integers(1, 20), summary=st.text(max_size=50).map(lambda text: text * 200))
def test_a_compacted_conversation_is_valid_and_shorter(messages: list[Message], share: int, summary: str) -> None:
    free = total_tokens(messages) * share // 20
    found = plan(messages, SizeTarget(free // 2, free * 3 // 4))
    if found is None:
        return

    shorter = apply(messages, found, summary)

    assert_valid(shorter)
    assert total_tokens(shorter) < total_tokens(messages)
    again = plan(shorter, SizeTarget(free // 2, free * 3 // 4))
    if total_tokens(shorter) <= max(free * 3 // 4, MIN_SIZE):
        assert again is None, "what fits is left alone"
    newest = messages[found.replaced :]
    assert shorter[len(shorter) - len(newest) :] == newest


@given(messages=conversations())
def test_repeated_context_length_errors_shrink_the_history_each_time(
    messages: list[Message],
) -> None:
    sizes = [total_tokens(messages)]
    for times in range(MAX_COMPACTIONS_PER_TURN):
        free = size_target(ContextOverflow(error="too long"), tokens=1, messages=sizes[-1], fixed=50, times=times)
        found = plan(messages, free) if free is not None else None
        if found is None:
            break
        messages = apply(messages, found)
        assert_valid(messages)
        sizes.append(total_tokens(messages))

    assert all(after < before for before, after in pairwise(sizes))
    assert TASK.split()[0] in messages[0].text


def test_fitting_and_small_conversations_are_not_compacted() -> None:
    messages = conversation(turn(1, 4000), turn(2, 4000), turn(3, 4000), turn(4, 10))

    assert plan(messages, SizeTarget(10_000, 20_000)) is None
    assert plan(conversation(turn(1, MIN_SIZE // 2)), SizeTarget(0, 0)) is None


def test_the_oldest_results_are_dropped_first_and_no_more_than_needed() -> None:
    messages = conversation(*(turn(number, 4000) for number in range(1, 6)))

    found = plan(messages, SizeTarget(13_000, 19_000))

    assert found == Truncation(5, (*messages[:2], dropped("c1-0", 4000), messages[3], dropped("c2-0", 4000)))


def dropped(call_id: str, size: int) -> ToolMessage:
    return ToolMessage("look", f"[result of look left out: {size} characters]", call_id)


def test_short_results_and_those_of_the_newest_turns_are_kept() -> None:
    messages = conversation(turn(1, 150, 9000), turn(2, 1500), turn(3, 1500))

    found = plan(messages, SizeTarget(1000, 4000))

    assert found == Truncation(4, (*messages[:3], dropped("c1-1", 9000)))
    assert KEPT_TURNS == 2


def test_long_replies_lead_to_a_summary_of_the_older_turns() -> None:
    messages = conversation(*(turn(number, 10, words=3000) for number in range(1, 9)))

    found = plan(messages, SizeTarget(8000, 12_000))

    assert isinstance(found, Summarisation)
    assert found == Summarisation(tuple(messages[:-2]), (), len(messages) - 2, 4000)
    assert apply(messages, found) == [
        UserMessage(
            "[15 earlier messages of this conversation were replaced by this summary, to make room.]\n"
            "The task, in its own words:\nFind the leak.\n\nSummary:\nIt drips.",
            "engine",
        ),
        *messages[-2:],
    ]


def test_without_a_summary_a_notice_replaces_the_older_turns() -> None:
    messages = conversation(*(turn(number, 10, words=3000) for number in range(1, 9)))
    found = plan(messages, SizeTarget(8000, 12_000))
    assert found is not None

    assert apply(messages, found, " ")[0].text == (
        "[15 earlier messages of this conversation were left out, to make room.]\n"
        "The task, in its own words:\nFind the leak."
    )


def test_one_giant_message_is_truncated_in_the_middle() -> None:
    messages: list[Message] = [UserMessage("begin " + "x" * 100_000 + " end")]

    found = plan(messages, SizeTarget(2000, 3000))

    assert found is not None
    (shorter,) = apply(messages, found)
    assert shorter.text.startswith("begin xxx")
    assert shorter.text.endswith("xxx end")
    assert "[... 98" in shorter.text
    assert len(shorter.text) == 1999


def test_a_giant_newest_result_is_truncated_without_a_summary() -> None:
    messages = conversation(turn(1, 100_000))

    found = plan(messages, SizeTarget(10_000, 15_000))

    assert isinstance(found, Truncation)
    task, said, result = apply(messages, found)
    assert [task, said] == messages[:2]
    assert 9000 < len(result.text) < 10_000


def test_too_long_arguments_are_replaced_by_a_json_placeholder() -> None:
    messages = conversation(turn(1, 10, arguments=50_000, thought=50_000))

    found = plan(messages, SizeTarget(1000, 1500))

    assert found is not None
    said = apply(messages, found)[1]
    assert isinstance(said, AssistantMessage)
    assert (said.calls[0].arguments, said.thinking) == ('{"left_out":"50008 characters"}', ())


def test_the_summary_prompt_has_task_and_transcript_and_is_bounded() -> None:
    older = (*conversation(turn(1, 9000), turn(2, 20)), UserMessage("hurry", "peer"))
    asked = summary_prompt(Summarisation(older, (), len(older), 4000), TASK, 3000)

    assert "in at most 500 words" in asked
    assert "The task:\nFind the leak.\n\nThe record:\n[words from caller]\nFind the leak.\n\n[the agent said]" in asked
    assert asked.endswith(f"[look returned]\n{'r' * 20}\n\n[words from peer]\nhurry")
    assert len(transcript(older, 3000)) <= 3000
    assert len(transcript(older * 500, 3000)) == 3000


@given(text=st.text(max_size=400), most=st.integers(0, 300))
def test_a_cut_text_is_never_longer_than_its_limit(text: str, most: int) -> None:
    shorter = cut_middle(text, most)

    assert len(shorter) <= most or shorter == text
    assert shorter == text or len(text) > most


@given(lengths=st.lists(st.integers(0, 1000)), most=st.integers(0, 5000))
def test_cut_length_is_the_greatest_that_fits(lengths: list[int], most: int) -> None:
    height = cut_length(lengths, most)

    assert sum(min(length, height) for length in lengths) <= most
    assert sum(lengths) <= most or sum(min(length, height + 1) for length in lengths) > most


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [
        (
            ContextOverflow(window=1000, reserved=200),
            SizeTarget(1400, 2100),
        ),  # 800 tokens are 3200 characters, 400 of them fixed
        (ContextOverflow(window=1000, reserved=200, error="no"), SizeTarget(1400, 2100)),
        (ContextOverflow(window=9000, reserved=200, error="no"), SizeTarget(1800, 2700)),  # the provider's error wins
        (ContextOverflow(error="no"), SizeTarget(1800, 2700)),
        (ContextOverflow(window=100, reserved=20), None),  # the fixed part alone exceeds the window
        (ContextOverflow(window=100, reserved=20, error="no"), SizeTarget(1800, 2700)),
    ],
)
def test_size_target_follows_window_and_provider_error(overflow: ContextOverflow, expected: SizeTarget | None) -> None:
    assert size_target(overflow, tokens=1000, messages=3600, fixed=400, times=0) == expected
