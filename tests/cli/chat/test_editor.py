"""The prompt of a chat on a terminal that can be redrawn: typing during an answer, several lines, completion, keys."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from retinue.cli.chat.editor import InputCompleter
from retinue.providers.scripted import calls, hangs, says
from retinue.testing.fake_chat import ChatScript, FakeChat, Playable
from tests.cli.pty_command import PtyCommand

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

ALT_ENTER, UP, TAB, CTRL_C, CTRL_D = "\x1b\r", "\x1b[A", "\t", "\x03", "\x04"

READY = ">"
"""The blank after it is a movement of the cursor."""


def start_chat(vendor: FakeChat, *flags: str) -> PtyCommand:
    where = ("--base-url", vendor.base_url, "--model", "m")
    return PtyCommand("chat", *where, *flags, all_there=True, TERM="xterm-256color")


def inputs(vendor: FakeChat) -> list[str]:
    """The last message of each request."""
    return [heard.body["messages"][-1]["content"] for heard in vendor.requests]


def script(*lines: Playable) -> ChatScript:
    return ChatScript().play(*lines)


async def test_an_input_that_is_entered_during_an_answer_is_answered_next(folder: Path) -> None:
    (folder / "wait.py").write_text("import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n")
    async with FakeChat(
        script(calls("shell", command="python3 wait.py"), says("One."), says("Two."), says("Three."))
    ) as vendor:
        terminal = start_chat(vendor, "--tools", "shell", "--no-sandbox", "--yes")
        await terminal.expect(READY)
        terminal.type_line("First?")
        await terminal.expect("shell")  # the call is in progress
        terminal.type_line("Second?")
        await terminal.expect("next: Second?")
        terminal.type_line("Thi", end="")
        (folder / "go").touch()
        await terminal.expect("One.")
        await terminal.expect("Two.")
        terminal.type_line("rd?")
        await terminal.expect("Three.")
        terminal.type_line(CTRL_D, end="")
        left = await terminal.result()

    assert left.code == 0
    assert [text for text in inputs(vendor) if text.endswith("?")] == ["First?", "Second?", "Third?"]


async def test_ctrl_c_stops_an_answer_and_gives_the_waiting_inputs_back() -> None:
    async with FakeChat(script(hangs("It was "), says("Two."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line("First?")
        await terminal.expect("It was")
        terminal.type_line("Second?")
        await terminal.expect("next: Second?")
        terminal.type_line(CTRL_C, end="")
        await terminal.expect("stopped; the chat continues")
        await terminal.expect_at_end("> Second?")
        terminal.type_line("")
        await terminal.expect("Two.")
        terminal.type_line(CTRL_D, end="")
        await terminal.result()

    assert inputs(vendor) == ["First?", "Second?"]


# On a busy machine the second key can arrive when the answer has stopped already; the chat then goes on.
@pytest.mark.stress
async def test_a_second_ctrl_c_during_an_answer_ends_the_process_and_restores_the_terminal() -> None:
    async with FakeChat(script(hangs("It was "))) as vendor:
        terminal = start_chat(vendor, "--yes", "--tools", "shell")
        await terminal.expect(READY)
        terminal.type_line("First?")
        await terminal.expect("It was")
        terminal.type_line(CTRL_C + CTRL_C, end="")
        left = await terminal.result()

    assert left.code == 130
    assert left.terminal.rindex("\x1b[?2004l") > left.terminal.rindex("\x1b[?2004h")
    assert left.delivers_lines


async def test_an_input_of_several_lines() -> None:
    async with FakeChat(script(says("One."), says("Two."), says("Three."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line(f"with{ALT_ENTER}Alt")
        await terminal.expect("One.")
        terminal.type_line("with\\\na backslash")
        await terminal.expect("Two.")
        terminal.type_line('"""\na\\\n\nblock\n"""')
        await terminal.expect("Three.")
        terminal.type_line(CTRL_D, end="")
        await terminal.result()

    assert inputs(vendor) == ["with\nAlt", "with\na backslash", "a\\\n\nblock"]


async def test_a_question_is_asked_above_the_prompt_and_keeps_what_is_typed(folder: Path) -> None:
    async with FakeChat(script(calls("file_write", path="a.txt", content="a"), says("One."), says("Two."))) as vendor:
        terminal = start_chat(vendor, "--tools", "file_write")
        await terminal.expect(READY)
        terminal.type_line("Write.")
        await terminal.expect("Allow? [y]es, [n]o")
        terminal.type_line("y")
        await terminal.expect("One.")
        terminal.type_line("Thanks.")
        await terminal.expect("Two.")
        terminal.type_line(CTRL_D, end="")
        await terminal.result()

    assert (folder / "a.txt").read_text() == "a"
    assert inputs(vendor)[-1] == "Thanks."


async def test_earlier_inputs_come_back_with_the_arrow_keys() -> None:
    async with FakeChat(script(says("One."), says("Two."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line("First?")
        await terminal.expect("One.")
        terminal.type_line(CTRL_D, end="")
        await terminal.result()
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line(UP, end="")
        await terminal.expect_at_end("> First?")
        terminal.type_line(" Again.")
        await terminal.expect("One.")
        terminal.type_line(CTRL_D, end="")
        await terminal.result()

    assert inputs(vendor) == ["First?", "First? Again."]


async def test_commands_are_completed_with_tab() -> None:
    async with FakeChat(script()) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line("/s", end="")
        await terminal.expect("model, session, run")  # about the command, in the menu
        terminal.type_line(TAB, end="")
        await terminal.expect(";7m")  # the first command is marked
        terminal.type_line("")
        await terminal.expect("Subagents:")
        terminal.type_line(CTRL_D, end="")
        left = await terminal.result()

    assert left.code == 0
    # The menu has no background of its own: what suits a dark terminal cannot be read on a light one.
    codes = {int(code) for found in re.findall(r"\x1b\[([\d;]+)m", left.terminal) for code in found.split(";")}
    assert not codes & {*range(40, 49), *range(100, 108)}


async def test_ctrl_c_clears_what_was_typed() -> None:
    async with FakeChat(script(says("One."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line(f"Firs{CTRL_C}", end="")
        await terminal.expect_at_end(">")
        terminal.type_line("Second?")
        await terminal.expect("One.")
        terminal.type_line(CTRL_D, end="")
        left = await terminal.result()

    assert (left.code, inputs(vendor)) == (0, ["Second?"])


async def test_keys_between_two_prompts_are_read_by_the_next_one(folder: Path) -> None:
    os.mkfifo(folder / "gate")
    async with FakeChat(script(says("One."))) as vendor:
        terminal = start_chat(vendor, "--tools", "shell", "--no-sandbox", "--yes")
        await terminal.expect(READY)
        terminal.type_line("!cat gate")
        gate = await asyncio.to_thread((folder / "gate").open, "w")  # the command reads: there is no prompt
        terminal.type_line(f"First?\r{CTRL_D}", end="")
        gate.close()
        await terminal.expect("One.")
        left = await terminal.result()

    assert (left.code, [text.partition("\n")[0] for text in inputs(vendor)]) == (0, ["First?"])
    assert left.delivers_lines


async def test_ctrl_c_twice_on_an_empty_line_leaves() -> None:
    async with FakeChat(script()) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line(CTRL_C, end="")
        await terminal.expect("(press Ctrl-C again, or Ctrl-D, to leave)")
        await terminal.expect_at_end(">")
        terminal.type_line(CTRL_C, end="")
        left = await terminal.result()

    assert left.code == 0


async def test_without_colours_nothing_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with FakeChat(script(says("# One\n"))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect(READY)
        terminal.type_line("First?")
        await terminal.expect("One")
        terminal.type_line(CTRL_D, end="")
        left = await terminal.result()

    codes = [code for code in ("\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[2m") if code in left.terminal]
    assert codes == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/st", ["/status"]),
        ("/subagents ", ["on", "off"]),
        ("/model loc", ["local:qwen3"]),
        ("Look at @no", ["tes.md"]),
        ("/export no", ["tes.md"]),
        ("Let di", ["digger"]),
    ],
)
def test_completion_of_commands_arguments_files_and_agents(folder: Path, text: str, expected: list[str]) -> None:
    (folder / "notes.md").touch()
    completer = InputCompleter(["digger", "writer"], ["local:qwen3", "other:"])

    found = completer.get_completions(Document(text), CompleteEvent(completion_requested=True))

    assert [each.text for each in found] == expected
