"""Texts of models with line ends, escape codes and other control characters, in the output of every command."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
import sys
from pathlib import Path

import pytest

import retinue
from retinue.app.open import open as open_retinue
from retinue.cli.output.printable_console import PrintableConsole
from retinue.cli.output.styled_lines import StyledLines
from retinue.cli.output.terminal import answer_json
from retinue.core.errors import ProviderError
from retinue.core.policy import Policy
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers.scripted import Script, ScriptedProvider, calls, fails, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.tools.memory import open_memory
from retinue.tools.memory.backend import Note
from tests.cli.conftest import Cli
from tests.cli.pty_command import PtyCommand
from tests.cli.stage import Command, Ended, finished_run

BELL, DEL, NEL, CSI = "\x07", "\x7f", "\x85", "\x9b"
CLIPBOARD, LINK = "\x1b]52;c;aGk=\x07", "\x1b]8;;http://forged.example\x1b\\"
CODES_OF_TERMINALS = (
    "\x1b[2J",
    "\x1b]0;title",
    CLIPBOARD,
    LINK,
    BELL,
    "\x08",
    "\x00",
    DEL,
    NEL,
    CSI,
    "\x9d52;c;aGk=\x9c",
)
UNSEEN = ("\u202e", "\u2066", "\u2028", "\u2029", "\u3164", "\u115f", "\uffa0", "\u034f", "\u180e", "\U000e0041")
ATTACKS = (*CODES_OF_TERMINALS, *UNSEEN)
NASTY = f"dig\nFORGED: completed\rFORGED: failed\n-- FORGED\n=== FORGED\tline{''.join(ATTACKS)}\u2028FORGED"
CODES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")

LINES = (
    "runs",
    "runs --all",
    "runs --session SESSION",
    "runs tree ROOT",
    "replay --list",
    "replay --tree",
    "approvals",
    "context list",
    "memory list",
    "cron list",
    "cron log",
    "runs show no-such-run-NASTY",
    "context show no-NASTY",
    "memory forget a NASTY",
    "cron run-now NASTY",
    "approve NASTY",
    "approvals NASTY",
    "no-such-command-NASTY",
    "tools",
    "doctor",
    "daemon status",
)
"""Commands that print one line for each run, session, memory, job or message."""

PAGES = ("runs show ROOT", "runs show CHILD", "replay --id CHILD", "context show SESSION", "memory show dig KEY")
"""Commands that print whole texts: their own line ends stay."""


@retinue.tool(risk="medium")
def deploy(words: str) -> str:
    """Deploy a version."""
    return words


async def play(home: Path) -> tuple[str, str]:
    """A tree with such texts wherever a model or a caller can put them; the ids of its root and of one child."""
    script = (
        Script()
        .play(
            "main",
            calls("subagent", label=NASTY, task_prompt=NASTY),
            calls("subagent", label="bad", task_prompt="break"),
            calls(NASTY, words=NASTY),
            calls("deploy", words=NASTY),
        )
        .play("main", says(NASTY), says(NASTY), task=NASTY)
        .play("main", calls("shared_context", action="write", key="plan", value=NASTY), says("Noted."), task="Note it.")
        .play("main", fails(ProviderError(NASTY, fault="bad_request")), task="break")
    )
    async with open_retinue(
        model=NASTY,
        provider=ScriptedProvider(script),
        home=home,
        session=NASTY,
        tools=(deploy,),
        dialects=["xzatoma"],
        dialect_settings={"xzatoma": XzatomaSettings(persistence_enabled=True)},
        policy=Policy(),
        approvals="wait",
    ) as opened:
        await opened.run("Note it.", dialects=["spec"])
        root = await opened.spawn("Deploy it.", tools=("deploy",), label=NASTY)
        async for _ in root.events():
            if await opened.approvals():
                break
        return root.run_id, next(view.run_id for view in await opened.tree(root) if view.depth and view.label == NASTY)


@pytest.fixture
def ids(cli: Cli, home: Path, folder: Path) -> dict[str, str]:
    """A state folder in which everything has such texts, and the words of commands that stand for its parts."""
    (folder / "retinue.toml").write_text("[agents.dig]\n")
    root, child = asyncio.run(play(home))
    open_memory("sqlite", home).store(Note(agent="dig", key=NASTY, content=NASTY, category=NASTY, at=6.0))
    for flags in (("--agent", "dig", "--prompt", NASTY.replace("\x00", "")), ("--shell", "printf '\\033[2J\\nFORGED'")):
        name = "ask" if "--prompt" in flags else "print"
        assert cli("cron", "add", name, "--every", "1h", *flags).code == 0
    cli("cron", "run-now", "print")
    cli("cron", "run-now", "ask")
    return {"ROOT": root, "CHILD": child, "SESSION": NASTY, "KEY": NASTY, "NASTY": NASTY}


def words_of(command: str, ids: dict[str, str]) -> list[str]:
    return [ids.get(word, word.replace("NASTY", NASTY)) for word in command.split()]


def check(output: str, command: str = "") -> None:
    """No control character of such a text is in the output, and no line of the text begins a line of it.

    Pages have whole texts with their own lines, but none that looks like a heading.
    """
    found = {attack for attack in (*ATTACKS, "\r") if attack in output.replace("\r\n", "\n")}
    assert found == set()
    beginnings = ("FORGED", "-- FORGED", "=== FORGED")
    if command in PAGES:
        beginnings = ("=== FORGED",) if command.startswith("replay") else ("-- FORGED",)
    assert [line for line in CODES.sub("", output).splitlines() if line.startswith(beginnings)] == []


@pytest.mark.parametrize("command", [*LINES, *PAGES[:-1]])
def test_in_a_pipe_no_text_can_forge_a_line_or_write_an_escape_code(
    cli: Cli, ids: dict[str, str], command: str
) -> None:
    ended = cli(*words_of(command, ids))

    assert ended.stdout + ended.stderr
    check(ended.stdout, command)
    check(ended.stderr)


async def test_on_a_terminal_no_text_can_forge_a_line_or_write_an_escape_code(ids: dict[str, str]) -> None:
    for command in ("runs --all", "runs tree ROOT", "approvals", "memory list", "cron log", *PAGES):
        words = [word.replace("\x00", "") for word in words_of(command, ids)]
        ended = await PtyCommand(*words, all_there=True, TERM="xterm-256color").result()

        assert ended.terminal
        check(ended.terminal, command)


def test_json_has_the_texts_as_they_are(cli: Cli, ids: dict[str, str]) -> None:
    (child,) = (row for row in cli("runs", "--all", "--json").json if row["run_id"] == ids["CHILD"])
    shown = cli("runs", "show", ids["CHILD"], "--json")

    assert child["label"] == NASTY
    assert shown.json["text"] == NASTY
    assert [attack for attack in ATTACKS if attack in shown.stdout] == []


def test_json_of_half_a_character_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    answer_json({"session": "\udcff"})

    assert json.loads(capsys.readouterr().out) == {"session": "\ufffd"}


# ---- while a run works -----------------------------------------------------------------------------------------------


def delegation() -> ChatScript:
    """A lead that delegates once and calls a tool that does not exist; the child answers and summarises."""
    lead = ChatScript().play(calls("subagent", label=NASTY, task_prompt=NASTY), calls(NASTY, words=NASTY), says(NASTY))
    return lead.play(says("Found."), says("Found."), words="-- FORGED")


ORDER = ("--model", "m", "--dialect", "xzatoma", "--base-url")


@pytest.mark.parametrize("flags", [(), ("--verbose",), ("--quiet",)])
@pytest.mark.parametrize("level", ["", "debug"])
async def test_progress_and_logs_in_a_pipe_have_one_line_for_each_event(
    folder: Path, flags: tuple[str, ...], level: str
) -> None:
    async with FakeChat(delegation()) as vendor:
        command = await Command.start("run", *ORDER, vendor.base_url, *flags, "Go.", env={"RETINUE_LOG": level})
        ended: Ended = await command.ended()

    assert (ended.code, ended.stdout) == (0, f"{NASTY}\n")
    check(ended.stderr)


async def test_an_answer_on_a_terminal_keeps_its_lines_and_loses_its_escape_codes(folder: Path) -> None:
    async with FakeChat(ChatScript().play(says("one\n\ttwo \x1b[31mred\r\nthree"))) as vendor:
        ended = await PtyCommand(
            "run", "--model", "m", "--quiet", "--base-url", vendor.base_url, "Go.", all_there=True
        ).result()

    assert ended.terminal.replace("\r\n", "\n") == "one\n\ttwo ␛[31mred\nthree\n"


async def test_a_stored_answer_on_a_terminal_loses_its_escape_codes(home: Path, folder: Path) -> None:
    run_id = await finished_run(home, ScriptedProvider(Script().play("main", says(NASTY))), dialects=())
    for command in (("runs", "resume", run_id), ("runs", "show", run_id), ("runs", "show", run_id, "--json")):
        ended = await PtyCommand(*command, all_there=True, TERM="xterm-256color").result()

        assert "FORGED" in ended.terminal
        assert [attack for attack in ATTACKS if attack in ended.terminal] == []


async def test_events_on_a_terminal_are_escaped(folder: Path) -> None:
    async with FakeChat(says(NASTY)) as vendor:
        flags = ("--model", "m", "--base-url", vendor.base_url)
        streamed = await PtyCommand("run", *flags, "--sse", "Go.", all_there=True).result()
        whole = await PtyCommand("run", *flags, "--json", "Go.", all_there=True).result()

    for ended in (streamed, whole):
        assert "FORGED" in ended.terminal
        assert [attack for attack in ATTACKS if attack in ended.terminal] == []


async def test_buzz_on_a_terminal_keeps_its_own_colours_alone(folder: Path) -> None:
    async with FakeChat(ChatScript().play(says("one\ntwo \x1b[31mred", thinking="hm \x1b[2J"))) as vendor:
        url = f"{vendor.base_url}/chat/completions"
        flags = ("--provider", "openai-chat", "--api-key-name", "KEY")
        ended = await PtyCommand("buzz", "m", url, "Go.", *flags, all_there=True, KEY="sk-test").result()

    shown = "\x1b[93mhm ␛[2J\x1b[0mone\ntwo ␛[31mred\n\n=== [ DONE ] ===\n"
    assert ended.terminal.replace("\r\n", "\n") == shown


async def test_a_live_tree_has_one_line_for_each_run(folder: Path) -> None:
    async with FakeChat(delegation()) as vendor:
        ended = await PtyCommand(
            "run", *ORDER, vendor.base_url, "Go.", all_there=True, TERM="xterm-256color", COLUMNS="100"
        ).result()

    shown = CODES.sub("", ended.terminal)
    assert "completed, 2 runs" in shown
    before_the_answer = shown.rpartition("completed, 2 runs")[0]
    assert "dig FORGED: completed" in before_the_answer
    check(before_the_answer.replace("\r", "\n"))  # a tree that is redrawn begins its lines with these
    assert [attack for attack in ATTACKS if attack in ended.terminal] == []


@pytest.mark.parametrize("on_terminal", [False, True])
async def test_a_chat_shows_calls_children_and_status_on_one_line_each(folder: Path, on_terminal: bool) -> None:
    inputs = ("Go.", "/agents", "/cost", "/status", "/tools")
    flags = ("chat", *ORDER)
    async with FakeChat(delegation()) as vendor:
        if on_terminal:
            terminal = PtyCommand(*flags, vendor.base_url, "--verbose", "--session", "a\nFORGED", all_there=True)
            for text in inputs:
                terminal.type_line(text)
            terminal.type_line("/quit")
            shown = (await terminal.result()).terminal
        else:
            stdin = "\n".join(inputs).encode()
            command = await Command.start(*flags, vendor.base_url, "--verbose", "--session", "a\nFORGED", stdin=stdin)
            ended = await command.ended()
            shown = ended.stderr + ended.stdout.replace(NASTY, "")

    assert "-> dig FORGED: completed" in shown
    assert [attack for attack in ATTACKS if attack in shown] == []
    lines = [line for line in CODES.sub("", shown).splitlines() if line.startswith("FORGED")]
    assert lines == (["FORGED: completed␍FORGED: failed"] if on_terminal else [])  # of the answer itself


# ---- by construction -------------------------------------------------------------------------------------------------


def test_lines_that_are_cut_already_are_made_printable() -> None:
    screen = PrintableConsole(file=io.StringIO(), width=400, color_system=None)
    with screen.capture() as captured:
        screen.print(StyledLines([[(NASTY, "red"), ("é plain", "")]]), crop=False)

    assert [attack for attack in ATTACKS if attack in captured.get()] == []
    assert captured.get().count("\n") == 1
    assert captured.get().endswith("é plain\n")


SOURCE = Path(sys.modules["retinue"].__file__ or "").parent
WRITERS = ("cli/output/terminal.py", "cli/output/printable_console.py")


def test_only_one_module_of_the_command_line_writes_to_the_standard_streams() -> None:
    """All output goes through the functions that make texts printable."""
    writing: list[str] = []
    for path in sorted((SOURCE / "cli").rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place not in WRITERS:
            tree = ast.parse(path.read_text())
            called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
            writing += [f"{place}: {name}" for name in called if _writes(name)]

    assert writing == []


def _writes(function: str) -> bool:
    return function in ("print", "Console", "typer.echo", "typer.secho") or bool(
        re.fullmatch(r"sys\.(__)?(stdout|stderr)(__)?(\.buffer)?\.write", function)
    )
