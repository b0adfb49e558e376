"""A run as `--json` tells it: one row, the same in every command."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.app.engine_types import RunView
from retinue.core.run import Outcome
from retinue.core.usage import NO_USAGE, Usage, add_cost, dollars
from retinue.dialects.text import rfc3339


def usage_row(usage: Usage) -> dict[str, int]:
    """Tokens by kind; all four, also where they are zero."""
    return {"input": usage.input, "output": usage.output, "cached": usage.cached, "reasoning": usage.reasoning}


def run_row(view: RunView) -> dict[str, object]:
    """A run in a list or a tree."""
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
    }


def outcome_row(run_id: str, outcome: Outcome) -> dict[str, object]:
    """How `retinue run --json` tells the end of a run."""
    return {
        "run_id": run_id,
        "status": outcome.result,
        "end_reason": outcome.reason,
        "text": outcome.text,
        "structured": outcome.structured,
        "usage": usage_row(outcome.usage),
        "cost": dollars(outcome.cost),
    }


def status_of(view: RunView) -> str:
    """One word for where a run stands: how it ended, if it has."""
    if view.outcome is not None:
        return "empty" if view.outcome.reason == "empty" else view.outcome.result
    return view.state


def name_of(view: RunView) -> str:
    """Agent, handle and label: how people tell runs of one tree apart."""
    handle = f" {view.handle.name}" if view.handle is not None else ""
    label = f" [{view.label}]" if view.label and view.label != view.agent else ""
    return f"{view.agent or 'run'}{handle}{label}"


def total(views: Iterable[RunView]) -> tuple[Usage, int | None]:
    """What runs used together, and what that cost."""
    usage = NO_USAGE
    cost: int | None = 0
    for view in views:
        usage += view.usage
        cost = add_cost(cost, view.cost)
    return usage, cost
