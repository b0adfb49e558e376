"""Parser for shell commands: which programs a command line runs, and whether a policy allows them.

The parser sees the text alone; what a program can really do is limited by the sandbox. A line that cannot be parsed
with certainty (a substitution, an unclosed quote) is unreadable, and refused. Of wrapper programs (`env`, `xargs`,
`find -exec`), the arguments determine which program runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from retinue.core.policy import Policy
from retinue.core.text import name_list
from retinue.tools.shell.lexer import Operator, Unclear, Word, tokens

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

_EVALUATES = frozenset(("printf", "test", "["))
_COMPARES = frozenset(
    ("=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "-a", "-o", ")", "]")
)
"""Words that may follow a variable in a test: the variable is then compared and cannot be an operator itself."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
"""Start of a word that sets a variable; with a quote before the `=`, the word is the name of a program."""
_PROGRAM = re.compile(r"[A-Za-z0-9_./+:-]+|\[")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_CHANGES_PROGRAMS = re.compile(
    r"PATH|IFS|ENV|HOME|SHELL|BASH_.*|BASHOPTS|SHELLOPTS|PS4|PROMPT_COMMAND|.*PAGER|.*EDITOR|VISUAL|BROWSER|LESS.*"
    r"|XDG_.*|LD_.*|DYLD_.*|GLIBC_.*|GCONV_PATH|LOCPATH|OPENSSL_.*|SSL_.*|SSH_.*|PYTHON.*|PIP_.*|NODE_.*|GIT_.*|NPM_.*"
    r"|npm_.*|PERL.*|RUBY.*|RUST.*|CARGO_.*|RIPGREP_.*|JAVA_.*|_JAVA_OPTIONS|JDK_.*|MAKE.*|TAR_OPTIONS"
)
"""Variables that make a harmless name run another program."""
_CHANGES_LITTLE = re.compile(
    r"NODE_ENV|NODE_NO_WARNINGS|RUST_BACKTRACE|RUST_LOG|CARGO_TERM_COLOR|CARGO_NET_OFFLINE|CARGO_INCREMENTAL"
    r"|PYTHON(?:UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER|DEVMODE|ASYNCIODEBUG)"
    r"|PIP_NO_INPUT|PIP_DISABLE_PIP_VERSION_CHECK|PIP_NO_CACHE_DIR|GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)"
    r"|GIT_TERMINAL_PROMPT"
)
"""Variables with such names that run nothing else."""
_STARTS_ANOTHER = re.compile(r".*PAGER|.*EDITOR|VISUAL")
_DOES_NOTHING = frozenset(("", "cat", "true", ":"))
"""Values of pager and editor variables that run nothing interactive."""
_RUNS_WHAT_IS_THERE = frozenset(("python", "python3", "pytest"))
"""Programs that run code of the workspace anyway, so that a path to more of it changes nothing."""
ANY_VALUE = "$"
"""Stands for a value that only the running shell knows; it is none of `_DOES_NOTHING`."""
_SET = re.compile(r"(?:-[eux]+ |-[eux]*o pipefail |\+[eux] )*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Step(Struct, frozen=True):
    """One program that a command runs, with its arguments.

    `writes`: its output is redirected to a file. `varies`: an argument contains something that only the running shell
    knows, such as a variable. `patterns`: arguments that expand to names of files. `varying` are the indices of
    arguments that may expand to any word, `matching` those of patterns. `sets_code_path`: a variable adds a folder of
    code (PYTHONPATH). `variables`: those that a wrapper sets for it.
    """

    program: str
    arguments: tuple[str, ...] = ()
    writes: bool = False
    varies: bool = False
    patterns: tuple[str, ...] = ()
    varying: tuple[int, ...] = ()
    matching: tuple[int, ...] = ()
    sets_code_path: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return self.program.rsplit("/", 1)[-1]


class ParsedCommand(Struct, frozen=True):
    """A command line and its programs, in order; `unreadable` is why it cannot be parsed, and what to write instead."""

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
        steps = tuple(step for part in _parts(tokens(command)) if (step := _step(part)) is not None)
        return ParsedCommand(command, steps)
    except Unclear as unclear:
        return ParsedCommand(command, unreadable=str(unclear))


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


def _refusal_of_started(step: Step, policy: Policy) -> str | None:
    """The same for the programs that a wrapper runs: the list of allowed commands applies to them too."""
    try:
        started = started_by(step.name, step.arguments, varying=step.varying, patterns=step.matching)
    except Undecidable:
        how = "" if step.name == "find" else ", with options of one letter"
        return f"Security policy: it is not known what {step.name!r} would start here; write its arguments out{how}"
    for inner in started:
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


def _step(part: Sequence[Word | Operator]) -> Step | None:
    """The command of one part; None if it runs nothing by itself."""
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
        sets_code_path="PYTHONPATH" in variables,
    )


def _check_evaluated(program: str, arguments: Sequence[Word]) -> None:
    """Refuse words that set variables or run code in some shells (`[ -v 'a[$(id)]' ]`)."""
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
            writes = writes or _is_written(redirection, token)
            redirection = ""
        else:
            words.append(token)
    return words, writes


def _is_written(redirection: str, target: Word) -> bool:
    if redirection in ("<", "<<", "<<<", "<&"):
        return False
    if redirection == ">&" and _DESCRIPTOR.fullmatch(target.text):
        return False
    return target.text not in NO_FILE


_FIND_STARTS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_LONG_WITH_A_WORD = re.compile(r"--[a-z-]+=.*", re.DOTALL)


class Undecidable(ValueError):
    """The arguments do not determine which program runs."""


class _Wrapper(Struct, frozen=True):
    """Options of a wrapper: letters without a value, letters with a value, and `first` arguments of its own."""

    alone: str = ""
    with_a_word: str = ""
    first: int = 0
    number: bool = False
    """Whether a number may be an option, as in `nice -5`."""
    long: bool = True
    """Whether options such as `--signal=KILL` do not affect which program runs."""


_WRAPPERS: Mapping[str, _Wrapper] = {
    "env": _Wrapper(alone="i0", with_a_word="uC", long=False),
    "xargs": _Wrapper(alone="0rtpxo", with_a_word="aEdILnPs", long=False),
    "nice": _Wrapper(with_a_word="n", number=True),
    "ionice": _Wrapper(alone="t", with_a_word="cn"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(alone="cfw"),
    "timeout": _Wrapper(alone="v", with_a_word="ks", first=1),
    "stdbuf": _Wrapper(with_a_word="ioe"),
    "command": _Wrapper(alone="pvV"),
}


def started_by(
    name: str, arguments: Sequence[str], *, varying: Collection[int] = (), patterns: Collection[int] = ()
) -> list[Step]:
    """The programs that a wrapper of that name runs with these arguments; raises `Undecidable`.

    `varying` are the indices of arguments that may be other words, or several; the index after the last one, if more
    may follow. `patterns` are the indices of patterns for file names.

    >>> [(step.program, step.arguments) for step in started_by("xargs", ["-n", "1", "rm", "-r"])]
    [('rm', ('-r',))]
    >>> [step.program for step in started_by("nice", ["env", "LANG=C", "sort"])], started_by("ls", ["rm"])
    (['env', 'sort'], [])
    """
    if name == "find":
        if varying or any(may_be_one_of(_FIND_STARTS, arguments[index]) for index in patterns):
            raise Undecidable(name)
        return _started_by_find(arguments)
    wrapper = _WRAPPERS.get(name)
    if wrapper is None:
        return []
    where, options = _after_options(wrapper, arguments)
    variables: list[tuple[str, str]] = []
    if name == "env":
        while where < len(arguments) and (assigned := _ASSIGNMENT.match(arguments[where])):
            variables.append((assigned[1], arguments[where][assigned.end() :]))
            where += 1
    where += wrapper.first
    if any(index <= where for index in (*varying, *patterns)):
        raise Undecidable(name)
    if where >= len(arguments):
        return []
    started = Step(arguments[where], tuple(arguments[where + 1 :]), variables=tuple(variables))
    unsure = {index - where - 1 for index in varying}
    if name == "xargs":  # its input replaces a word, or is appended
        word = options.get("I", "")
        unsure |= _indices_of(word, started) if word else {len(started.arguments)}
    return [started, *_started_next(started, unsure, {index - where - 1 for index in patterns})]


def may_be_one_of(words: Collection[str], pattern: str) -> bool:
    """Whether the pattern can expand to one of these words."""
    before, bracket, _ = pattern.partition("[")
    return any(fnmatchcase(word, before + ("*" if bracket else "")) for word in words)


def _started_by_find(arguments: Sequence[str]) -> list[Step]:
    found: list[Step] = []
    for index in (index + 1 for index, word in enumerate(arguments) if word in _FIND_STARTS):
        words = tuple(arguments[index:])
        words = words[: words.index(";")] if ";" in words else words
        started = Step(words[0] if words else "", words[1:])
        found += [started, *_started_next(started, _indices_of("{}", started), ())]
    return found


def _started_next(started: Step, varying: Collection[int], patterns: Collection[int]) -> list[Step]:
    return started_by(started.name, started.arguments, varying=varying, patterns=patterns)


def _indices_of(word: str, started: Step) -> set[int]:
    """Indices of the arguments in which this word is replaced."""
    if word in started.program:
        raise Undecidable(word)
    return {index for index, argument in enumerate(started.arguments) if word in argument}


def _after_options(wrapper: _Wrapper, arguments: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Index after the options of a wrapper, and the values of its options."""
    where = 0
    words: dict[str, str] = {}
    while where < len(arguments) and arguments[where].startswith("-") and len(arguments[where]) > 1:
        option = arguments[where]
        where += 1
        if option == "--":
            break
        if (wrapper.number and option[1:].lstrip("-").isdecimal()) or (
            wrapper.long and _LONG_WITH_A_WORD.fullmatch(option)
        ):
            continue
        letters = option[1:].lstrip(wrapper.alone)
        if not letters:
            continue
        if letters[0] not in wrapper.with_a_word:
            raise Undecidable(option)  # long ones too: whether they take the next word is unknown
        if len(letters) == 1:
            words[letters] = arguments[where] if where < len(arguments) else ""
            where += 1
        else:
            words[letters[0]] = letters[1:]
    return where, words
