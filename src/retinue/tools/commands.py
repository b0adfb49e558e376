"""What a shell command would start, and how much harm that can do, told from its text alone.

This decides who is asked and what is refused; what a command can really reach is the sandbox's business. A line that
cannot be read with certainty (a substitution, an unclosed quote) is not guessed at: it is called unreadable.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct

from retinue.core.policy import Policy, Risk

SEPARATORS = frozenset({"&&", "||", ";", "|", "|&", "&", "\n", "(", ")", "{", "}", "!"})
"""After these a new command begins."""

KEYWORDS = frozenset(("if", "then", "elif", "else", "while", "until", "do", "time", "fi", "done", "esac"))
"""Words of the shell's own grammar; what stands after them is a command again."""

REDIRECTIONS = frozenset({">", ">>", ">|", "<", "<<", "<<<", "<>", "&>", "&>>", ">&", "<&"})

HIGH_RISK = frozenset(
    (
        *("rm", "shred", "dd", "mkfs", "fdisk", "parted", "shutdown", "reboot", "halt", "poweroff", "init"),
        *("sudo", "su", "doas", "chown", "chmod", "chgrp", "useradd", "userdel", "usermod", "passwd"),
        *("mount", "umount", "iptables", "nft", "ufw", "firewall-cmd", "systemctl", "crontab", "kill", "killall"),
        *("curl", "wget", "nc", "ncat", "netcat", "socat", "ssh", "scp", "sftp", "rsync", "ftp", "telnet"),
        *("eval", "exec", "source", ".", "nsenter", "unshare", "chroot", "docker", "podman"),
    )
)
"""Programs whose harm cannot be taken back, or that reach other machines or other rights."""

MEDIUM_RISK = frozenset(
    ("touch", "mkdir", "rmdir", "mv", "cp", "ln", "tee", "install", "truncate", "patch", "make", "pip", "pip3", "uv")
)
"""Programs that change files."""

WRITING_SUBCOMMANDS: dict[str, frozenset[str]] = {
    "git": frozenset(
        (
            *("add", "am", "apply", "branch", "checkout", "cherry-pick", "clean", "clone", "commit", "config", "fetch"),
            *("filter-branch", "gc", "init", "merge", "mv", "pull", "push", "rebase", "remote", "reset", "restore"),
            *("revert", "rm", "stash", "submodule", "switch", "tag", "update-ref", "worktree"),
        )
    ),
    "npm": frozenset(
        (
            "add",
            "ci",
            "exec",
            "i",
            "install",
            "link",
            "publish",
            "remove",
            "run",
            "start",
            "test",
            "uninstall",
            "update",
        )
    ),
    "cargo": frozenset(
        ("add", "bench", "build", "clean", "fix", "install", "publish", "remove", "run", "test", "update")
    ),
}
"""Subcommands that change something, of programs that mostly do not."""

_RUNS_OTHERS: dict[str, frozenset[str]] = {
    "find": frozenset(("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls")),
    "git": frozenset(("-c", "--config-env", "--exec-path", "--upload-pack", "--receive-pack", "--ext-diff")),
}
"""Arguments with which a harmless program starts others, or changes files."""

_INTERPRETERS = frozenset(
    ("python", "python3", "node", "perl", "ruby", "php", "bash", "sh", "zsh", "dash", "ksh", "awk", "xargs", "env")
)
"""Programs that do whatever they are told; their harm is that of what they are told, which nobody can see."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=.*", re.DOTALL)
_PROGRAM = re.compile(r"[A-Za-z0-9_./+:\[-]+")
_SUBSTITUTION = re.compile(r"\$\(|`|<\(|>\(")
_CHANGES_PROGRAMS = re.compile(
    r"PATH|IFS|ENV|BASH_ENV|SHELLOPTS|PS4|PROMPT_COMMAND|LD_.*|DYLD_.*|PYTHON.*|NODE_.*|GIT_.*"
)
"""Variables by which a harmless name comes to mean another program."""
_RANKS = (Risk.LOW, Risk.MEDIUM, Risk.HIGH)


class Step(Struct, frozen=True):
    """One program that a command starts, with its arguments; `writes` where its output goes to a file."""

    program: str
    arguments: tuple[str, ...] = ()
    writes: bool = False

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
    if _SUBSTITUTION.search(_without_single_quoted(command)):
        return Unreadable(
            "substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself"
        )
    try:
        words = list(_words(command))
    except ValueError as wrong:
        return Unreadable(f"the command cannot be read ({str(wrong).lower()})")
    if "<<" in words:
        return Unreadable("here-documents are not read; write the text to a file first")
    steps: list[Step] = []
    current: list[str] = []
    writes = skips = False
    for word in [*words, ";"]:
        if word in SEPARATORS or (word in KEYWORDS and not current):
            if current:
                if current[0] not in ("for", "case") and not _PROGRAM.fullmatch(current[0]):
                    return Unreadable(f"{current[0]!r} is not plainly the name of a program; write it out")
                steps.append(Step(current[0], tuple(current[1:]), writes))
            current, writes, skips = [], False, False
        elif word in REDIRECTIONS:
            writes = writes or word.startswith((">", "&>")) or word == "<>"
            skips = True
            if current and current[-1].isdigit():  # 2> and the like
                current.pop()
        elif skips:
            skips = False
            if word in ("/dev/null", "1", "2", "-"):
                writes = False
        elif current or not (assigned := _ASSIGNMENT.fullmatch(word)):
            current.append(word)
        elif _CHANGES_PROGRAMS.fullmatch(assigned[1]):
            return Unreadable(f"setting {assigned[1]} changes what programs mean; leave it out")
    return tuple(step for step in steps if step.program not in ("for", "case"))


def risk_of(command: str) -> Risk:
    """How much harm a command can do at most; one that cannot be read can do any.

    >>> risk_of("git status"), risk_of("git push"), risk_of("ls; rm -r build"), risk_of("echo hi > note.txt")
    (<Risk.LOW: 'low'>, <Risk.MEDIUM: 'medium'>, <Risk.HIGH: 'high'>, <Risk.MEDIUM: 'medium'>)
    """
    steps = steps_of(command)
    if isinstance(steps, Unreadable):
        return Risk.HIGH
    return max((_risk_of_step(step) for step in steps), key=_RANKS.index, default=Risk.LOW)


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
        if step.name not in policy.allowed_commands and step.name not in _HARMLESS_BUILTINS:
            return (
                f"Security policy: command {step.name!r} is not allowed (allowed_commands); "
                f"use one of: {_listed(policy.allowed_commands)}"
            )
    return None


_HARMLESS_BUILTINS = frozenset(("cd", "true", "false", ":", "test", "[", "exit", "printf"))
"""Words of the shell itself that start nothing."""


def _risk_of_step(step: Step) -> Risk:
    name, arguments = step.name, step.arguments
    if name in HIGH_RISK or name.startswith("mkfs."):
        return Risk.HIGH
    if any(argument.partition("=")[0] in _RUNS_OTHERS.get(name, ()) for argument in arguments):
        return Risk.HIGH
    if name in _INTERPRETERS and not _only_asks(arguments):
        return Risk.MEDIUM
    if step.writes or name in MEDIUM_RISK:
        return Risk.MEDIUM
    if _subcommand(arguments) in WRITING_SUBCOMMANDS.get(name, ()):
        return Risk.MEDIUM
    if name in ("sed", "perl") and any(argument.startswith(("-i", "--in-place")) for argument in arguments):
        return Risk.MEDIUM
    return Risk.LOW


def _only_asks(arguments: Sequence[str]) -> bool:
    return tuple(arguments) in (("--version",), ("-V",), ("--help",), ("-h",))


def _subcommand(arguments: Sequence[str]) -> str:
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def _words(command: str) -> Iterator[str]:
    # A newline separates commands like a semicolon does, unless it is quoted; shlex takes it for white space.
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    for word in lexer:
        if word and set(word) <= set("();<>|&\n"):
            yield from _operators(word)
        else:
            yield word


_OPERATOR = re.compile(r"&>>|<<<|&&|\|\||\|&|>>|>\||<<|<>|&>|>&|<&|[();<>|&\n]")


def _operators(run: str) -> Iterator[str]:
    """Operators that stand next to each other, one by one."""
    yield from _OPERATOR.findall(run)


def _without_single_quoted(command: str) -> str:
    """The command without what stands in single quotes, where a dollar is a dollar."""
    kept: list[str] = []
    quote = ""
    escaped = False
    for character in command:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
            continue
        elif quote:
            if character == quote:
                quote = ""
            elif quote == '"':
                kept.append(character)
            continue
        elif character in "'\"":
            quote = character
            continue
        else:
            kept.append(character)
    return "".join(kept)


def _listed(commands: Sequence[str]) -> str:
    return ", ".join(commands) or "(none)"
