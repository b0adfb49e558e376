"""Programs that start other programs: which ones, as far as their arguments say.

Plain starters (`env`, `timeout`, `find -exec`) are listed with their options; an option that is not listed makes the
program that follows undecidable. Interpreters (`sh -c`, `awk`, `make`) are not looked into: they run whatever code they
are given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

MAX_IN_A_ROW = 5
"""Programs that start one another in one command, such as `nice env timeout 5 make`."""
MAX_PATTERNS = 64
"""Patterns for file names in one command of find that are compared with its options."""

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
"""Start of a word that sets a variable; with a quote before the `=`, the word is the name of a program."""

_FIND_STARTS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_LONG_WITH_A_WORD = re.compile(r"--[a-z-]+=.*", re.DOTALL)
_LOADER = re.compile(r"ld(?:-linux.*|-musl.*|64|)\.so(?:\.[0-9]+)?")
_SHELL = "sh"


class Undecidable(ValueError):
    """The arguments do not determine which program runs."""


class StartedProgram(Struct, frozen=True):
    """A program that another one starts, with its arguments.

    `variables` are those that are set for it. `varying` are the indices of arguments that may be other words, or
    several; the index after the last one, if more may follow. `matching` are the indices of patterns for file names.
    `undecided`: it starts others, and its arguments do not determine which.
    """

    program: str
    arguments: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    varying: frozenset[int] = frozenset()
    matching: frozenset[int] = frozenset()
    undecided: bool = False

    @property
    def name(self) -> str:
        return self.program.rsplit("/", 1)[-1]


class _Starter(Struct, frozen=True):
    """Options of a plain starter: letters without a value, letters with a value, and `first` arguments of its own.

    `alone` and `with_a_word` are letters; `long` are long options without a value. `number`: a number may be an option,
    as in `nice -5`. `joined`: long options with their value in the same word do not affect which program runs.
    `variables`: assignments come before the program. `shell`: without a program it starts a shell. `marker`: the word
    that is replaced in the arguments of the program.
    """

    alone: str = ""
    with_a_word: str = ""
    long: tuple[str, ...] = ()
    first: int = 0
    number: bool = False
    joined: bool = True
    variables: bool = False
    shell: bool = False
    marker: str = ""


_ARCHITECTURE = _Starter(
    alone="3BFILRSTXZv",
    long=("--32bit", "--fdpic-funcptrs", "--short-inode", "--addr-compat-layout", "--addr-no-randomize"),
    joined=False,
    shell=True,
)

_STARTERS: Mapping[str, _Starter] = {
    "env": _Starter(alone="i0", with_a_word="uC", joined=False, variables=True),
    "xargs": _Starter(alone="0rtpxo", with_a_word="aEdILnPs", joined=False),
    "nice": _Starter(with_a_word="n", number=True),
    "ionice": _Starter(alone="t", with_a_word="cn"),
    "nohup": _Starter(),
    "setsid": _Starter(alone="cfw", long=("--ctty", "--fork", "--wait")),
    "timeout": _Starter(alone="v", with_a_word="ks", long=("--foreground", "--preserve-status", "--verbose"), first=1),
    "stdbuf": _Starter(with_a_word="ioe"),
    "command": _Starter(alone="pvV"),
    "builtin": _Starter(),
    "exec": _Starter(alone="cl", with_a_word="a"),
    "time": _Starter(alone="apvq", with_a_word="fo", long=("--append", "--portability", "--verbose", "--quiet")),
    "flock": _Starter(
        alone="enosxuF",
        with_a_word="wE",
        long=("--exclusive", "--nonblock", "--nb", "--no-fork", "--shared", "--unlock", "--verbose", "--close"),
        first=1,
        joined=False,
    ),
    "taskset": _Starter(alone="ac", long=("--all-tasks", "--cpu-list"), first=1),
    "chrt": _Starter(
        alone="abdfimorRv",
        with_a_word="TPD",
        long=("--batch", "--deadline", "--fifo", "--idle", "--other", "--rr", "--reset-on-fork", "--verbose"),
        first=1,
    ),
    "setarch": _ARCHITECTURE,
    "linux32": _ARCHITECTURE,
    "linux64": _ARCHITECTURE,
    "i386": _ARCHITECTURE,
    "i486": _ARCHITECTURE,
    "i586": _ARCHITECTURE,
    "i686": _ARCHITECTURE,
    "x86_64": _ARCHITECTURE,
    "uname26": _ARCHITECTURE,
    "prlimit": _Starter(long=("--raw", "--noheadings", "--verbose")),
    "numactl": _Starter(with_a_word="NmCilp"),
    "choom": _Starter(with_a_word="n"),
    "unshare": _Starter(alone="muipnUrfcCT", shell=True),
    "nsenter": _Starter(shell=True),
    "chroot": _Starter(first=1, shell=True),
    "setpriv": _Starter(long=("--clear-groups", "--keep-groups", "--no-new-privs", "--nnp", "--init-groups")),
    "sudo": _Starter(alone="AbEHnPSk", with_a_word="ugpCrtTh", long=("--non-interactive",), variables=True),
    "doas": _Starter(alone="nL", with_a_word="u"),
    "fakeroot": _Starter(joined=False, shell=True),
    "faketime": _Starter(alone="mf", first=1),
    "dbus-run-session": _Starter(joined=False),
    "systemd-run": _Starter(alone="PqGdSt", long=("--user", "--scope", "--quiet", "--wait"), joined=False),
    "systemd-inhibit": _Starter(),
    "busybox": _Starter(joined=False),
    "toybox": _Starter(joined=False),
    "strace": _Starter(alone="ACcdDfFiknqrtTvwxyYzZ", with_a_word="abeIPsSUX", joined=False),
    "ltrace": _Starter(alone="bcCfiLrStT", with_a_word="aeAlsnwx", joined=False),
    "valgrind": _Starter(
        alone="qv",
        long=("--leak-check=full", "--leak-check=yes", "--tool=memcheck", "--track-origins=yes"),
        joined=False,
    ),
    "entr": _Starter(alone="acdnprxz", joined=False, marker="/_"),
    "chpst": _Starter(),
    "catchsegv": _Starter(),
    "proxychains": _Starter(alone="q"),
    "proxychains4": _Starter(alone="q"),
    "torsocks": _Starter(),
    "xvfb-run": _Starter(alone="a"),
    "eatmydata": _Starter(),
    "cpulimit": _Starter(with_a_word="l"),
    "caffeinate": _Starter(alone="disum", with_a_word="t"),
    "rlwrap": _Starter(joined=False),
    "unbuffer": _Starter(alone="p"),
    "noglob": _Starter(),
    "nocorrect": _Starter(),
}
"""Plain starters, with the options of util-linux, coreutils, findutils and their authors' pages."""

_ALWAYS_UNDECIDABLE = frozenset(
    ("parallel", "run-parts", "capsh", "runuser", "su", "sg", "newgrp", "watch", "script", "arch", "start-stop-daemon")
)
"""Starters whose program depends on their input, on files, or on a text for a shell. (`arch` is one on macOS.)"""

_STARTING_OPTIONS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "rg": ("", "ABCEefgjMmrTtd", ("--pre", "--hostname-bin")),
    "sort": ("", "kStTo", ("--compress-program",)),
    "split": ("", "abClnt", ("--filter",)),
    "tar": (
        "IF",
        "CfgHKLNTVXb",
        (
            *("--use-compress-program", "--to-command", "--checkpoint-action", "--info-script", "--new-volume-script"),
            *("--rmt-command", "--rsh-command"),
        ),
    ),
    "rsync": ("e", "BfTM", ("--rsh", "--rsync-path")),
    "zip": ("", "bnitxsO", ("-TT", "--unzip-command")),
    "man": ("PH", "CRLmMSserpE", ("--pager", "--html", "--browser", "--preprocessor")),
}
"""Options with which a program starts another one: letters, other letters with a value, and long options.

A word with such an option makes what is started undecidable. Interpreters are not in this table.
"""

_GIT_ALONE = frozenset(
    (
        *("-P", "--no-pager", "-p", "--paginate", "--bare", "--no-replace-objects", "--no-optional-locks"),
        *("--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs", "--no-lazy-fetch"),
        *("--no-advice", "--version", "-v", "--help", "-h", "--html-path", "--man-path", "--info-path", "--exec-path"),
    )
)
"""Options of git before its subcommand that take no value; git does not abbreviate them."""
_GIT_JOINED = frozenset(("--git-dir", "--work-tree", "--namespace"))
_GIT_WITH_A_WORD = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace"))
_SETS_LITTLE = re.compile(
    r"user\.(?:name|email|signingkey)=.*|(?:author|committer)\.(?:name|email)=.*|color\.[a-z]+(?:=[a-z]+)?"
    r"|(?:commit|tag)\.gpgsign=(?:false|0|no)|init\.defaultbranch=[\w./-]+|advice\.[a-z]+=[a-z]+"
    r"|core\.(?:quotepath|autocrlf|safecrlf|filemode|eol|abbrev|ignorecase|longpaths|precomposeunicode)(?:=\w+)?"
    r"|core\.(?:pager|editor)=(?:cat|true|:)?|sequence\.editor=(?:cat|true|:)?|pager\.[a-z]+=(?:false|cat)?"
    r"|core\.fsmonitor=false|core\.hookspath=(?:/dev/null)?|safe\.(?:directory=.*|barerepository=explicit)"
    r"|(?:diff\.(?:renames|algorithm|context|noprefix|mnemonicprefix|colormoved)|merge\.(?:conflictstyle|ff))=[\w-]+"
    r"|(?:pull\.(?:rebase|ff)|push\.(?:default|autosetupremote)|rebase\.[a-z]+|fetch\.[a-z]+|log\.(?:date|decorate))=\w+"
    r"|gc\.auto=\d+|protocol\.version=\d|http\.(?:version|postbuffer|lowspeedlimit|lowspeedtime)=[\w/.]+",
    re.DOTALL | re.IGNORECASE,
)
"""Settings of git that name no program."""


def git_subcommand(arguments: Sequence[str]) -> int:
    """Index of git's subcommand; raises `Undecidable` where an option before it is unknown or names a program.

    >>> git_subcommand(["-C", "src", "--no-pager", "log"])
    3
    """
    where = 0
    while where < len(arguments) and arguments[where].startswith("-"):
        option, joined, _ = arguments[where].partition("=")
        if option in (_GIT_JOINED if joined else _GIT_ALONE):
            where += 1
        elif not joined and option in _GIT_WITH_A_WORD and where + 1 < len(arguments):
            if option == "-c" and not _SETS_LITTLE.fullmatch(arguments[where + 1]):
                raise Undecidable(option)
            where += 2
        else:
            raise Undecidable(option)
    return where


def started_by(
    name: str,
    arguments: Sequence[str],
    *,
    varying: Collection[int] = (),
    patterns: Collection[int] = (),
    before: int = 0,
) -> list[StartedProgram]:
    """The programs that a program of that name starts by these arguments, each followed by those that it starts.

    `varying` and `patterns` are as in `StartedProgram`; `before` is how many starters are around it. Raises
    `Undecidable` for the arguments of the program itself; a started program is marked.

    >>> [(step.program, step.arguments) for step in started_by("xargs", ["-n", "1", "rm", "-r"])]
    [('rm', ('-r',))]
    >>> [step.program for step in started_by("nice", ["env", "LANG=C", "sort"])], started_by("ls", ["rm"])
    (['env', 'sort'], [])
    """
    if name == "find":
        if varying or may_be_one_of(_FIND_STARTS, [arguments[index] for index in patterns]):
            raise Undecidable(name)
        return _started_by_find(arguments, before)
    if name == "git":
        subcommand = git_subcommand(arguments)
        if any(index <= subcommand and (index == 0 or arguments[index - 1] != "-C") for index in varying):
            raise Undecidable(name)
        return []
    if name in _STARTING_OPTIONS:
        _check_options(name, arguments)
    if name in _ALWAYS_UNDECIDABLE and tuple(arguments) != ("--version",) and (arguments or name != "arch"):
        raise Undecidable(name)
    starter = _Starter(joined=False) if _LOADER.fullmatch(name) else _STARTERS.get(name)
    return [] if starter is None else _started_plainly(name, starter, arguments, varying, patterns, before)


def _started_plainly(
    name: str,
    starter: _Starter,
    arguments: Sequence[str],
    varying: Collection[int],
    patterns: Collection[int],
    before: int,
) -> list[StartedProgram]:
    # `setarch x86_64 -R ls`: the architecture comes before the options.
    own = 1 if name == "setarch" and arguments and not arguments[0].startswith("-") else 0
    where, options = _after_options(starter, arguments, own)
    variables: list[tuple[str, str]] = []
    if starter.variables:
        while where < len(arguments) and (assigned := ASSIGNMENT.match(arguments[where])):
            variables.append((assigned[1], arguments[where][assigned.end() :]))
            where += 1
    if name == "chrt" and where < len(arguments) and not arguments[where].isdecimal():
        raise Undecidable(name)  # newer versions take the priority only where the policy has one
    where += starter.first
    if any(index <= where for index in (*varying, *patterns)):
        raise Undecidable(name)
    if where >= len(arguments):
        return [StartedProgram(_SHELL)] if starter.shell else []
    if arguments[where].startswith("-"):  # an option after a word of its own, as in `flock FILE -c TEXT`
        raise Undecidable(name)
    program, words = arguments[where], tuple(arguments[where + 1 :])
    unsure = {index - where - 1 for index in varying}
    if name == "xargs":  # its input replaces a word, or is appended
        word = options.get("I", "")
        unsure |= _indices_of(word, program, words) if word else {len(words)}
    elif starter.marker:
        unsure |= _indices_of(starter.marker, program, words)
    matching = frozenset(index - where - 1 for index in patterns)
    started = StartedProgram(program, words, tuple(variables), frozenset(unsure), matching)
    return _followed(started, before)


def _followed(started: StartedProgram, before: int) -> list[StartedProgram]:
    """A started program, and those that it starts in turn."""
    if before + 1 >= MAX_IN_A_ROW and is_starter(started.name):
        return [replace(started, undecided=True)]
    try:
        following = started_by(
            started.name, started.arguments, varying=started.varying, patterns=started.matching, before=before + 1
        )
    except Undecidable:
        return [replace(started, undecided=True)]
    return [started, *following]


def is_starter(name: str) -> bool:
    """Whether a program of that name runs another one, given in its arguments."""
    return name == "find" or name in _STARTERS or name in _ALWAYS_UNDECIDABLE or _LOADER.fullmatch(name) is not None


def may_be_one_of(words: Collection[str], patterns: Sequence[str]) -> bool:
    """Whether one of the patterns can expand to one of these words; of many patterns that is taken for granted."""
    unsure = [pattern for pattern in patterns if pattern.startswith(("-", "*", "?", "["))]
    return len(unsure) > MAX_PATTERNS or any(_matches_one_of(words, pattern) for pattern in unsure)


def _matches_one_of(words: Collection[str], pattern: str) -> bool:
    before, bracket, _ = pattern.partition("[")
    return any(fnmatchcase(word, before + ("*" if bracket else "")) for word in words)


def _started_by_find(arguments: Sequence[str], before: int) -> list[StartedProgram]:
    """The commands of find; each ends at `;` or at `{} +`, and what stands in it belongs to it."""
    found: list[StartedProgram] = []
    where = 0
    while where < len(arguments):
        if arguments[where] not in _FIND_STARTS:
            where += 1
            continue
        begin = where = where + 1
        while where < len(arguments) and arguments[where] != ";":
            if arguments[where] == "+" and arguments[where - 1] == "{}":
                break
            where += 1
        program, words = (arguments[begin] if begin < where else ""), tuple(arguments[begin + 1 : where])
        started = StartedProgram(program, words, varying=frozenset(_indices_of("{}", program, words)))
        found += _followed(started, before)
    return found


def _indices_of(word: str, program: str, arguments: Sequence[str]) -> set[int]:
    """Indices of the arguments in which this word is replaced."""
    if word in program:
        raise Undecidable(word)
    return {index for index, argument in enumerate(arguments) if word in argument}


def _after_options(starter: _Starter, arguments: Sequence[str], where: int) -> tuple[int, dict[str, str]]:
    """Index after the options of a starter that begin at `where`, and the values of its options."""
    words: dict[str, str] = {}
    while where < len(arguments) and arguments[where].startswith("-") and len(arguments[where]) > 1:
        option = arguments[where]
        where += 1
        if option == "--":
            break
        if (
            (starter.number and option[1:].lstrip("-").isdecimal())
            or option in starter.long
            or (starter.joined and _LONG_WITH_A_WORD.fullmatch(option))
        ):
            continue
        letters = option[1:].lstrip(starter.alone)
        if not letters:
            continue
        if letters[0] not in starter.with_a_word:
            raise Undecidable(option)  # long ones too: whether they take the next word is unknown
        if len(letters) == 1:
            words[letters] = arguments[where] if where < len(arguments) else ""
            where += 1
        else:
            words[letters[0]] = letters[1:]
    return where, words


def _check_options(name: str, arguments: Sequence[str]) -> None:
    letters, with_a_word, long = _STARTING_OPTIONS[name]
    if name == "tar" and arguments and not arguments[0].startswith("-") and set(arguments[0]) & set(letters):
        raise Undecidable(name)  # the old style: letters without a dash
    if any(is_option(argument, letters, with_a_word, long) for argument in arguments):
        raise Undecidable(name)


def is_option(argument: str, letters: str, with_a_word: str, long: Collection[str]) -> bool:
    """Whether a word is, or contains, one of these options; long ones may be abbreviated.

    `letters` are options of one letter, which may stand together; what follows a letter of `with_a_word` is its value.

    >>> [is_option(word, "o", "k", ["--output"]) for word in ("-no", "-k1o", "--out=x", "--other", "-")]
    [True, False, True, False, False]
    """
    if argument.startswith("--"):
        word = argument.partition("=")[0]
        return len(word) > 2 and any(option.startswith(word) for option in long)
    if argument.startswith("-"):
        if argument in long:
            return True
        for letter in argument[1:]:
            if letter in letters:
                return True
            if letter in with_a_word:
                return False
    return False
