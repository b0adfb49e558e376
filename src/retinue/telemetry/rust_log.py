"""Log levels from `RUST_LOG`, as programs in Rust read it, for users of such a program who move here."""

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
ENGINE = "retinue.engine"

TARGETS = {
    "": ROOT,
    "context": "retinue.context",
    "cron": "retinue.cron",
    "daemon": "retinue.daemon",
    "engine": ENGINE,
    "payloads": "retinue.payloads",
    "spec": "retinue.spec",
    "tools": "retinue.tools",
    "tools.subagent": "retinue.tools.subagent",
    "zeroclaw": "retinue.zeroclaw",
}
"""The loggers of modules of another program."""

_CRATE = re.compile(r"(retinue|xzatoma|zeroclaw|meerkat)(?![a-z0-9])", re.IGNORECASE)
"""The crates that this program takes the place of, and their parts such as `zeroclaw_runtime`."""
_TARGET = re.compile(r"[A-Za-z_][\w-]*(::\w+)*")


class Filters(NamedTuple):
    """The level of each logger, and a message for each part that is ignored."""

    levels: dict[str, int]
    complaints: list[str]


def parse(filters: str) -> Filters:
    """The levels of the loggers that take the place of the named targets.

    `LEVEL` is for all loggers, `TARGET=LEVEL` for one, `TARGET` alone for all its lines; `trace` is `debug`. A module
    of one of the replaced programs without a logger here is the engine. Targets of other programs have no effect: the
    variable may be meant for them.

    >>> parse("warn,xzatoma::tools::subagent=debug,hyper=info").levels
    {'retinue': 30, 'retinue.tools.subagent': 10}
    >>> parse("xzatoma=loud").complaints
    ["RUST_LOG: 'xzatoma=loud' is ignored: expected off, error, warn, info, debug or trace after the ="]
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
        elif (name := _logger(target)) is not None:
            levels[name] = LEVELS[level.lower() or "trace"]
    return Filters(levels, complaints)


def _logger(target: str) -> str | None:
    """The logger in place of a target; None for a target of another program."""
    crate, _, module = target.partition("::")
    if not _CRATE.match(crate):
        return None
    return TARGETS.get(module.replace("::", "."), ENGINE)
