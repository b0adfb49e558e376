"""Extensions of shared context: entries that expire, and entries with access rules."""

import json

import pytest

import retinue
from retinue.providers.scripted import says
from tests.dialects.shared_context.harness import AT, NOON, READER, ROOT, WRITER, Context, missing, rows
from tests.dialects.spec.harness import SpecHarness, context, other_work, read_after, waiting_orchestrator

# ---- expiry ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("SC-10-TTL")
def test_an_entry_with_a_ttl_shows_when_it_expires() -> None:
    session = Context()
    until = {"expires_at": "2026-02-20T14:31:00Z"}

    assert (
        session.write("status", "busy", ttl_seconds=60)
        == {
            "key": "status",
            "version": 1,
            "written_by": ROOT,
            "written_at": NOON,
        }
        | until
    )
    assert session.read("status")["expires_at"] == until["expires_at"]
    assert rows(session.call({"action": "list_keys"}), "keys")[0]["expires_at"] == until["expires_at"]


@pytest.mark.promise("SC-10-TTL-ABSENT", "SC-2-RESTART")
def test_an_expired_entry_is_absent_from_all_actions() -> None:
    session = Context()
    for key in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j"):
        session.write(key, "x" * 4000, ttl_seconds=60, writable_by=[ROOT])
    session.write("a", "y" * 4000, ttl_seconds=60)
    assert session.write("k", "x")["error"] == "STORE_FULL"
    later = AT + 60

    assert session.read("a", at=AT + 59.9)["value"] == "y" * 4000
    assert session.read("a", at=later) == missing("a")
    assert session.call({"action": "delete", "key": "a"}, at=later) == missing("a")
    assert session.call({"action": "read_history", "key": "a"}, at=later) == missing("a")
    assert session.call({"action": "read_batch", "keys": ["a"]}, at=later) == {"entries": [], "missing": ["a"]}
    assert session.call({"action": "list_keys"}, at=later) == {"keys": [], "total_size_tokens": 0}
    assert len(session.key_value) == 11, "looking takes nothing away"
    assert session.call({"action": "snapshot", "label": "x"}, at=later)["keys"] == 0
    session.write("b", "new", by=WRITER, at=later)
    assert {name for name in session.key_value if not name.startswith("@")} == {"b"}, "a change takes away what is over"
    assert session.read("b", at=later)["version"] == 1


@pytest.mark.promise("SC-10-TTL-WRITE")
def test_each_write_restarts_the_time_to_live() -> None:
    session = Context()
    session.write("status", "busy", ttl_seconds=60)
    session.write("status", "still busy", ttl_seconds=60, at=AT + 50)
    assert session.read("status", at=AT + 100)["value"] == "still busy"
    session.write("status", "done", at=AT + 100)

    assert session.read("status", at=AT + 10_000)["value"] == "done"
    assert "expires_at" not in session.read("status")


@pytest.mark.promise("SC-10-TTL")
def test_a_time_to_live_may_be_a_fraction_or_thousands_of_years() -> None:
    session = Context()

    assert session.write("a", "v", ttl_seconds=0.5)["expires_at"] == NOON
    assert session.read("a", at=AT + 0.5) == missing("a")
    assert session.write("b", "v", ttl_seconds=10**400)["expires_at"] == "2126-02-21T14:30:00Z"
    assert session.write("c", "v", ttl_seconds=1e308)["expires_at"] == "2126-02-21T14:30:00Z"


# ---- access ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("SC-10-ACCESS-READ", "SC-10-ACCESS-LIST")
def test_only_matching_participants_read_and_all_see_the_key() -> None:
    session = Context()
    answer = session.write("plan", "secret", by=WRITER, readable_by=["orchestrator", "subagent:writer:*"])
    denied = {"error": "ACCESS_DENIED", "message": f"Entry 'plan' may not be read by '{READER}'."}

    assert "readable_by" not in answer
    assert (session.read("plan")["value"], session.read("plan", by=WRITER)["value"]) == ("secret", "secret")
    assert session.read("plan", by=READER) == denied
    assert session.history("plan", by=READER) == denied
    assert session.read("plan", by="Orchestrator")["error"] == "ACCESS_DENIED"
    assert [row["key"] for row in rows(session.call({"action": "list_keys"}, by=READER), "keys")] == ["plan"]


@pytest.mark.promise("SC-10-ACCESS-WRITE")
def test_only_matching_participants_overwrite_and_delete() -> None:
    session = Context()
    session.write("plan", "v", writable_by=["subagent:writer:*"])
    denied = {"error": "ACCESS_DENIED", "message": f"Entry 'plan' may not be written by '{READER}'."}

    assert session.write("plan", "mine", by=READER) == denied
    assert session.write("plan", "mine", by=READER, writable_by=["*"]) == denied
    assert session.call({"action": "delete", "key": "plan"}, by=READER) == denied
    assert session.write("plan", "w", by=ROOT)["error"] == "ACCESS_DENIED", "patterns exclude all other participants"
    assert session.read("plan", by=READER)["value"] == "v"
    assert session.write("plan", "w", by=WRITER)["version"] == 2
    assert session.call({"action": "delete", "key": "plan"}, by=WRITER)["previous_version"] == 2


@pytest.mark.promise("SC-10-ACCESS-STAYS")
def test_a_write_without_patterns_keeps_the_access_rules() -> None:
    session = Context()
    session.write("plan", "v", readable_by=[], writable_by=[ROOT])
    session.write("plan", "w")

    assert session.read("plan")["error"] == "ACCESS_DENIED"
    assert session.write("plan", "x", by=WRITER)["error"] == "ACCESS_DENIED"
    session.write("plan", "y", readable_by=["*"], writable_by=["*"])
    assert session.write("plan", "z", by=WRITER)["version"] == 4


@pytest.mark.promise("SC-3-WRITE-ORDER", "SC-3-READ-ORDER", "SC-3-DELETE-ORDER")
def test_access_is_checked_after_the_size_and_before_the_total() -> None:
    session = Context()
    for number in range(10):
        session.write(f"k{number}", "x" * 3600, writable_by=[ROOT], readable_by=[ROOT])

    def code(**arguments: object) -> object:
        return session.call(arguments, by=READER)["error"]

    assert code(action="write", key="k0", value="x" * 4004) == "VALUE_TOO_LARGE"
    assert code(action="write", key="k0", value="x" * 4003) == "ACCESS_DENIED"
    session.write("k0", "x" * 4003, writable_by=["*"])
    session.write("k1", "x" * 4003)
    assert code(action="write", key="new", value="x" * 4003) == "STORE_FULL"
    assert code(action="read", key="none") == "KEY_NOT_FOUND"
    assert code(action="delete", key="none") == "KEY_NOT_FOUND"


@pytest.mark.promise("SC-10-ACCESS-READ", "SC-10-ACCESS-WRITE", "SC-7-IDENTITY")
async def test_participants_are_distinguished_by_their_identity() -> None:
    harness = SpecHarness(agents=(retinue.Agent(name="writer", tools=("shared_context",)),))
    harness.script.play("writer", context("read", key="plan"), context("write", key="notes", value="v"), says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        ours = {"readable_by": ["orchestrator"]}
        await read_after(opened, caller(0), "shared_context", action="write", key="plan", value="v", **ours)
        await read_after(opened, caller(1), "subagent", action="spawn", agent="writer", task="Write.")
        await read_after(opened, caller(2), "subagent", action="wait", task_ids=["t_01"])
        messages = harness.requests_of("writer")[-1].messages

    assert json.loads(messages[2].text) == {
        "error": "ACCESS_DENIED",
        "message": "Entry 'plan' may not be read by 'subagent:writer:t_01'.",
    }
    assert json.loads(messages[4].text)["version"] == 1


@pytest.mark.promise("SC-10-TTL-ABSENT")
async def test_time_is_the_clocks_and_an_operator_sees_no_expired_entries_either() -> None:
    harness = SpecHarness()
    harness.script.play(
        "main",
        context("write", key="status", value="busy", ttl_seconds=10),
        other_work(20),
        context("read", key="status"),
        says("enough"),
    )
    async with harness.open() as opened:
        handle = await opened.spawn("Go.")
        await handle.wait()
        run = await opened.supervisor.replay(handle.run_id)
        listed, shown = await opened.sessions.list(), await opened.sessions.context("s1")

    assert json.loads(run.history[6].text) == missing("status")
    assert listed == [{"session_id": "s1", "archived": False, "key_count": 0, "total_size_tokens": 0}]
    assert shown["entries"] == []
