"""The part of the daemon that continues runs, in virtual time: when, how often, and how many at once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from retinue.config.store import StoreSettings
from retinue.dispatch.daemon.runs import FIRST_DELAY, GRACE, MAX_ATTEMPTS, POLL, RunsDaemon, UnfinishedTree, make_launch
from retinue.dispatch.processes import Processes
from retinue.testing.virtual_time import VirtualClock


def tree(root_id: str, *, started_at: float = 0.0, is_driven: bool = False) -> UnfinishedTree:
    return UnfinishedTree(root_id=root_id, approvals="wait", started_at=started_at, is_driven=is_driven)


class RunsHarness:
    """A daemon over trees that the test names; a process takes `seconds`, and finishes its tree if `finishes`."""

    def __init__(
        self, *trees: UnfinishedTree, seconds: float = 0.0, finishes: bool = True, max_running: int = 8
    ) -> None:
        self.clock = VirtualClock()
        self.begin = self.clock.now()
        self.trees = list(trees)
        self.started: list[tuple[str, float]] = []
        self.reported: list[str] = []
        self.at_once = 0
        self._seconds = seconds
        self._finishes = finishes
        self._running = 0
        self.daemon = RunsDaemon(self.read, self.launch, self.reported.append, self.clock.now, max_running=max_running)

    async def read(self) -> list[UnfinishedTree]:
        return self.trees

    async def launch(self, tree: UnfinishedTree) -> None:
        self.started.append((tree.root_id, round(self.clock.now() - self.begin, 3)))
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        await asyncio.sleep(self._seconds)
        self._running -= 1
        if self._finishes:
            self.trees.remove(tree)

    async def run_for(self, seconds: float) -> None:
        running = asyncio.ensure_future(self.daemon.run())
        await asyncio.sleep(seconds)
        self.daemon.stop()
        await running


async def test_a_tree_without_a_process_is_continued_once() -> None:
    harness = RunsHarness(tree("a"), tree("b", is_driven=True), seconds=5.0)

    await harness.run_for(60.0)

    assert (harness.started, harness.reported) == ([("a", 0.0)], [])


async def test_a_new_tree_is_first_left_to_the_process_that_detached_it() -> None:
    harness = RunsHarness()
    harness.trees.append(tree("a", started_at=harness.begin))

    await harness.run_for(60.0)

    assert harness.started == [("a", GRACE)]


async def test_a_tree_whose_process_does_not_finish_it_is_given_up() -> None:
    harness = RunsHarness(tree("a"), finishes=False)

    await harness.run_for(3600.0)

    moments = [FIRST_DELAY * (2**number - 1) for number in range(MAX_ATTEMPTS)]
    assert harness.started == [("a", moment) for moment in moments]
    assert harness.reported == [f"run a: given up after {MAX_ATTEMPTS} attempts; go on with: retinue runs resume a"]


async def test_only_so_many_trees_are_continued_at_once() -> None:
    harness = RunsHarness(*(tree(name) for name in "abcde"), seconds=3 * POLL, max_running=2)

    await harness.run_for(60.0)

    assert ([name for name, _ in harness.started], harness.at_once) == (list("abcde"), 2)


async def test_a_stopped_daemon_waits_for_its_processes() -> None:
    harness = RunsHarness(tree("a"), seconds=30.0)

    await harness.run_for(1.0)

    assert (harness.clock.now() - harness.begin, harness.trees) == (30.0, [])


async def test_a_process_that_cannot_be_started_is_one_line_with_a_quoted_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))
    processes = Processes()
    await processes.stop()
    reported: list[str] = []

    with caplog.at_level(logging.INFO, logger="retinue.daemon"):
        await make_launch(processes, reported.append, StoreSettings())(tree("a"))

    assert reported == ["run a: not continued: the daemon was stopping"]
    assert caplog.messages == ['event=run_not_continued run_id=a error="the daemon was stopping"']
