"""Extensions of shared context: batches, earlier versions, and snapshots."""

import json
from pathlib import Path

import pytest

from retinue.core.errors import BadInput, UnknownName
from retinue.dialects.shared_context.actions import HISTORY_BYTES
from retinue.providers.scripted import says
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.shared_context.harness import AT, NOON, READER, ROOT, WRITER, Context, missing, rows
from tests.dialects.spec.harness import Answer, SpecHarness, context, read_after, waiting_orchestrator

# ---- read_batch -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("SC-10-BATCH")
def test_a_batch_gives_entries_as_read_does_and_names_those_that_are_missing() -> None:
    session = Context()
    session.write("scope", "Only staging.")
    session.write("constraints", "Read-only.", by=WRITER)
    keys = ["constraints", "gone", "scope", "gone"]

    assert session.call({"action": "read_batch", "keys": keys}) == {
        "entries": [session.read("constraints"), session.read("scope")],
        "missing": ["gone"],
    }
    assert session.call({"action": "read_batch", "keys": []}) == {"entries": [], "missing": []}


@pytest.mark.promise("SC-10-BATCH-REFUSED")
def test_one_malformed_or_forbidden_key_refuses_the_whole_batch() -> None:
    session = Context()
    session.write("scope", "v")
    session.write("secret", "v", readable_by=[ROOT])

    assert session.call({"action": "read_batch", "keys": ["scope", "BAD"]})["error"] == "INVALID_KEY"
    assert session.call({"action": "read_batch", "keys": ["scope", "secret"]}, by=READER) == {
        "error": "ACCESS_DENIED",
        "message": f"Entry 'secret' may not be read by '{READER}'.",
    }


# ---- read_history ---------------------------------------------------------------------------------------------------


def version(number: int, value: str, by: str = ROOT) -> Answer:
    return {"version": number, "value": value, "written_by": by, "written_at": NOON}


@pytest.mark.promise("SC-10-HISTORY", "SC-10-HISTORY-SOME")
def test_the_versions_of_an_entry_can_be_read_the_current_one_last() -> None:
    session = Context()
    session.write("scope", "one")
    session.write("scope", "two", by=WRITER)
    session.write("scope", "three")

    assert session.history("scope") == {
        "key": "scope",
        "versions": [version(1, "one"), version(2, "two", WRITER), version(3, "three")],
    }
    assert session.history("scope", versions=[3, 1, 99]) == {
        "key": "scope",
        "versions": [version(1, "one"), version(3, "three")],
    }
    assert session.history("scope", versions=[]) == {"key": "scope", "versions": []}


@pytest.mark.promise("SC-10-HISTORY-KEPT", "SC-2-RESTART")
def test_ten_versions_are_kept_and_go_with_their_entry() -> None:
    session = Context()
    for number in range(1, 13):
        session.write("scope", f"v{number}")
    kept = [row["version"] for row in rows(session.history("scope"), "versions")]
    session.call({"action": "delete", "key": "scope"})

    assert kept == list(range(3, 13))
    assert session.key_value == {}
    assert session.history("scope") == missing("scope")
    session.write("scope", "again")
    assert [row["version"] for row in rows(session.history("scope"), "versions")] == [1]


@pytest.mark.promise("SC-3-STORE", "SC-2-TOTAL")
def test_earlier_versions_count_neither_as_tokens_nor_as_keys() -> None:
    session = Context()
    for _ in range(5):
        session.write("scope", "x" * 4000)
    listing = session.call({"action": "list_keys"})

    assert (listing["total_size_tokens"], len(rows(listing, "keys"))) == (1000, 1)


@pytest.mark.promise("SC-10-HISTORY-KEPT")
def test_all_earlier_versions_together_are_bounded_and_the_oldest_go_first() -> None:
    session = Context()
    value = "\N{GRINNING FACE}" * 4000
    for at in range(200):
        session.write(f"key_{at % 50}", value, at=AT + at)
        session.write(f"key_{at % 50}", "short", at=AT + at + 0.5)

    kept = {name: json.loads(stored)["written_at"] for name, stored in session.key_value.items() if "@" in name}
    size = sum(len(session.key_value[name]) for name in kept)
    assert HISTORY_BYTES - 20_000 < size <= HISTORY_BYTES
    newest = [AT + at / 2 for at in range(400)][-len(kept) - 50 :]
    assert set(kept.values()) <= set(newest), "but for the current ones, these are the last that were written"


@pytest.mark.promise("SC-10-HISTORY", "SC-10-ACCESS-READ")
def test_a_version_that_was_for_fewer_eyes_is_not_shown_to_others() -> None:
    session = Context()
    session.write("plan", "secret", readable_by=[ROOT])
    session.write("plan", "public", readable_by=["*"])

    assert [row["value"] for row in rows(session.history("plan"), "versions")] == ["secret", "public"]
    assert [row["value"] for row in rows(session.history("plan", by=READER), "versions")] == ["public"]


# ---- snapshots ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("SC-10-SNAPSHOT", "SC-10-SNAPSHOT-LABEL")
def test_a_snapshot_counts_its_entries_and_changes_none() -> None:
    session = Context()
    session.write("scope", "v")
    session.write("constraints", "v", readable_by=[ROOT])
    before = session.call({"action": "list_keys"})

    assert session.call({"action": "snapshot", "label": "before the revert"}, by=WRITER) == {
        "snapshot": "before the revert",
        "keys": 2,
    }
    assert session.call({"action": "snapshot", "label": "before the revert"}) == {
        "snapshot": "before the revert",
        "keys": 2,
    }
    assert session.call({"action": "list_keys"}) == before


@pytest.mark.promise("SC-10-SNAPSHOT-MOST", "SC-10-SNAPSHOT-LABEL")
def test_ten_snapshots_are_kept_and_their_labels_can_be_used_again() -> None:
    session = Context()
    answers = [session.call({"action": "snapshot", "label": f"s{number}"}, at=AT + number) for number in range(11)]

    assert [answer.get("snapshot") for answer in answers[:10]] == [f"s{number}" for number in range(10)]
    assert answers[10] == {
        "error": "STORE_FULL",
        "message": "There are 10 snapshots, no more are kept; use one of their labels: "
        "['s0', 's1', 's2', 's3', 's4', 's5', 's6', 's7', 's8', 's9']",
    }
    assert session.call({"action": "snapshot", "label": "s3"}) == {"snapshot": "s3", "keys": 0}


@pytest.mark.promise("SC-10-SNAPSHOT-LABEL", "SC-5-INVALID-REQUEST")
@pytest.mark.parametrize("label", ["", "x" * 65, "a\nb", "\x00"])
def test_a_label_is_short_and_printable(label: str) -> None:
    assert Context().call({"action": "snapshot", "label": label}) == {
        "error": "INVALID_REQUEST",
        "message": f"Field 'label' must be 1-64 printable characters, got {len(label)}: {label!r}",
    }


@pytest.mark.promise("SC-10-SNAPSHOT-SHOWN")
async def test_an_operator_takes_snapshots_and_reads_their_entries(tmp_path: Path) -> None:
    harness = SpecHarness(store=SqliteStore(tmp_path / "state.db"))
    harness.script.play(
        "main",
        context("write", key="scope", value="all", ttl_seconds=3600, readable_by=["orchestrator"]),
        context("snapshot", label="first"),
        context("write", key="scope", value="staging"),
        says("enough"),
    )
    async with harness.open() as opened:
        await opened.run("Go.")
        taken = await opened.sessions.snapshot("s1", "second")
        now, first, second = [
            await opened.sessions.context("s1", snapshot=label) for label in (None, "first", "second")
        ]
        with pytest.raises(UnknownName, match="unknown snapshot: 'third'; known: first, second"):
            await opened.sessions.context("s1", snapshot="third")
        with pytest.raises(BadInput, match="Field 'label' must be 1-64 printable characters"):
            await opened.sessions.snapshot("s1", "")
        with pytest.raises(UnknownName, match="unknown session: 'nowhere'"):
            await opened.sessions.snapshot("nowhere", "x")
        for number in range(8):
            await opened.sessions.snapshot("s1", f"more {number}")
        with pytest.raises(BadInput, match="There are 10 snapshots"):
            await opened.sessions.snapshot("s1", "one too many")
        await opened.sessions.archive("s1")
        with pytest.raises(BadInput, match="session 's1' is archived"):
            await opened.sessions.snapshot("s1", "second")

    assert taken == 1
    assert now["snapshots"] == ["first", "second"]
    assert first == {
        "session_id": "s1",
        "archived": False,
        "snapshot": "first",
        "taken_by": "orchestrator",
        "taken_at": "2026-01-01T00:00:02Z",
        "entries": [
            {
                "key": "scope",
                "value": "all",
                "written_by": "orchestrator",
                "written_at": "2026-01-01T00:00:01Z",
                "version": 1,
                "expires_at": "2026-01-01T01:00:01Z",
                "readable_by": ("orchestrator",),
            }
        ],
    }
    assert (second["taken_by"], [entry["value"] for entry in rows(second, "entries")]) == ("operator", ["staging"])


@pytest.mark.promise("SC-4-KEYED", "SC-10-SNAPSHOT")
async def test_a_snapshot_that_is_entered_again_is_taken_once() -> None:
    harness = SpecHarness()
    async with waiting_orchestrator(harness) as (opened, caller):
        first = await read_after(opened, caller(0), "shared_context", action="snapshot", label="x")
        await read_after(opened, caller(1), "shared_context", action="write", key="scope", value="v")
        again = await read_after(opened, caller(0, again=True), "shared_context", action="snapshot", label="x")
        kept = await opened.sessions.context("s1", snapshot="x")

    assert (first, again) == ({"snapshot": "x", "keys": 0}, first)
    assert kept["entries"] == []
