"""Follow a run: a live tree or plain lines on stderr (nothing with `--quiet`), then its outcome on stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import TYPE_CHECKING, Protocol

import msgspec

from retinue.app.engine_types import Approver, RunView
from retinue.app.follow import TreeWatch, failure_text, polled, tree_outcome
from retinue.app.handle import RunHandle
from retinue.app.json_rows import outcome_row
from retinue.app.retinue import Retinue
from retinue.cli.options import ApprovalOptions, Form, OutputOptions
from retinue.cli.output.format import count, elapsed, money, name_of, one_line, status_of, tokens, total
from retinue.cli.output.terminal import INTERRUPTED, answer, answer_json, can_redraw, console, say, say_text
from retinue.core.ids import RunId
from retinue.core.limit_text import cut_text
from retinue.core.run import Outcome
from retinue.core.text import plural
from retinue.dialects.registry import cancelled_notice
from retinue.telemetry import logs

if TYPE_CHECKING:
    from rich.console import Console

    from retinue.cli.output.live import LiveTree

DEFAULT = OutputOptions()


async def follow(
    retinue: Retinue,
    root: RunHandle,
    stop: asyncio.Event,
    *,
    approver: Approver = "deny",
    output: OutputOptions = DEFAULT,
) -> Outcome | None:
    """The outcome of a root run once its whole tree has ended, with progress until then; None if stopped before."""
    watch = TreeWatch(retinue.supervisor, root.run_id, await retinue.tree(root.run_id))
    watch.tasks[root.run_id] = (await retinue.supervisor.replay(root.run_id)).accepted.task
    with display(quiet=output.quiet, verbose=output.verbose) as screen:
        if callable(approver):
            from retinue.cli.output.approval_prompt import TerminalApprover

            if isinstance(approver, TerminalApprover):  # it pauses the display for its questions
                approver.attach(retinue.supervisor, screen)
        async with polled(watch, screen.show):
            outcome = await tree_outcome(retinue, root, stop)
    if outcome is not None and (notice := cancelled_notice(await retinue.tree(root.run_id))):
        say(*notice.split("\n"))
    return outcome


def approver_for(options: ApprovalOptions) -> Approver:
    if options.yes:
        return lambda question: True
    if options.mode == "deny":
        return "deny"
    from retinue.cli.output.approval_prompt import Announcer, Prompter

    return Prompter() if options.mode == "ask" else Announcer()


class Screen(Protocol):
    """A display of a tree that can be paused."""

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Show the tree as it stands now, the root first; `tasks` are the tasks of runs as far as they are known."""

    def paused(self) -> AbstractContextManager[None]:
        """Write nothing to the terminal for as long as the block lasts."""
        ...


@contextmanager
def display(*, quiet: bool, verbose: bool) -> Generator[Screen]:
    """The display that fits stderr; at the end of the block a live tree disappears and a summary line is printed."""
    if quiet:
        yield Silent()
        return
    shows: PlainLines | LiveTree
    if (screen := redrawable()) is None:
        shows = PlainLines(verbose=verbose)
        yield shows
        worth_a_line = len(shows.rows) > 1
    else:
        from retinue.cli.output.live import LiveTree

        with LiveTree(screen, verbose=verbose) as shows:
            yield shows
        worth_a_line = len(shows.rows) > 0
    if worth_a_line and shows.rows[0].outcome is not None:
        say(summary(shows.rows))


def redrawable() -> Console | None:
    """The terminal behind stderr, if a tree can be redrawn on it. Rich is not loaded for a pipe."""
    # Log lines and a tree that is redrawn in place would overwrite each other.
    if not sys.stderr.isatty() or logs.is_on(os.environ):
        return None
    screen = console(stderr=True)
    return screen if can_redraw(screen) else None


class Silent:
    """The display of `--quiet`."""

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        pass

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class PlainLines:
    """One line for the start of a run, for each turn and for its end; `verbose` adds the task."""

    def __init__(self, *, verbose: bool = False, write: Callable[[str], None] = say) -> None:
        self._verbose = verbose
        self._write = write
        self._turns: dict[RunId, int] = {}
        self._ended: set[RunId] = set()
        self._paused = False
        self.rows: Sequence[RunView] = ()

    @contextmanager
    def paused(self) -> Generator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Write what is new since the last call, in chronological order."""
        self.rows = rows
        if self._paused:
            return
        news = [line for view in rows for line in self._news(view, tasks.get(view.run_id, ""))]
        for _, line in sorted(news, key=lambda each: each[0]):
            self._write(line)

    def _news(self, view: RunView, task: str) -> Iterator[tuple[float, str]]:
        name = name_of(view)
        ended = view.ended_at if view.ended_at is not None else inf
        if view.run_id not in self._turns:
            self._turns[view.run_id] = 0
            asked = f": {one_line(task)}" if self._verbose and task else ""
            yield view.started_at, f"{name}: started, run {view.run_id}{asked}"
        if view.turns > self._turns[view.run_id]:
            self._turns[view.run_id] = view.turns
            yield ended, f"{name}: turn {view.turns}, {_spent(view)}"
        if view.outcome is not None and view.run_id not in self._ended:
            self._ended.add(view.run_id)
            took = elapsed((view.ended_at or view.started_at) - view.started_at)
            yield ended, f"{name}: {status_of(view)}, {plural(view.turns, 'turn')}, {_spent(view)}, {took}"


def _spent(view: RunView) -> str:
    cost = "" if view.cost in (None, 0) else f", {money(view.cost)}"
    return f"{tokens(view.usage.total)}{cost}"


def summary(rows: Sequence[RunView]) -> str:
    """The last line about a tree: its result and its total usage."""
    root = rows[0]
    usage, cost = total(rows)
    facts = [
        status_of(root),
        plural(len(rows), "run"),
        plural(sum(view.turns for view in rows), "turn"),
        f"{tokens(usage.input)} in, {count(usage.output)} out",
    ]
    if cost != 0:
        facts.append("cost unknown" if cost is None else money(cost))
    facts.append(elapsed((root.ended_at or root.started_at) - root.started_at))
    return ", ".join(facts)


def print_outcome(run_id: RunId, outcome: Outcome, form: Form = "text", *, task: str = "") -> int:
    """Print the answer on stdout and everything else about the outcome on stderr; the exit code."""
    if form == "json":
        answer_json(outcome_row(run_id, task, outcome))
    elif outcome.ok and form != "sse":
        answer(_answer(outcome))
    if not outcome.ok:
        say(failure_text(outcome))
        if outcome.text and form not in ("json", "sse"):
            say("the answer so far:")
            say_text(outcome.text)
    print_notes(outcome)
    return 0 if outcome.ok else 1


def print_notes(outcome: Outcome) -> None:
    """Print on stderr what may be wrong with an answer, and calls that go on."""
    if outcome.ok and outcome.reason == "length" and outcome.limit is not None:
        say(f"note: the answer may be incomplete: it was {cut_text(outcome.limit)}")
    elif outcome.ok and outcome.reason in ("length", "refusal"):
        say(f"note: the model ended with {outcome.reason!r}, so the answer may be incomplete")
    if outcome.unstopped:
        say(f"warning: tool calls that could not be stopped: {', '.join(outcome.unstopped)}")


def _answer(outcome: Outcome) -> str:
    return outcome.text if outcome.structured is None else msgspec.json.encode(outcome.structured).decode()


def print_interrupted(run_id: RunId) -> int:
    """Print how to resume a stopped run; the exit code."""
    say(f"interrupted; go on with: retinue runs resume {run_id}")
    return INTERRUPTED
