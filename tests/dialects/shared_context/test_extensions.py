"""Requests of the extensions of shared context, and their refusals."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.dialects.shared_context.requests import (
    ABOUT_EXTENSIONS,
    PARTICIPANT_TEXT,
    ReadBatch,
    ReadHistory,
    TakeSnapshot,
    WriteEntry,
    parse,
    participant_text,
)
from tests.dialects.shared_context.harness import AT, READER, ROOT, WRITER, Context, rows
from tests.dialects.spec.harness import Answer


def test_requests_become_actions() -> None:
    assert parse('{"action": "read_batch", "keys": ["a", "b", "a"]}') == ReadBatch(("a", "b"))
    assert parse('{"action": "read_history", "key": "a"}') == ReadHistory("a")
    assert parse('{"action": "read_history", "key": "a", "versions": [2, 1]}') == ReadHistory("a", (2, 1))
    assert parse('{"action": "snapshot", "label": "before"}') == TakeSnapshot("before")
    assert parse(
        '{"action": "write", "key": "a", "value": "v", "ttl_seconds": 5, "readable_by": ["x"], "writable_by": []}'
    ) == WriteEntry("a", "v", 5.0, ("x",), ())


@pytest.mark.promise("SC-10-NO-PREFIXES")
def test_a_key_with_a_prefix_stays_malformed() -> None:
    assert Context().write("inv:findings_summary", "v")["error"] == "INVALID_KEY"


@pytest.mark.promise("SC-5-INVALID-REQUEST")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "read_batch"}, "Field 'keys' is required for action 'read_batch'."),
        ({"action": "read_batch", "keys": "a"}, "Field 'keys' must be a list of strings, got a string."),
        ({"action": "read_batch", "keys": [1]}, "Field 'keys' must be a list of strings, got a number in it."),
        ({"action": "read_history"}, "Field 'key' is required for action 'read_history'."),
        ({"action": "read_history", "key": []}, "Field 'key' must be a string, got a list."),
        (
            {"action": "read_history", "key": "a", "versions": 1},
            "Field 'versions' must be a list of integers, got a number.",
        ),
        (
            {"action": "read_history", "key": "a", "versions": None},
            "Field 'versions' must be a list of integers, got null.",
        ),
        (
            {"action": "read_history", "key": "a", "versions": [True]},
            "Field 'versions' must be a list of integers, got a boolean in it.",
        ),
        (
            {"action": "read_history", "key": "a", "versions": ["1"]},
            "Field 'versions' must be a list of integers, got a string in it.",
        ),
        ({"action": "snapshot"}, "Field 'label' is required for action 'snapshot'."),
        ({"action": "snapshot", "label": 7}, "Field 'label' must be a string, got a number."),
    ],
)
def test_a_request_without_its_fields_is_refused(arguments: object, message: str) -> None:
    assert Context().call(arguments) == {"error": "INVALID_REQUEST", "message": message}


@pytest.mark.promise("SC-5-INVALID-REQUEST")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ttl_seconds": "60"}, "Field 'ttl_seconds' must be a number of seconds, got a string."),
        ({"ttl_seconds": None}, "Field 'ttl_seconds' must be a number of seconds, got null."),
        ({"ttl_seconds": True}, "Field 'ttl_seconds' must be a number of seconds, got a boolean."),
        ({"ttl_seconds": 0}, "Field 'ttl_seconds' must be above 0."),
        ({"ttl_seconds": -(10**400)}, "Field 'ttl_seconds' must be above 0."),
        ({"readable_by": "*"}, "Field 'readable_by' must be a list of strings, got a string."),
        ({"writable_by": [None]}, "Field 'writable_by' must be a list of strings, got null in it."),
        (
            {"readable_by": ["x" * 201]},
            "Field 'readable_by' must have at most 32 patterns of 200 characters.",
        ),
        (
            {"writable_by": [str(number) for number in range(33)]},
            "Field 'writable_by' must have at most 32 patterns of 200 characters.",
        ),
    ],
)
def test_a_write_with_other_fields_is_refused(fields: Answer, message: str) -> None:
    assert Context().call({"action": "write", "key": "a", "value": "v"} | fields) == {
        "error": "INVALID_REQUEST",
        "message": message,
    }


PATTERNS = st.lists(st.sampled_from(["*", ROOT, "subagent:*", "[!", "", "subagent:writer:t_0?"]), max_size=3)
KEYS = st.sampled_from(["a", "b", "c"])
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "key": KEYS,
    "keys": st.lists(KEYS, max_size=3),
    "value": st.integers(0, 1200).map(lambda size: "x" * 4 * size),
    "label": KEYS,
}
PERHAPS: dict[str, st.SearchStrategy[object]] = {
    "ttl_seconds": st.integers(1, 20),
    "readable_by": PATTERNS,
    "writable_by": PATTERNS,
}
ACTIONS = ["write", "write", "read", "delete", "read_history", "read_batch", "snapshot"]
CALLS = st.fixed_dictionaries({"action": st.sampled_from(ACTIONS), **FIELDS}, optional=PERHAPS)


@pytest.mark.promise("SC-5-NEVER-RAISES", "SC-3-STORE", "SC-10-TTL-ABSENT", "SC-10-HISTORY-KEPT")
@given(st.lists(st.tuples(CALLS, st.sampled_from([ROOT, WRITER, READER]), st.integers(0, 10)), max_size=30))
def test_random_actions_keep_every_listed_entry_readable_and_all_limits(
    calls: list[tuple[dict[str, object], str, int]],
) -> None:
    session, at = Context(), AT
    for arguments, by, passed in calls:
        at += passed
        session.call(arguments, by=by, at=at)
        listing = session.call({"action": "list_keys"}, at=at)
        listed = [cast("str", row["key"]) for row in rows(listing, "keys")]
        absent = [key for key in ("a", "b", "c") if session.read(key, at=at).get("error") == "KEY_NOT_FOUND"]
        assert sorted([*listed, *absent]) == ["a", "b", "c"]
        versions = [name for name in session.key_value if "@" in name and not name.startswith("@")]
        assert all(sum(name.startswith(f"{key}@") for name in versions) <= 9 for key in "abc")
        assert {name.partition("@")[0] for name in versions} <= set(session.key_value)


@pytest.mark.promise("SC-10-TOLD")
def test_the_participant_text_explains_the_extensions() -> None:
    assert participant_text(frozenset()) == PARTICIPANT_TEXT
    text = participant_text({"ttl", "hint"})
    assert text.startswith(PARTICIPANT_TEXT)
    assert [name for name, told in ABOUT_EXTENSIONS.items() if told in text] == ["ttl"]
