"""Watches the story of `retinue demo` from outside: answers its question, kills its process in the middle, and counts.

All it knows comes from the store and from the notes of the scripted model; it drives nothing itself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from retinue.app.engine_types import RunView
from retinue.app.open import open_read_only
from retinue.app.read_only import ReadOnlyClient
from retinue.cli.demo import story as story
from retinue.cli.demo.screen import DemoScreen, Line, lines
from retinue.cli.demo.worker import log_of
from retinue.cli.output.format import many
from retinue.core.errors import RetinueError
from retinue.core.events import ReplyReceived
from retinue.core.ids import RunId
from retinue.core.inbox import Input
from retinue.providers.scripted import logged_turns

Call: TypeAlias = tuple[str, int]
"""A model call: the path of its run in the tree, and its turn."""


class Count(Struct, frozen=True, kw_only=True):
    """What a crash cost.

    `finished` calls had their answer on disk when the process was killed, `lost` ones were answered but not yet on
    disk. `again` are those that were made a second time although they were finished, `later` counts what was made after
    the crash.
    """

    finished: int
    later: int
    lost: tuple[Call, ...] = ()
    again: tuple[Call, ...] = ()

    def __str__(self) -> str:
        again = ", ".join(f"{path} turn {turn}" for path, turn in self.again)
        lost = f" {many(len(self.lost), 'answer')} came too late to be kept." if self.lost else ""
        return (
            f"{many(self.finished, 'model call')} were finished before the kill; "
            f"{f'made again: {again}' if again else 'none was made again'}.{lost} {self.later} followed."
        )


def count_calls(on_disk: Set[Call], first: Sequence[Call], second: Sequence[Call]) -> Count:
    """Compare what was on disk at the kill with the calls that the model answered in the first and the second process.

    >>> print(count_calls({("root", 1), ("root", 2)}, [("root", 1), ("root", 2)], [("root", 3)]))
    2 model calls were finished before the kill; none was made again. 1 followed.
    >>> print(count_calls({("root", 1), ("root", 2)}, [("root", 1), ("root", 2)], [("root", 2)]))
    2 model calls were finished before the kill; made again: root turn 2. 1 followed.
    """
    twice = [call for process in (first, second) for call in process if process.count(call) > 1]
    return Count(
        finished=len(on_disk),
        later=len(second),
        lost=tuple(sorted(set(first) - on_disk)),
        again=tuple(sorted({*(on_disk & set(second)), *twice})),
    )


PATIENCE = 60.0
"""Seconds after which nobody believes any more that what they wait for will come."""

LOG = "worker.log"

Tree: TypeAlias = Sequence[RunView]

Command: TypeAlias = Callable[[Path, int, float], Sequence[str]]
"""The command line of a process that works: in this folder, in its how manieth life, at this pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds: of a turn, between two looks, for reading a question, and for looking at what was interrupted."""

    turn: float
    look: float
    read: float
    shock: float


TO_FOLLOW = Pace(turn=0.4, look=0.1, read=2.0, shock=3.0)
FAST = Pace(turn=0.03, look=0.02, read=0.0, shock=0.0)


class WentWrong(RetinueError):
    """The story took another course than it should."""


@dataclass(frozen=True, slots=True)
class Played:
    """The tree as it ended, root first, and what was counted."""

    tree: Tree
    count: Count

    def complaints(self) -> list[str]:
        """What should have gone otherwise."""
        failed = [view for view in self.tree if view.outcome is None or not view.outcome.ok]
        wrong = [f"{view.path} {view.state}: {view.outcome.error if view.outcome else ''}" for view in failed]
        if self.count.again:
            wrong.append(f"{many(len(self.count.again), 'model call')} had been answered and came again")
        turns = sum(view.turns for view in self.tree)
        if turns != self.count.finished + self.count.later:
            wrong.append(f"the runs took {turns} turns, which is not what was counted")
        return wrong


def worker_command(home: Path, life: int, pace: float) -> Sequence[str]:
    """The demonstration's own worker."""
    return [sys.executable, "-m", "retinue.cli.demo.worker", str(home), str(life), str(pace)]


async def play(home: Path, screen: DemoScreen, pace: Pace, command: Command = worker_command) -> Played:
    """The whole story, with a process that is killed in the middle and another that goes on."""
    async with open_read_only(home=home) as client:
        watch = Watch(client, screen, pace)
        async with working(command(home, 1, pace.turn), home) as first:
            screen.say(f"Process {first.pid} works on it.\n", style="bold")
            (root, *_) = await watch.until("the question to the user", _asks_the_user, first)
            await watch.moment(pace.read)
            await client.supervisor.post(root.run_id, Input(key="answer", text=story.ANSWER), durable=True)
            await watch.until("the remediation", _is_in_the_middle, first)
            await watch.moment(pace.turn / 2)
            first.kill()
            await first.wait()
        on_disk = await answered(client)
        screen.say(
            f"\nkill -9 {first.pid}: gone in the middle of its work. Nothing was saved by hand.", style="bold yellow"
        )
        await watch.until("the interruption", _is_interrupted)
        await watch.moment(pace.shock)
        async with working(command(home, 2, pace.turn), home) as second:
            screen.say(f"\nProcess {second.pid} finds the tree and goes on with it by itself.\n", style="bold")
            tree = await watch.until("the end", _is_over, second)
            await asyncio.wait_for(second.wait(), PATIENCE)
        return Played(tree, count_calls(on_disk, logged_turns(log_of(home, 1)), logged_turns(log_of(home, 2))))


class Watch:
    """Looks at the only tree of a store again and again, and tells each thing that has happened once."""

    def __init__(self, client: ReadOnlyClient, screen: DemoScreen, pace: Pace) -> None:
        self._archive = client
        self._screen = screen
        self._pace = pace
        self._told: dict[RunId, int] = {}

    async def until(
        self, what: str, holds: Callable[[Tree], bool], worker: asyncio.subprocess.Process | None = None
    ) -> Tree:
        """Watch until something holds; the tree of which it does."""
        until = time.monotonic() + PATIENCE
        while True:
            gone = worker is not None and worker.returncode is not None
            tree = await self._look()
            if tree and holds(tree):
                return tree
            if gone:
                raise WentWrong(f"the process that works has ended before {what}")
            if time.monotonic() > until:
                raise WentWrong(f"waited {PATIENCE:g} s in vain for {what}")
            await asyncio.sleep(self._pace.look)

    async def moment(self, seconds: float) -> None:
        """Watch for a moment."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._look()
            await asyncio.sleep(self._pace.look)

    async def _look(self) -> Tree:
        tree = await tree_of(self._archive)
        news: list[Line] = []
        for view in tree:
            told = lines(view, await self._archive.events(view.run_id))
            news += told[self._told.get(view.run_id, 0) :]
            self._told[view.run_id] = len(told)
        for line in sorted(news, key=lambda each: each.at):
            self._screen.tell(line, since=tree[0].started_at)
        if tree:
            self._screen.show(tree)
        return tree


async def tree_of(client: ReadOnlyClient) -> Tree:
    """All runs of a store that has a single tree, root first."""
    return sorted(await client.list(everyone=True), key=lambda view: (view.started_at, view.run_id))


def _asks_the_user(tree: Tree) -> bool:
    return tree[0].state == "idle"


def _is_in_the_middle(tree: Tree) -> bool:
    return {view.agent for view in tree if view.turns == story.CUT_OFF.get(view.agent, 0) - 1} == {*story.CUT_OFF}


def _is_interrupted(tree: Tree) -> bool:
    return all(view.state == "interrupted" for view in tree if view.outcome is None)


def _is_over(tree: Tree) -> bool:
    return all(view.outcome is not None for view in tree)


@asynccontextmanager
async def working(command: Sequence[str], home: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that is gone when the block ends. It holds the other end of a pipe, and ends when we do."""
    with (home / LOG).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the viewer
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def last_words(home: Path) -> str:
    """What a process that failed has said, if anything."""
    said = (home / LOG).read_text(errors="replace").strip() if (home / LOG).exists() else ""
    return f": {said.splitlines()[-1]}" if said else ""


async def answered(client: ReadOnlyClient) -> set[Call]:
    """The model calls whose answers are in the store."""
    return {
        (view.path, event.turn)
        for view in await tree_of(client)
        for event in await client.events(view.run_id)
        if isinstance(event, ReplyReceived)
    }
