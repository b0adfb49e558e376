"""Commands on a pseudo-terminal: widths, colours, dumb terminals, and the live tree."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from retinue.providers.scripted import Script, ScriptedProvider, says
from tests.cli.stage import finished_run, serving

COLOUR = re.compile(r"\x1b\[[\d;]*m")
CODES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def on_terminal(*arguments: str, width: int = 80, **env: str) -> tuple[int, str]:
    """A command whose stdin, stdout and stderr are one terminal: its exit code and its output."""
    inside, outside = pty.openpty()[::-1]
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    without = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", *arguments],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=without | {"TERM": "xterm-256color"} | env,
        start_new_session=True,
    )
    os.close(inside)
    written = b""
    try:
        while piece := os.read(outside, 65536):
            written += piece
    except OSError:
        pass  # the other side is closed: a terminal reports its end with an error
    os.close(outside)
    return process.wait(), written.decode()


@pytest.fixture
def run_id(home: Path, folder: Path) -> str:
    provider = ScriptedProvider(Script().play("main", says("Found it.")))
    return asyncio.run(finished_run(home, provider))


def test_the_live_area_is_removed_and_the_answer_stays_above_the_summary(folder: Path) -> None:
    with serving(says("Forty-two.")) as vendor:
        code, written = on_terminal("run", "--base-url", vendor.base_url, "--model", "m", "hi")

    assert code == 0
    last = CODES.sub("", written.rpartition("\x1b[2K")[2]).splitlines()
    assert last[-2] == "Forty-two."
    assert last[-1].startswith("completed, 1 run, 1 turn, ")
    assert written.count("Forty-two.") - written.count("\x1b[2K") <= 1
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h")


def test_a_dumb_terminal_gets_plain_lines(folder: Path) -> None:
    with serving(says("Forty-two.")) as vendor:
        code, written = on_terminal("run", "--base-url", vendor.base_url, "--model", "m", "hi", TERM="dumb")

    assert (code, "\x1b" in written) == (0, False)
    assert "main: started, run " in written


@pytest.mark.parametrize("width", [40, 80])
def test_tables_fit_into_the_terminal(run_id: str, width: int) -> None:
    code, written = on_terminal("runs", width=width)

    lines = CODES.sub("", written).splitlines()
    assert (code, len(lines)) == (0, 2)
    assert max(map(len, lines)) <= width
    assert run_id[-8:] in lines[1]
    assert COLOUR.search(written)


def test_no_color_prints_no_escape_codes(run_id: str) -> None:
    code, written = on_terminal("runs", NO_COLOR="1")

    assert (code, "\x1b" in written) == (0, False)


def test_doctor_keeps_its_columns_on_a_terminal(folder: Path) -> None:
    _, written = on_terminal("doctor", width=80)

    lines = CODES.sub("", written).splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("  sqlite "))
    assert [line[:25].strip() for line in lines[first : first + 2]] == ["sqlite", ""]
    assert max(map(len, lines[first : first + 2])) <= 80
