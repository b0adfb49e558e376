"""`retinue demo` on the screen: answers the question, kills the worker process, and compares the model calls."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from rich.console import Console
from rich.text import Text

from retinue.app.engine_types import RunView
from retinue.app.open import open_read_only
from retinue.app.read_only import ReadOnlyClient
from retinue.app.transcript import TranscriptEntry, entries
from retinue.cli.demo import story
from retinue.cli.demo.story import log_of
from retinue.cli.output.format import elapsed, money, name_of, one_line, status_of, tokens_text
from retinue.cli.output.live import LiveTree
from retinue.cli.output.terminal import can_redraw, console
from retinue.core.errors import RetinueError
from retinue.core.events import Event, ReplyReceived, RunAdopted
from retinue.core.ids import RunId
from retinue.core.inbox import Input
from retinue.core.text import plural
from retinue.providers.scripted import logged_turns

PATIENCE = 60.0
"""Seconds to wait for each part of the story."""

OUTPUT = "worker.log"
"""The file of the workers' output."""

USER = "user"
NAME_WIDTH = 15
LONGEST = 160
"""Characters of a line in a pipe."""

TreeViews: TypeAlias = Sequence[RunView]

Call: TypeAlias = tuple[str, int]
"""A model call: the path of its run in the tree, and its turn."""

DemoCommand: TypeAlias = Callable[[Path, int, float], Sequence[str]]
"""The command line of a worker: for a state folder, the number of the process (1 or 2), and a pace."""


class Pace(NamedTuple):
    """Seconds: of a turn, between two looks, to read the question, and to look at the interrupted tree."""

    turn: float
    look: float
    read: float
    crash: float


READABLE = Pace(turn=0.4, look=0.1, read=2.0, crash=3.0)
FAST = Pace(turn=0.03, look=0.02, read=0.0, crash=0.0)


class DemoFailed(RetinueError):
    """The demo did not go as planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The tree at the end, root first, and the model calls: in the store at the kill, and made by each process."""

    tree: TreeViews
    stored: frozenset[Call]
    first: Sequence[Call]
    second: Sequence[Call]

    @property
    def repeated(self) -> list[Call]:
        """Calls that were made again although they were answered."""
        twice = {call for process in (self.first, self.second) for call in process if process.count(call) > 1}
        return sorted(twice | (self.stored & set(self.second)))

    def summary(self) -> str:
        """The model calls before and after the kill.

        >>> one, two, three = ("root", 1), ("root", 2), ("root", 3)
        >>> Played(tree=(), stored=frozenset({one, two}), first=[one, two], second=[two, three]).summary()
        '2 model calls were finished before the kill; made again: root turn 2. 2 followed.'
        """
        again = ", ".join(f"{path} turn {turn}" for path, turn in self.repeated)
        lost = len(set(self.first) - self.stored)
        return (
            f"{plural(len(self.stored), 'model call')} were finished before the kill; "
            + (f"made again: {again}." if again else "none was made again.")
            + (f" {plural(lost, 'answer')} came too late to be kept." if lost else "")
            + f" {len(self.second)} followed."
        )

    def errors(self) -> list[str]:
        failed = [view for view in self.tree if view.outcome is None or not view.outcome.ok]
        errors = [f"{view.path} {view.state}: {view.outcome.error if view.outcome else ''}" for view in failed]
        if self.repeated:
            errors.append(f"{plural(len(self.repeated), 'model call')} were answered and made again")
        turns, made = sum(view.turns for view in self.tree), len(self.stored) + len(self.second)
        if turns != made:
            errors.append(f"the runs have {turns} turns, but {made} model calls were made")
        return errors


def worker_command(home: Path, process: int, pace: float) -> Sequence[str]:
    return [sys.executable, "-m", "retinue.cli.demo.story", str(home), str(process), str(pace)]


async def play(home: Path, screen: DemoScreen, pace: Pace, command: DemoCommand = worker_command) -> Played:
    """Play the whole story, with a process that is killed in the middle and another that resumes its tree."""
    async with open_read_only(home=home) as client:
        watch = TreePoller(client, screen, pace)
        async with running(command(home, 1, pace.turn), home) as first:
            screen.say(f"Process {first.pid} drives the runs.\n", style="bold")
            (root, *_) = await watch.until("the question to the user", lambda tree: tree[0].state == "idle", first)
            await watch.during(pace.read)
            await client.supervisor.post(root.run_id, Input(key="answer", text=story.ANSWER), durable=True)
            await watch.until("the remediation", _is_in_the_middle, first)
            await watch.during(pace.turn / 2)
            first.kill()
            await first.wait()
        stored = await stored_calls(client)
        screen.say(f"\nkill -9 {first.pid}: the process dies in the middle of its work.", style="bold yellow")
        await watch.until("the interruption", _is_interrupted)
        await watch.during(pace.crash)
        async with running(command(home, 2, pace.turn), home) as second:
            screen.say(f"\nProcess {second.pid} adopts the interrupted runs and continues them.\n", style="bold")
            tree = await watch.until("the end", lambda tree: all(view.outcome is not None for view in tree), second)
            await asyncio.wait_for(second.wait(), PATIENCE)
        return Played(
            tree=tree, stored=stored, first=logged_turns(log_of(home, 1)), second=logged_turns(log_of(home, 2))
        )


def _is_in_the_middle(tree: TreeViews) -> bool:
    return {view.agent for view in tree if view.turns == story.CUT_OFF.get(view.agent, 0) - 1} == {*story.CUT_OFF}


def _is_interrupted(tree: TreeViews) -> bool:
    return all(view.state == "interrupted" for view in tree if view.outcome is None)


@asynccontextmanager
async def running(command: Sequence[str], home: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A worker that is killed at the end of the block. It ends by itself when its stdin is closed, as it is with us."""
    with (home / OUTPUT).open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches the viewer alone
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def last_line(home: Path) -> str:
    """The last line of a failed worker's output, after a colon; empty if there is none."""
    text = (home / OUTPUT).read_text(errors="replace").strip() if (home / OUTPUT).exists() else ""
    return f": {text.splitlines()[-1]}" if text else ""


async def stored_calls(client: ReadOnlyClient) -> frozenset[Call]:
    """The model calls whose replies are in the store."""
    events = [(view, event) for view in await client.list(everyone=True) for event in await client.events(view.run_id)]
    return frozenset((view.path, event.turn) for view, event in events if isinstance(event, ReplyReceived))


class TreePoller:
    """Polls the only tree of a store, and shows each new event once."""

    def __init__(self, client: ReadOnlyClient, screen: DemoScreen, pace: Pace) -> None:
        self._client = client
        self._screen = screen
        self._pace = pace
        self._shown: dict[RunId, int] = {}

    async def until(
        self, what: str, holds: Callable[[TreeViews], bool], worker: asyncio.subprocess.Process | None = None
    ) -> TreeViews:
        """Watch until `holds`; the tree of which it does. Raises if the worker ends before, or after `PATIENCE`."""
        until = time.monotonic() + PATIENCE
        while True:
            gone = worker is not None and worker.returncode is not None
            tree = await self._look()
            if tree and holds(tree):
                return tree
            if gone:
                raise DemoFailed(f"the worker process ended before {what}")
            if time.monotonic() > until:
                raise DemoFailed(f"{what} did not happen within {PATIENCE:g} s")
            await asyncio.sleep(self._pace.look)

    async def during(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._look()
            await asyncio.sleep(self._pace.look)

    async def _look(self) -> TreeViews:
        views = await self._client.list(everyone=True)
        tree = sorted(views, key=lambda view: (view.started_at, view.run_id))
        new: list[StoryLine] = []
        for view in tree:
            lines = list(lines_of(view, await self._client.events(view.run_id)))
            new += lines[self._shown.get(view.run_id, 0) :]
            self._shown[view.run_id] = len(lines)
        for line in sorted(new, key=lambda each: each.at):
            self._screen.print_line(line, since=tree[0].started_at)
        if tree:
            self._screen.show(tree)
        return tree


class StoryLine(NamedTuple):
    """An event of the story: its time, its author and the text."""

    at: float
    author: str
    text: str


def lines_of(view: RunView, events: Iterable[Event]) -> Iterator[StoryLine]:
    """The transcript of a run in short lines, without calls that only look, as `status` and `list_keys` do."""
    name, turn = name_of(view), 0
    for event in events:
        if isinstance(event, RunAdopted):
            yield StoryLine(event.at, name, f"continues after turn {turn} in another process")
        conversation = entries([event])
        calls = [entry for entry in conversation if entry.kind == "call"]
        yield from (StoryLine(event.at, name, text) for text in _calls(calls))
        for entry in conversation:
            turn = entry.turn or turn
            match entry.kind:
                case "task" if view.parent_id is None:  # the task of a child is in the line of its parent
                    yield StoryLine(event.at, USER, entry.text)
                case "words" if entry.name == "caller":
                    yield StoryLine(event.at, USER, entry.text)
                case "reply" if entry.text and not calls and not entry.failed:
                    yield StoryLine(event.at, name, f"says: {entry.text}")
                case "result" if entry.failed:
                    yield StoryLine(event.at, name, f"gets an error: {entry.text}")
                case "error":
                    yield StoryLine(event.at, name, f"model call failed: {entry.text}")
                case "end" if entry.failed:
                    yield StoryLine(event.at, name, entry.text)
                case _:
                    pass


_TEXTS = {
    ("shared_context", "write"): "shares {key}: {value}",
    ("shared_context", "delete"): "deletes {key}",
    ("subagent", "define"): "defines a new agent, {name}: {description}",
    ("subagent", "spawn"): "spawns {agent}: {task}",
    ("subagent", "collect"): "collects {task_id}",
}


def _calls(calls: Sequence[TranscriptEntry]) -> Iterator[str]:
    """The calls of one turn; all reads are one line."""
    parsed = [(call.name, msgspec.json.decode(call.text, type=dict[str, Any])) for call in calls]
    if keys := [str(arguments["key"]) for name, arguments in parsed if (name, arguments.get("action")) == _READ]:
        yield f"reads {', '.join(keys)}"
    for name, arguments in parsed:
        if name not in ("shared_context", "subagent"):
            yield f"calls {name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        elif text := _TEXTS.get((name, str(arguments.get("action")))):
            yield text.format_map(arguments)


_READ = ("shared_context", "read")


class DemoScreen:
    """Lines on a console above a live tree; `live` is None if the console cannot be redrawn."""

    def __init__(self, screen: Console, live: LiveTree | None) -> None:
        self._screen = screen
        self._live = live
        self._statuses: dict[RunId, str] = {}

    def say(self, text: str, *, style: str = "") -> None:
        for line in text.split("\n"):
            self._screen.print(line, style=style or None, soft_wrap=not self._screen.is_terminal)

    def print_line(self, line: StoryLine, *, since: float) -> None:
        """Print a line of the story, cut to the width of the terminal."""
        start = f"{elapsed(line.at - since):>6}  "
        room = self._screen.width - len(start) - NAME_WIDTH - 2 if self._screen.is_terminal else LONGEST
        text = Text(start, style="dim")
        text.append(f"{line.author:<{NAME_WIDTH}}  ", style="bold magenta" if line.author == USER else "cyan")
        text.append(one_line(line.text, max(1, room)), style="not dim")
        self._screen.print(text, soft_wrap=True)

    def show(self, views: Sequence[RunView]) -> None:
        """Draw the tree; without a live tree, print a line for each run that was interrupted or has ended."""
        if self._live is not None:
            self._live.show(views)
            return
        for view in views:
            status = status_of(view)
            if self._statuses.get(view.run_id) != status and (view.outcome is not None or status == "interrupted"):
                spent = f"{plural(view.turns, 'turn')}, {tokens_text(view.usage.total)}, {money(view.cost)}"
                self.say(f"        {name_of(view):<{NAME_WIDTH}}  {status}: {spent}")
            self._statuses[view.run_id] = status


@contextmanager
def demo_screen() -> Generator[DemoScreen]:
    """The screen on stdout; at the end of the block a live tree disappears, and the lines stay."""
    screen = console()
    if not (sys.stdout.isatty() and can_redraw(screen)):
        yield DemoScreen(screen, None)
        return
    with LiveTree(screen, gap=1) as live:
        yield DemoScreen(screen, live)
