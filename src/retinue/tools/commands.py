"""What programs a shell command would start, told from its text alone, and whether a policy allows them.

What a command can really reach is the sandbox's business. A line that cannot be read with certainty (a substitution, an
unclosed quote) is not guessed at: it is called unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from retinue.core.policy import Policy
from retinue.tools.shell_words import Operator, Unclear, Word, cut

SEPARATORS = frozenset({"&&", "||", ";", ";;", "|", "|&", "&", "\n", "(", ")"})
"""After these a new command begins."""

KEYWORDS = frozenset(
    ("if", "then", "elif", "else", "while", "until", "do", "time", "fi", "done", "esac", "{", "}", "!")
)
"""Words of the shell's own grammar; what stands after them is a command again."""

NO_FILE = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr"))
"""Where output goes without changing a file."""

_HARMLESS = frozenset(("cd", "true", "false", ":", "test", "[", "exit", "printf", ""))
"""Words of the shell itself that start nothing, and no word at all (`> file`)."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=.*", re.DOTALL)
_PROGRAM = re.compile(r"[A-Za-z0-9_./+:-]+|\[")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_CHANGES_PROGRAMS = re.compile(
    r"PATH|IFS|ENV|HOME|BASH_.*|BASHOPTS|SHELLOPTS|PS4|PROMPT_COMMAND|.*PAGER|.*EDITOR|VISUAL|LESSOPEN|XDG_.*"
    r"|LD_.*|DYLD_.*|PYTHON.*|NODE_.*|GIT_.*|NPM_.*|npm_.*|PERL5.*|RUBYOPT|RUBYLIB|RUSTC.*|CARGO_.*|RIPGREP_.*"
)
"""Variables by which a harmless name comes to mean another program."""


class Step(Struct, frozen=True):
    """One program that a command starts, with its arguments; `writes` where its output goes to a file.

    `varies` where an argument holds something that only the shell knows, such as a variable.
    """

    program: str
    arguments: tuple[str, ...] = ()
    writes: bool = False
    varies: bool = False

    @property
    def name(self) -> str:
        """The program without its folder."""
        return self.program.rsplit("/", 1)[-1]


class Unreadable(Struct, frozen=True):
    """The command cannot be read with certainty; `why` tells the model what to write instead."""

    why: str


def steps_of(command: str) -> tuple[Step, ...] | Unreadable:
    """The programs that a command starts, in order.

    >>> [step.name for step in steps_of("cd src && LANG=C grep -r pool . | head -3")]
    ['cd', 'grep', 'head']
    >>> steps_of("echo $(id)").why
    'substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself'
    """
    try:
        return tuple(step for part in _parts(cut(command)) if (step := _step(part)) is not None)
    except Unclear as unclear:
        return Unreadable(str(unclear))


def refusal_of(command: str, policy: Policy) -> str | None:
    """Why a policy closes this command, in words for the model; None when it may be started."""
    steps = steps_of(command)
    if isinstance(steps, Unreadable):
        return f"Security policy: {steps.why}"
    for step in steps:
        if step.program != step.name and step.program not in policy.allowed_commands:
            return (
                f"Security policy: {step.program!r} names a program by its path; allowed are the commands of "
                f"allowed_commands by their names: {_listed(policy.allowed_commands)}"
            )
        if step.name not in _HARMLESS and not {step.program, step.name} & {*policy.allowed_commands}:
            return (
                f"Security policy: command {step.name!r} is not allowed (allowed_commands); "
                f"use one of: {_listed(policy.allowed_commands)}"
            )
    return None


def _parts(found: Sequence[Word | Operator]) -> list[list[Word | Operator]]:
    """The stretches between separators; each is at most one command with its redirections."""
    parts: list[list[Word | Operator]] = [[]]
    for each in found:
        if isinstance(each, Operator) and each.text in SEPARATORS:
            parts.append([])
        else:
            parts[-1].append(each)
    return parts


def _step(part: Sequence[Word | Operator]) -> Step | None:
    """The command of one stretch, or None where it starts nothing by itself."""
    words, writes = _without_redirections(part)
    while words and words[0].plain and words[0].text in KEYWORDS:
        words = words[1:]
    if words and words[0].plain and words[0].text in ("for", "case"):
        return _check_head(words)
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0].text)):
        _check_variable(assigned[1])
        words = words[1:]
    if not words:
        return Step("", (), writes) if writes else None
    program, *arguments = words
    if program.varies or (program.opens and program.text != "[") or not _PROGRAM.fullmatch(program.text):
        raise Unclear(f"{program.text!r} is not plainly the name of a program; write it out")
    varies = any(word.varies or (word.opens and word.text.startswith("-")) for word in arguments)
    return Step(program.text, tuple(word.text for word in arguments), writes, varies)


def _check_head(words: Sequence[Word]) -> None:
    """`for x in ...` and `case x in ...` start nothing; what they run stands after the next separator."""
    if len(words) > 2 and words[2].text != "in":
        raise Unclear(f"write '{words[0].text} NAME in ...' and begin a new line after it")
    if words[0].text == "for" and len(words) > 1:
        _check_variable(words[1].text)


def _check_variable(name: str) -> None:
    if _CHANGES_PROGRAMS.fullmatch(name):
        raise Unclear(f"setting {name} changes what programs mean; leave it out")


def _without_redirections(part: Sequence[Word | Operator]) -> tuple[list[Word], bool]:
    """The words of a stretch that are the command's own, and whether a file gets its output."""
    words: list[Word] = []
    writes = False
    redirection = ""
    for each in part:
        if isinstance(each, Operator):
            if each.text == "<<":
                raise Unclear("here-documents are not read; write the text to a file first")
            redirection = each.text
        elif redirection:
            writes = writes or _is_written(redirection, each)
            redirection = ""
        else:
            words.append(each)
    return words, writes


def _is_written(redirection: str, target: Word) -> bool:
    if redirection in ("<", "<<<", "<&"):
        return False
    if redirection == ">&" and _DESCRIPTOR.fullmatch(target.text):
        return False
    return target.text not in NO_FILE


def _listed(commands: Sequence[str]) -> str:
    return ", ".join(commands) or "(none)"
