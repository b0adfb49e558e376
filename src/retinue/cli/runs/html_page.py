"""A tree of runs as one HTML file: the page of `retinue serve` with its data, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from retinue.app.engine_types import RunView
from retinue.app.json_rows import run_row
from retinue.app.timeline import TimedRun, timeline
from retinue.app.transcript import entries
from retinue.cli.output.format import name_of, one_line
from retinue.core.events import Event
from retinue.core.text import clean
from retinue.web.static_files import exported_page

MAX_TITLE = 120
"""Characters of a task in the title."""


class ExportedRun(NamedTuple):
    """A run with all its events."""

    view: RunView
    events: Sequence[Event]


def page(runs: Sequence[ExportedRun]) -> str:
    """The page of a run and its descendants, which come after their parents."""
    root = runs[0].view
    paths: dict[str, object] = {}
    rows: list[dict[str, object]] = []
    for view, events in runs:
        error = view.outcome.error if view.outcome is not None else ""
        row = run_row(view) | {"root_id": root.run_id, "error": error, "doing": ""}
        rows.append(row)
        paths[f"/runs/{view.run_id}"] = row
        paths[f"/runs/{view.run_id}/transcript"] = {"items": entries(events)}
    paths[f"/runs/{root.run_id}/tree"] = {"items": rows}
    paths[f"/runs/{root.run_id}/timeline"] = {"items": msgspec.to_builtins(timeline([_timed(run) for run in runs]))}
    title = f"{clean(name_of(root))}: {one_line(clean(root.task), MAX_TITLE) or root.run_id} · Retinue"
    return exported_page(root.run_id, paths, title)


def _timed(run: ExportedRun) -> TimedRun:
    """A run with its times; one that goes on ends with its last event, for the file does not go on."""
    view, events = run
    last = max((event.at for event in events), default=view.started_at)
    return TimedRun(
        run_id=view.run_id,
        parent_id=view.parent_id,
        started_at=view.started_at,
        ended_at=view.ended_at or last,
        events=events,
    )
