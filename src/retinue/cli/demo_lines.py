"""What happens in a run as short lines for somebody who watches: who asked, shared, delegated, called and answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from retinue.cli.rows import name_of
from retinue.core.events import (
    AgentDefined,
    CallParked,
    CallReturned,
    Event,
    ExchangeEnded,
    HistoryCompacted,
    MailTaken,
    RepairAsked,
    ReplyReceived,
    ResultCollected,
    RunAccepted,
    RunAdopted,
    RunEnded,
    RunLeft,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.mail import Input, Words
from retinue.core.messages import ToolCall
from retinue.engine.view import RunView

USER = "user"


class Line(Struct, frozen=True):
    """Who did what, and when."""

    at: float
    who: str
    what: str


def lines(view: RunView, events: Iterable[Event]) -> list[Line]:
    """The lines of one run. Looking around (status, list_keys) is left out: it says nothing new."""
    turns = 0
    told: list[Line] = []
    for event in events:
        turns = event.turn if isinstance(event, ReplyReceived) else turns
        told += _told(event, view, turns)
    return told


def _told(event: Event, view: RunView, turns: int) -> Iterator[Line]:
    who, at = name_of(view), event.at
    match event:
        case RunAccepted(task=task):
            if view.parent_id is None:  # of others, whoever spawned them has told
                yield Line(at, USER, task)
        case ReplyReceived(reply=reply):
            yield from (Line(at, who, what) for what in _calls(reply.message.calls))
            if reply.message.text and not reply.message.calls:
                yield Line(at, who, f"says: {reply.message.text}")
        case CallReturned(text=text, failed=failed):
            if failed:
                yield Line(at, who, f"is told: {text}")
        case MailTaken(items=items):
            yield from (Line(at, USER, item.text) for item in items if isinstance(item, Words | Input))
        case RunAdopted():
            yield Line(at, who, f"goes on after turn {turns} in another process")
        case TurnFailed(error=error):
            yield Line(at, who, f"got no answer: {error}")
        case RunEnded(outcome=outcome):
            if not outcome.ok:
                yield Line(at, who, f"{outcome.result}: {outcome.error}")
        case CallParked() | WrapUpAsked() | RepairAsked() | ExchangeEnded() | HistoryCompacted():
            pass
        case AgentDefined() | ResultCollected() | RunLeft():
            pass
        case _:
            assert_never(event)


def _calls(calls: Sequence[ToolCall]) -> Iterator[str]:
    """The calls of one turn, several of a kind on one line."""
    asked = [(call.name, _fields(call)) for call in calls]
    if read := [str(fields.get("key")) for name, fields in asked if (name, _action(fields)) == _READ]:
        yield f"reads {', '.join(read)}"
    for name, fields in asked:
        match name, _action(fields):
            case "shared_context", "write":
                yield f"shares {fields.get('key')}: {fields.get('value')}"
            case "shared_context", "delete":
                yield f"deletes {fields.get('key')}"
            case "shared_context", _:
                pass
            case "subagent", "define":
                yield f"defines a new agent, {fields.get('name')}: {fields.get('description')}"
            case "subagent", "spawn":
                yield f"spawns {fields.get('agent')}: {fields.get('task')}"
            case "subagent", "collect":
                yield f"collects {fields.get('task_id')}"
            case "subagent", _:
                pass
            case _:
                arguments = ", ".join(f"{key}={value!r}" for key, value in fields.items())
                yield f"calls {name}({arguments})"


_READ = ("shared_context", "read")


def _fields(call: ToolCall) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _action(fields: Mapping[str, Any]) -> str:
    return str(fields.get("action", ""))
