"""Follow a run: a live tree or plain lines on stderr (nothing with `--quiet`), then its outcome on stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol

import msgspec

from retinue.app.engine_types import Approver, RunView
from retinue.app.follow import TreeWatch, failure_text, polled, tree_outcome
from retinue.app.handle import RunHandle
from retinue.app.json_rows import outcome_row
from retinue.app.retinue import Retinue
from retinue.cli.options import ApprovalOptions, Form, OutputOptions
from retinue.cli.output.format import count, elapsed, estimate_text, money, status_of, tokens_text, total, unsuccessful
from retinue.cli.output.plain_lines import PlainLines, Refusals, redrawable
from retinue.cli.output.terminal import INTERRUPTED, answer, answer_json, say, say_text
from retinue.core.ids import RunId
from retinue.core.limit_text import cut_text
from retinue.core.run import Outcome
from retinue.core.text import plural
from retinue.dialects.registry import cancelled_notice

DEFAULT = OutputOptions()


class Followed(NamedTuple):
    """A run that was followed to its end: its outcome, None if it was stopped before.

    `printed` is the text of its last reply, if that was printed while it streamed. With `refused` the root run has
    tried to act, and no such call was allowed or had a sandbox.
    """

    outcome: Outcome | None
    printed: str = ""
    refused: bool = False


async def follow(
    retinue: Retinue,
    root: RunHandle,
    stop: asyncio.Event,
    *,
    approver: Approver = "deny",
    output: OutputOptions = DEFAULT,
    refusals: Refusals | None = None,
    after: int = 0,
) -> Followed:
    """Follow a root run until its whole tree has ended, with progress until then, or until `stop` is set.

    On a terminal the events after number `after` are shown as they come, and the answer is printed as it streams.
    `refusals` has watched the calls since before the run was started.
    """
    watch = TreeWatch(retinue.supervisor, root.run_id, await retinue.tree(root.run_id))
    watch.tasks[root.run_id] = (await retinue.supervisor.replay(root.run_id)).accepted.task
    refusals = refusals or Refusals()
    if output.quiet or output.plain or redrawable() is None:
        printed = ""
        with display(quiet=output.quiet, verbose=output.verbose) as shown:
            _attach(approver, retinue, shown)
            refusals.attach(shown.add)
            async with polled(watch, shown.show):
                outcome = await tree_outcome(retinue, root, stop)
    else:
        outcome, printed = await _stream(retinue, root, stop, watch, refusals, approver, output, after)
    if outcome is not None and (notice := cancelled_notice(await retinue.tree(root.run_id))):
        say(*notice.split("\n"))
    return Followed(outcome, printed, refusals.nothing_was_allowed)


async def _stream(
    retinue: Retinue,
    root: RunHandle,
    stop: asyncio.Event,
    watch: TreeWatch,
    refusals: Refusals,
    approver: Approver,
    output: OutputOptions,
    after: int,
) -> tuple[Outcome | None, str]:
    """The outcome, with text, calls and tree on the terminal; and the text of the last reply, if it was printed."""
    from retinue.cli.output.turn_screen import TurnPrinter, TurnScreen

    with_text = output.form == "text" and not output.structured and sys.stdout.isatty()
    screen = TurnScreen(retinue.supervisor, verbose=output.verbose, with_text=with_text)
    printer = TurnPrinter(screen, verbose=output.verbose)
    refusals.attach(lambda at, line: screen.warn(line), of_root=False)
    _attach(approver, retinue, screen)

    async def read() -> None:
        async for event in retinue.supervisor.events(root.run_id, after=after):
            printer.receive(event)

    reading = asyncio.ensure_future(read())
    try:
        async with polled(watch, screen.show):
            outcome = await tree_outcome(retinue, root, stop)
            if outcome is not None:
                await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        printer.close()
        screen.close()
    if screen.rows and screen.rows[0].outcome is not None:
        screen.note(summary(screen.rows))
        screen.close()
    return outcome, printer.printed if with_text else ""


def _attach(approver: Approver, retinue: Retinue, screen: Screen) -> None:
    """Let an approver on the terminal pause the display for its questions."""
    if callable(approver):
        from retinue.cli.output.approval_prompt import TerminalApprover

        if isinstance(approver, TerminalApprover):
            approver.attach(retinue.supervisor, screen)


def approver_for(options: ApprovalOptions) -> Approver:
    if options.yes:
        return lambda question: True
    if options.mode == "deny":
        return "deny"
    from retinue.app.open import default_home
    from retinue.cli.output.approval_prompt import Announcer, Prompter
    from retinue.cli.output.approved_calls import ApprovedCalls

    return Prompter(ApprovedCalls(default_home())) if options.mode == "ask" else Announcer()


class Screen(Protocol):
    """A display of a tree that can be paused."""

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Show the tree as it stands now, the root first; `tasks` are the tasks of runs as far as they are known."""

    def paused(self) -> AbstractContextManager[None]:
        """Write nothing to the terminal for as long as the block lasts."""
        ...

    async def printed(self, turn: int) -> None:
        """Wait until the root's reply of this turn has been printed, if it is shown as it arrives."""


@contextmanager
def display(*, quiet: bool, verbose: bool) -> Generator[Silent | PlainLines]:
    """The display without a terminal that can be redrawn; at the end of the block a summary of a tree is printed."""
    if quiet:
        yield Silent()
        return
    shows = PlainLines(verbose=verbose)
    yield shows
    if len(shows.rows) > 1 and shows.rows[0].outcome is not None:
        say(summary(shows.rows))


class Silent:
    """The display of `--quiet`."""

    def add(self, at: float, line: str) -> None:
        """Print a line that matters although no progress is printed."""
        say(line)

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        pass

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def printed(self, turn: int) -> None:
        pass


def summary(rows: Sequence[RunView]) -> str:
    """The last line about a tree: its result and its total usage."""
    root = rows[0]
    usage, cost = total(rows)
    facts = [
        status_of(root),
        plural(len(rows), "run"),
        plural(sum(view.turns for view in rows), "turn"),
        f"{tokens_text(usage.input)} in, {count(usage.output)} out",
    ]
    if cost != 0:
        facts.append("cost unknown" if cost is None else money(cost))
    facts.append(elapsed((root.ended_at or root.started_at) - root.started_at))
    facts += unsuccessful(rows[1:])
    return "; ".join(filter(None, (", ".join(facts), estimate_text(rows))))


def print_followed(run_id: RunId, followed: Followed, output: OutputOptions, *, task: str) -> int:
    """Print what of an outcome was not printed while it streamed; the exit code."""
    if followed.outcome is None:
        return print_interrupted(run_id)
    code = print_outcome(run_id, followed.outcome, output.form, task=task, printed=followed.printed)
    if followed.refused and code == 0:
        say("no call that acts was made: each was refused, or had no sandbox (exit status 1)")
        return 1
    return code


def print_outcome(run_id: RunId, outcome: Outcome, form: Form = "text", *, task: str = "", printed: str = "") -> int:
    """Print the answer on stdout and everything else about the outcome on stderr; the exit code.

    The text `printed` is on the terminal already.
    """
    if form == "json":
        answer_json(outcome_row(run_id, task, outcome))
    elif outcome.ok and form != "sse" and not (printed and printed == outcome.text):
        answer(_answer(outcome))
    if not outcome.ok:
        say(failure_text(outcome))
        if outcome.text and form not in ("json", "sse") and printed != outcome.text:
            say("the answer so far:")
            say_text(outcome.text)
    print_notes(outcome)
    return 0 if outcome.ok else 1


def print_notes(outcome: Outcome) -> None:
    """Print on stderr what may be wrong with an answer, its sources, and calls that go on."""
    if outcome.ok and outcome.reason == "length" and outcome.limit is not None:
        say(f"note: the answer may be incomplete: it was {cut_text(outcome.limit)}")
    elif outcome.ok and outcome.reason in ("length", "refusal"):
        say(f"note: the model ended with {outcome.reason!r}, so the answer may be incomplete")
    if outcome.citations:
        from retinue.app.transcript import source_lines  # imported late: few answers name sources

        for line in ("sources:", *source_lines(outcome.citations)):
            say(line)
    if outcome.unstopped:
        say(f"warning: tool calls that could not be stopped: {', '.join(outcome.unstopped)}")


def _answer(outcome: Outcome) -> str:
    return outcome.text if outcome.structured is None else msgspec.json.encode(outcome.structured).decode()


def print_interrupted(run_id: RunId) -> int:
    """Print how to resume a stopped run; the exit code."""
    say(f"interrupted; go on with: retinue runs resume {run_id}")
    return INTERRUPTED
