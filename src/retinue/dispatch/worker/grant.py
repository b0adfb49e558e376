"""What a parent and its child process tell each other besides the public contract, over two inherited descriptors.

On the first the child reads its grant: one line of JSON, and then nothing until the parent is gone. On the second it
writes what it has used: one line of JSON after each reply of its model, each with the sums so far. Neither is anything
that a model can write to or read from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from retinue.core.policy import Policy
from retinue.core.run import Limits
from retinue.core.usage import NO_USAGE, Usage
from retinue.providers.pricing import Rates
from retinue.tools.dependencies import ToolOptions

GRANT_FD = "RETINUE_GRANT_FD"
USAGE_FD = "RETINUE_USAGE_FD"
"""The environment variables that number the descriptors."""

MOST = 16 * 1024 * 1024
"""Bytes of a line; whoever writes more is none of ours."""


class Reaching(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a provider is reached from another process: the wire, the whole address, and the name of the key's variable.

    `settled` is what the settings call its wire, which tells what it costs; `headers` may be secret.
    """

    wire: str
    url: str
    api_key_env: str = ""
    settled: str = ""
    headers: Mapping[str, str] = {}
    prices: Mapping[str, Rates] = {}
    responses_wire: Literal["live", "seed"] | None = None


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a child process may do and use, for whom it works, and where. What it is asked is not part of it."""

    run_id: str
    policy: Policy
    limits: Limits = Limits()
    workspace: str = ""
    identity: str = ""
    memory_from: tuple[str, ...] = ()
    home: str = ""
    """The state folder of the parent, which no tool may show."""
    tool_options: ToolOptions = ToolOptions()
    reaching: Reaching | None = None
    counts: bool = False
    """Whether each action has to be asked for before it is performed: the parent counts them with its own."""

    def line(self) -> bytes:
        """As it is written."""
        return msgspec.json.encode(self) + b"\n"


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a child process has used so far; `stop` is why its model stopped speaking, once that is known."""

    usage: Usage = NO_USAGE
    cost: int | None = 0
    turns: int = 0
    stop: Literal["end", "length"] = "end"

    def line(self) -> bytes:
        """As it is written."""
        return msgspec.json.encode(self) + b"\n"


NOTHING = Tally()

MAY_I_ACT = b"act\n"
"""The line among the tallies with which a child asks whether it may act once more."""

YES, NO = b"y", b"n"
"""The answers, in the order of the questions, behind the grant."""


def last_tally(told: bytes) -> Tally:
    """The last whole line of what a child told; a child that was killed may have written half of one.

    >>> last_tally(Tally(turns=1).line() + Tally(turns=2).line() + b'{"turns":').turns
    2
    """
    lines = told.split(b"\n")[:-1]
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=Tally)
        except msgspec.DecodeError:
            continue
    return NOTHING


def inherited(variable: str) -> int | None:
    """The descriptor that an environment variable names, for this process alone: what it starts inherits neither."""
    number = os.environ.pop(variable, "")
    if not number.isdecimal():
        return None
    try:
        os.set_inheritable(int(number), False)
    except OSError:
        return None
    return int(number)


def read_grant(descriptor: int) -> Grant | None:
    """Wait for the grant; None if whoever was to give it has gone."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 65536)
        line += piece
        if not piece or len(line) > MOST:
            return None
    return msgspec.json.decode(line, type=Grant)
