"""What others want a run to know: the items of its inbox.

Anyone may post one, from any process, under a key that is unique for the run; its driver takes each once, in order.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from retinue.core.ids import Key, RunId
from retinue.core.messages import Origin
from retinue.core.run import EndReason, Result


class TextMessage(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="words"):
    """Something said to a run at work, read at its next turn; an idle run begins a new exchange with it."""

    key: Key
    text: str
    origin: Origin = "caller"


class Input(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="input"):
    """A new exchange for a run that stays: it waits for the one before to end. `tools` off offers none."""

    key: Key
    text: str
    tools: bool = True
    origin: Origin = "caller"


class Close(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="close"):
    """No more input comes: a run that stays may end once it has answered."""

    key: Key


class Cancel(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="cancel"):
    """Stop at once; does not wait for a turn boundary."""

    key: Key
    reason: EndReason = "cancelled"
    note: str = ""


class Deadline(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="deadline"):
    """The run's time is over."""

    key: Key
    seconds: float


class Answer(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="answer"):
    """A person's answer to a parked call."""

    key: Key
    turn: int
    index: int
    allow: bool
    note: str = ""


class ChildEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="child_ended"):
    """A child that announces its end has ended; `notice` is what the parent's model will read."""

    key: Key
    run_id: RunId
    result: Result
    notice: str = ""


class DependencyEnded(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="dependency_ended"):
    """A run that this one waits for before it begins has ended; `text` is its result, or why there is none."""

    key: Key
    run_id: RunId
    name: str
    ok: bool
    text: str = ""


Item: TypeAlias = TextMessage | Input | Close | Cancel | Deadline | Answer | ChildEnded | DependencyEnded
"""Any item of an inbox."""

URGENT = (Cancel, Deadline)
"""What does not wait for a turn boundary."""
