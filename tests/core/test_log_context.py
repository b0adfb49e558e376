"""Log lines of runs: the fields in front of them, in tasks and threads, and runs side by side."""

from __future__ import annotations

import asyncio
import logging

import pytest

from retinue.core.log_context import begin_run_log, log_span, logger, run_log
from retinue.tools.threads import in_thread

LOG = logger("retinue.example")
OWN = logger("retinue.example.own", dialect="spec")


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue.example")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages as every handler gets them."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("retinue.example")]


def test_a_line_outside_of_a_run_has_no_fields(caplog: pytest.LogCaptureFixture) -> None:
    LOG.info("%d%% done", 40)

    assert lines(caplog) == ["40% done"]


def test_the_fields_of_a_span_come_before_those_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with log_span("category=cron") as span:
        LOG.info("begins")
        span.fields = "category=cron run_id=r1"
        with run_log({"": "session_key=r1"}):
            LOG.info("works")
        LOG.info("ends")
    LOG.info("after")

    assert lines(caplog) == [
        "category=cron begins",
        "category=cron run_id=r1 session_key=r1 works",
        "category=cron run_id=r1 ends",
        "after",
    ]


def test_the_lines_of_a_dialects_logger_leave_out_the_fields_that_they_have_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with run_log({"spec": "session_id=s agent=main", "zeroclaw": "agent_alias=main"}):
        OWN.info("session_id=s task_id=t_01")
        LOG.info("a tool failed")

    assert lines(caplog) == [
        "agent_alias=main session_id=s task_id=t_01",
        "session_id=s agent=main agent_alias=main a tool failed",
    ]


def test_a_text_in_a_line_cannot_begin_another_line(caplog: pytest.LogCaptureFixture) -> None:
    with run_log({"": "run_id=r1"}):
        LOG.warning("tool %s failed", "x\nERROR forged\r\x1b[2J\u2028\x85\udcff")

    assert lines(caplog) == ["run_id=r1 tool x ERROR forged ␛[2J  \ufffd failed"]


async def test_two_runs_side_by_side_do_not_mix_in_tasks_and_threads(caplog: pytest.LogCaptureFixture) -> None:
    barrier = asyncio.Barrier(2)

    async def run(name: str) -> None:
        begin_run_log(lambda: {"": f"run_id={name}"})
        await barrier.wait()
        LOG.info("%s begins", name)
        await asyncio.gather(call(name), in_thread(LOG.info, "%s in a thread", name))
        await asyncio.to_thread(LOG.info, "%s in another thread", name)

    async def call(name: str) -> None:
        await barrier.wait()
        LOG.info("%s calls", name)

    await asyncio.gather(run("r1"), run("r2"))

    assert len(lines(caplog)) == 8
    assert [line for line in lines(caplog) if line.split()[0] != f"run_id={line.split()[1]}"] == []
