"""Histories: a sequence of messages, shared with forks, with placeholder results for open calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.state import LEFT_OUT, NOT_MADE, STILL_OPEN, History, forked, not_made, unanswered
from tests.core.random_runs import Simulation, assert_every_call_has_one_result

CALL = ToolCall("look", "{}", "id 1")
OTHER = ToolCall("find", "{}", "id 2")

TURNS_OF_TWO: list[Message] = [
    UserMessage("task"),
    AssistantMessage("one", (CALL,)),
    ToolMessage("look", "seen", "id 1"),
    AssistantMessage("two"),
    UserMessage("more"),
    UserMessage("and more", "peer"),
    AssistantMessage("three", (CALL, OTHER)),
    ToolMessage("look", "seen again", "id 1"),
    ToolMessage("find", "found", "id 2"),
    AssistantMessage("four"),
]


def history(*messages: Message, base: History | None = None) -> History:
    made = History(base)
    for message in messages:
        made.append(message)
    return made


def words(*texts: str) -> list[Message]:
    return [UserMessage(text) for text in texts]


# ---- a sequence ---------------------------------------------------------------------------------------------------


def test_a_new_history_is_empty() -> None:
    empty = History()

    assert (list(empty), len(empty), empty.inherited, empty[:]) == ([], 0, 0, [])
    assert not empty


@given(
    pieces=st.lists(st.integers(0, 4), max_size=5),
    start=st.none() | st.integers(-15, 15),
    stop=st.none() | st.integers(-15, 15),
    step=st.none() | st.integers(-3, 3).filter(bool),
)
def test_a_history_of_pieces_reads_like_one_list(
    pieces: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    plain: list[Message] = []
    made = History()
    for number, size in enumerate(pieces):
        made = History(made)
        for index in range(size):
            message = UserMessage(f"{number}.{index}")
            plain.append(message)
            made.append(message)

    assert list(made) == plain
    assert len(made) == len(plain)
    assert made[start:stop:step] == plain[start:stop:step]
    assert [made[index] for index in range(-len(plain), len(plain))] == plain + plain
    assert list(reversed(made)) == plain[::-1]


@pytest.mark.parametrize("index", [3, -4, 100, -100])
def test_an_index_out_of_range_raises_index_error(index: int) -> None:
    made = history(*words("c"), base=history(*words("a", "b")))

    with pytest.raises(IndexError):
        made[index]


# ---- forks --------------------------------------------------------------------------------------------------------


def test_a_fork_shares_its_parents_messages_by_reference() -> None:
    parent = history(*words("a", "b"))

    child = forked(parent)
    grandchild = forked(history(*words("c"), base=parent))

    assert (child.inherited, grandchild.inherited) == (2, 3)
    assert child._pieces[0][0] is parent._own
    assert grandchild._pieces[0][0] is parent._own
    assert all(mine is theirs for mine, theirs in zip(child, parent, strict=True))


def test_appends_of_parent_and_fork_do_not_affect_each_other() -> None:
    parent = history(*words("a"))
    child = forked(parent)

    parent.append(UserMessage("for the parent"))
    child.append(UserMessage("for the child"))

    assert list(parent) == words("a", "for the parent")
    assert list(child) == words("a", "for the child")
    assert (child[1], child[-1], child[1:]) == (*words("for the child") * 2, words("for the child"))


def test_a_fork_of_an_empty_fork_refers_to_the_first_history() -> None:
    parent = history(*words("a"))

    grandchild = History(History(History(parent)))

    assert list(grandchild) == words("a")
    assert grandchild._pieces == ((parent._own, 1),)


def test_a_conversation_may_be_continued_thousands_of_times() -> None:
    made = History()
    for number in range(3000):
        made = forked(history(UserMessage(str(number)), base=made))

    assert [message.text for message in made] == [str(number) for number in range(3000)]
    assert (made[0], made[-1]) == (UserMessage("0"), UserMessage("2999"))


def test_an_open_call_gets_a_placeholder_result_only_in_the_fork() -> None:
    parent = history(UserMessage("task"), AssistantMessage("", (CALL, OTHER)))

    child = forked(parent)

    assert child[2:] == [
        ToolMessage("look", STILL_OPEN, "id 1", failed=True),
        ToolMessage("find", STILL_OPEN, "id 2", failed=True),
    ]
    assert (len(parent), child.inherited) == (2, 2)


def test_a_fork_without_open_calls_needs_no_placeholder() -> None:
    for count in (0, 1, 3, 4, 5, 6, 9, 10):
        parent = history(*TURNS_OF_TWO[:count])
        assert list(forked(parent)) == list(parent)


# ---- the last turns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (0, []),
        (1, [UserMessage(LEFT_OUT, "engine"), TURNS_OF_TWO[9]]),
        (2, TURNS_OF_TWO[4:]),
        (3, [UserMessage(LEFT_OUT, "engine"), *TURNS_OF_TWO[3:]]),
        (4, TURNS_OF_TWO),
        (5, TURNS_OF_TWO),
    ],
)
def test_the_last_turns_begin_with_a_user_message(turns: int, expected: Sequence[Message]) -> None:
    assert list(forked(history(*TURNS_OF_TWO), last_turns=turns)) == list(expected)


def test_the_last_turns_without_replies_are_the_user_messages() -> None:
    assert list(forked(history(*words("a", "b")), last_turns=2)) == words("a", "b")


def test_the_last_turn_may_have_an_open_call() -> None:
    parent = history(*TURNS_OF_TWO, UserMessage("fork"), AssistantMessage("", (CALL,)))

    assert list(forked(parent, last_turns=1)) == [
        UserMessage("fork"),
        AssistantMessage("", (CALL,)),
        ToolMessage("look", STILL_OPEN, "id 1", failed=True),
    ]


@given(seed=st.integers(0, 2**32 - 1), turns=st.integers(0, 6))
def test_the_last_turns_of_any_run_are_a_valid_conversation(seed: int, turns: int) -> None:
    parent = Simulation(seed).finish().run.history

    child = forked(parent, last_turns=turns)

    assert_every_call_has_one_result(child)
    assert sum(isinstance(message, AssistantMessage) for message in child) <= turns
    assert not child or isinstance(child[0], UserMessage)
    kept = [message for message in child if message.text != LEFT_OUT]
    assert all(mine is theirs for mine, theirs in zip(reversed(kept), reversed(parent), strict=False))


# ---- compaction ---------------------------------------------------------------------------------------------------


def test_replace_first_replaces_the_first_messages() -> None:
    made = history(*words("a", "b", "c"))

    made.replace_first(2, words("a and b"))
    made.append(UserMessage("d"))

    assert list(made) == words("a and b", "c", "d")
    assert (made[0], made[-1], made[1:], len(made), made.inherited) == (
        *words("a and b", "d"),
        words("c", "d"),
        3,
        1,
    )


@pytest.mark.parametrize(("count", "left"), [(0, ["a", "b", "c", "d"]), (1, ["b", "c", "d"]), (3, ["d"]), (4, [])])
def test_a_fork_may_replace_inherited_messages(count: int, left: list[str]) -> None:
    parent = history(*words("a", "b"))
    child = history(*words("c", "d"), base=parent)

    child.replace_first(count, words("[summary]"))

    assert list(child) == words("[summary]", *left)
    assert list(parent) == words("a", "b")


def test_forks_made_before_a_compaction_are_unchanged() -> None:
    parent = history(*words("a", "b", "c"))
    child = history(*words("d"), base=parent)
    grandchild = history(*words("e"), base=child)

    parent.replace_first(3, words("[summary]"))
    parent.append(UserMessage("later"))
    child.replace_first(1, ())

    assert list(parent) == words("[summary]", "later")
    assert list(child) == words("b", "c", "d")
    assert list(grandchild) == words("a", "b", "c", "d", "e")


def test_forks_made_after_a_compaction_begin_with_the_summary() -> None:
    parent = history(*words("a", "b"))
    parent.replace_first(1, words("[summary]"))

    assert list(forked(parent)) == words("[summary]", "b")


# ---- unanswered calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9])
def test_a_conversation_without_open_calls_has_no_unanswered_calls(count: int) -> None:
    assert unanswered(TURNS_OF_TWO[:count], NOT_MADE) == []


def test_every_call_of_the_last_reply_is_unanswered_until_all_have_results() -> None:
    assert unanswered(TURNS_OF_TWO[:7], NOT_MADE) == not_made((CALL, OTHER), NOT_MADE)
    assert not_made((CALL, OTHER), NOT_MADE) == [
        ToolMessage("look", NOT_MADE, "id 1", failed=True),
        ToolMessage("find", NOT_MADE, "id 2", failed=True),
    ]
