"""Parser for shell commands: which programs a command line runs, and whether a policy allows them.

The parser sees the text alone; what a program can really do is limited by the sandbox. A line that cannot be parsed
with certainty (a substitution, an unclosed quote) is unreadable, and refused. Of programs that start others (`env`,
`xargs`, `find -exec`), the arguments determine which ones: see `starters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.policy import Policy
from retinue.core.text import name_list
from retinue.tools.shell.lexer import Operator, Unclear, Word, tokens
from retinue.tools.shell.starters import ASSIGNMENT, StartedProgram, Undecidable, started_by

SEPARATORS = frozenset({"&&", "||", ";", ";;", "|", "|&", "&", "\n", "(", ")"})
"""Operators that end a command."""

KEYWORDS = frozenset(
    ("if", "then", "elif", "else", "while", "until", "do", "time", "fi", "done", "esac", "{", "}", "!")
)
"""Reserved words of the shell; a command follows them."""

NO_FILE = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr"))
"""Targets of redirections that change no file."""

_HARMLESS = frozenset(
    (
        *("cd", "true", "false", ":", "test", "[", "exit", "printf"),
        *("wait", "break", "continue", "set", "export", "read", ""),
    )
)
"""Builtins that run no program, and the empty command (`> file`)."""

_COMPARES_NUMBERS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_TAKES_A_NUMBER = frozenset(("exit", "break", "continue"))
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+|\$[?#$]")
_PLAIN_VALUE = re.compile(r"[^\[`]*")
"""A value that no shell takes for code where it stands for a number: some evaluate the subscript of `a[...]`."""
_JOB = re.compile(r"[0-9]+|\$!|%[0-9]*")
_FORMAT = re.compile(r"(?:[^%]|%%|%[-+ #]{0,4}[0-9]{0,4}(?:\.[0-9]{0,4})?[diouxXeEfFgGaAcsb])*")
"""What printf prints with: `%n` sets a variable in some shells, and `*` takes a number from the arguments."""
_NUMBERS_IN_FORMAT = re.compile(r"%[-+ #]{0,4}[0-9]{0,4}(?:\.[0-9]{0,4})?[diouxXeEfFgGaA]")
_DEVICES = ("/dev/tcp", "/dev/udp")
"""Names that are connections to some shells, and files to none."""
_COMPARES = frozenset(
    ("=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "-a", "-o", ")", "]")
)
"""Words that may follow a variable in a test: the variable is then compared and cannot be an operator itself."""

_PROGRAM = re.compile(r"[A-Za-z0-9_./+:-]+|\[")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_CHANGES_PROGRAMS = re.compile(
    r"PATH|IFS|ENV|HOME|PWD|OLDPWD|CDPATH|FPATH|ZDOTDIR|NULLCMD|READNULLCMD|EXECIGNORE|GLOBIGNORE|SHELL|BASH_.*|BASHOPTS|SHELLOPTS|PS4|PROMPT_COMMAND|.*PAGER|.*EDITOR|VISUAL|BROWSER|LESS.*"
    r"|XDG_.*|LD_.*|DYLD_.*|GLIBC_.*|GCONV_PATH|LOCPATH|OPENSSL_.*|SSL_.*|SSH_.*|PYTHON.*|PIP_.*|NODE_.*|GIT_.*|NPM_.*"
    r"|npm_.*|PERL.*|RUBY.*|RUST.*|CARGO_.*|RIPGREP_.*|JAVA_.*|_JAVA_OPTIONS|JDK_.*|MAKE.*|TAR_OPTIONS"
    r"|GOFLAGS|GOROOT|GOTOOLCHAIN|RUSTC.*|RSYNC_RSH|CVS_RSH|SUDO_.*|GNUPGHOME|POSIXLY_CORRECT"
)
"""Variables that make a harmless name run another program."""
_CHANGES_LITTLE = re.compile(
    r"NODE_ENV|NODE_NO_WARNINGS|RUST_BACKTRACE|RUST_LOG|CARGO_TERM_COLOR|CARGO_NET_OFFLINE|CARGO_INCREMENTAL"
    r"|PYTHON(?:UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER|DEVMODE|ASYNCIODEBUG)"
    r"|PIP_NO_INPUT|PIP_DISABLE_PIP_VERSION_CHECK|PIP_NO_CACHE_DIR|GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)"
    r"|GIT_TERMINAL_PROMPT"
)
"""Variables with such names that run nothing else."""
_INTEGER = re.compile(
    r"S?RANDOM|SECONDS|LINENO|HISTCMD|OPTIND|OPTERR|EPOCH[A-Z]+|COLUMNS|LINES|HISTSIZE|SAVEHIST|SHLVL|E?UID|E?GID|PPID"
    r"|TMOUT|FUNCNEST|BASHPID|TTYIDLE|ERRNO|MAILCHECK|LOGCHECK|KEYTIMEOUT|LISTMAX|BAUD|DIRSTACKSIZE|TRY_BLOCK_[A-Z]+"
)
"""Variables that are integers to some shells: they evaluate a value such as `a[$(id)]`."""
_CHARACTERS = re.compile(r"LANG|LC_ALL|LC_CTYPE")
"""Variables that say which bytes are one character; a shell reads the following lines by them."""
_UTF_8 = re.compile(r"C|POSIX|[A-Za-z_@]*\.(?:utf-?8|UTF-?8)")
_STARTS_ANOTHER = re.compile(r".*PAGER|.*EDITOR|VISUAL")
_DOES_NOTHING = frozenset(("", "cat", "true", ":"))
"""Values of pager and editor variables that run nothing interactive."""
_RUNS_WHAT_IS_THERE = frozenset(("python", "python3", "pytest"))
"""Programs that run code of the workspace anyway, so that a path to more of it changes nothing."""
ANY_VALUE = "$"
"""Stands for a value that only the running shell knows; it is none of `_DOES_NOTHING`."""
_SET = re.compile(r"(?:-[eux]+ |-[eux]*o pipefail |\+[eux] )*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HINT = ", with options of one letter, and at most a few such programs in a row"
_HINTS = {
    "find": "",
    "git": ", without options before its subcommand other than -C, --no-pager and settings that name no program",
}


class ProgramStep(Struct, frozen=True):
    """One program that a command runs, with its arguments.

    `writes`: its output is redirected to a file, or its input may be a connection. `varies`: an argument contains
    something that only the running shell knows, such as a variable. `patterns`: arguments that expand to names of
    files. `varying` are the indices of arguments that may expand to any word. `sets_code_path`: a variable adds a
    folder of code (PYTHONPATH). `starts` are the programs that it starts by its arguments, and those that they start in
    turn; `undecided`: the arguments do not determine them.
    """

    program: str
    arguments: tuple[str, ...] = ()
    writes: bool = False
    varies: bool = False
    patterns: tuple[str, ...] = ()
    varying: tuple[int, ...] = ()
    sets_code_path: bool = False
    starts: tuple[StartedProgram, ...] = ()
    undecided: bool = False

    @property
    def name(self) -> str:
        return self.program.rsplit("/", 1)[-1]


class ParsedCommand(Struct, frozen=True):
    """A command line and its programs, in order; `unreadable` is why it cannot be parsed, and what to write instead."""

    text: str
    steps: tuple[ProgramStep, ...] = ()
    unreadable: str = ""
    loops: bool = False
    """Whether parts of it may run several times, or under a name of their own."""


def parse(command: str) -> ParsedCommand:
    """Parse a command line.

    >>> [step.name for step in parse("cd src && LANG=C grep -r pool . | head -3").steps]
    ['cd', 'grep', 'head']
    >>> parse("echo $(id)").unreadable
    'substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself'
    """
    try:
        return _parsed(command)
    except Unclear as unclear:
        return ParsedCommand(command, unreadable=str(unclear))


def _parsed(command: str) -> ParsedCommand:
    found = tokens(command)
    values: list[Word] = []
    """Words that become values of variables."""
    numbers: list[Word] = []
    """Words that some shells evaluate as arithmetic."""
    parts = [_Part(part) for part in _parts(found)]
    steps = tuple(step for part in parts if (step := part.step(values, numbers)) is not None)
    if any(not _PLAIN_NUMBER.fullmatch(word.text) for word in numbers):
        _check_values(steps, values, numbers)
    loops = any(part.loops for part in parts) or any(
        isinstance(token, Operator) and token.text == ")" and isinstance(before, Operator) and before.text == "("
        for before, token in pairwise(found)
    )
    return ParsedCommand(command, steps, loops=loops)


def _check_values(steps: Sequence[ProgramStep], values: Iterable[Word], numbers: Iterable[Word]) -> None:
    """Refuse a word that stands for a number and may be `a[$(id)]`, which some shells evaluate."""
    for word in numbers:
        if not _PLAIN_VALUE.fullmatch(word.text):
            raise Unclear(f"write the number out in place of {word.text!r}")
    if any(step.program == "read" for step in steps) or any(
        word.opens or not _PLAIN_VALUE.fullmatch(word.text) for word in values
    ):
        raise Unclear("numbers in variables are read only where the command sets them to plain values; write them out")


def refusal_of(command: ParsedCommand, policy: Policy) -> str | None:
    """Why a policy refuses a command, as a text for the model; None if it may run."""
    if command.unreadable:
        return f"Security policy: {command.unreadable}"
    for step in command.steps:
        if step.program != step.name and step.program not in policy.allowed_commands:
            return (
                f"Security policy: {step.program!r} names a program by its path; allowed are the commands of "
                f"allowed_commands by their names: {name_list(policy.allowed_commands)}"
            )
        if step.name not in _HARMLESS and not {step.program, step.name} & {*policy.allowed_commands}:
            return (
                f"Security policy: command {step.name!r} is not allowed (allowed_commands); "
                f"use one of: {name_list(policy.allowed_commands)}"
            )
        if refusal := _refusal_of_started(step, policy):
            return refusal
    return None


def _refusal_of_started(step: ProgramStep, policy: Policy) -> str | None:
    """The same for the programs that a program starts: the list of allowed commands applies to them too."""
    if step.undecided:
        return (
            f"Security policy: it is not known what {step.name!r} would start here; "
            f"write its arguments out{_HINTS.get(step.name, _HINT)}"
        )
    for inner in step.starts:
        for name, value in inner.variables:
            if _changes_programs(name, value, inner.name):
                return f"Security policy: {_changes(name)}"
        if inner.program not in policy.allowed_commands:
            return (
                f"Security policy: command {inner.program!r}, which {step.name!r} would start, is not allowed "
                f"(allowed_commands); use one of: {name_list(policy.allowed_commands)}"
            )
    return None


def _parts(found: Sequence[Word | Operator]) -> list[list[Word | Operator]]:
    """The tokens between separators; each part is at most one command with its redirections."""
    parts: list[list[Word | Operator]] = [[]]
    for token in found:
        if isinstance(token, Operator) and token.text in SEPARATORS:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


class _Part:
    """The words between two separators: at most one command with its redirections."""

    def __init__(self, part: Sequence[Word | Operator]) -> None:
        words, self._writes = _without_redirections(part)
        start = 0
        while start < len(words) and words[start].plain and words[start].text in KEYWORDS:
            start += 1
        self._words = words[start:]
        head = self._words[0].text if self._words and self._words[0].plain else ""
        self._head = head in ("for", "case")
        self._is_timed = any(word.text == "time" for word in words[:start])
        self.loops = head == "for" or any(word.text in ("while", "until") for word in words[:start])

    def step(self, values: list[Word], numbers: list[Word]) -> ProgramStep | None:
        """The command of the part; None if it runs nothing by itself. Adds to `values` and `numbers`."""
        words = self._words
        if self._head:
            _check_head(words)
            values += words[3:]
            return ProgramStep("", (), writes=True) if self._writes else None
        variables: dict[str, str] = {}
        start = 0
        while start < len(words) and (assigned := ASSIGNMENT.match(words[start].text)):
            if assigned.end() > words[start].bare:
                break
            variables[assigned[1]] = words[start].text[assigned.end() :]
            start += 1
        if variables and self._is_timed:  # where `time` is a program, the assignment is the path of another one
            raise Unclear("write variables before time, or leave time out")
        values += words[:start]
        for name, value in variables.items():
            _check_variable(name, value, words[start].text if start < len(words) else "")
        if start == len(words):
            return ProgramStep("", (), self._writes) if self._writes else None
        program, arguments = words[start], words[start + 1 :]
        _check_program(program)
        _check_builtin(program.text, arguments, numbers)
        if program.text == "export":
            values += arguments
        return _with_started(
            ProgramStep(
                program.text,
                tuple(word.text for word in arguments),
                self._writes,
                varies=any(word.varies for word in arguments),
                patterns=tuple(word.text for word in arguments if word.opens),
                varying=tuple(place for place, word in enumerate(arguments) if _may_be_any(word)),
                sets_code_path="PYTHONPATH" in variables,
            ),
            matching=tuple(place for place, word in enumerate(arguments) if word.opens),
        )


def _with_started(step: ProgramStep, matching: Sequence[int]) -> ProgramStep:
    try:
        started = started_by(step.name, step.arguments, varying=step.varying, patterns=matching)
    except Undecidable:
        return replace(step, undecided=True)
    undecided = any(each.undecided for each in started)
    return replace(step, starts=tuple(started), undecided=undecided) if started else step


def _check_program(program: Word) -> None:
    if program.text == "[[":
        raise Unclear("[[ is not known to every shell; write [ ... ]")
    if program.varies or (program.opens and program.text != "[") or not _PROGRAM.fullmatch(program.text):
        raise Unclear(f"{program.text!r} is not plainly the name of a program; write it out")


def _check_builtin(program: str, arguments: Sequence[Word], numbers: list[Word]) -> None:
    """Refuse arguments of builtins that set variables or run code in some shells; adds to `numbers`."""
    match program:
        case "printf":
            _check_printf(arguments, numbers)
        case "test" | "[":
            _check_test(program, arguments, numbers)
        case "set" | "export" | "read":
            _check_setting(program, arguments)
        case "wait":
            if not all(_JOB.fullmatch(word.text) for word in arguments):
                raise Unclear("of wait, only numbers of processes, $! and %n are read")
        case _ if program in _TAKES_A_NUMBER:
            numbers += arguments
        case _:
            pass


def _check_printf(arguments: Sequence[Word], numbers: list[Word]) -> None:
    """Check the format of printf; its arguments are numbers if the format has a place for one."""
    if not arguments:
        return
    form, *values = arguments[1:] if arguments[0].text == "--" and len(arguments) > 1 else arguments
    is_option = form is arguments[0] and (form.text.startswith("-v") or _may_be_an_option(form))
    if form.varies or is_option or not _FORMAT.fullmatch(form.text):
        raise Unclear("begin what printf gets with a plain format, such as '%s'")
    if _NUMBERS_IN_FORMAT.search(form.text):
        numbers += values


def _check_test(program: str, arguments: Sequence[Word], numbers: list[Word]) -> None:
    """Check the words of a test: some set variables or run code in some shells (`[ -v 'a[$(id)]' ]`)."""
    previous: Word | None = None
    for word, following in zip(arguments, (*arguments[1:], None), strict=False):
        if word.text in ("-v", "-R"):
            raise Unclear(f"{word.text} of {program} is not read")
        if word.splits:
            raise Unclear(f'put variables of {program} in double quotes: "{word.text}"')
        if word.varies and following is not None and following.text not in _COMPARES:
            raise Unclear(f"write out how {program} is to look at {word.text!r}")
        if word.text in _COMPARES_NUMBERS:
            numbers += [each for each in (previous, following) if each is not None]
        elif word.text == "-t" and following is not None:
            numbers.append(following)
        previous = word


def _check_setting(program: str, arguments: Sequence[Word]) -> None:
    """Refuse settings that are unknown here or change how programs are found."""
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
    """Whether the word may expand to several words, or to one with another first character."""
    return word.splits or (word.varies and word.text[:1] in ("$", "-"))


def _may_be_an_option(word: Word) -> bool:
    return (word.varies and word.text[:1] in ("$", "{")) or (word.opens and word.text[:1] in ("*", "?", "["))


def _check_head(words: Sequence[Word]) -> None:
    """Check `for x in ...` and `case x in ...`; the commands that they run follow the next separator."""
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
    """Whether setting a variable to this value makes `program`, or any later one, run other programs."""
    if _INTEGER.fullmatch(name):
        return not (value.isascii() and value.isdecimal())
    if _CHARACTERS.fullmatch(name):  # for one program it changes nothing else
        return not (program or _UTF_8.fullmatch(value))
    if not _CHANGES_PROGRAMS.fullmatch(name) or _CHANGES_LITTLE.fullmatch(name):
        return False
    if _STARTS_ANOTHER.fullmatch(name) and value in _DOES_NOTHING:
        return False
    return not ((name == "PYTHONPATH" and program in _RUNS_WHAT_IS_THERE) or (name == "IFS" and program == "read"))


def _without_redirections(part: Sequence[Word | Operator]) -> tuple[list[Word], bool]:
    """The words of a part without redirections, and whether one of those writes a file."""
    words: list[Word] = []
    writes = False
    redirection = ""
    for token in part:
        if isinstance(token, Operator):
            redirection = token.text
        elif redirection:
            writes = _is_written(redirection, token) or writes
            redirection = ""
        else:
            words.append(token)
    return words, writes


def _is_written(redirection: str, target: Word) -> bool:
    if target.text.startswith(_DEVICES):
        raise Unclear(f"{target.text!r} is a connection to some shells; use a program for that")
    if redirection in ("<<", "<<<"):
        return False
    if redirection in (">&", "<&") and _DESCRIPTOR.fullmatch(target.text):
        return False
    if redirection in ("<", "<&"):
        return target.varies
    return target.text not in NO_FILE
