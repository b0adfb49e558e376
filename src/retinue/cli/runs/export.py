"""`retinue runs export`: a tree of runs with all events as JSON lines, a self-contained HTML page or Markdown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from retinue.app.json_rows import run_row
from retinue.app.open import open_read_only
from retinue.app.transcript import entries
from retinue.cli.output.format import name_of, status_of
from retinue.cli.output.terminal import json_line, say, write
from retinue.cli.output.transcript import headed
from retinue.cli.runs.html_page import ExportedRun, page
from retinue.cli.runs.list_show import find_run, subtree_of
from retinue.core.text import plural, rfc3339


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


async def export_recording(name: str, *, within: str | None, file: str) -> int:
    """Write the tree of a run as a recording, without definitions of tools and without secrets."""
    from retinue.recording import record_tree, write_recording

    async with open_read_only() as client:
        view = await find_run(client, name, within)
        recording = await record_tree(client.supervisor, view.root_id)
    await asyncio.to_thread(write_recording, recording, file)
    say(f"wrote {plural(len(recording.facts), 'fact')} to {file}")
    return 0


def _lines(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """A line for each run, followed by a line for each of its events."""
    for view, events in runs:
        yield json_line({"type": "run"} | run_row(view))
        for seq, event in enumerate(events, 1):
            place = {"type": "event", "run": view.run_id, "parent": view.parent_id, "path": view.path, "seq": seq}
            yield json_line(place | {"event": msgspec.to_builtins(event)})


def _markdown(runs: Sequence[ExportedRun]) -> str:
    """The conversations one after the other; texts are as they were written."""
    parts: list[str] = []
    for view, events in runs:
        parts.append(f"# {name_of(view)} ({status_of(view)})\n\nRun {view.run_id}, started {rfc3339(view.started_at)}")
        for entry in entries(events):
            ((heading, _),) = headed([entry])
            is_prose = entry.kind in ("task", "words", "reply")
            parts += [f"## {heading}", entry.text if is_prose else _fenced(entry.text)]
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    """A text as a block of code, with a fence that is longer than any in it."""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


WRITERS: Mapping[str, Callable[[Sequence[ExportedRun]], str]] = {
    "jsonl": lambda runs: "".join(_lines(runs)),
    "html": page,
    "md": _markdown,
}
"""The text of exported runs by the name of its format."""
