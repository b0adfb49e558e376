"""Inbox items of a run: input, messages, approvals, cancels and notifications from callers and other runs.

Any process may post an item, under a key that is unique within the run; the run's driver takes each once, in order.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from retinue.core.attachments import Attachment
from retinue.core.ids import Key, RunId
from retinue.core.messages import Origin
from retinue.core.run import EndReason, Result


class TextMessage(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="words"):
    """A message to a working run, read at its next turn; an idle run begins a new exchange with it."""

    key: Key
    text: str
    origin: Origin = "caller"
    attachments: tuple[Attachment, ...] = ()


class Input(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="input"):
    """Input of a new exchange of a keep-alive run; waits for the current exchange. `tools=False` offers no tools."""

    key: Key
    text: str
    tools: bool = True
    origin: Origin = "caller"
    attachments: tuple[Attachment, ...] = ()


class Close(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="close"):
    """No more input follows: a keep-alive run ends after its current exchange."""

    key: Key


class Cancel(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="cancel"):
    """Stop the run at once, without waiting for a turn boundary."""

    key: Key
    reason: EndReason = "cancelled"
    note: str = ""


class Deadline(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="deadline"):
    """The run's time limit has passed; stops it at once."""

    key: Key
    seconds: float


class ApprovalAnswer(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="answer"):
    """The answer to the approval request of a parked tool call."""

    key: Key
    turn: int
    index: int
    allow: bool
    note: str = ""


class ChildEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="child_ended"):
    """A child with `Lifecycle.announce` has ended; `notice` is the text for the parent's model."""

    key: Key
    run_id: RunId
    result: Result
    notice: str = ""


class DependencyEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="dependency_ended"):
    """A dependency of a pending run has ended; `text` is its result, or the error if not `ok`."""

    key: Key
    run_id: RunId
    name: str
    ok: bool
    text: str = ""


Item: TypeAlias = TextMessage | Input | Close | Cancel | Deadline | ApprovalAnswer | ChildEnded | DependencyEnded
"""Any item of an inbox."""

URGENT = (Cancel, Deadline)
"""Items that do not wait for a turn boundary."""
