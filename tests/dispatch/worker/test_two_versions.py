"""A worker of the oldest version that has workers, and one of this version, side by side on one store."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from retinue.core.commands import RunQuery
from retinue.core.events import RunAdopted
from retinue.testing.fake_chat import FakeChat
from tests.dispatch.worker.test_chaos import SETTINGS, Model, right_answer, submitter
from tests.internals import engine_of
from tests.project.repository import ROOT

pytestmark = [pytest.mark.real_time, pytest.mark.stress, pytest.mark.timeout(600)]

WORKER = "src/retinue/dispatch/worker/worker.py"
TREES = 20


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    """The source of the first commit with workers, as a folder for `PYTHONPATH`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs the history of the repository")
    commits = git("log", "--diff-filter=A", "--format=%H", "--", WORKER).decode().split()
    if not commits:
        pytest.skip("the history of the repository is cut off")
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commits[-1], "src"))) as archive:
        archive.extractall(tmp_path / "oldest", filter="data")
    return tmp_path / "oldest" / "src"


def git(*arguments: str) -> bytes:
    command = ("git", "-c", f"safe.directory={ROOT}", *arguments)
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout


@asynccontextmanager
async def worker_process(folder: Path, store: str, source: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A worker at work whose code is in a folder; it is stopped at the end of the block."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    # With a lease that no busy machine exceeds: a worker that is taken for dead has its requests made again.
    options = ("--store", store, "--concurrency", "4", "--lease", "120")
    command = (sys.executable, "-m", "retinue", "worker", *options)
    log = folder / f"log of {source.parent.name}"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stderr=written)
    try:
        while "up to 4 trees" not in log.read_text():
            assert process.returncode is None, log.read_text()
            await asyncio.sleep(0.1)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            await process.wait()


async def test_two_versions_drive_the_trees_of_a_store_side_by_side(
    tmp_path: Path, postgres_url: str, oldest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(1.0)
    async with FakeChat(model) as vendor, AsyncExitStack() as stack:
        (tmp_path / "retinue.toml").write_text(SETTINGS.format(base_url=vendor.base_url))
        # The older one makes the tables, and goes on when the newer one migrates them.
        older = await stack.enter_async_context(worker_process(tmp_path, postgres_url, oldest))
        newer = await stack.enter_async_context(worker_process(tmp_path, postgres_url, ROOT / "src"))
        r = await stack.enter_async_context(submitter(postgres_url, vendor.base_url))
        # Each worker has room for four trees, so both get some as long as these wait for their replies.
        tasks = [f"lead {number}" for number in range(TREES)]
        runs = [await r.spawn(task, agent="lead", tools=(), ceiling=False, detached=True) for task in tasks]
        outcomes = await r.wait(*runs, timeout=300)
        assert (older.returncode, newer.returncode) == (None, None), "no worker has left"
        assert [outcomes[run.run_id].text for run in runs] == [right_answer(number) for number in range(TREES)]
        assert {len(times) for times in model.requested.values()} == {1}, "no request is made twice"
        store = engine_of(r).store
        by_driver, drivers_of_tree = Counter[str](), defaultdict[str, set[str]](set)
        for row in store.runs(RunQuery()):
            found = [event.driver_id for _, event in store.events(row.run_id) if isinstance(event, RunAdopted)]
            by_driver.update(found)
            drivers_of_tree[row.root_id].update(found)
    assert len(by_driver) == 2, "both versions drive runs"
    mixed = sum(len(drivers) == 2 for drivers in drivers_of_tree.values())
    with capsys.disabled():
        print({"runs by driver": sorted(by_driver.values()), "trees driven by both": mixed, "trees": TREES})
