"""`retinue run` on a terminal: a streamed answer, lines for calls and failures, and what a pipe gets instead."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from retinue.core.errors import ProviderError, SandboxUnavailable
from retinue.providers.scripted import calls, fails, says, streams, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.conftest import Cli
from tests.cli.pty_command import PtyCommand
from tests.cli.screen import on_screen
from tests.cli.stage import serving

ANSWER = "## Why\n\nIt was **the pool**, and this sentence is long enough to be wrapped on a screen.\n\n- one\n- two"

SETTINGS = """
[agents.dig]
description = "Digs."
system_prompt = "You dig."
[risk_profiles.default]
level = "supervised"
"""


def story() -> ChatScript:
    script = ChatScript().play(
        together(says("Let me *look*."), calls("file_read", path="there.txt"), calls("file_read", path="nowhere.txt")),
        together(
            *(calls("subagent", action="spawn", agent="dig", task=f"Dig {place}.") for place in ("HERE", "THERE"))
        ),
        calls("subagent", action="wait", task_ids=["t_01", "t_02"]),
        streams(*(f"{word} " for word in ANSWER.split(" ")), every=0.01),
    )
    dead = ProviderError("no such model", fault="bad_request", status=400)
    return script.play(says("Dug."), words="Dig HERE").play(fails(dead), words="Dig THERE")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_text_calls_and_failures_stay_on_the_screen_and_the_live_area_is_gone(width: int, folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    (folder / "there.txt").write_text("There it is.")
    with serving(story()) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "spec", "--tools", "file_read")
        code, lines = on_screen("run", *flags, "Why?", width=width, NO_COLOR="1")

    shown = [line for line in lines if line]
    assert code == 0
    assert max(map(len, shown)) <= width
    assert shown[1] == "Let me look."
    assert [line for line in shown if line.startswith("✓ file_read  there.txt  → ")]
    assert [line for line in shown if line.startswith("✗ file_read  nowhere.txt  failed: ")]
    (failure,) = (line for line in shown if line.startswith("✗ dig t_02: failed (model_error): "))
    answer = shown.index("Why")
    assert shown.index(failure) < answer
    assert "answered 400: no such model" in " ".join(shown[shown.index(failure) : answer])  # the whole reason
    assert " ".join(shown[answer + 1 : shown.index(" • one")]) == ANSWER.split("\n")[2].replace("**", "")
    assert [line for line in shown[answer:] if line.startswith("completed, 3 runs, ")]
    assert " ".join(shown).endswith("of 2 children 1 failed")
    assert not [line for line in shown if line.startswith(("main ", "├─", "└─", "…"))]


def test_thinking_is_one_line_when_it_is_over(folder: Path) -> None:
    with serving(says("Done.", thinking="First the pool,\nthen the rest.")) as vendor:
        code, lines = on_screen("run", "--base-url", vendor.base_url, "--model", "m", "Why?", width=80)

    assert code == 0
    (folded,) = (line for line in lines if "thought" in line)
    assert folded.startswith("(thought for ")
    assert folded.endswith(" s, 30 characters)")
    assert not [line for line in lines if "pool" in line]
    assert lines.index(folded) < lines.index("Done.")


@pytest.mark.real_time
async def test_a_wait_before_another_attempt_is_shown(folder: Path) -> None:
    busy = fails(ProviderError("too many requests", fault="rate_limited", status=429, retry_after=100))
    async with FakeChat(busy) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m")
        terminal = PtyCommand("run", *where, "Why?", all_there=True, TERM="xterm-256color", COLUMNS="120")
        shown = await terminal.expect("too many requests")
        terminal.send_signal(signal.SIGINT)
        left = await terminal.result()

    assert re.search(r"waits \d+ s, then tries again: ", shown)
    assert left.code == 130


COLOURFUL = """# Title\n\n`code`, *em*, **strong**, ~~gone~~ and [a link](https://example.com)\n\n> a quote\n
```python\n# why\n@cache\ndef area(w: int = 2.5) -> str:\n    return not f"{w}" + None\n\nclass A:\n    pass\n```\n
```diff\n--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n1. one\n- two\n\n---\n"""

ON_LIGHT_AND_DARK = {"", "0", "1", "2", "3", "4", "9", "31", "32", "33", "35", "36"}
"""Styles and colours of the terminal's palette that are not close to a white or a black background."""


@pytest.mark.real_time
async def test_colours_can_be_read_on_a_light_and_on_a_dark_background(folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    (folder / "there.txt").write_text("There it is.")
    async with FakeChat(story().play(says(COLOURFUL))) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "spec", "--tools", "file_read")
        coloured = {"TERM": "xterm-256color", "COLUMNS": "100"}
        for task in ("Why?", "And why that?"):
            terminal = PtyCommand("run", *flags, task, all_there=True, **coloured)
            shown = (await terminal.result()).terminal
            codes = {code for found in re.findall(r"\x1b\[([\d;]*)m", shown) for code in found.split(";")}

            assert codes <= ON_LIGHT_AND_DARK
            assert {"1", "2", "31", "32", "36"} <= codes


@pytest.mark.real_time
async def test_an_error_wraps_between_words(folder: Path) -> None:
    terminal = PtyCommand("run", "--model", "nope:x", "Why?", TERM="xterm-256color", COLUMNS="60")
    ended = await terminal.result()

    lines = ended.terminal.splitlines()
    assert ended.code == 2
    assert lines[0] == "error: 'nope' is not a provider; known: anthropic, openai,"
    assert max(map(len, lines)) <= 60


def test_plain_prints_the_answer_as_it_is(folder: Path) -> None:
    with serving(says(ANSWER)) as vendor:
        code, lines = on_screen("run", "--base-url", vendor.base_url, "--model", "m", "--plain", "Why?", width=200)

    assert (code, "## Why" in lines) == (0, True)
    assert [line for line in lines if line.startswith("main: started, run ")]


def test_a_pipe_gets_the_raw_answer(cli: Cli) -> None:
    with serving(says(ANSWER)) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "Why?")

    assert (ended.code, ended.stdout) == (0, ANSWER + "\n")


# ---- refusals -----------------------------------------------------------------------------------------------------


def writing(cli: Cli, *lines: object, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    with serving(ChatScript().play(*lines)) as vendor:  # pyright: ignore[reportArgumentType]
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none")
        return cli("run", *where, "--tools", "file_write,file_read", *flags, "Write it.")


WRITE = calls("file_write", path="notes.md", content="Hello.")


@pytest.mark.parametrize("flags", [(), ("--quiet",)], ids=["", "quiet"])
def test_a_refused_call_is_reported_and_a_run_that_could_not_act_fails(flags: tuple[str, ...], cli: Cli) -> None:
    code, stdout, stderr = writing(cli, WRITE, says("I could not."), flags=flags)

    assert (code, stdout) == (1, "I could not.\n")
    (told,) = (line for line in stderr.splitlines() if "file_write" in line)
    assert told.startswith("✗ file_write  refused: ")
    assert "Hello." not in stderr  # stderr may be a log file
    assert stderr.endswith("no call that acts was made: each was refused, or had no sandbox (exit status 1)\n")


def test_equal_refusals_are_reported_once(cli: Cli) -> None:
    _, _, stderr = writing(cli, WRITE, WRITE, says("I could not."))

    assert stderr.count("✗ file_write") == 1


def test_a_run_that_acted_once_succeeds(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.smith]\ntools = ["file_write", "file_edit"]\nrisk_profile = "careful"\n'
        '[risk_profiles.careful]\nlevel = "supervised"\nauto_approve = ["file_write"]\n'
    )
    edit = calls("file_edit", path="notes.md", old_string="Hello", new_string="Bye")
    with serving(ChatScript().play(WRITE, edit, says("Half of it."))) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--agent", "smith")
        ended = cli("run", *where, "Write it.")

    assert (ended.code, (folder / "notes.md").read_text()) == (0, "Hello.")
    assert "✗ file_edit  refused: " in ended.stderr


def test_a_missing_sandbox_is_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(*_: object) -> None:
        raise SandboxUnavailable("no sandbox works here: install bubblewrap")

    monkeypatch.setattr("retinue.tools.shell.shell_tool.run_in_sandbox", unavailable)
    with serving(ChatScript().play(calls("shell", command="echo hi"), says("I could not."))) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--yes")
        ended = cli("run", *where, "--tools", "shell", "Run it.")

    assert "✗ shell  not run: no sandbox works here: install bubblewrap\n" in ended.stderr
    assert ended.stdout == "I could not.\n"


# ---- stdin and --continue -------------------------------------------------------------------------------------------


def test_text_on_stdin_is_context_for_the_prompt(cli: Cli) -> None:
    with serving(says("Two lines.")) as vendor:
        where = ("run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--quiet")
        ended = cli(*where, "Sum this up.", stdin=b"one\ntwo \xff\n")
        cli(*where, "Sum this up.", stdin=b" \n")

    prompts = [heard.body["messages"][-1]["content"] for heard in vendor.requests]
    assert ended.code == 0
    assert prompts == ["Sum this up.\n\n<stdin>\none\ntwo \ufffd\n</stdin>", "Sum this up."]


def test_run_continues_the_last_run_of_the_folder(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ChatScript().play(says("The pool."), says("Since Tuesday."), says("Elsewhere."))
    with serving(script) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--quiet")
        cli("run", *where, "Why?")
        (folder / "sub").mkdir()
        monkeypatch.chdir(folder / "sub")
        nothing = cli("run", *where, "--continue", "Since when?")
        monkeypatch.chdir(folder)
        went_on = cli("run", *where, "--continue", "Since when?")
        rows = cli("runs", "--json").json

    assert (nothing.code, nothing.stderr) == (
        2,
        "error: there is no ended run of this folder to continue: see retinue runs\n",
    )
    assert (went_on.code, went_on.stdout) == (0, "Since Tuesday.\n")
    sent = [message["content"] for message in vendor.requests[-1].body["messages"]]
    assert sent == ["Why?", "The pool.", "Since when?"]
    assert rows[0]["session_id"] == rows[1]["session_id"]


def test_chat_continues_the_last_chat_of_the_folder(cli: Cli) -> None:
    with serving(ChatScript().play(says("Hello."), says("You said hi."))) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--quiet")
        nothing = cli("chat", *where, "--continue", stdin=b"Hi!\n")
        cli("chat", *where, stdin=b"Hi!\n")
        went_on = cli("chat", *where, "-c", stdin=b"What did I say?\n")

    assert (nothing.code, "no chat of this folder" in nothing.stderr) == (2, True)
    assert (went_on.code, went_on.stdout) == (0, "You said hi.\n")
    sent = [message["content"] for message in vendor.requests[-1].body["messages"]]
    assert sent == ["Hi!", "Hello.", "What did I say?"]


def test_a_refused_call_of_a_child_is_reported_with_its_name_in_the_tree(cli: Cli) -> None:
    script = ChatScript().play(calls("subagent", label="dig", task_prompt="DIG"), says("Well."))
    script.play(calls("file_ops", operation="write", path="a.txt", content="a"), says("No."), words="DIG")
    with serving(script) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "xzatoma", "Go.")

    assert "main [dig]: ✗ file_ops  refused: " in ended.stderr
