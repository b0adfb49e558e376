"""Many unfinished runs are taken over without a read of the store for each of them."""

import asyncio
import time
from pathlib import Path

import pytest

import retinue
from bench.many_runs import fill
from retinue.core.commands import RunQuery
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import Publish, Request
from retinue.engine.journal_writer import Journal
from retinue.store.sqlite import SqliteStore


class Answers:
    """A model that answers at once; `first` is set by the first request."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.asked: list[str] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.first.set()
        self.asked.append(request.run_id)
        return Reply(AssistantMessage("It was the pool."))


async def reads_of_resume(folder: Path, runs: int, per_tree: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make a store with so many unfinished runs, take them over, and wait for all; the reads that it took."""
    store = SqliteStore(folder / f"{runs}-{per_tree}.db", threaded=False)
    run_ids = fill(store, runs, per_tree=per_tree, unfinished=runs)
    reads = 0
    read = Journal.read

    async def counted(self: Journal, *args: object, **kwargs: object) -> object:
        nonlocal reads
        reads += 1
        return await read(self, *args, **kwargs)  # pyright: ignore[reportArgumentType, reportUnknownVariableType, reportCallIssue]

    model = Answers()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "read", counted)
        async with retinue.open(providers={"openai-chat": model}, dialects=(), store=store, adopt=True) as r:
            taken = reads
            await r.wait(*run_ids)
    assert sorted(model.asked) == sorted(run_ids)
    return taken


async def test_a_tree_is_taken_over_with_the_same_reads_however_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = [await reads_of_resume(tmp_path, size, size, monkeypatch) for size in (10, 200)]

    assert many == few


async def test_the_reads_of_many_trees_follow_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = [await reads_of_resume(tmp_path, size, 1, monkeypatch) for size in (10, 100)]

    assert many <= few + 90 * 5


@pytest.mark.stress
@pytest.mark.real_time
@pytest.mark.timeout(900)
@pytest.mark.parametrize("per_tree", [10_000, 10, 1])
async def test_ten_thousand_unfinished_runs_begin_within_seconds(per_tree: int, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "retinue.db")
    fill(store, 10_000, per_tree=per_tree, unfinished=10_000)
    assert store.count(RunQuery(unfinished_only=True)) == 10_000
    model = Answers()

    began: list[tuple[float, float]] = []

    async def watch() -> None:
        await model.first.wait()
        began.append((time.monotonic(), time.process_time()))

    opened = time.monotonic(), time.process_time()
    watching = asyncio.create_task(watch())
    async with retinue.open(providers={"openai-chat": model}, dialects=(), store=store, adopt=True):
        await watching
    wall, cpu = (now - before for now, before in zip(began[0], opened, strict=True))

    print(f"{per_tree} runs a tree: the first model call after {wall:.2f} s, {cpu:.2f} s of CPU")
    assert cpu < 6.0  # 2 s on a quiet machine
