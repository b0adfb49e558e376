"""Output: answers on stdout, everything else on stderr; and what the terminal can do."""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


INTERRUPTED = 130
"""The exit status of an interrupted command."""


def say(line: str) -> None:
    """Print a line on stderr; a closed stderr is ignored, and the work goes on."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def answer(text: str) -> None:
    """Print the result of a command on stdout: the text as it is, with a newline at its end."""
    write(text if text.endswith("\n") else f"{text}\n")


def write(text: str) -> None:
    """Write a part of the result to stdout, and flush."""
    stdout = _Answers.stdout or sys.stdout
    stdout.write(text)
    stdout.flush()


def stdout_is_closed() -> bool:
    """Whether the reader of stdout is gone, as far as the system reports it: for pipes, sockets and terminals."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = (_Answers.stdout or sys.stdout).fileno()
    except (OSError, ValueError):  # it is no file of the system, or was closed here
        return False
    watch = select.poll()
    watch.register(descriptor, 0)  # no events are asked for: errors and hang-ups are always reported
    return bool(watch.poll(0))


class _Answers:
    stdout: ClassVar[TextIO | None] = None
    """The stdout for answers while `sys.stdout` is redirected for tools."""


@contextmanager
def stdout_for_answers_alone() -> Generator[None]:
    """Redirect what tools print to stderr for as long as the block lasts: stdout is for the answer."""
    before, _Answers.stdout = _Answers.stdout, _Answers.stdout or sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Answers.stdout = before


def answer_json(value: Any) -> None:
    """Print the result as JSON; characters that control a terminal are escaped."""
    from retinue.core.text import INVISIBLE

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    answer(re.sub(f"[{INVISIBLE}]", lambda found: json.dumps(found[0])[1:-1], text))


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr, without escape codes if NO_COLOR is set."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")


def can_redraw(screen: Console) -> bool:
    """Whether lines on this terminal can be redrawn in place."""
    return screen.is_terminal and not screen.is_dumb_terminal


def never_fail_to_print() -> None:
    """Replace characters that the terminal cannot encode, and standard streams that are closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # `os.open` takes the lowest free descriptor, which is the closed one: no file of a store may become stderr.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def discard(stream: TextIO) -> None:
    """Discard what is still buffered for a closed stream, so that flushing at exit does not fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # not a file, for example in a test
