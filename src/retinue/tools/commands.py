"""What programs a shell command would start, told from its text alone, and whether a policy allows them.

What a command can really reach is the sandbox's business. A line that cannot be read with certainty (a substitution, an
unclosed quote) is not guessed at: it is called unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from retinue.core.policy import Policy
from retinue.tools.command_starters import Untold, started_by
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

_EVALUATES = frozenset(("printf", "test", "["))
_COMPARES = frozenset(
    ("=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "-a", "-o", ")", "]")
)
"""What may follow a variable in a test, so that it is compared and cannot say itself what is looked at."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
"""How a word begins that sets a variable; with a quote in there, it is the name of a program."""
_PROGRAM = re.compile(r"[A-Za-z0-9_./+:-]+|\[")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_CHANGES_PROGRAMS = re.compile(
    r"PATH|IFS|ENV|HOME|SHELL|BASH_.*|BASHOPTS|SHELLOPTS|PS4|PROMPT_COMMAND|.*PAGER|.*EDITOR|VISUAL|BROWSER|LESS.*"
    r"|XDG_.*|LD_.*|DYLD_.*|GLIBC_.*|GCONV_PATH|LOCPATH|OPENSSL_.*|SSL_.*|SSH_.*|PYTHON.*|PIP_.*|NODE_.*|GIT_.*|NPM_.*"
    r"|npm_.*|PERL.*|RUBY.*|RUST.*|CARGO_.*|RIPGREP_.*|JAVA_.*|_JAVA_OPTIONS|JDK_.*|MAKE.*|TAR_OPTIONS"
)
"""Variables by which a harmless name comes to mean another program."""


class Step(Struct, frozen=True):
    """One program that a command starts, with its arguments; `writes` where its output goes to a file.

    `varies` where an argument holds something that only the shell knows, such as a variable; `patterns` are arguments
    in whose place it gets the names of files.
    """

    program: str
    arguments: tuple[str, ...] = ()
    writes: bool = False
    varies: bool = False
    patterns: tuple[str, ...] = ()

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
        if refusal := _refusal_of_started(step, policy):
            return refusal
    return None


def _refusal_of_started(step: Step, policy: Policy) -> str | None:
    """The same for what a program is told to start: the list holds for that as well."""
    try:
        started = started_by(step.name, step.arguments, is_certain=not (step.varies or step.patterns))
    except Untold:
        return f"Security policy: nobody can tell what {step.name!r} would start here; write its arguments out"
    for each in started:
        if each.program not in policy.allowed_commands:
            return (
                f"Security policy: command {each.program!r}, which {step.name!r} would start, is not allowed "
                f"(allowed_commands); use one of: {_listed(policy.allowed_commands)}"
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
    while words and (assigned := _ASSIGNMENT.match(words[0].text)) and assigned.end() <= words[0].bare:
        _check_variable(assigned[1])
        words = words[1:]
    if not words:
        return Step("", (), writes) if writes else None
    program, *arguments = words
    if program.varies or (program.opens and program.text != "[") or not _PROGRAM.fullmatch(program.text):
        raise Unclear(f"{program.text!r} is not plainly the name of a program; write it out")
    if program.text in _EVALUATES:
        _check_evaluated(program.text, arguments)
    return Step(
        program.text,
        tuple(word.text for word in arguments),
        writes,
        varies=any(word.varies for word in arguments),
        patterns=tuple(word.text for word in arguments if word.opens),
    )


def _check_evaluated(program: str, arguments: Sequence[Word]) -> None:
    """In some shells these words set variables, or run what stands in the name of one (`[ -v 'a[$(id)]' ]`)."""
    if program == "printf":
        first = arguments[:1]
        if any(word.text.startswith("-v") or _may_be_an_option(word) for word in first):
            raise Unclear("begin what printf gets with a plain format, such as '%s'")
        return
    for word, following in zip(arguments, (*arguments[1:], None), strict=False):
        if word.text in ("-v", "-R"):
            raise Unclear(f"{word.text} of {program} is not read")
        if word.splits:
            raise Unclear(f'put variables of {program} in double quotes: "{word.text}"')
        if word.varies and following is not None and following.text not in _COMPARES:
            raise Unclear(f"write out how {program} is to look at {word.text!r}")


def _may_be_an_option(word: Word) -> bool:
    """Whether the first letter that the program gets is not the one that stands here."""
    return (word.varies and word.text[:1] in ("$", "{")) or (word.opens and word.text[:1] in ("*", "?", "["))


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
