"""Where words go: answers to stdout, everything else to stderr, and what the terminal behind them can do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


def say(line: str) -> None:
    """A line for the person at the terminal, on stderr."""
    print(line, file=sys.stderr, flush=True)


def answer(text: str) -> None:
    """What was asked for, on stdout: the text as it is, with a newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """A piece of what was asked for, on stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def answer_json(value: Any) -> None:
    """What was asked for, as JSON."""
    answer(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr, without a single escape code where colours are not wanted."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")


def can_redraw(screen: Console) -> bool:
    """Whether lines on this terminal can be drawn again in place."""
    return screen.is_terminal and not screen.is_dumb_terminal


def never_fail_to_print() -> None:
    """Let a terminal that lacks a character show a substitute, and not an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def forget_stdout() -> None:
    """Nobody reads stdout any more: let what is still buffered go nowhere, instead of failing again at the exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # not a file, for example in a test
