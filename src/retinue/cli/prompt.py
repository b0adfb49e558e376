"""The prompt of a command: an argument, the text of stdin, or an argument with the text of stdin as context."""

from __future__ import annotations

import sys
import threading

import typer

from retinue.cli.options import utf8
from retinue.cli.output.terminal import say

MIB = 1024 * 1024
MAX_CONTEXT = 16 * MIB
"""Bytes of stdin that are read as context."""

HINT_SECONDS = 3.0
"""Seconds after which a command that waits for stdin says so."""


def prompt_text(prompt: str) -> str:
    """The prompt of a command line; `-` reads it from stdin."""
    text = utf8(sys.stdin.buffer.read().decode(errors="surrogateescape") if prompt == "-" else prompt, "the prompt")
    if not text.strip():
        where = "stdin has no prompt" if prompt == "-" else "the prompt is empty"
        raise typer.BadParameter(f"{where}: write the task")
    return text


def prompt_with_context(prompt: str) -> str:
    """The prompt of a command line, with the text of a pipe below it; `-` reads the prompt itself from stdin."""
    text = prompt_text(prompt)
    return text if prompt == "-" else with_context(text, piped_context())


def piped_context() -> str:
    """The text on stdin, if stdin is not a terminal; empty if there is none.

    A hint is printed where nothing arrives: a program may have left its own stdin to this command.
    """
    stdin = sys.stdin
    if stdin is None or stdin.closed or stdin.isatty():
        return ""
    hint = threading.Timer(HINT_SECONDS, say, ["reading stdin as context; </dev/null leaves it out"])
    hint.daemon = True
    hint.start()
    try:
        content = stdin.buffer.read(MAX_CONTEXT + 1)
    except OSError:  # stdin is closed, or a folder
        return ""
    finally:
        hint.cancel()
    if len(content) > MAX_CONTEXT:
        raise typer.BadParameter(f"stdin has more than {MAX_CONTEXT // MIB} MiB: give the model a part of it")
    return content.decode(errors="replace")


def with_context(prompt: str, context: str) -> str:
    """A prompt with text of stdin below it, marked as such.

    >>> with_context("Sum this up.", "one\\ntwo\\n")
    'Sum this up.\\n\\n<stdin>\\none\\ntwo\\n</stdin>'
    """
    return f"{prompt}\n\n<stdin>\n{context.rstrip()}\n</stdin>" if context.strip() else prompt
