"""`retinue chat` with a person at a terminal: typing, Ctrl-C, approvals, children at work, and coming back later."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from retinue.cli.chat.input import LONGEST, MOST, HistoryFile
from retinue.cli.chat.loop_thread import pending_sigint
from retinue.cli.chat.turn import PromptLock
from retinue.cli.output.approval_prompt import TerminalApprover
from retinue.core.run import Approval
from retinue.providers.scripted import Line, calls, hangs, says, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.person import Person
from tests.cli.screen import drawn
from tests.cli.stage import Command, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

EOF = "\x04"


def person(vendor: FakeChat, *flags: str, **env: str) -> Person:
    """Somebody at a terminal who has begun to chat."""
    return Person("chat", "--base-url", vendor.base_url, "--model", "m", *flags, all_there=True, **env)


def sent(heard: ReceivedRequest) -> list[str]:
    """The words of a request."""
    return [message["content"] for message in heard.body["messages"]]


class Hesitant:
    """A model that falls silent in the middle of its first answer, and is well afterwards."""

    def __init__(self, *answers: Line) -> None:
        self.fell_silent = asyncio.Event()
        self._answers = list(answers or (says("The pool."),))

    def __call__(self, heard: ReceivedRequest) -> Line:
        if not self.fell_silent.is_set():
            self.fell_silent.set()
            return hangs("It was ")
        return self._answers.pop(0)


async def test_a_conversation_at_a_terminal() -> None:
    async with FakeChat(ChatScript().play(says("Hello."), says("red \x1b[31malert"))) as vendor:
        somebody = person(vendor)
        await somebody.sees("/help lists the commands")
        await somebody.sees("> ")
        somebody.types("Hi!")
        await somebody.sees("Hello.\r\n")
        await somebody.sees("> ")
        somebody.types("And?")
        await somebody.sees("red ␛[31malert\r\n")
        await somebody.sees("> ")
        somebody.types(EOF, end="")
        left = await somebody.left()

    assert left.code == 0
    assert "go on with: retinue chat --session " in left.terminal


async def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    async with FakeChat(Hesitant()) as vendor:
        somebody = person(vendor, "--session", "audit")
        await somebody.sees("> ")
        somebody.types("Why?")
        await somebody.sees("It was ")
        somebody.signals(signal.SIGINT)
        await somebody.sees("stopped; the chat goes on")
        await somebody.sees("> ")
        somebody.types("Go on.")
        await somebody.sees("The pool.")
        await somebody.sees("> ")
        somebody.types("/quit")
        left = await somebody.left()
    rows = (await retinue("runs", "--json")).json

    assert left.code == 0
    assert sent(vendor.requests[-1]) == ["Why?", "It was ", "Go on."]
    assert [(row["state"], row["outcome"]) for row in rows] == [("ended", "completed"), ("ended", "cancelled")]


async def test_ctrl_c_stops_children_too() -> None:
    hesitant = Hesitant()
    delegation = calls("subagent", label="dig", task_prompt="DIG in the logs")
    async with FakeChat(ChatScript().play(delegation, says("Well.")).play(hesitant, words="DIG")) as vendor:
        somebody = person(vendor, "--dialect", "xzatoma")
        await somebody.sees("> ")
        somebody.types("Why?")
        await somebody.sees("main [dig]: started")
        await hesitant.fell_silent.wait()
        somebody.signals(signal.SIGINT)
        await somebody.sees("stopped; the chat goes on")
        await somebody.sees("> ")
        somebody.types("/agents")
        await somebody.sees("main [dig]")
        await somebody.sees("cancelled")
        somebody.types("Never mind.")
        await somebody.sees("Well.")
        await somebody.sees("> ")
        somebody.types("exit")
        left = await somebody.left()

    assert left.code == 0


async def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_leaves() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        somebody = person(vendor)
        await somebody.sees("> ")
        somebody.types("never sent", end="")
        await somebody.sees("never sent")
        somebody.signals(signal.SIGINT)
        await somebody.sees("> ")
        somebody.types("Hi!")
        await somebody.sees("Hello.")
        await somebody.sees("> ")
        somebody.signals(signal.SIGINT)
        await somebody.sees("(Ctrl-C again or Ctrl-D leaves)")
        await somebody.sees("> ")
        somebody.signals(signal.SIGINT)
        left = await somebody.left()

    assert left.code == 0
    assert [sent(heard) for heard in vendor.requests] == [["Hi!"]]


async def test_ctrl_c_forgets_an_input_of_several_lines() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        somebody = person(vendor)
        await somebody.sees("> ")
        somebody.types('"""')
        await somebody.sees("... ")
        somebody.types("half of it")
        await somebody.sees("... ")
        somebody.signals(signal.SIGINT)
        await somebody.sees("> ")
        somebody.types("Hi! \\")
        await somebody.sees("... ")
        somebody.types("It is me.")
        await somebody.sees("Hello.")
        await somebody.sees("> ")
        somebody.types(EOF, end="")
        await somebody.left()

    assert [sent(heard) for heard in vendor.requests] == [["Hi! \nIt is me."]]


async def test_the_second_ctrl_c_leaves_what_does_not_stop(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["clings.py"]\n')
    (folder / "clings.py").write_text(
        """
import asyncio, sys, retinue

@retinue.tool(kind="pure")
async def cling() -> str:
    print("clinging", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("still here", file=sys.stderr, flush=True)
"""
    )
    async with FakeChat(calls("cling")) as vendor:
        somebody = person(vendor, "--tools", "cling")
        await somebody.sees("> ")
        somebody.types("Hold on.")
        await somebody.sees("clinging")
        somebody.signals(signal.SIGINT)
        await somebody.sees("still here")
        somebody.signals(signal.SIGINT)
        left = await somebody.left()

    assert left.code == 130


async def test_a_paste_with_line_breaks_is_one_input() -> None:
    async with FakeChat(ChatScript().play(says("Two lines."))) as vendor:
        somebody = person(vendor, TERM="xterm")
        await somebody.sees("\x1b[?2004h")
        somebody.types("\x1b[200~one\ntwo\x1b[201~", end="")
        await somebody.sees("two")
        somebody.types("", end="\r")
        await somebody.sees("Two lines.")
        await somebody.sees("> ")
        somebody.types("/quit")
        await somebody.left()

    assert [sent(heard) for heard in vendor.requests] == [["one\ntwo"]]


async def test_what_was_typed_is_there_in_the_next_chat(home: Path) -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        for typed in ("Hi there!", "\x1b[A"):
            somebody = person(vendor, TERM="xterm")
            await somebody.sees("> ")
            somebody.types(typed, end="\r")
            await somebody.sees("Hello.")
            await somebody.sees("> ")
            somebody.types(EOF, end="")
            await somebody.left()
    file = home / "chat_history"

    assert [sent(heard) for heard in vendor.requests] == [["Hi there!"], ["Hi there!"]]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ('"Hi there!"\n' * 2, 0o600)


async def test_without_an_editor_prompts_are_on_stderr_and_stdout_has_the_answers() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        somebody = Person("chat", "--base-url", vendor.base_url, "--model", "m")
        await somebody.sees("> ")
        somebody.types("Hi!")
        await somebody.sees("> ")
        somebody.types("/quit")
        left = await somebody.left()

    assert (left.code, left.stdout) == (0, "Hello.\n")


async def test_an_approval_is_asked_in_place(folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.smith]\ntools = ["file_write"]\nrisk_profile = "careful"\n'
        '[risk_profiles.careful]\nlevel = "supervised"\n'
    )
    writing = calls("file_write", path="note.txt", content="hello")
    async with FakeChat(ChatScript().play(writing, says("Written."))) as vendor:
        somebody = person(vendor, "--agent", "smith")
        await somebody.sees("> ")
        somebody.types("Write it.")
        await somebody.sees("Allow? [y]es, [n]o")
        somebody.types("y")
        await somebody.sees("Written.")
        await somebody.sees("> ")
        somebody.types("/quit")
        await somebody.left()

    assert (folder / "note.txt").read_text() == "hello"


async def test_ctrl_c_at_a_question_stops_the_answer_and_nothing_was_done(folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.smith]\ntools = ["file_write"]\nrisk_profile = "careful"\n'
        '[risk_profiles.careful]\nlevel = "supervised"\n'
    )
    writing = calls("file_write", path="note.txt", content="hello")
    async with FakeChat(ChatScript().play(writing, says("Not written."))) as vendor:
        somebody = person(vendor, "--agent", "smith")
        await somebody.sees("> ")
        somebody.types("Write it.")
        await somebody.sees("Allow? [y]es, [n]o")
        somebody.signals(signal.SIGINT)
        await somebody.sees("stopped; the chat goes on")
        await somebody.sees("> ")
        somebody.types("Leave it.")
        await somebody.sees("Not written.")
        await somebody.sees("> ")
        somebody.types("/quit")
        left = await somebody.left()

    assert (left.code, os.listdir(folder)) == (0, ["retinue.toml"])


async def test_a_session_that_is_open_elsewhere_is_gone_on_with_from_where_it_stands() -> None:
    async with FakeChat(ChatScript().play(says("Hello."), says("You said hi."))) as vendor:
        somebody = person(vendor, "--session", "audit")
        await somebody.sees("> ")
        somebody.types("Hi!")
        await somebody.sees("Hello.")
        await somebody.sees("> ")
        flags = ("--session", "audit", "--base-url", vendor.base_url, "--model", "m")
        other = await retinue("chat", *flags, stdin=b"What did I say?\n")
        somebody.types("And to me?")
        await somebody.sees("You said hi.")
        await somebody.sees("> ")
        somebody.types("/quit")
        left = await somebody.left()

    assert (left.code, other.code, other.stdout) == (0, 0, "You said hi.\n")
    assert "session audit is open in another process" in other.stderr
    assert [sent(heard)[-2:] for heard in vendor.requests[1:]] == [
        ["Hello.", "What did I say?"],
        ["Hello.", "And to me?"],
    ]


async def test_two_chats_that_share_a_session_hear_of_each_other_although_nothing_was_said_yet() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        somebody = person(vendor, "--session", "audit")
        await somebody.sees("> ")
        another = person(vendor, "--session", "audit")
        await another.sees("warning: session audit is open in another process; neither chat hears what is said in the")
        await another.sees("> ")
        somebody.types("Hi!")
        await somebody.sees("warning: session audit was opened by another process as well; neither chat hears")
        await somebody.sees("Hello.")
        await somebody.sees("> ")
        another.types("/quit")
        somebody.types("/quit")
        left = [await another.left(), await somebody.left()]

    assert [each.code for each in left] == [0, 0]


async def test_a_question_of_the_background_waits_until_nobody_types() -> None:
    put: list[str] = []

    class Asker(TerminalApprover):
        async def __call__(self, question: Approval) -> bool:
            put.append(question.tool)
            return True

    lock = PromptLock(Asker())
    await lock.take()
    asking = asyncio.ensure_future(lock(Approval(run_id="r", path="root", turn=1, index=0, tool="t", arguments="{}")))
    done, _ = await asyncio.wait({asking}, timeout=0)
    before = (done, list(put))
    lock.release()

    assert (before, await asking, put) == ((set(), []), True, ["t"])


async def test_killed_in_the_middle_of_an_answer_the_session_goes_on_without_it() -> None:
    hesitant = Hesitant(says("The pool."), says("Yes, the pool."))
    async with FakeChat(hesitant) as vendor:
        somebody = person(vendor, "--session", "audit")
        await somebody.sees("> ")
        somebody.types("Why?")
        await somebody.sees("It was ")
        somebody.signals(signal.SIGKILL)
        await somebody.left()
        (row,) = (await retinue("runs", "--json")).json
        again = person(vendor, "--session", "audit")
        await again.sees("its last answer was interrupted")
        await again.sees("> ")
        again.types("So?")
        await again.sees("The pool.")
        await again.sees("> ")
        again.types("/quit")
        await again.left()
    rows = (await retinue("runs", "--json")).json

    assert row["state"] == "interrupted"
    assert sent(vendor.requests[-1]) == ["Why?", "So?"]
    assert [(each["state"], each["outcome"]) for each in rows] == [("ended", "completed"), ("ended", "cancelled")]


async def test_an_interrupted_answer_can_be_resumed_and_the_chat_goes_on_with_it() -> None:
    hesitant = Hesitant(says("It was the pool."), says("Since Tuesday."))
    async with FakeChat(hesitant) as vendor:
        somebody = person(vendor, "--session", "audit")
        await somebody.sees("> ")
        somebody.types("Why?")
        await hesitant.fell_silent.wait()
        somebody.signals(signal.SIGKILL)
        await somebody.left()
        (row,) = (await retinue("runs", "--json")).json
        resumed = await retinue("runs", "resume", row["run_id"])
        flags = ("--session", "audit", "--base-url", vendor.base_url, "--model", "m")
        went_on = await retinue("chat", *flags, stdin=b"Since when?\n")

    assert (resumed.code, resumed.stdout) == (0, "It was the pool.\n")
    assert (went_on.code, went_on.stdout) == (0, "Since Tuesday.\n")
    assert sent(vendor.requests[-1]) == ["Why?", "It was the pool.", "Since when?"]


async def test_killed_at_the_prompt_nothing_is_lost_and_the_old_run_is_closed() -> None:
    async with FakeChat(ChatScript().play(says("Hello."), says("You said hi."))) as vendor:
        somebody = person(vendor, "--session", "audit")
        await somebody.sees("> ")
        somebody.types("Hi!")
        await somebody.sees("Hello.")
        await somebody.sees("> ")
        somebody.signals(signal.SIGKILL)
        await somebody.left()
        flags = ("--session", "audit", "--base-url", vendor.base_url, "--model", "m")
        went_on = await retinue("chat", *flags, stdin=b"What did I say?\n")
    rows = (await retinue("runs", "--json")).json

    assert (went_on.stdout, "interrupted" in went_on.stderr) == ("You said hi.\n", False)
    assert [(each["state"], each["outcome"]) for each in rows] == [("ended", "completed")] * 2


async def test_ctrl_c_ends_a_chat_that_reads_from_a_pipe() -> None:
    hesitant = Hesitant()
    async with FakeChat(hesitant) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m")
        command = await Command.start("chat", *flags, stdin=b"Why?\nGo on.\n")
        await hesitant.fell_silent.wait()
        command.signal(signal.SIGINT)
        ended = await command.ended()

    assert (ended.code, len(vendor.requests)) == (130, 1)


@pytest.mark.parametrize("columns", [60, 120])
async def test_children_at_work_are_drawn_below_the_words_and_taken_away_again(columns: int) -> None:
    dug = asyncio.Event()

    def digs(heard: ReceivedRequest) -> Line:
        dug.set()
        return hangs()

    script = ChatScript().play(_and_calls("Let me ask.", "dig"), says("Well.")).play(digs, words="DIG")
    async with FakeChat(script) as vendor:
        somebody = person(vendor, "--dialect", "xzatoma", TERM="xterm-256color", COLUMNS=str(columns), NO_COLOR="1")
        await somebody.sees("> ")
        somebody.types("Why?", end="\r")
        await somebody.sees("Let me ask.")
        await dug.wait()
        await somebody.sees("main [dig]")
        somebody.signals(signal.SIGINT)
        whole = await somebody.sees("stopped; the chat goes on")
        somebody.types("/quit", end="\r")
        left = await somebody.left()

    shown = drawn(_without_editing(whole), columns)
    assert left.code == 0
    assert "Let me ask." in shown
    assert not [line for line in shown if "main [dig]" in line]


def _and_calls(words: str, label: str) -> Line:
    return together(says(words), calls("subagent", label=label, task_prompt=f"{label.upper()} it"))


def _without_editing(written: str) -> str:
    """What was written after the line was typed: the editor's own codes are its own business."""
    return written[written.index("Let me ask.") :]


def test_a_signal_is_pending_until_its_handler_takes_it() -> None:
    told: list[bool] = []
    with pending_sigint() as pending:

        def hear(number: int, frame: object) -> None:
            told.append(pending.exists())
            pending.take()
            told.append(pending.exists())

        before = signal.signal(signal.SIGINT, hear)
        try:
            told.append(pending.exists())
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

    assert told == [False, True, False]


# ---- the history file -----------------------------------------------------------------------------------------------


def test_the_history_file_is_bounded(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "new" / "history")
    for number in range(MOST + 5):
        file.add(f"line\n{number}")

    assert file.load() == [f"line\n{number}" for number in range(5, MOST + 5)]
    assert len((tmp_path / "new" / "history").read_text().splitlines()) == MOST
    assert os.listdir(tmp_path / "new") == ["history"]


@pytest.mark.parametrize("text", [" a secret", "", "   ", "x" * (LONGEST + 1)], ids=["space", "none", "blank", "long"])
def test_some_inputs_are_not_kept(tmp_path: Path, text: str) -> None:
    file = HistoryFile(tmp_path / "history")

    assert (file.add(text), file.load()) == (False, [])


@pytest.mark.parametrize("content", [b"\xff\n", b"half\n", b"[1]\n\n"])
def test_a_history_that_makes_no_sense_is_done_without(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history").write_bytes(content + b'"good"\n')

    assert HistoryFile(tmp_path / "history").load() == ["good"]
