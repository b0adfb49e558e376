"""Log levels from `RUST_LOG`, as programs in Rust read it, for users who move here from such a program."""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

VARIABLE = "RUST_LOG"

LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}
ROOT = "retinue"
ENGINE = "engine"

LOGGERS = ("cron", "daemon", ENGINE, "payloads", "tools")
"""Loggers that belong to no dialect, without `retinue.`"""

_TARGET = re.compile(r"[A-Za-z_][\w-]*(::\w+)*")


class Programs(NamedTuple):
    """The programs that this one takes the place of, and the loggers besides `LOGGERS` that their modules have here."""

    names: tuple[str, ...] = ()
    loggers: tuple[str, ...] = ()


class Filters(NamedTuple):
    """The level of each logger, and a message for each part that is ignored."""

    levels: dict[str, int]
    complaints: list[str]


def parse(filters: str, programs: Programs) -> Filters:
    """The levels of the loggers that take the place of the named targets.

    `LEVEL` is for all loggers, `TARGET=LEVEL` for one, `TARGET` alone for all its lines; `trace` is `debug`. A module
    of one of the replaced programs without a logger here is the engine. Targets of other programs have no effect: the
    variable may be meant for them.

    >>> programs = Programs(("rusty",), ("tools.web",))
    >>> parse("warn,rusty::tools::web=debug,hyper=info", programs).levels
    {'retinue': 30, 'retinue.tools.web': 10}
    >>> parse("rusty=loud", programs).complaints
    ["RUST_LOG: 'rusty=loud' is ignored: expected off, error, warn, info, debug or trace after the ="]
    """
    levels: dict[str, int] = {}
    directives, slash, pattern = filters.partition("/")
    complaints = [f"{VARIABLE}: '/{pattern}' is ignored: lines are not filtered by their text"] if slash else []
    for part in filter(None, (part.strip() for part in directives.split(","))):
        target, equals, level = (piece.strip() for piece in part.partition("="))
        if not equals and target.lower() in LEVELS:
            levels[ROOT] = LEVELS[target.lower()]
        elif not _TARGET.fullmatch(target):
            complaints.append(f"{VARIABLE}: {part!r} is ignored: expected LEVEL, TARGET or TARGET=LEVEL")
        elif level and level.lower() not in LEVELS:
            expected = "off, error, warn, info, debug or trace"
            complaints.append(f"{VARIABLE}: {part!r} is ignored: expected {expected} after the =")
        elif (name := _logger(target, programs)) is not None:
            levels[name] = LEVELS[level.lower() or "trace"]
    return Filters(levels, complaints)


def _logger(target: str, programs: Programs) -> str | None:
    """The logger in place of a target; None for a target of another program."""
    crate, _, module = target.partition("::")
    if not any(_is_part_of(crate.lower(), program) for program in (ROOT, *programs.names)):
        return None
    name = module.replace("::", ".")
    if not name:
        return ROOT
    return f"{ROOT}.{name if name in (*LOGGERS, *programs.loggers) else ENGINE}"


def _is_part_of(crate: str, program: str) -> bool:
    """Whether a crate is the program or a part of it, such as `rusty_runtime` of `rusty`."""
    return crate.startswith(program) and not crate[len(program) : len(program) + 1].isalnum()
