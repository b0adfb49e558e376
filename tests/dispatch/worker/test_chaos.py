"""Workers that are killed, suspended and cut off from the store: every tree ends with its right answer.

Real worker processes drive trees of four runs, spread over them, with a fake model behind HTTP. `make stress` runs it
with hundreds of trees and prints its figures.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.events import ReplyReceived, RunAccepted, RunAdopted, RunLeft
from retinue.providers.catalog import ProviderConfig
from retinue.providers.scripted import Line, calls, says, together
from retinue.store.postgres import PostgresStore
from retinue.testing.fake_chat import FakeChat, response_for
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.conftest import STRESS
from tests.postgres import PostgresServer, running_server

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped and continued by signals"),
]

WORKERS = 3
LEASE = 2.0
CHILDREN = 3
THINKING = 0.15
"""Seconds that the model needs for a reply, so that workers die in the middle of one."""

SETTINGS = """
model = "house:fake-1"
[providers.house]
wire = "openai-chat"
base_url = "{base_url}"
[agents.lead]
description = "Leads."
tools = []
[agents.digger]
description = "Digs."
tools = []
placement = "anywhere"
"""


class Model:
    """The fake model: plays leads and diggers by their tasks, and notes when each turn of each run was requested."""

    def __init__(self) -> None:
        self.requested: dict[tuple[str, int], list[float]] = defaultdict(list)

    def __call__(self, request: ReceivedRequest) -> FakeResponse:
        messages = request.body["messages"]
        task = next(message["content"] for message in messages if message["role"] == "user")
        turn = 1 + sum(message["role"] == "assistant" for message in messages)
        self.requested[task, turn].append(time.time())
        number = task.split()[1]
        if task.startswith("dig"):
            return thinking(says(f"gold {number}"), request)
        if turn == 1:
            parts = [calls("run_agent", task=f"dig {number}/{part}", agent="digger") for part in range(CHILDREN)]
            return thinking(together(*parts), request)
        results = " ".join(str(each["content"]) for each in messages if each["role"] == "tool")
        return thinking(says(answer(number, re.findall(r"gold [0-9/]+", results))), request)


def thinking(line: Line, request: ReceivedRequest) -> FakeResponse:
    """The response to a request, after a while."""
    return replace(response_for(line, request, 0), delay=THINKING)


def answer(number: str, found: Sequence[str]) -> str:
    return f"tree {number}: {', '.join(sorted(found))}"


def right_answer(number: int) -> str:
    return answer(str(number), [f"gold {number}/{part}" for part in range(CHILDREN)])


class Fleet:
    """Real worker processes, with faults; a killed worker is replaced."""

    def __init__(self, folder: Path, server: PostgresServer, url: str, seed: int) -> None:
        self.folder = folder
        self.server = server
        self.url = url
        self.random = random.Random(seed)
        self.faults = Counter[str]()
        self.workers: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        log = (self.folder / "log").open("ab")
        arguments = ("worker", "--store", self.url, "--lease", str(LEASE), "--concurrency", "50")
        with log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "retinue", *arguments), cwd=self.folder, stdout=log, stderr=log
            )
        self.workers.append(process)

    async def disturb(self, kinds: Sequence[str], pause: float) -> None:
        """Make random faults until cancelled."""
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * pause)
            kind = self.random.choice(kinds)
            self.faults[kind] += 1
            victim = self.random.choice(self.workers)
            if kind == "kill":
                self.workers.remove(victim)
                victim.kill()
                await victim.wait()
                await self.start()
            elif kind == "suspend":
                victim.send_signal(signal.SIGSTOP)
                await asyncio.sleep(LEASE * 2)
                victim.send_signal(signal.SIGCONT)
            else:
                await asyncio.to_thread(self.server.restart, self.random.choice((signal.SIGINT, signal.SIGQUIT)))

    async def stop(self) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.send_signal(signal.SIGCONT)
                worker.terminate()
        for worker in self.workers:
            async with asyncio.timeout(30):
                await worker.wait()


async def storm(folder: Path, *, trees: int, kinds: Sequence[str], pause: float, patience: float) -> dict[str, object]:
    """Trees in a storm of faults; checks what must hold, and returns figures."""
    model = Model()
    with running_server(synchronous_commit="on", fsync="on") as server:
        url = server.url("chaos")
        async with FakeChat(model) as vendor:
            (folder / "retinue.toml").write_text(SETTINGS.format(base_url=vendor.base_url))
            fleet = Fleet(folder, server, url, seed=trees)
            began = time.monotonic()
            agents = (retinue.Agent(name="lead"), retinue.Agent(name="digger", placement="anywhere"))
            house = ProviderConfig(name="house", wire="openai-chat", base_url=vendor.base_url)
            submits = retinue.open(
                model="house:fake-1",
                provider_configs=(house,),
                agents=agents,
                dialects=("native",),
                store=url,
                lease=60.0,
            )
            async with submits as r:
                for _ in range(WORKERS):
                    await fleet.start()
                runs = [
                    await r.spawn(f"lead {number}", agent="lead", tools=(), ceiling=False, detached=True)
                    for number in range(trees)
                ]
                disturbing = asyncio.create_task(fleet.disturb(kinds, pause))
                try:
                    outcomes = await r.wait(*runs, timeout=patience)
                finally:
                    disturbing.cancel()
                    await asyncio.gather(disturbing, return_exceptions=True)
                    await fleet.stop()
            seconds = time.monotonic() - began
            store = PostgresStore(url)
            try:
                return check(store, model, [run.run_id for run in runs], outcomes) | {
                    "faults": dict(fleet.faults),
                    "seconds": round(seconds, 1),
                }
            finally:
                store.close()


def check(
    store: PostgresStore, model: Model, roots: Sequence[str], outcomes: dict[str, retinue.Outcome]
) -> dict[str, object]:
    rows = store.runs(RunQuery())
    assert len(outcomes) == len(roots), "every tree has ended"
    for number, root_id in enumerate(roots):
        assert outcomes[root_id].text == right_answer(number)
    assert Counter(row.root_id for row in rows) == dict.fromkeys(roots, 1 + CHILDREN), "no run is lost or doubled"
    assert {row.progress.phase for row in rows} == {"ended"}
    takeovers: list[float] = []
    for row in rows:
        events = [event for _, event in store.events(row.run_id)]
        accepted = events[0]
        assert isinstance(accepted, RunAccepted)
        replies = [event for event in events if isinstance(event, ReplyReceived)]
        assert [reply.turn for reply in replies] == list(range(1, len(replies) + 1))
        for reply in replies:
            late = [at for at in model.requested[accepted.task, reply.turn] if at > reply.at]
            assert late == [], "a finished model call is not repeated"
        left: float | None = None
        for event in events:
            if isinstance(event, RunLeft):
                left = event.at
            elif isinstance(event, RunAdopted) and left is not None:
                takeovers.append(event.at - left)
                left = None
    return {
        "trees": len(roots),
        "requests": sum(map(len, model.requested.values())),
        "replies": sum(row.progress.turns for row in rows),
        "takeovers": len(takeovers),
        "longest takeover": round(max(takeovers, default=0.0), 2),
    }


async def test_every_tree_ends_with_its_right_answer_while_workers_die(tmp_path: Path) -> None:
    figures = await storm(tmp_path, trees=4, kinds=("kill", "suspend", "kill"), pause=0.7, patience=60)
    assert figures["trees"] == 4


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kinds", [("kill", "suspend"), ("kill", "suspend", "restart")], ids=["workers", "server"])
async def test_hundreds_of_trees_end_while_workers_and_the_server_fail(
    tmp_path: Path, kinds: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    trees = 300 if STRESS else 40
    figures = await storm(tmp_path, trees=trees, kinds=kinds, pause=3.0, patience=900)
    with capsys.disabled():
        print(figures)
    longest = figures["longest takeover"]
    assert isinstance(longest, float)
    if "restart" not in kinds:  # no worker can take over what the server does not tell it
        assert longest <= LEASE + 3.0
