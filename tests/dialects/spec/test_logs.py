"""Log lines of `spec`: one for each operation, without contents unless the environment asks for them."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

import retinue
from retinue.core.log_context import line, set_payloads
from retinue.core.ports import ToolResult
from retinue.core.run import HandleRef
from retinue.dialects.spec.dialect import LoggedTool
from retinue.providers.scripted import calls, hangs, says, together
from retinue.testing.virtual_time import VirtualClock
from tests.dialects.spec.harness import SpecHarness, context, other_work, subagent, waiting_orchestrator, work
from tests.internals import tool_of

WRITER = retinue.Agent(name="writer", system_prompt="You write.", tools=("shared_context",))


@pytest.fixture(autouse=True)
def no_contents_in_later_tests() -> Iterator[None]:
    yield
    set_payloads(on=False)


async def story() -> None:
    """A task is spawned, looked at and collected; its subagent writes and deletes an entry."""
    harness = SpecHarness(agents=(WRITER,))
    harness.script.play(
        "writer",
        context("write", key="findings_summary", value="SECRET VALUE"),
        context("delete", key="findings_summary"),
        says("SECRET RESULT"),
    )
    await harness.play(
        subagent("spawn", agent="writer", task="SECRET TASK"),
        subagent("status", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        other_work(5),
        subagent("collect", task_id="t_01"),
        subagent("status", task_id="t_01 forged=yes\n"),
        subagent("spawn", agent="unknown", task="SECRET TASK"),
        says("done"),
    )


def lines_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """What a logger said at info, but for the lines about single tool calls."""
    said = [record.getMessage() for record in caplog.records if record.name == logger and record.levelname == "INFO"]
    return [text for text in said if " action=call " not in text]


@pytest.mark.promise("SPEC-8.8-FIELDS", "SPEC-8.8-TURNS", "SPEC-8.8-NO-CONTENTS")
async def test_spawn_status_and_collect_are_logged_without_contents(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    await story()

    task = "session_id=s1 task_id=t_01 agent=writer"
    assert lines_of(caplog, "retinue.spec") == [
        f"{task} action=spawn status=running timestamp=2026-01-01T00:00:01Z",
        f"{task} action=status status=running turns_used=1 timestamp=2026-01-01T00:00:02Z",
        f"{task} action=collect status=running turns_used=2 error=TASK_NOT_READY timestamp=2026-01-01T00:00:03Z",
        f"{task} action=collect status=completed turns_used=3 timestamp=2026-01-01T00:00:10Z",
        'session_id=s1 task_id="t_01 forged=yes\\n" action=status error=TASK_NOT_FOUND timestamp=2026-01-01T00:00:11Z',
        "session_id=s1 agent=unknown action=spawn error=AGENT_NOT_FOUND timestamp=2026-01-01T00:00:12Z",
    ]
    assert "SECRET" not in caplog.text


@pytest.mark.promise("SPEC-8.8-MORE", "SPEC-8.8-NO-CONTENTS")
async def test_the_actions_of_the_extensions_are_logged_alike(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    harness = SpecHarness(agents=(WRITER,))
    harness.script.play("writer", together(says("SECRET RESULT"), context("list_keys")), hangs())
    await harness.play(
        subagent("spawn", agent="writer", task="SECRET TASK"),
        subagent("spawn", agent="writer", task="SECRET TASK", depends_on=["t_01"]),
        subagent("wait", task_ids=["t_01", "t_02"], timeout_ms=500),
        subagent("progress", task_id="t_01"),
        subagent("cancel", task_id="t_01"),
        subagent("cancel", task_id="t_01"),
        subagent("wait", task_ids=["t_01"]),
        says("done"),
    )

    first, second = (f"session_id=s1 task_id={name} agent=writer" for name in ("t_01", "t_02"))
    unknown = "session_id=s1 task_id=t_01 action={} error=TASK_NOT_FOUND timestamp=2026-01-01T00:00:0{}Z"
    assert lines_of(caplog, "retinue.spec") == [
        f"{first} action=spawn status=running timestamp=2026-01-01T00:00:01Z",
        f"{second} action=spawn status=pending timestamp=2026-01-01T00:00:02Z",
        f"{first} action=wait status=running turns_used=1 timestamp=2026-01-01T00:00:03Z",
        f"{second} action=wait status=pending turns_used=0 timestamp=2026-01-01T00:00:03Z",
        f"{first} action=progress status=running turns_used=1 timestamp=2026-01-01T00:00:04Z",
        f"{first} action=cancel status=cancelled turns_used=1 timestamp=2026-01-01T00:00:05Z",
        unknown.format("cancel", 6),
        unknown.format("wait", 7),
    ]
    assert "SECRET" not in caplog.text


@pytest.mark.promise("SC-9-LOG", "SC-9-NO-VALUES")
async def test_writes_and_deletes_are_logged_without_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    await story()

    who = "session_id=s1 {} key=findings_summary written_by=subagent:writer:t_01"
    assert lines_of(caplog, "retinue.context") == [
        f"{who.format('action=write')} timestamp=2026-01-01T00:00:02Z value_size_tokens=3 version=1",
        f"{who.format('action=delete')} timestamp=2026-01-01T00:00:03Z value_size_tokens=3 version=1",
    ]


@pytest.mark.promise("SPEC-8.8-PAYLOADS")
async def test_contents_are_logged_if_the_environment_asks_for_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "retinue")
    monkeypatch.setenv("RETINUE_LOG_PAYLOADS", "1")
    await story()

    spawned, _, _, collected, _, _ = lines_of(caplog, "retinue.spec")
    written, _ = lines_of(caplog, "retinue.context")
    assert spawned.endswith(' task="SECRET TASK"')
    assert collected.endswith(' result="SECRET RESULT"')
    assert written.endswith(' value="SECRET VALUE"')


@pytest.mark.promise("SC-9-LOG")
async def test_a_write_that_is_entered_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        tool = tool_of(opened, "shared_context", "spec")
        write = '{"action": "write", "key": "scope", "value": "all"}'
        await tool.call(write, caller(0))
        await tool.call(write, caller(0, again=True))
        await tool.call('{"action": "delete", "key": "missing"}', caller(1))

    assert len(lines_of(caplog, "retinue.context")) == 1


async def test_nothing_is_logged_below_the_level_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "retinue")
    await story()

    assert lines_of(caplog, "retinue.spec") == []


@retinue.tool
def search_logs(query: str) -> str:
    """Search the logs; some queries go wrong."""
    if query == "crash":
        raise ZeroDivisionError("division by zero")
    if query == "sorry":
        raise retinue.ToolError("The logs are being rotated.")
    return f"3 lines about {query}"


@pytest.mark.promise("SPEC-8.8-CALLS", "SPEC-8.8-NO-CONTENTS")
async def test_tool_calls_are_logged_those_of_a_subagent_under_its_task_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    worker = retinue.Agent(name="worker", tools=("search_logs",))
    harness = SpecHarness(agents=(worker,), tools=(search_logs,))
    harness.script.play(
        "worker",
        calls("search_logs", query="SECRET"),
        calls("search_logs", query="sorry"),
        calls("search_logs", query="crash"),
    )
    await harness.play(subagent("spawn", agent="worker", task="W."), other_work(9), says("done"))

    said = [record.getMessage() for record in caplog.records if " action=call " in record.getMessage()]
    who = "session_id=s1 task_id=t_01 agent=worker action=call tool=search_logs"
    assert said == [
        "session_id=s1 agent=main action=call tool=subagent turn=1 status=ok timestamp=2026-01-01T00:00:01Z",
        f"{who} turn=1 status=ok timestamp=2026-01-01T00:00:02Z",
        f"{who} turn=2 status=failed timestamp=2026-01-01T00:00:03Z",
        f"{who} turn=3 status=crashed timestamp=2026-01-01T00:00:04Z",
        "session_id=s1 agent=main action=call tool=work turn=2 status=ok timestamp=2026-01-01T00:00:11Z",
    ]
    assert "SECRET" not in caplog.text


def test_a_line_has_facts_in_order_and_cannot_be_forged() -> None:
    assert line(action="status", task_id="t_01", error=None, turns_used=4) == "action=status task_id=t_01 turns_used=4"
    assert line(task_id="x\nlevel=ERROR") == 'task_id="x\\nlevel=ERROR"'
    assert line(task_id="y" * 500) == f'task_id="{"y" * 80}"'


@pytest.mark.promise("SPEC-8.8-CALLS", "SPEC-8.8-NO-CONTENTS", "SPEC-8.8-PAYLOADS")
async def test_a_logged_tool_behaves_like_the_tool_and_logs_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    logged = LoggedTool(search_logs, VirtualClock())
    async with waiting_orchestrator(SpecHarness()) as (_, caller):
        subagent_call = replace(caller(0), depth=1, agent="worker", handle=HandleRef("spec", "t_07"))
        found = await logged.call('{"query": "pool"}', subagent_call)
        with pytest.raises(retinue.ToolError, match="rotated"):
            await logged.call('{"query": "sorry"}', subagent_call)
        with pytest.raises(ZeroDivisionError):
            await logged.call('{"query": "crash"}', caller(1))
        stopped = asyncio.create_task(LoggedTool(work, VirtualClock()).call('{"seconds": 9}', caller(1)))
        await asyncio.sleep(0)
        stopped.cancel()
        await asyncio.wait([stopped])
        set_payloads(on=True)
        await logged.call('{"query": "pool"}', subagent_call)
        said = [record.getMessage() for record in caplog.records if " action=call " in record.getMessage()]

    who = "session_id=s1 task_id=t_07 agent=worker action=call tool=search_logs turn=1"
    at = "timestamp=2026-01-01T00:00:02Z"
    assert found == ToolResult("3 lines about pool")
    assert said == [
        f"{who} status=ok {at}",
        f"{who} status=failed {at}",
        f"session_id=s1 agent=main action=call tool=search_logs turn=1 status=crashed {at}",
        f"session_id=s1 agent=main action=call tool=work turn=1 status=stopped {at}",
        f'{who} status=ok {at} arguments="{{\\"query\\": \\"pool\\"}}" result="3 lines about pool"',
    ]
    same = ("spec", "kind", "risk", "timeout", "waits", "stoppable")
    assert [getattr(logged, name) for name in same] == [getattr(search_logs, name) for name in same]
