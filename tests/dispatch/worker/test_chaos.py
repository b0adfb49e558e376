"""Workers that are killed, suspended and cut off, a database that fails over: every tree ends with its right answer.

Real worker processes drive trees of four runs, spread over them, with a fake model behind HTTP, against a PostgreSQL
server with a standby. `make stress` runs it with hundreds of trees for ten minutes and prints its figures.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from msgspec import Struct

import retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import ReplyReceived, RunAccepted, RunAdopted, RunLeft
from retinue.providers.catalog import ProviderConfig
from retinue.providers.scripted import Line, calls, says, together
from retinue.store.postgres import PostgresStore
from retinue.testing.fake_chat import FakeChat, response_for
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.conftest import STRESS
from tests.network import Namespaces, Network, network
from tests.postgres import ReplicatedServer, replicated_server

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped and continued by signals"),
]

PORTS = (25432, 25433)
"""Of the servers: numbers of their sockets, or ports of an address that no other process has; outgoing connections use
higher ones."""

WORKERS = 3
CHILDREN = 3
HANDOVER = 3.0
"""Seconds after the lease within which another worker has taken a run over."""

FAULTS = ("cut", "fail over", "kill", "suspend", "restart", "crash")
"""Cut a worker off, fail over to the standby, kill a worker, suspend one, restart the database, crash it."""

OF_SERVER = ("fail over", "restart", "crash")

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


class Storm(Struct, frozen=True, kw_only=True):
    """How much is to be endured: trees that are started `every` so many seconds, at least so many, and faults."""

    trees: int
    every: float
    faults: Iterable[str]
    pause: float
    """Seconds between two faults, about."""
    lease: float
    thinking: float
    """Seconds that the model needs for a reply, so that workers die in the middle of one."""


class Model:
    """The fake model: plays leads and diggers by their tasks, and notes when each turn of each run was requested."""

    def __init__(self, thinking: float) -> None:
        self.requested: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._thinking = thinking

    def __call__(self, request: ReceivedRequest) -> FakeResponse:
        messages = request.body["messages"]
        task = next(message["content"] for message in messages if message["role"] == "user")
        turn = 1 + sum(message["role"] == "assistant" for message in messages)
        self.requested[task, turn].append(time.time())
        number = task.split()[1]
        if task.startswith("dig"):
            return self._after_a_while(says(f"gold {number}"), request)
        if turn == 1:
            parts = [calls("run_agent", task=f"dig {number}/{part}", agent="digger") for part in range(CHILDREN)]
            return self._after_a_while(together(*parts), request)
        results = " ".join(str(each["content"]) for each in messages if each["role"] == "tool")
        return self._after_a_while(says(answer(number, re.findall(r"gold [0-9/]+", results))), request)

    def _after_a_while(self, line: Line, request: ReceivedRequest) -> FakeResponse:
        return replace(response_for(line, request, 0), delay=self._thinking)


def answer(number: str, found: Sequence[str]) -> str:
    return f"tree {number}: {', '.join(sorted(found))}"


def right_answer(number: int) -> str:
    return answer(str(number), [f"gold {number}/{part}" for part in range(CHILDREN)])


class Fleet:
    """Real worker processes, one in each place of the network, with faults; a killed worker is replaced."""

    def __init__(self, folder: Path, network: Network, server: ReplicatedServer, storm: Storm) -> None:
        self.folder = folder
        self.network = network
        self.server = server
        self.storm = storm
        self.random = random.Random(storm.trees)
        self.faults = Counter[str]()
        self.outages: list[tuple[float, float]] = []
        """When the database was not there."""
        self.workers: dict[int, asyncio.subprocess.Process] = {}

    def url(self, place: int) -> str:
        return f"postgresql://postgres@{self.network.servers_at(place)}/postgres?schema=chaos"

    async def start(self, place: int) -> None:
        log = (self.folder / f"log{place}").open("ab")
        arguments = ("worker", "--store", self.url(place), "--lease", str(self.storm.lease), "--concurrency", "50")
        command = (*self.network.command(place), sys.executable, "-m", "retinue", *arguments)
        with log:
            process = await asyncio.create_subprocess_exec(*command, cwd=self.folder, stdout=log, stderr=log)
        self.workers[place] = process

    async def disturb(self) -> None:
        """Make the faults of the storm, one after the other."""
        for fault in self.storm.faults:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * self.storm.pause)
            self.faults[fault] += 1
            began = time.time()
            await self._make(fault, self.random.randrange(WORKERS))
            if fault in OF_SERVER:
                self.outages.append((began, time.time()))

    async def _make(self, fault: str, place: int) -> None:
        if self.workers[place].returncode is not None:
            # It began while the store could not be reached. A service manager starts it again, too.
            await self.start(place)
        worker = self.workers[place]
        beyond_lease = 2 * self.storm.lease
        match fault:
            case "kill":
                worker.kill()
                await worker.wait()
                await self.start(place)
            case "suspend":
                worker.send_signal(signal.SIGSTOP)
                await asyncio.sleep(beyond_lease)
                worker.send_signal(signal.SIGCONT)
            case "cut":
                self.network.cut(place)
                await asyncio.sleep(beyond_lease)
                self.network.heal(place)
            case "fail over":
                await asyncio.to_thread(self.server.fail_over)
            case "restart":
                await asyncio.to_thread(self.server.primary.restart)
            case _:
                await asyncio.to_thread(self.server.primary.restart, signal.SIGQUIT)

    def was_away(self, begin: float, end: float) -> bool:
        """Whether the database was away in this time, or so shortly before that drivers had no heartbeat."""
        return any(begin < until + self.storm.lease and since < end for since, until in self.outages)

    async def stop(self) -> None:
        for place, worker in self.workers.items():
            self.network.heal(place)
            if worker.returncode is None:
                worker.send_signal(signal.SIGCONT)
                worker.terminate()
        for worker in self.workers.values():
            async with asyncio.timeout(120):
                await worker.wait()


async def endure(folder: Path, storm: Storm, *, patience: float) -> dict[str, object]:
    """Trees in a storm of faults; checks what must hold, and returns figures."""
    model = Model(storm.thinking)
    with ExitStack() as stack:
        place = stack.enter_context(network(WORKERS))
        listens = {"listen_addresses": place.host} if isinstance(place, Namespaces) else {}
        server = stack.enter_context(replicated_server(PORTS, **listens))
        place.connect(server.servers)
        fleet = Fleet(folder, place, server, storm)
        url = stores_of(server)
        async with FakeChat(model, host=place.host) as vendor:
            (folder / "retinue.toml").write_text(SETTINGS.format(base_url=vendor.base_url))
            began = time.monotonic()
            async with submitter(url, vendor.base_url) as r:
                for number in range(WORKERS):
                    await fleet.start(number)
                disturbing = asyncio.create_task(fleet.disturb())
                try:
                    runs = await submit(r, storm, disturbing)
                    outcomes = await settle(r, runs, patience)
                finally:
                    disturbing.cancel()
                    await asyncio.gather(disturbing, return_exceptions=True)
                    await fleet.stop()
            seconds = time.monotonic() - began
            disturbing.result()
        store = PostgresStore(url)
        try:
            figures = check(store, model, [run.run_id for run in runs], outcomes)
            undisturbed = [round(b - a, 2) for a, b in takeovers(store) if not fleet.was_away(a, b)]
        finally:
            store.close()
    return figures | {
        "network": type(place).__name__,
        "faults": dict(fleet.faults),
        "seconds": round(seconds, 1),
        "takeovers while the database was there": len(undisturbed),
        "their median": median(undisturbed) if undisturbed else 0.0,
        "the longest of them": max(undisturbed, default=0.0),
    }


async def settle(r: retinue.Retinue, runs: Sequence[retinue.RunHandle], patience: float) -> dict[str, retinue.Outcome]:
    """The outcomes of runs, also if the database is away in the meantime."""
    async with asyncio.timeout(patience):
        while True:
            try:
                return await r.wait(*runs)
            except StoreError:
                await asyncio.sleep(0.5)


def stores_of(server: ReplicatedServer) -> str:
    """The address of the store with both servers, on their sockets."""
    hosts = ",".join(str(each.folder) for each in server.servers)
    ports = ",".join(str(each.port) for each in server.servers)
    return f"postgresql://postgres@/postgres?host={hosts}&port={ports}&target_session_attrs=read-write&schema=chaos"


def submitter(url: str, base_url: str) -> retinue.Retinue:
    """A process that starts trees and waits for them."""
    return retinue.open(
        model="house:fake-1",
        provider_configs=(ProviderConfig(name="house", wire="openai-chat", base_url=base_url),),
        agents=(retinue.Agent(name="lead"), retinue.Agent(name="digger", placement="anywhere")),
        dialects=("native",),
        store=url,
        lease=15.0,
    )


async def submit(r: retinue.Retinue, storm: Storm, disturbing: asyncio.Task[None]) -> list[retinue.RunHandle]:
    """Start trees, as many as the storm asks for and on as long as it lasts, also while the database is away."""
    runs: list[retinue.RunHandle] = []
    while len(runs) < storm.trees or not disturbing.done():
        task = f"lead {len(runs)}"
        try:
            run = await r.spawn(task, agent="lead", tools=(), ceiling=False, detached=True, key=task)
        except StoreError:
            await asyncio.sleep(0.5)  # the same key starts no second one
            continue
        runs.append(run)
        await asyncio.sleep(storm.every)
    return runs


def check(
    store: PostgresStore, model: Model, roots: Sequence[str], outcomes: dict[str, retinue.Outcome]
) -> dict[str, object]:
    rows = store.runs(RunQuery())
    assert len(outcomes) == len(roots), "every tree has ended"
    for number, root_id in enumerate(roots):
        assert outcomes[root_id].text == right_answer(number)
    assert Counter(row.root_id for row in rows) == dict.fromkeys(roots, 1 + CHILDREN), "no run is lost or doubled"
    assert {row.progress.phase for row in rows} == {"ended"}
    for row in rows:
        events = [event for _, event in store.events(row.run_id)]
        accepted = events[0]
        assert isinstance(accepted, RunAccepted)
        replies = [event for event in events if isinstance(event, ReplyReceived)]
        assert [reply.turn for reply in replies] == list(range(1, len(replies) + 1))
        drivers = 0
        for event in events:
            drivers += isinstance(event, RunAdopted)
            if isinstance(event, ReplyReceived):
                requested = model.requested[accepted.task, event.turn]
                late = [at for at in requested if at > event.at]
                # The request of a driver that was cut off may arrive after the reply to the next driver. One that knows
                # the reply is one too many.
                assert not late or len(requested) <= drivers, "a finished model call is not repeated"
    seconds = sorted(adopted - left for left, adopted in takeovers(store))
    return {
        "trees": len(roots),
        "requests": sum(map(len, model.requested.values())),
        "replies": sum(row.progress.turns for row in rows),
        "takeovers": len(seconds),
        "median takeover": round(median(seconds), 2) if seconds else 0.0,
        "longest takeover": round(max(seconds, default=0.0), 2),
    }


def takeovers(store: PostgresStore) -> list[tuple[float, float]]:
    """When each run was left by a driver, by its last sign of life, and adopted by the next one."""
    found: list[tuple[float, float]] = []
    for row in store.runs(RunQuery()):
        left: float | None = None
        for _, event in store.events(row.run_id):
            if isinstance(event, RunLeft):
                left = event.at
            elif isinstance(event, RunAdopted) and left is not None:
                found.append((left, event.at))
                left = None
    return found


@pytest.mark.timeout(400)
async def test_every_tree_ends_with_its_right_answer_while_workers_and_the_server_fail(tmp_path: Path) -> None:
    storm = Storm(trees=4, every=0.4, faults=FAULTS[:5], pause=0.3, lease=1.0, thinking=0.15)

    figures = await endure(tmp_path, storm, patience=240)

    assert figures["faults"] == dict.fromkeys(FAULTS[:5], 1)


@pytest.mark.stress
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("trees", "faults"), [(300, FAULTS), (60, ("cut", "kill", "suspend"))], ids=["all", "workers alone"]
)
async def test_hundreds_of_trees_end_in_minutes_of_faults(
    tmp_path: Path, trees: int, faults: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trees = trees if STRESS else 20
    chosen = random_faults(faults, 2.0 * trees)
    storm = Storm(trees=trees, every=2.0, faults=chosen, pause=2.0, lease=2.0, thinking=1.5)

    figures = await endure(tmp_path, storm, patience=600)

    with capsys.disabled():
        print(figures)
    longest = figures["the longest of them"]
    assert isinstance(longest, float)
    assert longest <= storm.lease + HANDOVER


def random_faults(faults: Sequence[str], seconds: float) -> Iterator[str]:
    """Faults in a random order, until so many seconds have passed."""
    chosen, end = random.Random(1), time.monotonic() + seconds
    while time.monotonic() < end:
        yield chosen.choice(faults)
