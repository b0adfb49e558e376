"""The commands of `retinue runs` that need no model: list, show, tree, cancel and prune."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from retinue.app.engine_types import RunView
from retinue.app.follow import NO_TIMES, times_of
from retinue.app.json_rows import run_row, usage_row
from retinue.app.open import open_read_only
from retinue.app.store_files import unreleased_space
from retinue.cli.output.format import count, elapsed, moment, money, name_of, seconds, short, status_of, tokens, total
from retinue.cli.output.table import Column, print_table
from retinue.cli.output.terminal import HEADING, answer, answer_json, console, say
from retinue.cli.output.transcript import entries, headed
from retinue.core.errors import RunIsOver
from retinue.core.ids import RunId
from retinue.core.ports import PruneRequest
from retinue.core.text import plural
from retinue.core.usage import dollars

LONGEST = 20_000
"""Characters of one text that `show` prints; `--json` prints all."""

LISTED = 1_000
"""Runs that a list has unless a limit is given: a store may hold millions."""

COLUMNS: list[Column[RunView]] = [
    Column(title="ID", cell=lambda view: short(view.run_id), piped=lambda view: view.run_id, style="cyan"),
    Column(title="AGENT", cell=lambda view: name_of(view), shrinks=True),
    Column(title="STATE", cell=status_of),
    Column(title="TURNS", cell=lambda view: str(view.turns), right=True, least_width=50),
    Column(title="TOKENS", cell=lambda view: count(view.usage.total), right=True, least_width=60),
    Column(title="COST", cell=lambda view: money(view.cost), right=True, least_width=70),
    Column(title="DIALECT", cell=lambda view: view.dialect or "-", least_width=100),
    Column(title="STARTED", cell=lambda view: moment(view.started_at), least_width=80),
]


async def list_runs(*, all_runs: bool, session: str | None, limit: int | None, json: bool) -> int:
    async with open_read_only() as client:
        views = await client.list(everyone=all_runs, session=session, limit=limit or LISTED + 1)
        has_more = limit is None and len(views) > LISTED
        views = views[:LISTED] if has_more else views
        times = NO_TIMES if json else await times_of(client, views, now=time.time())
    if json:
        answer_json([run_row(view) for view in views])
    elif views:
        took: Column[RunView] = Column(
            title="TOOK",
            cell=lambda view: elapsed(times[view.run_id]) if view.run_id in times else "?",
            least_width=110,
        )
        print_table(views, [*COLUMNS, took])
    else:
        say("no runs yet; start one with: retinue run PROMPT")
    if has_more:
        say(f"these are the newest {LISTED} runs; --limit N lists more")
    return 0


async def show_run(name: str, *, json: bool) -> int:
    async with open_read_only() as client:
        view = await client.find(name)
        events = await client.events(view.run_id)
        run = await client.replay(view.run_id)
    conversation = entries(events)
    # An unfinished run has its last text.
    text = view.outcome.text if view.outcome is not None else run.text
    if json:
        error = view.outcome.error if view.outcome is not None else ""
        more = {"model": run.run_spec.model, "provider": run.run_spec.provider, "text": text, "error": error}
        answer_json(run_row(view) | more | {"transcript": msgspec.to_builtins(conversation)})
        return 0
    screen = console()
    screen.print(f"run {view.run_id}", style="bold", soft_wrap=True)
    screen.print(f"{name_of(view)}, {status_of(view)}, {moment(view.started_at)}, model {run.run_spec.model}")
    for heading, body in headed(conversation):
        screen.print()
        screen.print(f"{HEADING}{heading}", style="cyan", soft_wrap=True)
        for line in body[:LONGEST].split("\n"):
            screen.print(line, soft_wrap=True)
        if len(body) > LONGEST:
            screen.print(f"[{len(body) - LONGEST} more characters; --json has all]", soft_wrap=True)
    if view.state == "interrupted":
        screen.print()
        notice = f"{HEADING}interrupted; go on with: retinue runs resume {view.run_id}"
        screen.print(notice, style="yellow", soft_wrap=True)
    return 0


async def show_tree(name: str, *, json: bool) -> int:
    """Print a tree with the usage of each run and of all together."""
    async with open_read_only() as client:
        view = await client.find(name)
        tree = await client.tree(view.root_id)
        times = NO_TIMES if json else await times_of(client, tree, now=time.time())
    views = subtree(view, sorted(tree, key=lambda each: (each.started_at, each.run_id)))
    if json:
        usage, cost = total(views)
        totals = {"runs": len(views), "usage": usage_row(usage), "cost": dollars(cost)}
        answer_json({"run_id": view.run_id, "runs": [run_row(each) for each in views], "total": totals})
        return 0
    print_tree(views, times)
    return 0


def print_tree(views: Sequence[RunView], times: Mapping[RunId, float] = NO_TIMES) -> None:
    """Print a tree, with the active time of its runs, and a line with their total usage."""
    from retinue.cli.output.live import draw

    screen = console()
    # A pipe has no width, and long lines are not folded.
    width = screen.width if screen.is_terminal else max(120, screen.width)
    ascii_only = not screen.encoding.lower().startswith("utf")
    tree = draw(views, now=time.time(), width=width, height=len(views), times=times, ascii_only=ascii_only)
    screen.print(tree, width=width, crop=False)
    usage, cost = total(views)
    turns = sum(each.turns for each in views)
    answer(
        f"{plural(len(views), 'run')}, {plural(turns, 'turn')}, {tokens(usage.input)} in, {count(usage.output)} out, "
        f"{'cost unknown' if cost is None else money(cost)}"
    )


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
