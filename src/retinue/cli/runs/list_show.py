"""The commands of `retinue runs` that need no model: list, show, tree, cancel and prune."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from retinue.app.engine_types import RunView
from retinue.app.follow import NO_TIMES, times_of
from retinue.app.json_rows import run_row, usage_row
from retinue.app.open import open_read_only
from retinue.app.read_only import ReadOnlyClient
from retinue.app.store_files import unreleased_space
from retinue.app.transcript import entries
from retinue.cli.output.format import (
    count,
    elapsed,
    estimate_text,
    moment,
    money,
    name_of,
    one_line,
    seconds,
    short,
    status_of,
    tokens_of,
    tokens_text,
    total,
    unsuccessful,
)
from retinue.cli.output.table import Column, print_table
from retinue.cli.output.terminal import HEADING, answer, answer_json, console, say
from retinue.cli.output.transcript import headed
from retinue.core.errors import BadInput, RunIsOver, UnknownName
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.core.ports import PruneRequest
from retinue.core.state import Run
from retinue.core.text import plural
from retinue.core.usage import dollars

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 20_000
"""Characters of one text that `show` prints; `--all` and `--json` print all."""

LISTED = 20
"""Runs that a table has unless a limit is given."""

LISTED_AS_JSON = 1_000
"""Runs that a JSON array has unless a limit is given: a store may hold millions."""

AGENT_WIDTH = 24
TASK_WIDTH = 80
"""Characters of an agent's name on a terminal, and of a task in a pipe."""

COLUMNS: list[Column[RunView]] = [
    Column(title="ID", cell=lambda view: short(view.run_id), piped=lambda view: view.run_id, style="cyan"),
    Column(title="AGENT", cell=lambda view: one_line(name_of(view), AGENT_WIDTH), piped=name_of),
    Column(title="STATE", cell=status_of),
    Column(title="TURNS", cell=lambda view: str(view.turns), right=True, least_width=70),
    Column(title="TOKENS", cell=tokens_of, right=True, least_width=80),
    Column(title="COST", cell=lambda view: money(view.cost), right=True, least_width=90),
    Column(title="DIALECT", cell=lambda view: view.dialect or "-", least_width=130),
    Column(title="STARTED", cell=lambda view: moment(view.started_at), least_width=110),
]

TASK: Column[RunView] = Column(
    title="TASK", cell=lambda view: view.task, piped=lambda view: one_line(view.task, TASK_WIDTH), shrinks=True
)


async def list_runs(*, all_runs: bool, session: str | None, limit: int | None, json: bool) -> int:
    most = limit or (LISTED_AS_JSON if json else LISTED)
    async with open_read_only() as client:
        views = await client.list(everyone=all_runs, session=session, limit=most)
        known = await client.count(everyone=all_runs, session=session) if len(views) == most else len(views)
        times = NO_TIMES if json else await times_of(client, views, now=time.time())
    if json:
        answer_json([run_row(view) for view in views])
    elif views:
        took: Column[RunView] = Column(
            title="TOOK",
            cell=lambda view: elapsed(times[view.run_id]) if view.run_id in times else "?",
            least_width=140,
        )
        print_table(views, [*COLUMNS, took, TASK])
    else:
        say("no runs yet; start one with: retinue run PROMPT")
    if limit is None and known > most:
        say(f"the newest {most} of {known} runs; {known - most} more with --limit {known}")
    return 0


async def find_run(client: ReadOnlyClient, name: str, tree: str | None) -> RunView:
    """The run that a command names: by its id, or with `--in` by its name in the dialect of a tree."""
    if tree is not None:
        return await client.find_in(tree, name)
    try:
        return await client.find(name)
    except UnknownName as unknown:
        if "_" not in name:  # no id of a run
            raise
        raise BadInput(f"{unknown}; a task is found by its name with --in ID, any run of its tree") from unknown


async def show_run(name: str, *, tree: str | None, everything: bool, json: bool) -> int:
    """Print a run as a conversation; with `everything` its descendants too, and long texts whole."""
    async with open_read_only() as client:
        view = await find_run(client, name, tree)
        shown = await subtree_of(client, view) if everything else [view]
        # Of a single run whose messages were deleted there is nothing to show: replaying it raises `NotKept`.
        stored = [await _stored(client, each, replayed=not everything) for each in shown]
    if json:
        rows = [_conversation_row(each) for each in stored]
        answer_json(rows if everything else rows[0])
        return 0
    for number, each in enumerate(stored):
        if number:
            answer("")
        _print_conversation(each, longest=None if everything else LONGEST)
    return 0


class _Stored(NamedTuple):
    """A run with its events; `run` is None if they were deleted."""

    view: RunView
    events: Sequence[Event]
    run: Run | None

    @property
    def text(self) -> str:
        """The answer; of an unfinished run its last text."""
        if self.view.outcome is not None:
            return self.view.outcome.text
        return self.run.text if self.run is not None else ""


async def _stored(client: ReadOnlyClient, view: RunView, *, replayed: bool) -> _Stored:
    events = await client.events(view.run_id)
    return _Stored(view, events, await client.replay(view.run_id) if events or replayed else None)


def _conversation_row(stored: _Stored) -> dict[str, object]:
    view, run_spec = stored.view, stored.run.run_spec if stored.run is not None else None
    return run_row(view) | {
        "model": run_spec.model if run_spec is not None else "",
        "provider": run_spec.provider if run_spec is not None else "",
        "text": stored.text,
        "error": view.outcome.error if view.outcome is not None else "",
        "transcript": msgspec.to_builtins(entries(stored.events)),
    }


def _print_conversation(stored: _Stored, *, longest: int | None) -> None:
    view = stored.view
    screen = console()
    screen.print(f"run {view.run_id}", style="bold", soft_wrap=True)
    model = f", model {stored.run.run_spec.model}" if stored.run is not None else ""
    screen.print(f"{name_of(view)}, {status_of(view)}, {moment(view.started_at)}{model}")
    for heading, body in headed(entries(stored.events)):
        print_entry(screen, heading, body, longest=longest)
    if stored.run is None:
        print_entry(screen, "note", "its messages were deleted when its tree ended", longest=longest)
    if view.state == "interrupted":
        screen.print()
        notice = f"{HEADING}interrupted; go on with: retinue runs resume {view.run_id}"
        screen.print(notice, style="yellow", soft_wrap=True)


def print_entry(screen: Console, heading: str, body: str, *, longest: int | None) -> None:
    """Print a heading and a text below it, cut to `longest` characters."""
    screen.print()
    screen.print(f"{HEADING}{heading}", style="cyan", soft_wrap=True)
    for line in body[:longest].split("\n"):
        screen.print(line, soft_wrap=True)
    if longest is not None and len(body) > longest:
        screen.print(f"[{len(body) - longest} more characters; --all or --json has all]", soft_wrap=True)


async def show_tree(name: str, *, tree: str | None, json: bool) -> int:
    """Print a tree with the usage of each run and of all together."""
    async with open_read_only() as client:
        view = await find_run(client, name, tree)
        views = await subtree_of(client, view)
        times = NO_TIMES if json else await times_of(client, views, now=time.time())
    if json:
        usage, cost = total(views)
        totals = {"runs": len(views), "usage": usage_row(usage), "cost": dollars(cost)}
        answer_json({"run_id": view.run_id, "runs": [run_row(each) for each in views], "total": totals})
        return 0
    print_tree(views, times)
    return 0


def print_tree(views: Sequence[RunView], times: Mapping[RunId, float] = NO_TIMES) -> None:
    """Print a tree with tasks, reasons of failures and the active time of its runs, and a line with their totals."""
    from retinue.cli.output.live import draw

    screen = console()
    # A pipe has no width, and long lines are not folded.
    width = screen.width if screen.is_terminal else max(120, screen.width)
    ascii_only = not screen.encoding.lower().startswith("utf")
    tree = draw(views, now=time.time(), width=width, height=None, times=times, ascii_only=ascii_only, detailed=True)
    screen.print(tree, width=width, crop=False)
    usage, cost = total(views)
    turns = sum(each.turns for each in views)
    facts = (
        plural(len(views), "run"),
        plural(turns, "turn"),
        f"{tokens_text(usage.input)} in, {count(usage.output)} out",
        "cost unknown" if cost is None else money(cost),
        *unsuccessful(views[1:]),
    )
    answer("; ".join(filter(None, (", ".join(facts), estimate_text(views)))))


async def subtree_of(client: ReadOnlyClient, top: RunView) -> list[RunView]:
    """A run and its descendants, parents first."""
    tree = await client.tree(top.root_id)
    return subtree(top, sorted(tree, key=lambda each: (each.started_at, each.run_id)))


def subtree(top: RunView, views: Sequence[RunView]) -> list[RunView]:
    """A run and its descendants, out of a tree in which parents come before their children."""
    below = {top.run_id}
    chosen = [top]
    for view in views:
        if view.parent_id in below:
            below.add(view.run_id)
            chosen.append(view)
    return chosen


async def cancel_run(name: str) -> int:
    async with open_read_only() as client:
        view = await client.find(name)
        if view.outcome is not None and view.outcome.result != "cancelled":
            raise RunIsOver(view.run_id, view.outcome.result)
        cancelled = await client.cancel(view.run_id, note="cancelled by hand")
    say(f"cancelled {plural(len(cancelled), 'run')}" if cancelled else f"run {view.run_id} was already cancelled")
    return 0


async def prune_runs(older_than: str) -> int:
    before = time.time() - seconds(older_than)
    async with open_read_only() as client:
        removed = await client.prune(PruneRequest(before=before))
    say(f"removed {plural(removed, 'run')} that ended more than {older_than} ago")
    if (notice := unreleased_space()) is not None:
        say(notice)
    return 0
