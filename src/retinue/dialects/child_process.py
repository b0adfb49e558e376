"""The protocol between a parent and its child process `retinue call`, besides the public contract of stdin and stdout.

It uses two inherited descriptors. On the first the child reads its grant: one line of JSON, then answers to its
questions, and the end of the file when the parent is gone. On the second the child writes its usage: one line of JSON
after each model reply, each with the totals so far, and the questions whether it may act. A model can neither read nor
write either descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from retinue.core.policy import Policy
from retinue.core.run import Limits
from retinue.core.text import NOT_JSON
from retinue.core.usage import NO_USAGE, Usage
from retinue.providers.pricing import Rates
from retinue.tools.dependencies import ToolOptions

GRANT_FD = "RETINUE_GRANT_FD"
USAGE_FD = "RETINUE_USAGE_FD"
"""The environment variables with the numbers of the descriptors."""

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest grant that is read."""

DEFAULT_TEMPERATURE = 0.8
"""The temperature of a request that has none."""

DEFAULT_MAX_TOKENS = 8192
"""Tokens of one reply of a child whose caller sets no maximum."""

NonEmpty = Annotated[str, Meta(min_length=1)]


class CallRequest(Struct, frozen=True, kw_only=True):
    """What a child reads on stdin: the ten fields of the public contract, in their order.

    Model, provider, address and prompt are required; unknown fields are ignored.
    """

    model: NonEmpty
    provider: str
    url: NonEmpty
    api_key_name: str | None = None
    prompt: str
    system_prompt: str | None = None
    tool_subset: tuple[str, ...] | None = None
    think: bool | None = None
    temperature: float | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class Reaching(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How another process reaches a provider: the wire, the whole address, and the name of the key's variable.

    `configured_wire` is the name of its wire in the settings, which decides its prices; `headers` may be secret.
    """

    wire: str
    url: str
    api_key_env: str = ""
    configured_wire: str = ""
    headers: Mapping[str, str] = {}
    prices: Mapping[str, Rates] = {}
    responses_wire: Literal["live", "seed"] | None = None
    calls_in_text: bool = False


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rights and limits of a child process, its run, agent and workspace. The request is not part of it."""

    run_id: str
    policy: Policy
    limits: Limits = Limits()
    workspace: str = ""
    workspace_id: tuple[int, int] | None = None
    """Device and inode of the workspace; None if it does not exist yet."""
    writable_folders: tuple[tuple[int, int], ...] = ()
    """Device and inode of folders that an agent of the parent may write: links in them are not followed."""
    identity: str = ""
    memory_from: tuple[str, ...] = ()
    home: str = ""
    """The state folder of the parent, which is hidden from tools."""
    tool_options: ToolOptions = ToolOptions()
    reaching: Reaching | None = None
    counts: bool = False
    """Whether the child asks before each action, because the parent counts them."""
    trace: str = ""
    """The W3C trace context of the parent's run; empty without tracing."""

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The usage of a child process so far; `stop` is why its model ended the last reply."""

    usage: Usage = NO_USAGE
    cost: int | None = 0
    turns: int = 0
    stop: Literal["end", "length"] = "end"

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


NO_TALLY = Tally()

MAY_I_ACT = b"act\n"
"""The line among the tallies with which a child asks whether it may act once more."""

YES, NO = b"y", b"n"
"""The answers, in the order of the questions, behind the grant."""


def last_tally(written: bytes) -> Tally:
    """The last complete tally that a child wrote; a child that was killed may have written part of a line.

    >>> last_tally(Tally(turns=1).line() + Tally(turns=2).line() + b'{"turns":').turns
    2
    """
    lines = written.split(b"\n")[:-1]
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=Tally)
        except NOT_JSON:
            continue
    return NO_TALLY


def inherited(variable: str) -> int | None:
    """The descriptor in an environment variable; neither is passed on to processes that this one starts."""
    number = os.environ.pop(variable, "")
    if not number.isdecimal():
        return None
    try:
        os.set_inheritable(int(number), False)
    except OSError:
        return None
    return int(number)


def read_grant(descriptor: int) -> Grant | None:
    """Wait for the grant; None if the parent closed the descriptor without writing one."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 65536)
        line += piece
        if not piece or len(line) > MAX_LINE_BYTES:
            return None
    return msgspec.json.decode(line, type=Grant)
