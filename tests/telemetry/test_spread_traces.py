"""Traces of trees over several worker processes, of which one is killed: one trace, right parents, no orphans."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from retinue.providers.scripted import Line
from retinue.testing import FakeChat, FakeResponse, calls, hangs, says, together
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import VARIABLES, Command
from tests.cli.stage import retinue as command
from tests.telemetry.collector import Collector

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL"),
]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
STRANGER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The trace context in the environment of the workers, which is not that of the run."""

CHILDREN = 3
SETTINGS = """
model = "house:clay-1"
[providers.house]
wire = "openai-chat"
base_url = "{base_url}"
api_key_env = ""
[agents.lead]
description = "Leads."
[agents.digger]
description = "Digs."
placement = "anywhere"
tags = ["digs"]
"""


class Model:
    """Plays lead and diggers; the first one of `victim` falls silent in its last turn, once."""

    def __init__(self, victim: str) -> None:
        self._victim = victim
        self.began = asyncio.Event()
        self.fell_silent = asyncio.Event()

    def __call__(self, request: ReceivedRequest) -> Line | FakeResponse:
        messages = request.body["messages"]
        task = next(message["content"] for message in messages if message["role"] == "user")
        name = "digs" if task.startswith("Dig") else "leads"
        results = [message for message in messages if message["role"] == "tool"]
        if name == "leads" and not results:
            self.began.set()
            return together(*(calls("run_agent", task=f"Dig {n}.", agent="digger") for n in range(CHILDREN)))
        if name == self._victim and not self.fell_silent.is_set():
            self.fell_silent.set()
            return hangs("It")
        return says("Clay." if name == "digs" else "All dug.")


@pytest.fixture
def collector() -> Generator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the store of all processes."""
    for name in (*VARIABLES, "TRACEPARENT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    sqlite = f"sqlite:{tmp_path / 'runs.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    monkeypatch.setenv("RETINUE_STORE", url)
    return url


@asynccontextmanager
async def worker(tag: str, collector: Collector, *, delay: str = "200") -> AsyncGenerator[Command]:
    """A worker process with a tag; it is stopped at the end, and has sent all its spans then."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": delay,
        "TRACEPARENT": STRANGER,
    }
    # One that is killed is known by its process id; none is taken for dead because the machine is busy.
    process = await Command.start("worker", "--tag", tag, "--lease", "600", env=environment)
    await process.expect_stderr(f"tags: {tag}")
    try:
        yield process
    finally:
        if not process.is_over:
            process.signal(signal.SIGTERM)
            await process.ended()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("victim", ["leads", "digs"])
@pytest.mark.parametrize("delay", ["60000", "200"], ids=["nothing was sent", "all was sent"])
async def test_a_tree_over_several_workers_is_one_trace_after_a_kill(
    collector: Collector, tmp_path: Path, victim: str, delay: str
) -> None:
    model = Model(victim)
    async with FakeChat(model) as vendor, AsyncExitStack() as stack:
        (tmp_path / "retinue.toml").write_text(SETTINGS.format(base_url=vendor.base_url))
        first = {"leads": await stack.enter_async_context(worker("leads", collector, delay=delay))}
        flags = ("--agent", "lead", "--dialect", "native")
        environment = {"TRACEPARENT": CALLER, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        detached = await command("run", "--detach", *flags, "Lead.", env=environment)
        assert detached.code == 0, detached.stderr
        run_id = detached.stdout.strip()
        await asyncio.wait_for(model.began.wait(), 300)  # so that the lead is not with the worker of the diggers
        first["digs"] = await stack.enter_async_context(worker("digs", collector, delay=delay))
        await asyncio.wait_for(model.fell_silent.wait(), 300)
        first[victim].signal(signal.SIGKILL)
        await first[victim].ended()
        await stack.enter_async_context(worker(victim, collector))
        waited = await command("runs", "wait", run_id)
        assert waited.code == 0, waited.stderr
        rows = (await command("runs", "--all", "--json")).json

    assert {span.trace for span in collector.received} == {TRACE}
    root = collector.named("invoke_agent lead")
    assert root.parent == "00f067aa0ba902b7"
    assert collector.tree() == Counter(
        {
            ("?", "invoke_agent lead"): 1,  # below the span of the caller
            ("invoke_agent lead", "chat clay-1"): 2,
            ("invoke_agent lead", "execute_tool run_agent"): CHILDREN,
            ("execute_tool run_agent", "invoke_agent digger"): CHILDREN,
            ("invoke_agent digger", "chat clay-1"): CHILDREN,
        }
    )
    ids = {span.attributes["retinue.run.id"] for span in collector.spans.values() if "digger" in span.name}
    assert ids == {row["run_id"] for row in rows if row["parent_id"] is not None}
