"""Runs and outcomes as JSON objects; the same in every command and front end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.core.attachments import Attachment
from retinue.core.events import CallReturned, Event, HistoryCompacted, MailTaken, RunAccepted, TreeEvent
from retinue.core.inbox import Input, TextMessage
from retinue.core.messages import AssistantMessage, Citation, Delta, Message
from retinue.core.run import Outcome
from retinue.core.text import rfc3339
from retinue.core.usage import Usage, dollars
from retinue.engine import RunView


def usage_row(usage: Usage) -> dict[str, int]:
    """Tokens by kind; all four, even if they are zero."""
    return {"input": usage.input, "output": usage.output, "cached": usage.cached, "reasoning": usage.reasoning}


def estimate_row(of: RunView | Outcome) -> dict[str, object]:
    """What is estimated for replies without counts, as a field `estimated`; no field if there are none."""
    estimated = of.estimated
    if not estimated.total:
        return {}
    cost = dollars(of.estimated_cost)
    return {"estimated": {"input": estimated.input, "output": estimated.output, "cost": cost}}


def run_row(view: RunView) -> dict[str, object]:
    return {
        "run_id": view.run_id,
        "parent_id": view.parent_id,
        "root_id": view.root_id,
        "session_id": view.session_id,
        "agent": view.agent,
        "label": view.label,
        "handle": view.handle.name if view.handle is not None else None,
        "dialect": view.dialect,
        "state": view.state,
        "waiting_for": view.waiting_for,
        "outcome": view.outcome.result if view.outcome is not None else None,
        "end_reason": view.outcome.reason if view.outcome is not None else None,
        "turns": view.turns,
        "usage": usage_row(view.usage),
        "cost": dollars(view.cost),
        "started_at": rfc3339(view.started_at),
        "ended_at": rfc3339(view.ended_at) if view.ended_at is not None else None,
        "task": view.task,
        **estimate_row(view),
    }


def outcome_row(run_id: str, task: str, outcome: Outcome) -> dict[str, object]:
    """The outcome of a run, as `retinue run --json` prints it; `citations` if the answer has some."""
    return {
        "run_id": run_id,
        "status": outcome.result,
        "end_reason": outcome.reason,
        "text": outcome.text,
        "structured": outcome.structured,
        "usage": usage_row(outcome.usage),
        "cost": dollars(outcome.cost),
        "task": task,
        "error": outcome.error,
        **estimate_row(outcome),
        **({"citations": [citation_row(each) for each in outcome.citations]} if outcome.citations else {}),
    }


def citation_row(citation: Citation) -> dict[str, object]:
    """A source of a part of an answer; `start` and `end` are characters of its text."""
    return {name: getattr(citation, name) for name in citation.__struct_fields__}


def event_row(item: TreeEvent) -> dict[str, object]:
    """An event of a tree: its run, the place of the run, its number there (null for a delta), and the event itself."""
    return {
        "run": item.run,
        "parent": item.parent,
        "path": item.path,
        "seq": item.seq or None,
        "event": msgspec.to_builtins(_without_data(item.event)),
    }


def _without_data(event: Event | Delta) -> Event | Delta:
    """An event with the names and types of attachments, without their data."""
    match event:
        case RunAccepted(attachments=attachments) | CallReturned(attachments=attachments) if attachments:
            return msgspec.structs.replace(event, attachments=_emptied(attachments))
        case HistoryCompacted(messages=messages) if any(getattr(each, "attachments", ()) for each in messages):
            return msgspec.structs.replace(event, messages=tuple(map(_bare, messages)))
        case MailTaken(items=items) if any(getattr(item, "attachments", ()) for item in items):
            bare = (
                msgspec.structs.replace(item, attachments=_emptied(item.attachments))
                if isinstance(item, TextMessage | Input)
                else item
                for item in items
            )
            return msgspec.structs.replace(event, items=tuple(bare))
        case _:
            return event


def _bare(message: Message) -> Message:
    if isinstance(message, AssistantMessage) or not message.attachments:
        return message
    return msgspec.structs.replace(message, attachments=_emptied(message.attachments))


def _emptied(attachments: Sequence[Attachment]) -> tuple[Attachment, ...]:
    return tuple(msgspec.structs.replace(each, data=b"") for each in attachments)
