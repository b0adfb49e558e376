"""`retinue runs follow` and `retinue runs wait`: attach to runs that any process drives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retinue.app.attach import ends, stored_events
from retinue.app.json_rows import event_row
from retinue.app.open import open_read_only
from retinue.app.transcript import RunEntries
from retinue.cli.output.format import name_of, short, status_of
from retinue.cli.output.terminal import answer_lines, console, json_line, say, write
from retinue.cli.output.transcript import headed
from retinue.cli.runs.list_show import find_run, print_entry
from retinue.core.events import TreeEvent
from retinue.core.ids import RunId
from retinue.core.messages import Delta

if TYPE_CHECKING:
    from retinue.app.engine_types import RunView


async def follow_run(name: str, *, within: str | None, tree: bool, json: bool) -> int:
    """Print the events of a run as they are stored; the exit code is 0 if the run completed."""
    async with open_read_only() as client:
        top = await find_run(client, name, within)
        show = print_json if json else _Pages(tree=tree).show
        async for event in stored_events(client, top, tree=tree):
            show(event)
        return _exit_code(await client.look(top.run_id))


async def wait_for_runs(names: Sequence[str]) -> int:
    """Print a line for each run when it has ended; the exit code is 0 if all completed."""
    codes: list[int] = []
    async with open_read_only() as client:
        run_ids: list[RunId] = [(await client.find(name)).run_id for name in names]
        async for view in ends(client, run_ids):
            answer_lines(f"{view.run_id} {status_of(view)}")
            codes.append(_exit_code(view))
    return max(codes)


def _exit_code(view: RunView) -> int:
    if view.outcome is None:
        say(f"run {view.run_id} is interrupted; go on with: retinue runs resume {view.run_id}")
        return 1
    return 0 if view.outcome.ok else 1


def print_json(item: TreeEvent) -> None:
    write(json_line(event_row(item)))


class _Pages:
    """Events as the entries of conversations; with `tree` each heading names its run."""

    def __init__(self, *, tree: bool) -> None:
        self._tree = tree
        self._screen = console()
        self._conversations: dict[RunId, RunEntries] = {}

    def show(self, item: TreeEvent) -> None:
        if isinstance(item.event, Delta):
            return  # the whole reply follows
        conversation = self._conversations.setdefault(item.run, RunEntries())
        for heading, body in headed(conversation.entries(item.event)):
            name = f"{name_of(item)} {short(item.run)}: " if self._tree else ""
            print_entry(self._screen, f"{name}{heading}", body, longest=None)
