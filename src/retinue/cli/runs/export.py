"""`retinue runs export`: a tree of runs with all events as JSON lines, or as one self-contained HTML page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from retinue.app.json_rows import run_row
from retinue.app.open import open_read_only
from retinue.cli.output.terminal import say, write
from retinue.cli.runs.follow import json_line
from retinue.cli.runs.html_page import ExportedRun, page
from retinue.cli.runs.list_show import find_run, subtree_of
from retinue.core.text import plural


async def export_run(
    name: str, *, within: str | None, write_runs: Callable[[Sequence[ExportedRun]], str], file: str | None
) -> int:
    """Write a run and its descendants to a file or to stdout."""
    async with open_read_only() as client:
        views = await subtree_of(client, await find_run(client, name, within))
        runs = [ExportedRun(view, await client.events(view.run_id)) for view in views]
    text = write_runs(runs)
    if file is None:
        write(text)
    else:
        await asyncio.to_thread(Path(file).write_text, text, encoding="utf-8")
        say(f"wrote {plural(len(runs), 'run')} to {file}")
    return 0


def _lines(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """A line for each run, followed by a line for each of its events."""
    for view, events in runs:
        yield json_line({"type": "run"} | run_row(view))
        for seq, event in enumerate(events, 1):
            place = {"type": "event", "run": view.run_id, "parent": view.parent_id, "path": view.path, "seq": seq}
            yield json_line(place | {"event": msgspec.to_builtins(event)})


WRITERS: Mapping[str, Callable[[Sequence[ExportedRun]], str]] = {
    "jsonl": lambda runs: "".join(_lines(runs)),
    "html": page,
}
"""The text of exported runs by the name of its format."""
