"""Many runs in one process: its memory, the time of a run and the size of the store stay flat, with pruning on."""

import gc
import sys
import time
from pathlib import Path

import pytest

from retinue.app.open import open as open_retinue
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import PruneRequest, Publish, Request
from retinue.core.usage import Usage

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc"),
]

PARALLEL = 50
TENTHS = 10


class Echo:
    """A provider that answers at once and keeps nothing."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        return Reply(AssistantMessage(text="done"), usage=Usage(10, 1), cost=1)


def resident_kb() -> int:
    """The memory of this process in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise LookupError("VmRSS")


async def soak(home: Path, runs: int) -> tuple[list[int], list[float], list[int]]:
    """After each tenth of the runs: the memory in KiB, the processor's time of a run, and the bytes of the store."""
    memory: list[int] = []
    times: list[float] = []
    sizes: list[int] = []
    path = home / "retinue.db"
    async with open_retinue(provider=Echo(), home=home, dialects=()) as retinue:
        for _ in range(TENTHS):
            began = time.process_time()
            for _ in range(runs // TENTHS // PARALLEL):
                handles = [await retinue.spawn("Say it.") for _ in range(PARALLEL)]
                for handle in handles:
                    assert (await handle.wait()).text == "done"
            await retinue.supervisor.prune(PruneRequest(before=time.time()))
            gc.collect()
            memory.append(resident_kb())
            times.append((time.process_time() - began) / (runs / TENTHS))
            sizes.append(path.stat().st_size)
    return memory, times, sizes


def report(memory: list[int], times: list[float], sizes: list[int]) -> str:
    rows = zip(memory, times, sizes, strict=True)
    return "; ".join(f"{kb // 1024} MiB, {1e6 * each:.0f} us, {size // 1000} kB" for kb, each, size in rows)


async def test_memory_time_and_file_stay_flat_over_many_runs(tmp_path: Path, stress: bool) -> None:
    # The first tenth warms up caches, so it is not compared.
    memory, times, sizes = await soak(tmp_path, 1_000_000 if stress else 2_000)
    found = report(memory, times, sizes)
    print(found, file=sys.stderr)

    assert max(memory[1:]) <= 1.1 * memory[1], found
    if stress:
        assert max(times[2:]) <= 1.5 * min(times[1:]), found
    assert max(sizes[1:]) <= 2 * sizes[1] + 1_000_000, found
