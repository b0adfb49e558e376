"""Output: answers on stdout, everything else on stderr; and what the terminal can do.

Texts of models, vendors and files go to a terminal through this module alone, and are made printable here. No other
module of the command line writes to the standard streams (`tests/cli/output/test_printable.py` checks it).
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec

from retinue.core.text import INVISIBLE, clean, clean_line

if TYPE_CHECKING:
    from rich.console import Console

    from retinue.cli.output.markdown import MarkdownPrinter


INTERRUPTED = 130
"""The exit status of an interrupted command."""


HEADING = "-- "
"""The beginning of a heading on a page with texts of models or files."""

MIN_WIDTH = 20
"""Columns that words are wrapped to at least."""

_SHOW_CURSOR = "\x1b[?25h"


def say(*lines: str) -> None:
    """Print lines on stderr, each made printable on one line; a closed stderr is ignored, and the work goes on."""
    _to_stderr("".join(f"{clean_line(line)}\n" for line in lines))


def say_wrapped(*lines: str) -> None:
    """Print lines of words on stderr as `say` does; a terminal gets them wrapped, it would cut within a word."""
    if not sys.stderr.isatty():
        say(*lines)
        return
    import textwrap

    width = max(shutil.get_terminal_size().columns, MIN_WIDTH)
    for line in map(clean_line, lines):
        say(*textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""])


def say_text(text: str) -> None:
    """Print an untrusted text on stderr, made printable; its own line ends stay."""
    say(*clean(text).split("\n"))


def say_styled(line: str, style: str) -> None:
    """Print a line on stderr as `say` does; in this style of Rich if stderr is a terminal with colours."""
    if not style or not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        say(line)
        return
    from rich.style import Style

    _to_stderr(f"{Style.parse(style).render(clean_line(line))}\n")


def prompt(text: str) -> None:
    """Write a prompt to stderr, made printable; the cursor stays behind it."""
    _to_stderr(clean_line(text))


def _to_stderr(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def answer(text: str) -> None:
    """Print the result of a command on stdout, with a newline at its end; see `write`."""
    write(text if text.endswith("\n") else f"{text}\n")


def answer_lines(*lines: str) -> None:
    """Print lines on stdout, each made printable on one line, also if stdout is not a terminal."""
    write("".join(f"{clean_line(line)}\n" for line in lines))


def write(text: str) -> None:
    """Write a part of the result to stdout, and flush: made printable on a terminal, else exactly as it is."""
    write_styled(printable(text))


def write_git_text(text: str) -> None:
    """Write a text of git to stdout: with every byte of its files to a pipe, where another program reads it."""
    stdout = _Answers.stdout or sys.stdout
    buffer = getattr(stdout, "buffer", None)
    if stdout.isatty() or buffer is None:
        write(text)
        return
    stdout.flush()
    buffer.write(text.encode("utf-8", "surrogateescape"))
    buffer.flush()


def printable(text: str) -> str:
    """The text as `write` writes it: with visible control characters if stdout is a terminal."""
    return clean(text) if (_Answers.stdout or sys.stdout).isatty() else text


def write_styled(text: str) -> None:
    """Write a part of the result with escape codes for its colours; texts of others in it are `printable` already."""
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
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # half of a character, for example of a file name that is not UTF-8
        whole = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        encoded = re.sub("[\ud800-\udfff]", "\ufffd", whole).encode()
    text = msgspec.json.format(encoded, indent=2).decode()
    answer(re.sub(f"[{INVISIBLE}]", lambda found: json.dumps(found[0])[1:-1], text))


def json_line(value: object) -> str:
    """A JSON object on a line of its own, in ASCII: no character controls a terminal."""
    return json.dumps(value, separators=(",", ":")) + "\n"


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr that prints texts made printable; without colours if NO_COLOR is set."""
    from retinue.cli.output.printable_console import PrintableConsole

    plain = bool(os.environ.get("NO_COLOR"))
    return PrintableConsole(
        stderr=stderr, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto"
    )


def markdown_screen() -> MarkdownPrinter | None:
    """A printer of Markdown for the terminal behind stdout; None if stdout is not a terminal that can be redrawn."""
    stdout = _Answers.stdout or sys.stdout
    if not stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return None
    from retinue.cli.output.markdown import MarkdownPrinter, page_console

    return MarkdownPrinter(page_console(stdout, plain=bool(os.environ.get("NO_COLOR"))))


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


def show_cursor() -> None:
    """Show the cursor of the terminal behind stderr again; a live display may have hidden it."""
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        sys.__stderr__.write(_SHOW_CURSOR)
        sys.__stderr__.flush()


def discard(stream: TextIO) -> None:
    """Discard what is still buffered for a closed stream, so that flushing at exit does not fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # not a file, for example in a test
