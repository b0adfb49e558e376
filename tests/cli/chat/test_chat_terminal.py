"""`retinue chat` on a terminal: typing, Ctrl-C, approvals, running children, and continued sessions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from retinue.cli.chat.input import MAX_KEPT, MAX_LENGTH, HistoryFile
from retinue.cli.chat.loop_thread import pending_sigint
from retinue.cli.chat.turn import PromptLock
from retinue.cli.output.approval_prompt import TerminalApprover
from retinue.core.errors import ProviderError
from retinue.core.run import Approval
from retinue.providers.scripted import Line, calls, fails, hangs, says, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.output.test_sse_live import WIRES, AnyVendor, Wire, one_by_one
from tests.cli.pty_command import PtyCommand
from tests.cli.screen import drawn
from tests.cli.stage import Command, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

EOF = "\x04"

BEGINS = "\x1b[?2004h"
"""What the prompt of a terminal that can be redrawn writes when it begins."""


def start_chat(vendor: FakeChat, *flags: str, **env: str) -> PtyCommand:
    return PtyCommand("chat", "--base-url", vendor.base_url, "--model", "m", *flags, all_there=True, **env)


def sent(heard: ReceivedRequest) -> list[str]:
    """The messages of a request as text."""
    return [message["content"] for message in heard.body["messages"]]


class Hesitant:
    """A model that hangs in the middle of its first answer, and answers later requests."""

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
        terminal = start_chat(vendor)
        await terminal.expect("/help lists the commands")
        await terminal.expect("> ")
        terminal.type_line("Hi!")
        await terminal.expect("Hello.\r\n")
        await terminal.expect("> ")
        terminal.type_line("And?")
        await terminal.expect("red ␛[31malert\r\n")
        await terminal.expect("> ")
        terminal.type_line(EOF, end="")
        left = await terminal.result()

    assert left.code == 0
    assert "go on with: retinue chat --session " in left.terminal


CUT = ProviderError("cut", fault="cut", partial="It was ")


def start_chat_over(wire: Wire, vendor: AnyVendor, *flags: str) -> PtyCommand:
    address = str(getattr(vendor, wire.address))
    where = ("--provider", wire.name, "--base-url", address, "--model", "fake-1")
    return PtyCommand("chat", *where, *flags, all_there=True)


@pytest.mark.parametrize(
    ("wire", "flags"),
    [*((wire, ()) for wire in WIRES), (WIRES[0], ("--quiet",))],
    ids=[*(wire.name for wire in WIRES), "quiet"],
)
async def test_an_attempt_that_broke_off_is_marked_and_the_answer_printed_again(
    wire: Wire, flags: tuple[str, ...]
) -> None:
    async with wire.vendor(one_by_one(fails(CUT), says("The pool."), says("Yes."))) as vendor:
        terminal = start_chat_over(wire, vendor, *flags)
        await terminal.expect("> ")
        terminal.type_line("Why?")
        await terminal.expect("It was \r\n")
        await terminal.expect("(the answer broke off and starts again)\r\n")
        await terminal.expect("The pool.\r\n")
        await terminal.expect("> ")
        terminal.type_line("Sure?")
        await terminal.expect("Yes.")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        await terminal.result()

    _, _, conversation = (json.dumps(heard.body) for heard in vendor.requests)
    texts = [text for text in ("Why?", "It was ", "The pool.", "Sure?") if text in conversation]
    assert texts == ["Why?", "The pool.", "Sure?"]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_an_answer_that_continues_after_a_broken_connection_is_printed_once(wire: Wire) -> None:
    async with wire.vendor(one_by_one(fails(CUT), says("It was the pool."))) as vendor:
        terminal = start_chat_over(wire, vendor)
        await terminal.expect("> ")
        terminal.type_line("Why?")
        await terminal.expect("It was the pool.\r\n")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        left = await terminal.result()

    assert len(vendor.requests) == 2
    assert (left.terminal.count("It was"), "starts again" in left.terminal) == (1, False)


async def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    async with FakeChat(Hesitant()) as vendor:
        terminal = start_chat(vendor, "--session", "audit")
        await terminal.expect("> ")
        terminal.type_line("Why?")
        await terminal.expect("It was ")
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("stopped; the chat continues")
        await terminal.expect("> ")
        terminal.type_line("Go on.")
        await terminal.expect("The pool.")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        left = await terminal.result()
    rows = (await retinue("runs", "--json")).json

    assert left.code == 0
    assert sent(vendor.requests[-1]) == ["Why?", "It was ", "Go on."]
    assert [(row["state"], row["outcome"]) for row in rows] == [("ended", "completed"), ("ended", "cancelled")]


async def test_ctrl_c_stops_children_too() -> None:
    hesitant = Hesitant()
    delegation = calls("subagent", label="dig", task_prompt="DIG in the logs")
    async with FakeChat(ChatScript().play(delegation, says("Well.")).play(hesitant, words="DIG")) as vendor:
        terminal = start_chat(vendor, "--dialect", "xzatoma")
        await terminal.expect("> ")
        terminal.type_line("Why?")
        await terminal.expect("main [dig]: started")
        await hesitant.fell_silent.wait()
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("stopped; the chat continues")
        await terminal.expect("> ")
        terminal.type_line("/agents")
        await terminal.expect("main [dig]")
        await terminal.expect("cancelled")
        terminal.type_line("Never mind.")
        await terminal.expect("Well.")
        await terminal.expect("> ")
        terminal.type_line("exit")
        left = await terminal.result()

    assert left.code == 0


async def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_leaves() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect("> ")
        terminal.type_line("never sent", end="")
        await terminal.expect("never sent")
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("> ")
        terminal.type_line("Hi!")
        await terminal.expect("Hello.")
        await terminal.expect("> ")
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("(press Ctrl-C again, or Ctrl-D, to leave)")
        await terminal.expect("> ")
        terminal.send_signal(signal.SIGINT)
        left = await terminal.result()

    assert left.code == 0
    assert [sent(heard) for heard in vendor.requests] == [["Hi!"]]


async def test_ctrl_c_discards_a_multi_line_input() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect("> ")
        terminal.type_line('"""')
        await terminal.expect("... ")
        terminal.type_line("half of it")
        await terminal.expect("... ")
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("> ")
        terminal.type_line("Hi! \\")
        await terminal.expect("... ")
        terminal.type_line("It is me.")
        await terminal.expect("Hello.")
        await terminal.expect("> ")
        terminal.type_line(EOF, end="")
        await terminal.result()

    assert [sent(heard) for heard in vendor.requests] == [["Hi! \nIt is me."]]


async def test_the_second_ctrl_c_exits_although_a_tool_does_not_stop(folder: Path) -> None:
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
        terminal = start_chat(vendor, "--tools", "cling")
        await terminal.expect("> ")
        terminal.type_line("Hold on.")
        await terminal.expect("clinging")
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("still here")
        terminal.send_signal(signal.SIGINT)
        left = await terminal.result()

    assert left.code == 130


async def test_a_paste_with_line_breaks_is_one_input() -> None:
    async with FakeChat(ChatScript().play(says("Two lines."))) as vendor:
        terminal = start_chat(vendor, TERM="xterm")
        await terminal.expect(BEGINS)
        terminal.type_line("\x1b[200~one\ntwo\x1b[201~", end="")
        await terminal.expect("two")
        terminal.type_line("", end="\r")
        await terminal.expect("Two lines.")
        terminal.type_line("/quit")
        await terminal.result()

    assert [sent(heard) for heard in vendor.requests] == [["one\ntwo"]]


async def test_inputs_are_in_the_history_of_the_next_chat(home: Path) -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        for typed in ("Hi there!", "\x1b[A"):
            terminal = start_chat(vendor, TERM="xterm")
            await terminal.expect(BEGINS)
            await terminal.expect(">")
            terminal.type_line(typed, end="\r")
            await terminal.expect("Hello.")
            terminal.type_line(EOF, end="")
            await terminal.result()
    file = home / "chat_history"

    assert [sent(heard) for heard in vendor.requests] == [["Hi there!"], ["Hi there!"]]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ('"Hi there!"\n' * 2, 0o600)


async def test_without_an_editor_prompts_are_on_stderr_and_stdout_has_the_answers() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        terminal = PtyCommand("chat", "--base-url", vendor.base_url, "--model", "m")
        await terminal.expect("> ")
        terminal.type_line("Hi!")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        left = await terminal.result()

    assert (left.code, left.stdout) == (0, "Hello.\n")


async def test_an_approval_is_prompted_during_the_turn(folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.smith]\ntools = ["file_write"]\nrisk_profile = "careful"\n'
        '[risk_profiles.careful]\nlevel = "supervised"\n'
    )
    writing = calls("file_write", path="note.txt", content="hello")
    async with FakeChat(ChatScript().play(writing, says("Written."))) as vendor:
        terminal = start_chat(vendor, "--agent", "smith")
        await terminal.expect("> ")
        terminal.type_line("Write it.")
        await terminal.expect("Allow? [y]es, [n]o")
        terminal.type_line("y")
        await terminal.expect("Written.")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        await terminal.result()

    assert (folder / "note.txt").read_text() == "hello"


async def test_ctrl_c_at_a_prompt_stops_the_answer_without_the_call(folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.smith]\ntools = ["file_write"]\nrisk_profile = "careful"\n'
        '[risk_profiles.careful]\nlevel = "supervised"\n'
    )
    writing = calls("file_write", path="note.txt", content="hello")
    async with FakeChat(ChatScript().play(writing, says("Not written."))) as vendor:
        terminal = start_chat(vendor, "--agent", "smith")
        await terminal.expect("> ")
        terminal.type_line("Write it.")
        await terminal.expect("Allow? [y]es, [n]o")
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("stopped; the chat continues")
        await terminal.expect("> ")
        terminal.type_line("Leave it.")
        await terminal.expect("Not written.")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        left = await terminal.result()

    assert (left.code, os.listdir(folder)) == (0, ["retinue.toml"])


async def test_a_session_open_elsewhere_continues_from_its_stored_messages() -> None:
    async with FakeChat(ChatScript().play(says("Hello."), says("You said hi."))) as vendor:
        terminal = start_chat(vendor, "--session", "audit")
        await terminal.expect("> ")
        terminal.type_line("Hi!")
        await terminal.expect("Hello.")
        await terminal.expect("> ")
        flags = ("--session", "audit", "--base-url", vendor.base_url, "--model", "m")
        other = await retinue("chat", *flags, stdin=b"What did I say?\n")
        terminal.type_line("And to me?")
        await terminal.expect("You said hi.")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        left = await terminal.result()

    assert (left.code, other.code, other.stdout) == (0, 0, "You said hi.\n")
    assert "session audit is open in another process" in other.stderr
    assert [sent(heard)[-2:] for heard in vendor.requests[1:]] == [
        ["Hello.", "What did I say?"],
        ["Hello.", "And to me?"],
    ]


async def test_two_chats_of_one_session_are_warned_before_the_first_input() -> None:
    async with FakeChat(ChatScript().play(says("Hello."))) as vendor:
        terminal = start_chat(vendor, "--session", "audit")
        await terminal.expect("> ")
        another = start_chat(vendor, "--session", "audit")
        await another.expect(
            "warning: session audit is open in another process; neither chat sees the input of the other"
        )
        await another.expect("> ")
        terminal.type_line("Hi!")
        await terminal.expect("warning: session audit was opened by another process as well; neither chat sees")
        await terminal.expect("Hello.")
        await terminal.expect("> ")
        another.type_line("/quit")
        terminal.type_line("/quit")
        left = [await another.result(), await terminal.result()]

    assert [each.code for each in left] == [0, 0]


async def test_a_background_question_waits_for_the_next_turn() -> None:
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


async def test_a_session_killed_during_an_answer_continues_without_it() -> None:
    hesitant = Hesitant(says("The pool."), says("Yes, the pool."))
    async with FakeChat(hesitant) as vendor:
        terminal = start_chat(vendor, "--session", "audit")
        await terminal.expect("> ")
        terminal.type_line("Why?")
        await terminal.expect("It was ")
        terminal.send_signal(signal.SIGKILL)
        await terminal.result()
        (row,) = (await retinue("runs", "--json")).json
        again = start_chat(vendor, "--session", "audit")
        await again.expect("its last answer was interrupted")
        await again.expect("> ")
        again.type_line("So?")
        await again.expect("The pool.")
        await again.expect("> ")
        again.type_line("/quit")
        await again.result()
    rows = (await retinue("runs", "--json")).json

    assert row["state"] == "interrupted"
    assert sent(vendor.requests[-1]) == ["Why?", "So?"]
    assert [(each["state"], each["outcome"]) for each in rows] == [("ended", "completed"), ("ended", "cancelled")]


async def test_an_interrupted_answer_can_be_resumed_and_the_chat_continues() -> None:
    hesitant = Hesitant(says("It was the pool."), says("Since Tuesday."))
    async with FakeChat(hesitant) as vendor:
        terminal = start_chat(vendor, "--session", "audit")
        await terminal.expect("> ")
        terminal.type_line("Why?")
        await hesitant.fell_silent.wait()
        terminal.send_signal(signal.SIGKILL)
        await terminal.result()
        (row,) = (await retinue("runs", "--json")).json
        resumed = await retinue("runs", "resume", row["run_id"])
        flags = ("--session", "audit", "--base-url", vendor.base_url, "--model", "m")
        went_on = await retinue("chat", *flags, stdin=b"Since when?\n")

    assert (resumed.code, resumed.stdout) == (0, "It was the pool.\n")
    assert (went_on.code, went_on.stdout) == (0, "Since Tuesday.\n")
    assert sent(vendor.requests[-1]) == ["Why?", "It was the pool.", "Since when?"]


async def test_a_chat_killed_at_the_prompt_loses_nothing() -> None:
    async with FakeChat(ChatScript().play(says("Hello."), says("You said hi."))) as vendor:
        terminal = start_chat(vendor, "--session", "audit")
        await terminal.expect("> ")
        terminal.type_line("Hi!")
        await terminal.expect("Hello.")
        await terminal.expect("> ")
        terminal.send_signal(signal.SIGKILL)
        await terminal.result()
        flags = ("--session", "audit", "--base-url", vendor.base_url, "--model", "m")
        went_on = await retinue("chat", *flags, stdin=b"What did I say?\n")
    rows = (await retinue("runs", "--json")).json

    assert (went_on.stdout, "interrupted" in went_on.stderr) == ("You said hi.\n", False)
    assert sent(vendor.requests[-1]) == ["Hi!", "Hello.", "What did I say?"]
    assert [(each["state"], each["outcome"]) for each in rows] == [("ended", "completed")]


async def test_ctrl_c_ends_a_chat_that_reads_from_a_pipe() -> None:
    hesitant = Hesitant()
    async with FakeChat(hesitant) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m")
        command = await Command.start("chat", *flags, stdin=b"Why?\nGo on.\n")
        await hesitant.fell_silent.wait()
        command.signal(signal.SIGINT)
        ended = await command.ended()

    assert (ended.code, len(vendor.requests)) == (130, 1)


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
async def test_running_children_are_drawn_below_the_text_and_removed(columns: int) -> None:
    dug = asyncio.Event()

    def digs(heard: ReceivedRequest) -> Line:
        dug.set()
        return hangs()

    script = ChatScript().play(_and_calls("Let me ask.", "dig"), says("Well.")).play(digs, words="DIG")
    async with FakeChat(script) as vendor:
        terminal = start_chat(vendor, "--dialect", "xzatoma", TERM="xterm-256color", COLUMNS=str(columns), NO_COLOR="1")
        await terminal.expect(BEGINS)
        terminal.type_line("Why?", end="\r")
        await terminal.expect("Let me ask.")
        await dug.wait()
        await terminal.expect("main [dig]")
        terminal.send_signal(signal.SIGINT)
        whole = await terminal.expect("stopped; the chat continues")
        terminal.type_line("/quit", end="\r")
        left = await terminal.result()

    shown = drawn(_without_editing(whole), columns)
    assert left.code == 0
    assert "Let me ask." in shown
    assert not [line for line in shown if "main [dig]" in line]


MARKDOWN = """The checkout is slow because of **two** things:

1. The pool has 5 connections and the load test needs about 40; every request waits 1.8 seconds for a connection.
2. `orders.total()` reads the whole table.

| place | time |
|---|---:|
| waiting for the pool | 1.8 s |
"""


FIRST = " 1 The pool has 5 connections and the load test needs about 40; every request"


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        (80, [FIRST, "   waits 1.8 seconds for a connection."]),
        (100, [f"{FIRST} waits 1.8 seconds for", "   a connection."]),
        (140, [f"{FIRST} waits 1.8 seconds for a connection."]),
    ],
)
async def test_calls_and_markdown_fit_the_terminal(columns: int, first: list[str]) -> None:
    reads = calls("file_read", path="logs/checkout/2026/11/17/errors.jsonl")
    async with FakeChat(ChatScript().play(reads, says(MARKDOWN))) as vendor:
        look = {"TERM": "xterm-256color", "COLUMNS": str(columns), "NO_COLOR": "1"}
        terminal = start_chat(vendor, "--tools", "file_read", **look)
        await terminal.expect(BEGINS)
        terminal.type_line("Why?", end="\r")
        await terminal.expect("waiting for the pool")
        terminal.type_line("/quit", end="\r")
        ended = await terminal.result()

    shown = [line.rstrip() for line in drawn(ended.terminal[ended.terminal.index("✗") :], columns)]
    assert shown[0].startswith("✗ file_read  logs/check")
    assert "…" in shown[0] or columns == 140
    assert shown[1 : 8 + len(first)] == [  # a call line or a paragraph that is too long would be more lines
        "The checkout is slow because of two things:",
        "",
        *first,
        " 2 orders.total() reads the whole table.",
        "",
        " place                  time",
        " ───────────────────────────",
        " waiting for the pool  1.8 s",
    ]


def _and_calls(words: str, label: str) -> Line:
    return together(says(words), calls("subagent", label=label, task_prompt=f"{label.upper()} it"))


def _without_editing(written: str) -> str:
    """The output after the line was typed, without the codes of the line editor."""
    return written[written.index("Let me ask.") :]


def test_a_signal_is_pending_until_its_handler_takes_it() -> None:
    result: list[bool] = []
    with pending_sigint() as pending:

        def hear(number: int, frame: object) -> None:
            result.append(pending.exists())
            pending.take()
            result.append(pending.exists())

        before = signal.signal(signal.SIGINT, hear)
        try:
            result.append(pending.exists())
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

    assert result == [False, True, False]


# ---- the history file -----------------------------------------------------------------------------------------------


def test_the_history_file_is_bounded(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "new" / "history")
    for number in range(MAX_KEPT + 5):
        file.add(f"line\n{number}")

    assert file.load() == [f"line\n{number}" for number in range(5, MAX_KEPT + 5)]
    assert len((tmp_path / "new" / "history").read_text().splitlines()) == MAX_KEPT
    assert os.listdir(tmp_path / "new") == ["history"]


@pytest.mark.parametrize(
    "text", [" a secret", "", "   ", "x" * (MAX_LENGTH + 1)], ids=["space", "none", "blank", "long"]
)
def test_unsuitable_inputs_are_not_in_the_history(tmp_path: Path, text: str) -> None:
    file = HistoryFile(tmp_path / "history")

    assert (file.add(text), file.load()) == (False, [])


@pytest.mark.parametrize("content", [b"\xff\n", b"half\n", b"[1]\n\n"])
def test_an_unreadable_history_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history").write_bytes(content + b'"good"\n')

    assert HistoryFile(tmp_path / "history").load() == ["good"]
