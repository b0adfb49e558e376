"""The first words of a shell command: an approval for a whole run covers the commands with the same ones."""

from __future__ import annotations

import re
from collections.abc import Mapping

from retinue.tools.shell.parser import ParsedCommand, ProgramStep

MAX_STEPS = 3
"""Programs of a command line whose words are named; a longer line is approved as a whole."""

_MESSAGE = r"m|am|qm|qam|-message(?:=.*)?"
_QUIET = r"q|v|-quiet|-verbose|n|-dry-run"
GIT_SUBCOMMANDS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(f"-(?:{options}|{_QUIET})", re.DOTALL)
    for name, options in {
        "init": r"b|-initial-branch=.*",
        "add": r"A|u|-all|-update|-intent-to-add|N",
        "commit": rf"{_MESSAGE}|a|s|-all|-amend|-no-edit|-allow-empty|-signoff|-author=.*|-date=.*|-fixup=.*",
        "checkout": r"b|-detach|-track|t",
        "switch": r"c|-create|-detach|-track|t",
        "branch": r"a|r|d|m|-list|-delete|-move|-show-current|-set-upstream-to=.*",
        "tag": r"a|l|-annotate|-list|m|-message(?:=.*)?",
        "merge": r"-no-ff|-ff-only|-no-edit|-squash|-abort|m",
        "mv": r"k",
        "fetch": r"-all|-prune|p|-tags|t|-depth=\d+",
        "pull": r"-rebase|r|-ff-only|-no-rebase|-prune|p",
        "push": r"u|-set-upstream|-tags|-follow-tags",
    }.items()
}
"""Subcommands of git that start no program which their arguments name, each with the options of which that is known."""

CHANGES_FILES = frozenset(("mkdir", "touch", "cp", "mv", "ln", "rmdir", "rm", "chmod", "chown", "unzip"))
"""Programs whose options say what they do with the files that are named, and that start no other program."""


def first_words(command: ParsedCommand) -> str:
    """Program and subcommand of each program in a line; the whole line where these do not say what it does.

    Programs that run code or other programs (`python3`, `sh`, `xargs`, `make`, `npm`, `cargo`, `tar`), other
    subcommands and options of git than those listed here, redirections into files, variables and unknown programs
    stand for themselves alone.

    >>> from retinue.tools.shell.parser import parse
    >>> [first_words(parse(line)) for line in ("git commit -m one", "git add . && git commit -m two", "mv -f a b")]
    ['git commit', 'git add; git commit', 'mv -f']
    >>> [first_words(parse(line)) for line in ("python3 -c 'import os'", "echo hi > note", "git -C a push")]
    ["python3 -c 'import os'", 'echo hi > note', 'git -C a push']
    >>> [first_words(parse(line)) for line in ("git push", "git push --exec=./x", "git rebase -x ./x", "npm install x")]
    ['git push', 'git push --exec=./x', 'git rebase -x ./x', 'npm install x']
    >>> [first_words(parse(line)) for line in ("git push -u origin feature/pool", "git push folder main")]
    ['git push origin', 'git push folder']
    """
    words = [_words(step) for step in command.steps]
    if command.unreadable or not words or len(words) > MAX_STEPS or not all(words):
        return command.text
    return "; ".join(words)


def _words(step: ProgramStep) -> str:
    """The words of one program; empty if only its whole line says what it does."""
    starts_others = bool(step.starts) or step.undecided
    if step.writes or step.varies or step.sets_code_path or starts_others or step.program != step.name:
        return ""
    if step.name == "cd":
        return " ".join((step.name, *step.arguments))
    if step.name == "git":
        subcommand, *others = step.arguments or ("",)
        known = GIT_SUBCOMMANDS.get(subcommand)
        is_clear = known is not None and not step.patterns and all(_is_plain(known, word) for word in others)
        # A push to a repository of this machine starts the hooks that lie there, and any word can name its folder.
        to = next((f" {word}" for word in others if not word.startswith("-")), "") if subcommand == "push" else ""
        return f"git {subcommand}{to}" if is_clear else ""
    if step.name in CHANGES_FILES:
        options = (argument for argument in step.arguments if argument.startswith("-"))
        return " ".join((step.name, *options))
    return ""


def _is_plain(known: re.Pattern[str], word: str) -> bool:
    """Whether a word is a known option, or none and no address of a program (`ext::sh -c ...`)."""
    return known.fullmatch(word) is not None if word.startswith("-") and word != "--" else "::" not in word
