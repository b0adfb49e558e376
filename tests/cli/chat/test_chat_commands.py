"""Commands of a chat that change what follows: model, system prompt, retry, undo, compaction and export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from retinue.providers.scripted import Line, calls, says
from tests.cli.chat.conftest import Chat, Opens
from tests.cli.conftest import Cli
from tests.cli.output.test_sse_live import one_by_one
from tests.cli.stage import serving

pytestmark = pytest.mark.real_time


InTurn: TypeAlias = Callable[..., Chat]


@pytest.fixture
def in_turn(cli: Cli) -> Iterator[InTurn]:
    """A chat whose model plays its lines one after the other, whatever it is asked."""
    with ExitStack() as stack:

        def opened(*lines: Line) -> Chat:
            return Chat(cli, stack.enter_context(serving(one_by_one(*lines))))

        yield opened


def test_another_model_answers_the_next_input_with_the_history(chat: Opens) -> None:
    talk = chat(says("One."), says("Two."))

    ended = talk("First?", "/model larger", "Second?")

    assert ended.code == 0
    assert f"model larger at {talk.vendor.base_url} (openai-chat)" in ended.stdout
    assert [heard.body["model"] for heard in talk.vendor.requests] == ["m", "larger"]
    assert talk.sent[1] == [("user", "First?"), ("assistant", "One."), ("user", "Second?")]


def test_a_model_whose_provider_has_no_key_is_refused_and_the_chat_keeps_its_model(chat: Opens) -> None:
    talk = chat(says("One."))

    ended = talk("/model anthropic:claude-x", "Who are you?")

    assert "ANTHROPIC_API_KEY" in ended.stderr
    assert [heard.body["model"] for heard in talk.vendor.requests] == ["m"]


def test_the_effort_can_be_set_and_shown(chat: Opens) -> None:
    talk = chat(says("One."), says("Two."))

    ended = talk("/effort", "/model o3", "First?", "/effort huge", "/effort low", "Second?")

    assert ended.stdout.splitlines()[0] == "effort: as the model has it"
    assert "effort: found 'huge'; expected one of: none, minimal, low, medium, high, xhigh, max" in ended.stderr
    assert [heard.body.get("reasoning_effort") for heard in talk.vendor.requests] == [None, "low"]


def test_the_system_prompt_can_be_set_and_shown(chat: Opens) -> None:
    talk = chat(says("One."), says("Two."))

    ended = talk("/system", "First?", "/system Be brief.", "/system", "Second?")

    assert ended.stdout == "no system prompt is set\nOne.\nBe brief.\nBe brief.\nTwo.\n"
    assert [messages[0] for messages in talk.sent] == [("user", "First?"), ("system", "Be brief.")]
    assert talk.sent[1][1:] == [("user", "First?"), ("assistant", "One."), ("user", "Second?")]


def test_retry_answers_the_last_input_again_without_its_first_answer(in_turn: InTurn) -> None:
    talk = in_turn(says("One."), says("Wrong."), says("Right."), says("Three."))

    ended = talk("First?", "Second?", "/retry", "Third?")

    assert ended.stdout == "One.\nWrong.\nRight.\nThree.\n"
    first = [("user", "First?"), ("assistant", "One.")]
    assert talk.sent[2] == [*first, ("user", "Second?")]
    assert talk.sent[3] == [*first, ("user", "Second?"), ("assistant", "Right."), ("user", "Third?")]


def test_retry_of_the_first_input_starts_with_no_history(in_turn: InTurn) -> None:
    talk = in_turn(says("Wrong."), says("Right."))

    ended = talk("/retry", "First?", "/retry")

    assert ended.stdout == "Wrong.\nRight.\n"
    assert "error: no input was sent yet" in ended.stderr
    assert talk.sent == [[("user", "First?")]] * 2


def test_retry_in_a_continued_chat_repeats_the_last_input_of_the_session(in_turn: InTurn) -> None:
    talk = in_turn(says("One."), says("Wrong."), says("Right."))
    talk("First?", "Second?", flags=("--session", "audit"))

    talk("/retry", flags=("--session", "audit"))

    assert talk.sent[2] == [("user", "First?"), ("assistant", "One."), ("user", "Second?")]


def test_compact_replaces_the_older_part_by_a_summary(in_turn: InTurn) -> None:
    long = "The pool has ten connections. " * 200
    talk = in_turn(says(long), says("Summary: ten connections."), says("Ten."))

    ended = talk("How large is the pool?", "/compact", "Once more?")

    assert ended.code == 0
    assert "the conversation is shortened before the next answer\n" in ended.stdout
    assert "(the history was compacted to fit the model)" in ended.stderr
    asked = talk.sent[2]
    assert "Summary: ten connections." in asked[0][1]
    assert asked[-1] == ("user", "Once more?")
    assert long not in str(asked)


def test_compact_needs_a_conversation(chat: Opens) -> None:
    assert chat()("/compact").stdout == "no input was sent yet\n"


TOOLS = ("--tools", "file_write,file_edit,file_ops", "--yes")


def test_undo_restores_the_files_of_the_last_answer(chat: Opens, folder: Path) -> None:
    (folder / "notes.md").write_text("before\n")
    talk = chat(
        calls("file_write", path="notes.md", content="after\n"),
        calls("file_write", path="new.md", content="new\n"),
        calls("file_ops", operation="delete", path="notes.md"),
        says("Written."),
        says("Sorry."),
    )

    ended = talk("Write.", "/undo", "Why?", flags=TOOLS)

    assert (folder / "notes.md").read_text() == "before\n"
    assert not (folder / "new.md").exists()
    assert "restored: notes.md\n" in ended.stdout
    assert "removed: new.md\n" in ended.stdout
    assert talk.sent[-1][-1] == (
        "user",
        f'Why?\n\n<undone_changes name="files">\n{folder}/notes.md\n{folder}/new.md\n</undone_changes>',
    )


def test_undo_goes_back_one_answer_at_a_time(chat: Opens, folder: Path) -> None:
    (folder / "notes.md").write_text("one\n")
    talk = chat(
        calls("file_edit", path="notes.md", old_string="one", new_string="two"),
        says("Done."),
        calls("file_edit", path="notes.md", old_string="two", new_string="three"),
        says("Done."),
        says("Nothing."),
    )

    talk("First.", "Second.", "Third.", "/undo", "/export one.md", flags=TOOLS)

    assert (folder / "notes.md").read_text() == "two\n"


def test_undo_leaves_a_file_that_was_changed_since(chat: Opens, folder: Path) -> None:
    class Meddling:
        """A model during whose last answer another program writes the file."""

        def __call__(self, heard: object) -> object:
            (folder / "notes.md").write_text("of another program\n")
            return says("Done.")

    talk = chat(calls("file_write", path="notes.md", content="mine\n"), Meddling())

    ended = talk("Write.", "/undo", "/undo", flags=TOOLS)

    assert (folder / "notes.md").read_text() == "of another program\n"
    assert "changed since: notes.md\n" in ended.stdout
    assert "error: the file tools have changed nothing that can be undone" in ended.stderr


def test_export_writes_the_conversation_in_three_forms(chat: Opens, folder: Path) -> None:
    talk = chat(says("# One\n"), says("Two."))

    ended = talk("First?", "/export a.md", "/export b.html", "/export c.jsonl", "/export a.md", "/export d.txt")

    assert ended.stdout.endswith("wrote 1 run to a.md\nwrote 1 run to b.html\nwrote 1 run to c.jsonl\n")
    assert "## task\n\nFirst?\n\n## reply (turn 1)\n\n# One\n" in (folder / "a.md").read_text()
    assert (folder / "b.html").read_text().startswith("<!doctype html>")
    lines = [json.loads(line) for line in (folder / "c.jsonl").read_text().splitlines()]
    assert {line["type"] for line in lines} == {"run", "event"}
    assert "error: /export a.md: File exists" in ended.stderr
    assert "error: /export d.txt: the name ends in none of .jsonl, .html, .md" in ended.stderr


def test_export_needs_a_file_name(chat: Opens) -> None:
    assert "error: /export needs an argument: /export FILE" in chat()("/export").stderr


def test_files_and_shell_commands_are_not_read_from_a_pipe(chat: Opens, folder: Path, cli: Cli) -> None:
    (folder / "secret.txt").write_text("42\n")
    talk = chat(says("One."), says("Two."))

    talk("What is in @secret.txt?", "!cat secret.txt")

    assert [messages[-1][1] for messages in talk.sent] == ["What is in @secret.txt?", "!cat secret.txt"]
