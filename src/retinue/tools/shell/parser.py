"""What programs a shell command would start, told from its text alone, and whether a policy allows them.

What a command can really access is the sandbox's business. A line that cannot be read with certainty (a substitution, an
unclosed quote) is not guessed at: it is called unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from retinue.core.policy import Policy
from retinue.tools.shell.lexer import Operator, Unclear, Word, cut
from retinue.tools.shell.wrappers import Undecidable, started_by

SEPARATORS = frozenset({"&&", "||", ";", ";;", "|", "|&", "&", "\n", "(", ")"})
"""After these a new command begins."""

KEYWORDS = frozenset(
    ("if", "then", "elif", "else", "while", "until", "do", "time", "fi", "done", "esac", "{", "}", "!")
)
"""Words of the shell's own grammar; what stands after them is a command again."""

NO_FILE = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr"))
"""Where output goes without changing a file."""

_HARMLESS = frozenset(
    (
        *("cd", "true", "false", ":", "test", "[", "exit", "printf"),
        *("wait", "break", "continue", "set", "export", "read", ""),
    )
)
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
_CHANGES_LITTLE = re.compile(
    r"NODE_ENV|NODE_NO_WARNINGS|RUST_BACKTRACE|RUST_LOG|CARGO_TERM_COLOR|CARGO_NET_OFFLINE|CARGO_INCREMENTAL"
    r"|PYTHON(?:UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER|DEVMODE|ASYNCIODEBUG)"
    r"|PIP_NO_INPUT|PIP_DISABLE_PIP_VERSION_CHECK|PIP_NO_CACHE_DIR|GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)"
    r"|GIT_TERMINAL_PROMPT"
)
"""Variables with names like those, by which nothing else is started."""
_STARTS_ANOTHER = re.compile(r".*PAGER|.*EDITOR|VISUAL")
_DOES_NOTHING = frozenset(("", "cat", "true", ":"))
"""Programs that show and change nothing where others ask a person."""
_RUNS_WHAT_IS_THERE = frozenset(("python", "python3", "pytest"))
"""Programs that run code of the workspace anyway, wherever they are told to look for it."""
ANY_VALUE = "$"
"""The value of a variable that only the shell knows; no text that does nothing is this one."""
_SET = re.compile(r"(?:-[eux]+ |-[eux]*o pipefail |\+[eux] )*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Step(Struct, frozen=True):
    """One program that a command starts, with its arguments; `writes` where its output goes to a file.

    `varies` where an argument holds something that only the shell knows, such as a variable; `patterns` are arguments
    in whose place it gets the names of files. `varying` are the places of arguments that may come to be any word, and
    `matching` those of patterns. `led` where a variable says where its code is.
    """

    program: str
    arguments: tuple[str, ...] = ()
    writes: bool = False
    varies: bool = False
    patterns: tuple[str, ...] = ()
    varying: tuple[int, ...] = ()
    matching: tuple[int, ...] = ()
    led: bool = False

    @property
    def name(self) -> str:
        """The program without its folder."""
        return self.program.rsplit("/", 1)[-1]


class ParsedCommand(Struct, frozen=True):
    """A shell command line and the programs that it runs, in order.

    If the line cannot be parsed with certainty, `unreadable` is the reason, with what to write instead, for the model.
    """

    text: str
    steps: tuple[Step, ...] = ()
    unreadable: str = ""


def parse(command: str) -> ParsedCommand:
    """Parse a command line.

    >>> [step.name for step in parse("cd src && LANG=C grep -r pool . | head -3").steps]
    ['cd', 'grep', 'head']
    >>> parse("echo $(id)").unreadable
    'substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself'
    """
    try:
        return ParsedCommand(command, tuple(step for part in _parts(cut(command)) if (step := _step(part)) is not None))
    except Unclear as unclear:
        return ParsedCommand(command, unreadable=str(unclear))


def refusal_of(command: ParsedCommand, policy: Policy) -> str | None:
    """Why a policy closes this command, in words for the model; None when it may be started."""
    if command.unreadable:
        return f"Security policy: {command.unreadable}"
    for step in command.steps:
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
        started = started_by(step.name, step.arguments, varying=step.varying, patterns=step.matching)
    except Undecidable:
        how = "" if step.name == "find" else ", with options of one letter"
        return f"Security policy: nobody can tell what {step.name!r} would start here; write its arguments out{how}"
    for each in started:
        for name, value in each.variables:
            if _changes_programs(name, value, each.name):
                return f"Security policy: {_changes(name)}"
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
    variables: dict[str, str] = {}
    while words and (assigned := _ASSIGNMENT.match(words[0].text)) and assigned.end() <= words[0].bare:
        variables[assigned[1]] = words[0].text[assigned.end() :]
        words = words[1:]
    for name, value in variables.items():
        _check_variable(name, value, words[0].text if words else "")
    if not words:
        return Step("", (), writes) if writes else None
    program, *arguments = words
    if program.text == "[[":
        raise Unclear("[[ is not known to every shell; write [ ... ]")
    if program.varies or (program.opens and program.text != "[") or not _PROGRAM.fullmatch(program.text):
        raise Unclear(f"{program.text!r} is not plainly the name of a program; write it out")
    if program.text in _EVALUATES:
        _check_evaluated(program.text, arguments)
    if program.text in ("set", "export", "read"):
        _check_setting(program.text, arguments)
    return Step(
        program.text,
        tuple(word.text for word in arguments),
        writes,
        varies=any(word.varies for word in arguments),
        patterns=tuple(word.text for word in arguments if word.opens),
        varying=tuple(place for place, word in enumerate(arguments) if _may_be_any(word)),
        matching=tuple(place for place, word in enumerate(arguments) if word.opens),
        led="PYTHONPATH" in variables,
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


def _check_setting(program: str, arguments: Sequence[Word]) -> None:
    """What these words set is known, and nothing by which programs are found."""
    if program == "set":
        if any(word.varies for word in arguments) or not _SET.fullmatch("".join(f"{word.text} " for word in arguments)):
            raise Unclear("of set, only -e, -u, -x and -o pipefail are read")
        return
    for word in arguments:
        name, assigned, value = word.text.partition("=")
        if program == "read" and word.text == "-r":
            continue
        if not _NAME.fullmatch(name) or word.splits or (assigned and program == "read"):
            raise Unclear(f"write out what {program} sets: plain names, and values with variables in double quotes")
        _check_variable(name, value if assigned else ANY_VALUE)


def _may_be_any(word: Word) -> bool:
    """Whether the program may get several words here, or one that begins in another way."""
    return word.splits or (word.varies and word.text[:1] in ("$", "-"))


def _may_be_an_option(word: Word) -> bool:
    """Whether the first letter that the program gets is not the one that stands here."""
    return (word.varies and word.text[:1] in ("$", "{")) or (word.opens and word.text[:1] in ("*", "?", "["))


def _check_head(words: Sequence[Word]) -> None:
    """`for x in ...` and `case x in ...` start nothing; what they run stands after the next separator."""
    if len(words) > 2 and words[2].text != "in":
        raise Unclear(f"write '{words[0].text} NAME in ...' and begin a new line after it")
    if words[0].text == "for" and len(words) > 1:
        _check_variable(words[1].text)


def _check_variable(name: str, value: str = ANY_VALUE, program: str = "") -> None:
    if _changes_programs(name, value, program):
        raise Unclear(_changes(name))


def _changes(name: str) -> str:
    return f"setting {name} changes what programs mean; leave it out"


def _changes_programs(name: str, value: str, program: str) -> bool:
    """Whether a variable with this value has this program, or those that follow if it is none, start others."""
    if not _CHANGES_PROGRAMS.fullmatch(name) or _CHANGES_LITTLE.fullmatch(name):
        return False
    if _STARTS_ANOTHER.fullmatch(name) and value in _DOES_NOTHING:
        return False
    return not ((name == "PYTHONPATH" and program in _RUNS_WHAT_IS_THERE) or (name == "IFS" and program == "read"))


def _without_redirections(part: Sequence[Word | Operator]) -> tuple[list[Word], bool]:
    """The words of a stretch that are the command's own, and whether a file gets its output."""
    words: list[Word] = []
    writes = False
    redirection = ""
    for each in part:
        if isinstance(each, Operator):
            redirection = each.text
        elif redirection:
            writes = writes or _is_written(redirection, each)
            redirection = ""
        else:
            words.append(each)
    return words, writes


def _is_written(redirection: str, target: Word) -> bool:
    if redirection in ("<", "<<", "<<<", "<&"):
        return False
    if redirection == ">&" and _DESCRIPTOR.fullmatch(target.text):
        return False
    return target.text not in NO_FILE


def _listed(commands: Sequence[str]) -> str:
    return ", ".join(commands) or "(none)"
