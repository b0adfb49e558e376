"""The first words of a shell command: an approval for a whole run covers the commands with the same ones."""

from __future__ import annotations

import re

from retinue.tools.shell.parser import ParsedCommand, Step

MAX_STEPS = 3
"""Programs of a command line whose words are named; a longer line is approved as a whole."""

SUBCOMMANDS = frozenset(("git", "npm", "cargo", "pip", "pip3", "go", "uv", "yarn", "pnpm", "kubectl", "brew", "apt"))
"""Programs whose first argument names what they do."""

CHANGES_FILES = frozenset(("mkdir", "touch", "cp", "mv", "ln", "rmdir", "rm", "chmod", "chown", "tar", "zip", "unzip"))
"""Programs whose options say what they do with the files that are named."""

RUNS_CODE = frozenset(("run", "run-script", "exec", "x", "dlx", "alias", "config"))
"""Subcommands that run other code: the rest of the line says which."""

_WORD = re.compile(r"[a-z][a-z0-9-]*")


def first_words(command: ParsedCommand) -> str:
    """Program and subcommand of each program in a line; the whole line where these do not say what it does.

    Programs that run code or other programs (`python3`, `sh`, `xargs`, `make`), redirections into files, variables and
    unknown programs stand for themselves alone.

    >>> from retinue.tools.shell.parser import parse
    >>> [first_words(parse(line)) for line in ("git commit -m one", "git add . && git commit -m two", "mv -f a b")]
    ['git commit', 'git add; git commit', 'mv -f']
    >>> [first_words(parse(line)) for line in ("python3 -c 'import os'", "echo hi > note", "git -C a push")]
    ["python3 -c 'import os'", 'echo hi > note', 'git -C a push']
    """
    words = [_words(step) for step in command.steps]
    if command.unreadable or not words or len(words) > MAX_STEPS or not all(words):
        return command.text
    return "; ".join(words)


def _words(step: Step) -> str:
    """The words of one program; empty if only its whole line says what it does."""
    starts_others = bool(step.starts) or step.undecided
    if step.writes or step.varies or step.sets_code_path or starts_others or step.program != step.name:
        return ""
    if step.name == "cd":
        return " ".join((step.name, *step.arguments))
    if step.name in SUBCOMMANDS:
        subcommand = step.arguments[0] if step.arguments else ""
        is_clear = _WORD.fullmatch(subcommand) is not None and subcommand not in RUNS_CODE
        return f"{step.name} {subcommand}" if is_clear else ""
    if step.name in CHANGES_FILES:
        options = (argument for argument in step.arguments if argument.startswith("-"))
        return " ".join((step.name, *options))
    return ""
