"""The tool `shared_context` in runs: participants, sessions, and closed sessions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import retinue
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import CallContext, ToolResult
from retinue.core.run import HandleRef
from retinue.dialects.shared_context.tool import participant
from retinue.providers.scripted import calls, calls_verbatim, says, together
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.spec.harness import (
    Answer,
    SpecHarness,
    answers,
    context,
    other_work,
    subagent,
    waiting_orchestrator,
)
from tests.internals import tool_of

DEFINE = {"action": "define", "name": "a", "description": "d", "system_prompt": "p"}
SPAWN = {"action": "spawn", "agent": "writer", "task": "Write."}
WRITER = retinue.Agent(name="writer", system_prompt="You write.", tools=("shared_context",))


async def result_of(
    opened: retinue.Retinue, who: CallContext, tool_name: str = "shared_context", **arguments: object
) -> ToolResult:
    """What the tool gives for a call."""
    return await tool_of(opened, tool_name, "spec").call(json.dumps(arguments), who)


async def call(
    opened: retinue.Retinue, who: CallContext, tool_name: str = "shared_context", **arguments: object
) -> Answer:
    """What a model reads after a call."""
    return json.loads((await result_of(opened, who, tool_name, **arguments)).text)


@pytest.mark.promise("SPEC-8.6-IDENTITY", "SC-7-IDENTITY", "SC-2-SIGNED", "SPEC-8.5-SAME-STORE", "SC-1-EQUAL")
async def test_entries_have_the_real_author() -> None:
    harness = SpecHarness(agents=(WRITER,))
    harness.script.play("writer", context("write", key="scope", value="mine", written_by="orchestrator"), says("done"))

    played = await harness.play(
        context("write", key="scope", value="ours", written_by="subagent:writer:t_01"),
        together(
            subagent("spawn", agent="writer", task="Write."),
            subagent("spawn", agent="writer", task="Write too."),
        ),
        other_work(5),
        context("read", key="scope"),
        says("enough"),
    )

    assert played.answers[0] == {
        "key": "scope",
        "version": 1,
        "written_by": "orchestrator",
        "written_at": "2026-01-01T00:00:01Z",
    }
    assert played.answers[-1] == {
        "key": "scope",
        "value": "mine",
        "written_by": "subagent:writer:t_02",
        "written_at": "2026-01-01T00:00:03Z",
        "version": 3,
        "value_size_tokens": 1,
    }


@pytest.mark.promise("SC-7-IDENTITY")
async def test_participants_are_named_by_agent_and_task_id_if_known() -> None:
    async with waiting_orchestrator(SpecHarness()) as (_, caller):
        root = caller(0)

    def below(agent: str, handle: HandleRef | None) -> str:
        return participant(replace(root, depth=1, agent=agent, handle=handle))

    assert participant(root) == "orchestrator"
    assert below("writer", HandleRef("spec", "t_07")) == "subagent:writer:t_07"
    assert below("writer", None) == "subagent:writer"
    assert below("", None) == "unknown"


@pytest.mark.promise("SC-1-ISOLATED")
async def test_sessions_see_nothing_of_each_other() -> None:
    first = SpecHarness()
    await first.play(context("write", key="scope", value="secret"), says("done"))
    second = SpecHarness(store=first.store, session="s2")
    second.script.play("main", together(context("list_keys"), context("read", key="scope")), says("done"))

    async with second.open(ids="second") as opened:
        handle = await opened.spawn("Go.")
        await handle.wait()
        assert await answers(opened, handle.run_id) == [
            {"keys": [], "total_size_tokens": 0},
            {"error": "KEY_NOT_FOUND", "message": "Key not found: 'scope'"},
        ]


@pytest.mark.promise("SC-4-DURABLE")
async def test_entries_are_there_for_the_next_run_of_the_session(tmp_path: Path) -> None:
    file = tmp_path / "retinue.db"
    first = SpecHarness(agents=(WRITER,), store=SqliteStore(file))
    first.script.play("writer", context("write", key="findings_summary", value="It was the pool."), says("done"))
    await first.play(subagent("spawn", agent="writer", task="Write."), other_work(5), says("later"))
    second = SpecHarness(store=SqliteStore(file))
    second.script.play("main", context("read", key="findings_summary"), says("done"))

    async with second.open(ids="second") as opened:
        handle = await opened.spawn("Go on.")
        await handle.wait()
        (read,) = await answers(opened, handle.run_id)

    assert (read["value"], read["written_by"]) == ("It was the pool.", "subagent:writer:t_01")


@pytest.mark.promise(
    "SC-6-ARCHIVE", "SC-5-SESSION-ARCHIVED", "SC-3-WRITE-ORDER", "SC-3-DELETE-ORDER", "SC-5-INVALID-REQUEST"
)
async def test_an_archived_session_can_be_read_and_not_written() -> None:
    archived = {"error": "SESSION_ARCHIVED", "message": "Session 's1' is archived (read-only)."}
    async with waiting_orchestrator(SpecHarness(agents=(WRITER,))) as (opened, caller):
        await call(opened, caller(0), action="write", key="scope", value="all")
        await opened.sessions.archive("s1")

        assert await call(opened, caller(1), action="write", key="BAD KEY", value="more") == archived
        assert await call(opened, caller(2), action="delete", key="BAD KEY") == archived
        assert (await call(opened, caller(3), action="write", key="scope"))["error"] == "INVALID_REQUEST"
        assert (await call(opened, caller(4), action="read", key="scope"))["value"] == "all"
        assert (await call(opened, caller(5), action="list_keys"))["total_size_tokens"] == 1
        assert await call(opened, caller(6), "subagent", **DEFINE) == archived
        assert await call(opened, caller(7), "subagent", **SPAWN) == archived


@pytest.mark.promise("SC-6-DELETE", "SC-5-SESSION-NOT-FOUND", "SC-3-READ-ORDER")
async def test_a_deleted_session_loses_its_entries_and_starts_empty_again() -> None:
    gone = {"error": "SESSION_NOT_FOUND", "message": "Session 's1' not found."}
    async with waiting_orchestrator(SpecHarness(agents=(WRITER,))) as (opened, caller):
        await call(opened, caller(0), action="write", key="scope", value="all")
        await opened.sessions.delete("s1")

        assert await call(opened, caller(1), action="list_keys") == gone
        assert await call(opened, caller(2), action="read", key="BAD KEY") == gone
        assert await call(opened, caller(3), action="write", key="scope", value="more") == gone
        assert await call(opened, caller(4), action="delete", key="scope") == gone

        assert await call(opened, caller(6), "subagent", **DEFINE) == gone
        assert await call(opened, caller(7), "subagent", **SPAWN) == gone

        await opened.sessions.create("s1")
        assert await call(opened, caller(5), action="list_keys") == {"keys": [], "total_size_tokens": 0}


@pytest.mark.promise("SC-6-CREATE", "SC-6-DELETE")
async def test_a_session_is_created_once_and_unknown_ones_cannot_be_closed() -> None:
    async with SpecHarness().open() as opened:
        await opened.sessions.create("s2")
        with pytest.raises(BadInput, match="already exists"):
            await opened.sessions.create("s2")
        with pytest.raises(UnknownName):
            await opened.sessions.archive("s3")
        with pytest.raises(UnknownName):
            await opened.sessions.delete("s3")


@pytest.mark.promise("SC-6-LIST", "SC-9-INSPECT")
async def test_an_operator_sees_the_sessions_and_everything_in_them() -> None:
    harness = SpecHarness()
    await harness.play(context("write", key="scope", value="x" * 40), context("write", key="b", value=""), says("done"))
    async with SpecHarness(store=harness.store).open(ids="later") as opened:
        await opened.sessions.create("s2")
        await opened.sessions.archive("s1")
        rows = await opened.sessions.list()
        inside = await opened.sessions.context("s1")

    assert rows == [
        {"session_id": "s1", "archived": True, "key_count": 2, "total_size_tokens": 11},
        {"session_id": "s2", "archived": False, "key_count": 0, "total_size_tokens": 0},
    ]
    assert inside == {
        "session_id": "s1",
        "archived": True,
        "entries": [
            {"key": "b", "value": "", "written_by": "orchestrator", "written_at": "2026-01-01T00:00:02Z", "version": 1},
            {
                "key": "scope",
                "value": "x" * 40,
                "written_by": "orchestrator",
                "written_at": "2026-01-01T00:00:01Z",
                "version": 1,
            },
        ],
    }


async def test_errors_are_marked_as_failures_but_for_those_that_are_expected() -> None:
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        probing = await result_of(opened, caller(0), action="read", key="optional")
        wrong = await result_of(opened, caller(1), action="explode")
        right = await result_of(opened, caller(2), action="list_keys")

    assert (probing.failed, wrong.failed, right.failed) == (False, True, False)


@pytest.mark.promise("SC-5-NEVER-RAISES", "SPEC-5-NEVER-RAISES")
async def test_calls_without_valid_json_are_answered_and_the_run_goes_on() -> None:
    harness = SpecHarness()

    played = await harness.play(
        together(calls_verbatim("shared_context", "{"), calls_verbatim("subagent", "spawn please"), calls("subagent")),
        says("never mind"),
    )

    assert [answer["error"] for answer in played.answers] == ["INVALID_REQUEST", "INVALID_REQUEST", "INVALID_ACTION"]
    assert played.outcome.text == "never mind"
