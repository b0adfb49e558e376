"""Events of a run: everything that a run stores, in the order in which it happened, and the values that events carry.

`RunHandle.events` yields them, each after it was stored, and between them the deltas of replies that stream, which are
in `retinue.messages`; a `DiscardDelta` takes back the deltas of an attempt that broke off. `Event` is the union of all
events; a `match` over it can be checked for completeness. `Retinue.events` with `tree=True` yields `TreeEvent` items:
the events of a run and of all runs below it, each with its run.

>>> from retinue.events import CallReturned, Event
>>> def describe(event: Event) -> str:
...     match event:
...         case CallReturned(turn=turn, text=text, failed=False):
...             return f"turn {turn}: {text}"
...         case _:
...             return type(event).__name__
>>> describe(CallReturned(at=0.0, turn=1, index=0, text="20 lines"))
'turn 1: 20 lines'
"""

from retinue.core.budget import Amount, Caps, Window
from retinue.core.events import (
    Advice,
    AdviceGiven,
    AgentChanged,
    CallParked,
    CallReturned,
    CompactedBy,
    Event,
    ExchangeEnded,
    HistoryCompacted,
    MailTaken,
    Refusal,
    RepairAsked,
    ReplyReceived,
    ResultCollected,
    RunAccepted,
    RunAdopted,
    RunEnded,
    RunLeft,
    TreeEvent,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.inbox import (
    ApprovalAnswer,
    Cancel,
    ChildEnded,
    Close,
    Deadline,
    DependencyEnded,
    Input,
    Item,
    TextMessage,
)
from retinue.core.run import EndReason, HandleRef, HistoryRef, Lifecycle, LimitMet, Result

__all__ = [
    "Advice",
    "AdviceGiven",
    "AgentChanged",
    "Amount",
    "ApprovalAnswer",
    "CallParked",
    "CallReturned",
    "Cancel",
    "Caps",
    "ChildEnded",
    "Close",
    "CompactedBy",
    "Deadline",
    "DependencyEnded",
    "EndReason",
    "Event",
    "ExchangeEnded",
    "HandleRef",
    "HistoryCompacted",
    "HistoryRef",
    "Input",
    "Item",
    "Lifecycle",
    "LimitMet",
    "MailTaken",
    "Refusal",
    "RepairAsked",
    "ReplyReceived",
    "Result",
    "ResultCollected",
    "RunAccepted",
    "RunAdopted",
    "RunEnded",
    "RunLeft",
    "TextMessage",
    "TreeEvent",
    "TurnFailed",
    "Window",
    "WrapUpAsked",
]
