"""Risk of shell commands: low for programs that only read, at least medium for others, whose effect is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from retinue.core.policy import Risk
from retinue.tools.shell.parser import ParsedCommand, Step, Undecidable, may_be_one_of, parse, started_by

HIGH_RISK = frozenset(
    (
        *("rm", "shred", "dd", "mkfs", "fdisk", "parted", "shutdown", "reboot", "halt", "poweroff", "init"),
        *("sudo", "su", "doas", "chown", "chmod", "chgrp", "useradd", "userdel", "usermod", "passwd"),
        *("mount", "umount", "iptables", "nft", "ufw", "firewall-cmd", "systemctl", "crontab", "kill", "killall"),
        *("curl", "wget", "nc", "ncat", "netcat", "socat", "ssh", "scp", "sftp", "rsync", "ftp", "telnet"),
        *("eval", "exec", "source", ".", "nsenter", "unshare", "chroot", "docker", "podman"),
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
"""Programs that change nothing, whatever their arguments, except those in `_DANGEROUS` and `_WRITES`."""

READING_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    "git": frozenset(
        (
            *("blame", "cat-file", "check-ignore", "cherry", "count-objects", "describe", "diff", "diff-files"),
            *("diff-index", "diff-tree", "for-each-ref", "grep", "log", "ls-files", "ls-tree", "merge-base"),
            *("name-rev", "range-diff", "rev-list", "rev-parse", "shortlog", "show", "show-branch", "show-ref"),
            *("status", "version", "whatchanged"),
        )
    ),
    "npm": frozenset(("explain", "info", "la", "list", "ll", "ls", "outdated", "root", "show", "view", "why")),
    "cargo": frozenset(("locate-project", "metadata", "pkgid", "search", "tree", "version")),
    "pip": frozenset(("check", "freeze", "list", "show")),
}
"""Subcommands that change nothing, of programs with others that do."""

_DANGEROUS: Mapping[str, frozenset[str]] = {
    "find": frozenset(("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls")),
    "git": frozenset(("--upload-pack", "--receive-pack", "--ext-diff", "--textconv", "--open-files-in-pager")),
    "rg": frozenset(("--pre", "--hostname-bin")),
    "sort": frozenset(("--compress-program",)),
}
"""Arguments with which a reading program runs others or deletes files."""

_WRITES: Mapping[str, re.Pattern[str]] = {
    "git": re.compile(r"--ou[a-z]*(?:=.*)?", re.DOTALL),
    "sort": re.compile(r"-[A-Za-z]*o.*|--o.*", re.DOTALL),
    "date": re.compile(r"-[uR]*s.*|--s.*|[0-9]{8,12}(?:\.[0-9]+)?", re.DOTALL),
    "hostname": re.compile(r"[^-].*|-[A-Za-z]*[Fb].*|--[bf].*", re.DOTALL),
    "file": re.compile(r"-[A-Za-z]*C.*|--comp.*", re.DOTALL),
    "pip": re.compile(r"--log.*|--local-log.*|--py.*", re.DOTALL),
    "npm": re.compile(r"--gi.*|--globalc.*|--us.*|--logs.*", re.DOTALL),
    "cargo": re.compile(r"--config.*|-Z.*", re.DOTALL),
}
"""Arguments with which a reading program writes a file, changes a setting or runs another program."""

_DEPENDS_ON_ARGUMENTS = frozenset((*_DANGEROUS, *_WRITES, "uniq"))
"""Reading programs whose risk depends on their arguments."""

_STARTERS = frozenset(
    (
        *("env", "xargs", "nice", "nohup", "timeout", "stdbuf", "setsid", "command", "busybox", "parallel", "watch"),
        *("bash", "sh", "zsh", "dash", "ksh"),
    )
)
"""Programs that run another program, given in their arguments."""

_GIT_TAKES_A_WORD = frozenset(
    ("-C", "-c", "--config-env", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source")
)
_SETS_LITTLE = re.compile(
    r"user\.(?:name|email)=.*|commit\.gpgsign=false|color\.ui=[a-z]+|init\.defaultBranch=[\w./-]+", re.DOTALL
)
"""Settings of git that run nothing else."""
_QUESTIONS = (("--version",), ("--help",), ("-V",))
_SHOWS_LINES = re.compile(r"[0-9$]+(?:,[0-9$]+)?p")
_RANKS = (Risk.LOW, Risk.MEDIUM, Risk.HIGH)


def risk_of(command: ParsedCommand) -> Risk:
    """The highest risk of the programs that a command runs; high for a command that cannot be parsed.

    >>> [risk_of(parse(line)).value for line in ("git status", "git push", "ls; rm -r build", "echo hi > note.txt")]
    ['low', 'medium', 'high', 'medium']
    """
    return Risk.HIGH if command.unreadable else _worst(_risk_of_step(step) for step in command.steps)


def _risk_of_step(step: Step) -> Risk:
    name, arguments = step.name, step.arguments
    if name in HIGH_RISK or name.startswith("mkfs.") or any(_is_dangerous(name, argument) for argument in arguments):
        return Risk.HIGH
    if name == "find" and (step.varying or any(may_be_one_of(_DANGEROUS["find"], each) for each in step.patterns)):
        return Risk.HIGH
    if name == "git" and _has_other_settings(arguments):
        return Risk.HIGH
    if name in _STARTERS:
        return _worst((Risk.MEDIUM, *map(_risk_of_argument, arguments), *_risks_of_started(step)))
    unsure = (step.varies and name != "find") or any(_may_be_an_option(name, pattern) for pattern in step.patterns)
    if unsure and (name not in READING or name in _DEPENDS_ON_ARGUMENTS):
        return Risk.MEDIUM
    runs_other_code = step.sets_code_path or step.program != name
    return Risk.MEDIUM if step.writes or runs_other_code or not _only_reads(name, arguments) else Risk.LOW


def _may_be_an_option(name: str, pattern: str) -> bool:
    """Whether a file name that fits the pattern could be an option; `uniq` also writes its second file."""
    return name == "uniq" or (name != "find" and pattern.startswith(("-", "*", "?", "[")))


def _only_reads(name: str, arguments: Sequence[str]) -> bool:
    family = "pip" if name == "pip3" else name
    if family in _WRITES and any(_WRITES[family].fullmatch(argument) for argument in arguments):
        return False
    if name == "uniq":  # its second file is written
        files = [each for each in arguments if each == "-" or not each.startswith("-")]
        return len(files) < 2 and "--" not in arguments
    if name == "sed":  # its scripts can write files and run programs
        shows = len(arguments) > 1 and arguments[0] == "-n" and _SHOWS_LINES.fullmatch(arguments[1]) is not None
        return shows and not any(argument.startswith("-") for argument in arguments[2:])
    if tuple(arguments) in _QUESTIONS or (name in ("node", "npm") and tuple(arguments) == ("-v",)):
        return True
    if family in READING_SUBCOMMANDS:
        return not arguments or _subcommand(name, arguments) in READING_SUBCOMMANDS[family]
    return name in READING


def _is_dangerous(name: str, argument: str) -> bool:
    """Whether this is one of a program's dangerous arguments; long options may be abbreviated."""
    dangerous = _DANGEROUS.get(name, frozenset())
    word = argument.partition("=")[0]
    if name == "git" and word.startswith("-O"):
        return True
    is_long = word.startswith("--") and len(word) > 3
    return word in dangerous or (is_long and any(option.startswith(word) for option in dangerous))


def _has_other_settings(arguments: Sequence[str]) -> bool:
    """Whether options before the subcommand give git other settings or programs than those of the repository."""
    before = arguments[: _git_subcommand(arguments)]
    options = {argument.partition("=")[0] for argument in before}
    given = [setting for option, setting in pairwise(before) if option == "-c"]
    return not options.isdisjoint(("--config-env", "--exec-path")) or not (
        len(given) == before.count("-c") and all(map(_SETS_LITTLE.fullmatch, given))
    )


def _subcommand(name: str, arguments: Sequence[str]) -> str:
    """The subcommand; only options of git are known well enough to skip them."""
    where = _git_subcommand(arguments) if name == "git" else 0
    return arguments[where] if where < len(arguments) else ""


def _git_subcommand(arguments: Sequence[str]) -> int:
    """Index of git's subcommand, after the options of git itself."""
    where = 0
    while where < len(arguments) and arguments[where].startswith("-"):
        where += 2 if arguments[where] in _GIT_TAKES_A_WORD else 1
    return where


def _risks_of_started(step: Step) -> list[Risk]:
    """Risks of the programs that a wrapper runs, as far as its arguments determine them."""
    try:
        started = started_by(step.name, step.arguments)
    except Undecidable:
        return []
    steps = (Step(inner.program, inner.arguments, varies=step.varies, varying=step.varying) for inner in started)
    return [_risk_of_step(inner) for inner in steps]


def _risk_of_argument(argument: str) -> Risk:
    """Risk of a word that may be a program or a whole command line."""
    return Risk.HIGH if any(step.name in HIGH_RISK for step in parse(argument).steps) else Risk.MEDIUM


def _worst(risks: Iterable[Risk]) -> Risk:
    return max(risks, key=_RANKS.index, default=Risk.LOW)
