"""`retinue trust`: show settings files and modules that are not obeyed as they are, and accept them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli.options import option
from retinue.cli.output.terminal import HEADING, answer_lines, prompt, say
from retinue.core.errors import BadInput
from retinue.core.text import plural

if TYPE_CHECKING:
    from retinue.app.trust import Unaccepted

MAX_LINES = 400
"""Lines of one file that are shown; a longer one is read in an editor."""


def trust(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", help="Settings files, modules or folders; by default ./retinue.toml."),
    ] = None,
    yes: Annotated[bool, option("--yes", help="Accept without a question.")] = False,
) -> int:
    """Accept a settings file and its modules as they are, where agents may write.

    In a folder in which agents may write, a settings file and the Python files that it names are obeyed only as they
    were before agents could write there, or as you accepted them. What is new or has changed is shown first.
    """
    from retinue.app.trust import accept_files, unaccepted_files

    files = unaccepted_files(paths or [], cwd=Path.cwd())
    if not files:
        say("nothing to accept: these files are obeyed as they are")
        return 0
    for file in files:
        _show(file)
    if not yes and not _agrees(len(files)):
        say("not accepted")
        return 1
    accept_files(files)
    say(f"accepted {plural(len(files), 'file')}")
    return 0


def _show(file: Unaccepted) -> None:
    lines = file.changes()
    answer_lines(f"{HEADING}{file.path}: {'new' if file.before is None else 'changed'}")
    # Indented, so that no line of the file looks like a heading.
    answer_lines(*(f"  {line}" for line in lines[:MAX_LINES]))
    if len(lines) > MAX_LINES:
        answer_lines(f"{HEADING}{len(lines) - MAX_LINES} lines more: read the file itself before you accept it")


def _agrees(count: int) -> bool:
    if not sys.stdin.isatty():
        raise BadInput("there is no terminal to ask on: read the files, then use --yes")
    prompt(f"Accept {plural(count, 'file')} as shown? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
