"""Search the tasks, conversations and answers of all runs for words, newest runs first.

Texts have no index: a search reads the events of a bounded number of runs and says where the next one goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from retinue.app.engine_types import RunView
from retinue.app.read_only import ReadOnlyClient
from retinue.app.transcript import TranscriptEntry, entries
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.ids import RunId

MAX_RUNS = 2000
"""Runs that one search reads at most."""

SECONDS = 1.5
"""How long one search reads at most, and at least one run."""

STEP = 50
AROUND = 80
"""Characters of an excerpt on each side of the first word."""

HITS_OF_A_RUN = 3

SearchPosition = tuple[float, RunId]
"""Start and id of the last run that was read."""


class Hit(Struct, frozen=True, kw_only=True):
    """An entry of a conversation that has all words; `excerpt` is the text around the first of them."""

    view: RunView
    entry: TranscriptEntry
    excerpt: str


class FoundRuns(Struct, frozen=True, kw_only=True):
    """The hits, the number of runs that were read, and where the next search goes on; None at the end."""

    hits: tuple[Hit, ...]
    runs_read: int
    before: SearchPosition | None


async def search(
    client: ReadOnlyClient, words: Sequence[str], *, before: SearchPosition | None, limit: int
) -> FoundRuns:
    """Up to about `limit` entries that have all the words, in any order and case."""
    wanted = [word.lower() for word in words]
    began = time.monotonic()
    hits: list[Hit] = []
    read = 0
    while True:
        views = await client.supervisor.list(RunQuery(before=before, limit=STEP))
        for view in await client.supervisor.with_tasks(views):
            hits += await _of_run(client, view, wanted)
            read += 1
            before = (view.started_at, view.run_id)
            if len(hits) >= limit or read >= MAX_RUNS or time.monotonic() - began > SECONDS:
                return FoundRuns(hits=tuple(hits[:limit]), runs_read=read, before=before)
        if len(views) < STEP:
            return FoundRuns(hits=tuple(hits), runs_read=read, before=None)


async def _of_run(client: ReadOnlyClient, view: RunView, wanted: Sequence[str]) -> list[Hit]:
    try:
        history = entries(await client.events(view.run_id))
    except StoreError:  # a damaged run does not hide the others
        return []
    found = [
        Hit(view=view, entry=entry, excerpt=_excerpt(entry.text, wanted[0]))
        for entry in history
        if _has(f"{entry.name} {entry.text}".lower(), wanted)
    ]
    return found[:HITS_OF_A_RUN]


def _has(text: str, wanted: Sequence[str]) -> bool:
    return all(word in text for word in wanted)


def _excerpt(text: str, word: str) -> str:
    """The text around a word, on one line.

    >>> _excerpt("a\\nlong story", "long")
    'a long story'
    """
    place = max(0, text.lower().find(word))
    first = max(0, place - AROUND)
    last = place + len(word) + AROUND
    cut = " ".join(text[first:last].split())
    return f"{'… ' if first else ''}{cut}{' …' if last < len(text) else ''}"
