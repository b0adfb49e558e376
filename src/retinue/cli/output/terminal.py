"""Where words go: answers to stdout, everything else to stderr, and what the terminal behind them can do."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


def say(line: str) -> None:
    """A line for the person at the terminal, on stderr; if nobody can hear it any more, the work goes on without."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _forget(sys.stderr)


def answer(text: str) -> None:
    """What was asked for, on stdout: the text as it is, with a newline at its end."""
    write(text if text.endswith("\n") else f"{text}\n")


def write(text: str) -> None:
    """A piece of what was asked for, on stdout, at once."""
    stdout = _Answers.stdout or sys.stdout
    stdout.write(text)
    stdout.flush()


class _Answers:
    stdout: ClassVar[TextIO | None] = None
    """Where answers go while `sys.stdout` is what tools print to."""


@contextmanager
def stdout_for_answers_alone() -> Generator[None]:
    """Let what tools print go to stderr for as long as the block lasts: whoever reads stdout wants the answer."""
    before, _Answers.stdout = _Answers.stdout, _Answers.stdout or sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Answers.stdout = before


def answer_json(value: Any) -> None:
    """What was asked for, as JSON, in which characters that would steer a terminal are spelled as numbers."""
    from retinue.cli.output.format import STEERING

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    answer(re.sub(f"[{STEERING}]", lambda found: json.dumps(found[0])[1:-1], text))


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr, without a single escape code where colours are not wanted."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")


def can_redraw(screen: Console) -> bool:
    """Whether lines on this terminal can be drawn again in place."""
    return screen.is_terminal and not screen.is_dumb_terminal


def never_fail_to_print() -> None:
    """Let a terminal that lacks a character show a substitute, and not an error; and what was closed be nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number is the one that is missing: no file of a store may come to be taken for stderr.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def forget_stdout() -> None:
    """Nobody reads stdout any more: let what is still buffered go nowhere, instead of failing again at the exit."""
    _forget(sys.stdout)


def _forget(stream: TextIO) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # not a file, for example in a test
