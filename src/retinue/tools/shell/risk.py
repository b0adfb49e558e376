"""Risk of shell commands: low for programs that only read, at least medium for others, whose effect is unknown.

What is low changes no file and starts no program. Of `git` that holds where the repository's own settings start none,
which `repository` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from retinue.core.policy import Risk
from retinue.tools.shell.parser import ParsedCommand, ProgramStep, parse
from retinue.tools.shell.starters import (
    StartedProgram,
    Undecidable,
    git_subcommand,
    is_option,
    is_starter,
    may_be_one_of,
)

HIGH_RISK = frozenset(
    (
        *("rm", "shred", "dd", "mkfs", "fdisk", "parted", "shutdown", "reboot", "halt", "poweroff", "init"),
        *("sudo", "su", "doas", "chown", "chmod", "chgrp", "useradd", "userdel", "usermod", "passwd"),
        *("mount", "umount", "iptables", "nft", "ufw", "firewall-cmd", "systemctl", "crontab", "kill", "killall"),
        *("curl", "wget", "nc", "ncat", "netcat", "socat", "ssh", "scp", "sftp", "rsync", "ftp", "telnet"),
        *("eval", "exec", "source", ".", "nsenter", "unshare", "chroot", "docker", "podman"),
        *("systemd-run", "at", "batch", "pkexec", "run0", "runuser", "setpriv", "capsh"),
    )
)
"""Programs whose effects cannot be undone, or that reach other machines or gain other rights."""

READING = frozenset(
    (
        *("ls", "cat", "grep", "egrep", "fgrep", "rg", "find", "echo", "printf", "pwd", "wc", "head", "tail", "date"),
        *("df", "du", "uname", "uptime", "hostname", "free", "which", "whoami", "id", "file", "stat", "cut", "tr"),
        *("uniq", "sort", "diff", "cmp", "comm", "join", "paste", "nl", "fold", "basename", "dirname", "realpath"),
        *("readlink", "seq", "sleep", "md5sum", "sha1sum", "sha256sum", "sha512sum", "cksum", "od", "hexdump", "jq"),
        *("strings", "tac", "rev", "ps", "nproc", "arch", "cd", "true", "false", ":", "test", "[", "exit"),
        *("wait", "break", "continue", "set", "export", "read"),
    )
)
"""Programs that change nothing and start nothing, except with the arguments in `_STARTING` and `_WRITES`."""

_VERSIONS = frozenset(
    (
        *("python", "python2", "python3", "node", "npm", "pip", "pip3", "git", "make", "cmake", "ninja", "gcc", "g++"),
        *("cc", "c++", "clang", "clang++", "ld", "tar", "gzip", "xz", "bzip2", "zip", "unzip", "sed", "awk", "gawk"),
        *("perl", "ruby", "bash", "dash", "zsh", "sqlite3", "openssl", "ruff", "mypy", "black", "tsc", "java", "javac"),
    )
)
"""Programs of which the version or the help may be asked; others may do their work whatever they are asked.

Not `cargo`, `rustc`, `go`, `yarn`, `mvn` and `pytest`: files of the workspace choose what they start first.
"""

READING_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    "git": frozenset(
        (
            *("blame", "cat-file", "check-ignore", "cherry", "count-objects", "describe", "diff", "diff-files"),
            *("diff-index", "diff-tree", "for-each-ref", "grep", "log", "ls-files", "ls-tree", "merge-base"),
            *("name-rev", "range-diff", "rev-list", "rev-parse", "shortlog", "show", "show-branch", "show-ref"),
            *("status", "version"),
        )
    ),
    "npm": frozenset(("explain", "la", "list", "ll", "ls", "root", "why")),
    "pip": frozenset(("check", "list", "show")),
}
"""Subcommands that change nothing, of programs with others that do.

Not `npm view` and `outdated`, which start the `git` that `.npmrc` names, and `pip freeze`, which starts the version
control of the folders of packages. `cargo` has none: it starts the compiler that `.cargo/config.toml` names. Of git not
`whatchanged`: newer versions let an alias of the settings replace it.
"""

_KNOWN_OPTIONS: Mapping[str, re.Pattern[str]] = {
    "npm": re.compile(r"-[aglp]+|--(?:all|json|long|parseable|global|link|(?:depth|omit|include)(?:=\w+)?)"),
    "pip": re.compile(
        r"-[leuofvq]+|--(?:local|user|editable|uptodate|outdated|files|verbose|quiet|not-required|pre|exclude-editable"
        r"|include-editable|no-color|no-input|isolated|disable-pip-version-check|format(?:=\w+)?)"
    ),
}
"""Options of reading subcommands; any other may write a file or name a program. Abbreviations are not among them."""


class _Options(Struct, frozen=True):
    """Options with which a reading program does more; see `is_option`."""

    letters: str = ""
    with_a_word: str = ""
    long: tuple[str, ...] = ()

    def has(self, argument: str) -> bool:
        return is_option(argument, self.letters, self.with_a_word, self.long)


_FIND_ACTS = frozenset(("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"))

_STARTING: Mapping[str, _Options] = {
    "git": _Options(
        long=("--upload-pack", "--receive-pack", "--ext-diff", "--textconv", "--open-files-in-pager"),
    ),
    "rg": _Options(long=("--pre", "--hostname-bin")),
    "sort": _Options(long=("--compress-program",)),
}
"""Options with which a reading program starts one that is named by its arguments or by settings."""

_WRITES: Mapping[str, _Options] = {
    "git": _Options(
        long=(
            *("--output", "--filters", "--show-signature", "--alternate-refs", "--submodule", "--recurse-submodules"),
            *("--remerge-diff", "--diff-merges", "--dirty", "--broken"),
        ),
    ),
    "rg": _Options(letters="z", with_a_word="ABCEefgjMmrTtd", long=("--search-zip",)),
    "sort": _Options(letters="o", with_a_word="kStT", long=("--output",)),
    "diff": _Options(letters="l", with_a_word="CDFILSUWxX", long=("--paginate",)),
    "date": _Options(letters="sfjnv", with_a_word="dIr", long=("--set", "--file")),
    "hostname": _Options(letters="Fb", long=("--file", "--boot")),
    "file": _Options(letters="CzZ", with_a_word="eFfmP", long=("--compile", "--uncompress", "--uncompress-noreport")),
}
"""Options with which a reading program writes a file, changes a setting, or starts a program with a fixed name."""

_DATE_TO_SET = re.compile(r"[0-9.]+")
_DEPENDS_ON_ARGUMENTS = frozenset((*_STARTING, *_WRITES, "uniq", "arch", "find"))
"""Reading programs whose risk depends on their arguments."""

_SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh", "mksh", "ash", "busybox", "toybox", "parallel", "watch"))
"""Programs that run a command line given in their arguments."""

_SIGNATURES = re.compile(r"%[-+ ]?G|signature")
"""Places of a format at which git starts gpg."""
_FORMATS_APART = ("for-each-ref", "shortlog")
"""Subcommands of git whose formats may stand apart from their option."""
_QUESTIONS = (("--version",), ("--help",), ("-V",))
_SHOWS_LINES = re.compile(r"[0-9$]+(?:,[0-9$]+)?p")
_RANKS = (Risk.LOW, Risk.MEDIUM, Risk.HIGH)


def risk_of(command: ParsedCommand) -> Risk:
    """The highest risk of the programs that a command runs; high for a command that cannot be parsed.

    >>> [risk_of(parse(line)).value for line in ("git status", "git push", "ls; rm -r build", "echo hi > note.txt")]
    ['low', 'medium', 'high', 'medium']
    """
    return Risk.HIGH if command.unreadable else _worst(_risk_of_step(step) for step in command.steps)


def _risk_of_step(step: ProgramStep) -> Risk:
    """Risk of one program with all that it starts; `step.starts` has those that are started in turn, too."""
    if step.name in READING or not (is_starter(step.name) or step.name in _SHELLS):
        return _worst((_risk_alone(step), *map(_risk_of_started, step.starts)))
    others = (*map(_risk_of_started, step.starts), *map(_risk_of_argument, dict.fromkeys(step.arguments)))
    return _worst((Risk.MEDIUM, _risk_alone(step), *others))


def _risk_of_started(started: StartedProgram) -> Risk:
    patterns = tuple(started.arguments[index] for index in started.matching if index < len(started.arguments))
    unsure = tuple(started.varying)
    step = ProgramStep(started.program, started.arguments, varies=bool(unsure), patterns=patterns, varying=unsure)
    return _worst((Risk.MEDIUM, _risk_alone(step)))


def _risk_alone(step: ProgramStep) -> Risk:
    """Risk of a program without those that it starts."""
    name, arguments = step.name, step.arguments
    if name in HIGH_RISK or name.startswith("mkfs.") or _starts_or_deletes(name, arguments):
        return Risk.HIGH
    if name == "find" and (step.varying or may_be_one_of(_FIND_ACTS, step.patterns)):
        return Risk.HIGH
    unsure = (step.varies and name != "find") or any(_may_be_an_option(name, pattern) for pattern in step.patterns)
    if unsure and (name not in READING or name in _DEPENDS_ON_ARGUMENTS):
        return Risk.MEDIUM
    runs_other_code = step.sets_code_path or step.program != name or step.undecided
    return Risk.MEDIUM if step.writes or runs_other_code or not _only_reads(name, arguments) else Risk.LOW


def _may_be_an_option(name: str, pattern: str) -> bool:
    """Whether a file name that fits the pattern could be an option; `uniq` also writes its second file."""
    return name == "uniq" or (name != "find" and pattern.startswith(("-", "*", "?", "[")))


def _only_reads(name: str, arguments: Sequence[str]) -> bool:
    if name in _WRITES and any(map(_WRITES[name].has, arguments)):
        return False
    if tuple(arguments) in _QUESTIONS or (name in ("node", "npm") and tuple(arguments) == ("-v",)):
        return name in _VERSIONS or name in READING
    match name:
        case "uniq":  # its second file is written
            files = [each for each in arguments if each == "-" or not each.startswith("-")]
            return len(files) < 2 and "--" not in arguments
        case "sed":  # its scripts can write files and start programs
            shows = len(arguments) > 1 and arguments[0] == "-n" and _SHOWS_LINES.fullmatch(arguments[1]) is not None
            return shows and not any(argument.startswith("-") for argument in arguments[2:])
        case "arch":  # on macOS it starts what follows
            return not arguments
        case "date":
            return not any(_DATE_TO_SET.fullmatch(argument) for argument in arguments)
        case "hostname":
            return all(argument.startswith("-") for argument in arguments)
        case "git":
            return not arguments or _git_reads(arguments)
        case "npm" | "pip" | "pip3":
            return not arguments or _subcommand_reads("pip" if name == "pip3" else name, arguments)
        case _:
            return name in READING


def _git_reads(arguments: Sequence[str]) -> bool:
    try:
        where = git_subcommand(arguments)
    except Undecidable:
        return False
    options = {argument.partition("=")[0] for argument in arguments[:where]}
    if not options.isdisjoint(("-p", "--paginate", "--bare", "--git-dir", "--work-tree", "--namespace")):
        return False
    if where == len(arguments) or arguments[where] not in READING_SUBCOMMANDS["git"]:
        return False
    formats = [each for each in arguments[where + 1 :] if each.startswith("-") or arguments[where] in _FORMATS_APART]
    return not any(map(_SIGNATURES.search, formats))


def _subcommand_reads(family: str, arguments: Sequence[str]) -> bool:
    known = _KNOWN_OPTIONS[family]
    return arguments[0] in READING_SUBCOMMANDS[family] and all(
        known.fullmatch(argument) for argument in arguments[1:] if argument.startswith("-")
    )


def _starts_or_deletes(name: str, arguments: Sequence[str]) -> bool:
    """Whether an argument makes a program of that name start others, or delete files."""
    if name == "find":
        return not _FIND_ACTS.isdisjoint(arguments)
    if name == "git" and (_has_other_settings(arguments) or _opens_pager(arguments)):
        return True
    return name in _STARTING and any(map(_STARTING[name].has, arguments))


def _has_other_settings(arguments: Sequence[str]) -> bool:
    """Whether options before the subcommand may give git settings or programs other than those of the repository."""
    try:
        git_subcommand(arguments)
    except Undecidable:
        return any(word == "-c" or word.startswith(("--config-env", "--exec-path=")) for word in arguments)
    return False


def _opens_pager(arguments: Sequence[str]) -> bool:
    """Whether there is the option `-O` of `git grep`, which starts a pager; its letters may stand together."""
    if "grep" in arguments:
        return any(is_option(argument, "O", "efABCm", ()) for argument in arguments)
    return any(argument.startswith("-O") for argument in arguments)


def _risk_of_argument(argument: str) -> Risk:
    """Risk of a word that may be a program or a whole command line."""
    return Risk.HIGH if any(step.name in HIGH_RISK for step in parse(argument).steps) else Risk.MEDIUM


def _worst(risks: Iterable[Risk]) -> Risk:
    return max(risks, key=_RANKS.index, default=Risk.LOW)
