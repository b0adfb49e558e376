"""Crashes during a delegation of `zeroclaw`: the next process finds the runs, and every task ends once."""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, RunEnded
from retinue.core.ports import Store
from retinue.providers.scripted import calls, hangs, logged_turns, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.zeroclaw.harness import TASK, ZeroclawHarness, act, delegate, files, header, spawn
from tests.dialects.zeroclaw.killed import asked

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def story(store: Store) -> ZeroclawHarness:
    """A root does all that the two tools can do, and reads what became of it."""
    harness: ZeroclawHarness = ZeroclawHarness(
        together(
            spawn("dig"),
            delegate("reviewer", "review"),
            delegate("writer", "draft", background=True),
            delegate("reviewer", "guard", background=True),
            delegate(None, "both", parallel=["reviewer", "writer"]),
        ),
        lambda _: act("cancel_task", task_id=harness.row_of("guard")),
        lambda _: act("await", task_ids=[harness.row_of("draft"), harness.row_of("guard")]),
        says("Thanks."),
        tasks={
            ("main", "dig"): [calls("look", where="below"), says("Dug.")],
            ("reviewer", "review"): [says("Good.")],
            ("writer", "draft"): [calls("look"), says("Drafted.")],
            ("reviewer", "guard"): [hangs()],
            ("reviewer", "both"): [says("One.")],
            ("writer", "both"): [says("Two.")],
        },
        store=store,
    )
    return harness


def told(harness: ZeroclawHarness) -> list[str]:
    """What the root read, in the order of its calls, with one name for all ids and no moments."""
    returned = [event for event in harness.events(harness.root_row.run_id) if isinstance(event, CallReturned)]
    texts = [event.text for event in sorted(returned, key=lambda event: (event.turn, event.index))]
    return [re.sub(r"2026-01-01T[0-9:]+Z", "NOW", UUID.sub("ID", text)) for text in texts]


@pytest.mark.promise("ZC-KEYED", "ZC-RESUMED")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_crash_after_any_write_changes_nothing_but_the_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_store(name: str) -> Store:
        return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{name}.db")

    def go_to(name: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        monkeypatch.chdir(place)
        return place

    place = go_to("undisturbed")
    undisturbed = story(new_store("undisturbed"))
    async with undisturbed:
        assert (await undisturbed.run(TASK, key="root")).text == "Thanks."
        writes = undisturbed.written
    whole = told(undisturbed)
    assert sorted(str(each["status"]) for each in files(place).values()) == ["Cancelled", "Completed"]

    cut_short = 0
    for n in range(writes + 1):
        place = go_to(f"life {n}")
        harness = story(new_store(str(n)))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        cut_short += any(row.progress.phase != "ended" for row in harness.rows())

        await harness.open(adopt=True)
        assert (await harness.run(TASK, key="root")).text == "Thanks.", n
        await harness.retinue.wait(*(row.run_id for row in harness.rows()))
        await harness.close()

        assert told(harness) == whole, n
        assert len(harness.rows()) == len(undisturbed.rows()), n
        ends = [event for row in harness.rows() for event in harness.events(row.run_id) if isinstance(event, RunEnded)]
        assert len(ends) == len(harness.rows()), n
        said = {(each["status"], each["output"], each["error"]) for each in files(place).values()}
        assert said == {
            ("Completed", f"{header('writer')}\nDrafted.", None),
            ("Cancelled", None, "Cancelled by user request"),
        }, n
        harness.store.close()
    undisturbed.store.close()
    assert cut_short > 20  # so many of these lives ended in the middle of the story


# ---- real processes, really killed ----------------------------------------------------------------------------------


class Polling(threading.Thread):
    """Reads every result file again and again, as an impatient person would, and keeps what was no JSON."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder / "delegate_results"
        self._stopped = threading.Event()
        self.read = 0
        self.broken: list[str] = []
        self.ended: dict[str, str] = {}
        self.changed: list[str] = []

    def run(self) -> None:
        """Wait until the run is stopped."""
        while not self._stopped.wait(0.002):
            for path in self._folder.glob("*.json"):
                text = path.read_text()
                self.read += 1
                try:
                    said = json.loads(text)
                except ValueError:
                    self.broken.append(text)
                    continue
                if self.ended.get(path.stem, text) != text:
                    self.changed.append(path.stem)
                if said["status"] == "Completed":
                    self.ended[path.stem] = text

    def stop(self) -> None:
        """Enough."""
        self._stopped.set()
        self.join()


def begin(folder: Path, tasks: int, how: str) -> subprocess.Popen[str]:
    """A life of the process."""
    command = [sys.executable, "-m", "tests.dialects.zeroclaw.killed", str(folder), str(tasks), how]
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)


@pytest.mark.real_time
@pytest.mark.promise("ZC-RESUMED", "ZC-FILE-ATOMIC", "ZC-ONCE")
@pytest.mark.parametrize("moment", ["while they are handed out", "while they work"])
def test_two_hundred_tasks_survive_a_kill_and_each_ends_once(tmp_path: Path, moment: str) -> None:
    tasks = 200
    polling = Polling(tmp_path)
    polling.start()
    first = begin(tmp_path, tasks, "begin")
    assert first.stdout is not None
    if moment == "while they work":
        assert first.stdout.readline() == "handed out\n"
    else:
        folder = tmp_path / "delegate_results"
        while first.poll() is None and len(list(folder.glob("*.json"))) < tasks // 4:
            threading.Event().wait(0.001)
    first.kill()
    first.wait()
    first.stdout.close()
    at_the_kill = Counter(str(each["status"]) for each in files(tmp_path).values())

    second = begin(tmp_path, tasks, "go on")
    assert second.wait(120) == 0
    assert second.stdout is not None
    second.stdout.close()
    polling.stop()

    store = SqliteStore(tmp_path / "store.db")
    rows = [row for row in store.runs(RunQuery()) if row.agent == "worker"]
    ends = [sum(isinstance(event, RunEnded) for _, event in store.events(row.run_id)) for row in rows]
    store.close()
    assert at_the_kill["Running"] > 0
    assert (len(rows), ends) == (tasks, [1] * tasks)
    written = files(tmp_path)
    assert {row.run_id for row in rows} == set(written)
    outputs = sorted(str(each["output"]) for each in written.values())
    assert outputs == [f"[Agent 'worker' (custom/m)]\ndone {asked(number)}" for number in range(tasks)]
    assert {str(each["status"]) for each in written.values()} == {"Completed"}
    last_answers = Counter(path for path, turn in logged_turns(tmp_path / "answered.log") if turn == 2)
    assert (polling.broken, polling.changed, polling.read > tasks) == ([], [], True)
    assert max(last_answers.values()) <= 2  # what was answered and not yet stored is asked for once more, no oftener
