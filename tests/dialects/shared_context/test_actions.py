"""The four actions of shared context as pure decisions about the entries of one session."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.commands import Decision
from retinue.dialects.arguments import compact_json
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.shared_context.actions import decide, look, tokens
from retinue.dialects.shared_context.requests import (
    ALL,
    Delete,
    ListKeys,
    Read,
    TakeSnapshot,
    WriteEntry,
    parse,
    spec_of,
)

AT = 1771597800.0
"""2026-02-20T14:30:00Z"""

CODES = {"KEY_NOT_FOUND", "VALUE_TOO_LARGE", "STORE_FULL", "INVALID_KEY", "INVALID_ACTION", "INVALID_REQUEST"}


class Context:
    """The entries of one session, changed as a store would change them."""

    def __init__(self) -> None:
        self.key_value: dict[str, bytes] = {}

    def call(self, arguments: object, *, by: str = "orchestrator", at: float = AT) -> dict[str, object]:
        """What a model reads after calling the tool with these arguments."""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        try:
            action = parse(text)
            if not isinstance(action, WriteEntry | Delete | TakeSnapshot):
                return json.loads(compact_json(look(action, self.key_value, participant=by, at=at)))
        except CodedRefusal as refusal:
            return refusal.answer
        decision = decide(action, self.key_value, participant=by, at=at)
        self.apply(decision)
        return json.loads(decision.answer)

    def apply(self, decision: Decision) -> None:
        """Let the decision happen."""
        self.key_value.update(decision.puts)
        for key in decision.drops:
            del self.key_value[key]

    def write(self, key: str, value: str, *, by: str = "orchestrator") -> dict[str, object]:
        """Write an entry."""
        return self.call({"action": "write", "key": key, "value": value}, by=by)


@pytest.mark.promise("SC-2-WRITE", "SC-2-TIMES", "SC-1-AD-HOC")
def test_a_write_returns_key_version_author_and_time() -> None:
    assert Context().write("my_own_key", "kept") == {
        "key": "my_own_key",
        "version": 1,
        "written_by": "orchestrator",
        "written_at": "2026-02-20T14:30:00Z",
    }


@pytest.mark.promise("SC-2-READ", "SC-2-TIMES")
def test_a_read_gives_the_value_and_all_about_it() -> None:
    context = Context()
    context.write("scope", "Only staging.", by="subagent:researcher:t_01")

    assert context.call({"action": "read", "key": "scope"}) == {
        "key": "scope",
        "value": "Only staging.",
        "written_by": "subagent:researcher:t_01",
        "written_at": "2026-02-20T14:30:00Z",
        "version": 1,
        "value_size_tokens": 3,
    }


@pytest.mark.promise("SC-2-LIST", "SC-2-TOTAL")
def test_a_listing_has_everything_but_the_values() -> None:
    context = Context()
    context.write("scope", "x" * 40)
    context.call({"action": "write", "key": "constraints", "value": ""}, by="subagent:writer:t_02", at=AT + 75)

    assert context.call({"action": "list_keys"}) == {
        "keys": [
            {
                "key": "constraints",
                "written_by": "subagent:writer:t_02",
                "written_at": "2026-02-20T14:31:15Z",
                "version": 1,
                "value_size_tokens": 1,
            },
            {
                "key": "scope",
                "written_by": "orchestrator",
                "written_at": "2026-02-20T14:30:00Z",
                "version": 1,
                "value_size_tokens": 10,
            },
        ],
        "total_size_tokens": 11,
    }


@pytest.mark.promise("SC-2-LIST", "SC-2-TOTAL", "SC-6-CREATE")
def test_an_empty_session_lists_nothing() -> None:
    assert Context().call({"action": "list_keys"}) == {"keys": [], "total_size_tokens": 0}


@pytest.mark.promise("SC-2-DELETE", "SC-2-RESTART", "SC-1-VERSION")
def test_a_delete_returns_the_last_version_and_the_key_restarts_at_1() -> None:
    context = Context()
    context.write("open_questions", "Was it intentional?")
    context.write("open_questions", "Was it on purpose?")

    assert context.call({"action": "delete", "key": "open_questions"}) == {
        "deleted": "open_questions",
        "previous_version": 2,
    }
    assert context.call({"action": "list_keys"}) == {"keys": [], "total_size_tokens": 0}
    assert context.write("open_questions", "Again?")["version"] == 1


@pytest.mark.promise("SC-1-VERSION", "SC-4-LAST-WINS", "SC-1-EQUAL")
def test_every_participant_may_overwrite_and_the_last_write_stays() -> None:
    context = Context()
    context.write("findings_summary", "first", by="subagent:researcher:t_01")
    second = context.write("findings_summary", "second", by="subagent:writer:t_02")
    found = context.call({"action": "read", "key": "findings_summary"}, by="orchestrator")

    assert (second["version"], second["written_by"]) == (2, "subagent:writer:t_02")
    assert (found["value"], found["version"], found["written_by"]) == ("second", 2, "subagent:writer:t_02")
    assert context.call({"action": "delete", "key": "findings_summary"}, by="subagent:researcher:t_01") == {
        "deleted": "findings_summary",
        "previous_version": 2,
    }


@pytest.mark.promise("SC-2-SIGNED")
def test_the_author_cannot_be_forged() -> None:
    context = Context()
    forged = {"action": "write", "key": "scope", "value": "all", "written_by": "orchestrator", "version": 9}

    assert context.call(forged, by="subagent:writer:t_02") == {
        "key": "scope",
        "version": 1,
        "written_by": "subagent:writer:t_02",
        "written_at": "2026-02-20T14:30:00Z",
    }


@pytest.mark.promise("SC-5-KEY-NOT-FOUND", "SC-5-SHAPE")
@pytest.mark.parametrize("action", ["read", "delete"])
def test_a_missing_key_is_an_error(action: str) -> None:
    assert Context().call({"action": action, "key": "open_questions"}) == {
        "error": "KEY_NOT_FOUND",
        "message": "Key not found: 'open_questions'",
    }


@pytest.mark.promise("SC-3-KEY", "SC-5-SHAPE")
@pytest.mark.parametrize("action", ["read", "write", "delete"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "Key must be 1-64 characters, got 0."),
        ("k" * 65, "Key must be 1-64 characters, got 65."),
        ("Scope", "Key must match [a-z0-9_]+, got: 'Scope'"),
        ("a-b", "Key must match [a-z0-9_]+, got: 'a-b'"),
        ("a.b", "Key must match [a-z0-9_]+, got: 'a.b'"),
        ("a/b", "Key must match [a-z0-9_]+, got: 'a/b'"),
        ("inv:findings", "Key must match [a-z0-9_]+, got: 'inv:findings'"),
        ("scope\n", "Key must match [a-z0-9_]+, got: 'scope\\n'"),
        ("größe", "Key must match [a-z0-9_]+, got: 'größe'"),
        ("\u0661", "Key must match [a-z0-9_]+, got: '\u0661'"),
    ],
)
def test_a_key_is_flat_lowercase_and_short(action: str, key: str, message: str) -> None:
    assert Context().call({"action": action, "key": key, "value": "v"}) == {"error": "INVALID_KEY", "message": message}


@pytest.mark.promise("SC-3-KEY")
@pytest.mark.parametrize("key", ["a", "k" * 64, "_", "0", "t_01_findings"])
def test_a_key_may_have_64_letters_digits_and_underscores(key: str) -> None:
    assert Context().write(key, "v")["key"] == key


@pytest.mark.promise("SC-3-VALUE", "SC-3-TOKENS")
def test_a_value_has_at_most_a_thousand_tokens() -> None:
    context = Context()

    assert context.write("scope", "x" * 4003)["version"] == 1
    assert context.write("scope", "x" * 4004) == {
        "error": "VALUE_TOO_LARGE",
        "message": "Value is ~1001 tokens, max is 1000.",
    }
    assert context.call({"action": "read", "key": "scope"})["version"] == 1


@pytest.mark.promise("SC-2-WARNING")
def test_a_write_warns_from_800_tokens_on() -> None:
    context = Context()

    assert "warning" not in context.write("scope", "x" * 3199)
    assert context.write("scope", "x" * 3200) == {
        "key": "scope",
        "version": 2,
        "written_by": "orchestrator",
        "written_at": "2026-02-20T14:30:00Z",
        "warning": "Value is ~800 tokens. Consider distilling further.",
    }


@pytest.mark.promise("SC-3-STORE", "SC-3-OVERWRITE", "SC-3-TOKENS")
def test_all_values_together_have_at_most_ten_thousand_tokens() -> None:
    context = Context()
    for number in range(10):
        assert "error" not in context.write(f"key_{number}", "x" * 4000)

    assert context.call({"action": "list_keys"})["total_size_tokens"] == 10_000
    assert context.write("one_more", "") == {
        "error": "STORE_FULL",
        "message": "Write would bring store to ~10001 tokens, max is 10000.",
    }
    assert context.write("key_3", "x" * 4000)["version"] == 2


@pytest.mark.promise("SC-3-WRITE-ORDER", "SC-3-READ-ORDER", "SC-3-DELETE-ORDER")
def test_checks_are_made_in_the_documented_order() -> None:
    context = Context()
    for number in range(10):
        context.write(f"key_{number}", "x" * 4000)

    def code(**arguments: object) -> object:
        return context.call(arguments)["error"]

    assert code(action="write", key="BAD") == "INVALID_REQUEST"
    assert code(action="write", key="BAD", value="x" * 5000) == "INVALID_KEY"
    assert code(action="write", key="new", value="x" * 5000) == "VALUE_TOO_LARGE"
    assert code(action="write", key="new", value="x") == "STORE_FULL"
    assert code(action="read", key=7) == "INVALID_REQUEST"
    assert code(action="read", key="BAD") == "INVALID_KEY"
    assert code(action="delete", key=None) == "INVALID_REQUEST"
    assert code(action="delete", key="BAD") == "INVALID_KEY"


@pytest.mark.promise("SC-5-INVALID-ACTION")
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"action": "explode"}, "'explode'"),
        ({"action": ""}, "''"),
        ({}, "None"),
        ({"key": 7}, "None"),
        ({"action": None}, "None"),
        ({"action": 3}, "3"),
        ({"action": ["read"]}, "['read']"),
    ],
)
def test_an_action_that_there_is_not_is_refused(arguments: object, shown: str) -> None:
    assert Context().call(arguments) == {
        "error": "INVALID_ACTION",
        "message": f"Unknown action: {shown}. Valid: ['delete', 'list_keys', 'read', 'read_batch', 'read_history', "
        "'snapshot', 'write']",
    }


@pytest.mark.promise("SC-5-INVALID-REQUEST", "SC-5-SHAPE")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "read"}, "Field 'key' is required for action 'read'."),
        ({"action": "delete"}, "Field 'key' is required for action 'delete'."),
        ({"action": "write", "value": "v"}, "Field 'key' is required for action 'write'."),
        ({"action": "write", "key": "scope"}, "Field 'value' is required for action 'write'."),
        ({"action": "read", "key": 7}, "Field 'key' must be a string, got a number."),
        ({"action": "read", "key": None}, "Field 'key' must be a string, got null."),
        ({"action": "write", "key": ["a"], "value": "v"}, "Field 'key' must be a string, got a list."),
        ({"action": "write", "key": "scope", "value": {"a": 1}}, "Field 'value' must be a string, got an object."),
        ({"action": "write", "key": "scope", "value": True}, "Field 'value' must be a string, got a boolean."),
        ("[1]", "Arguments must be one JSON object, got a list."),
        ('"read"', "Arguments must be one JSON object, got a string."),
        ("null", "Arguments must be one JSON object, got null."),
    ],
)
def test_a_request_without_its_fields_is_refused(arguments: object, message: str) -> None:
    assert Context().call(arguments) == {"error": "INVALID_REQUEST", "message": message}


@pytest.mark.promise("SC-5-INVALID-REQUEST", "SC-5-NEVER-RAISES")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("", id="nothing"),
        pytest.param("read scope", id="words"),
        pytest.param('{"action": "read"', id="cut off"),
        pytest.param("[" * 100_000, id="very deep"),
        pytest.param('{"key": "\ud800"}', id="half a character"),
    ],
)
def test_arguments_that_are_not_json_are_refused(arguments: str) -> None:
    refusal = Context().call(arguments)

    assert refusal["error"] == "INVALID_REQUEST"
    assert str(refusal["message"]).startswith("Arguments must be one JSON object: ")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
HUGE = st.integers(0, 100_000).map("x".__mul__)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["list_keys", "read", "write", "delete", "read_batch", "read_history", "snapshot"])
        | ANYTHING,
        "keys": st.lists(st.sampled_from(["scope", "findings"]), max_size=2) | ANYTHING,
        "versions": st.lists(st.integers(), max_size=2) | ANYTHING,
        "label": HUGE | ANYTHING,
        "ttl_seconds": st.floats() | ANYTHING,
        **dict.fromkeys(("readable_by", "writable_by"), st.lists(st.text(max_size=3), max_size=2) | ANYTHING),
        "key": st.sampled_from(["scope", "findings"]) | HUGE | ANYTHING,
        "value": HUGE | ANYTHING,
        "written_by": ANYTHING,
    },
)


@pytest.mark.promise("SC-5-NEVER-RAISES", "SC-5-SHAPE", "SC-3-STORE", "SC-3-VALUE")
@given(st.lists(ARGUMENTS | ANYTHING, max_size=12))
def test_random_actions_are_answered_and_all_limits_hold(calls: list[object]) -> None:
    context = Context()

    for arguments in calls:
        answer = context.call(arguments)
        if "error" in answer:
            assert set(answer) == {"error", "message"}
            assert answer["error"] in CODES

    listing = context.call({"action": "list_keys"})
    assert listing["total_size_tokens"] == sum(_sizes(context.key_value)) <= 10_000
    assert all(size <= 1000 for size in _sizes(context.key_value))


@pytest.mark.promise("SC-5-NEVER-RAISES")
@given(st.text(max_size=200))
def test_random_text_as_arguments_is_answered(arguments: str) -> None:
    assert Context().call(arguments)["error"] in {"INVALID_REQUEST", "INVALID_ACTION"}


@pytest.mark.promise("SC-3-TOKENS")
@given(st.text(max_size=200))
def test_a_value_counts_a_token_per_four_characters_and_at_least_one(value: str) -> None:
    assert tokens(value) == max(1, len(value) // 4)


@pytest.mark.promise("SC-2-SCHEMA")
def test_the_tool_is_shown_with_its_parameters() -> None:
    core, everything = spec_of(frozenset()), spec_of(ALL)
    schema = json.loads(core.parameters)

    assert (core.name, everything.name) == ("shared_context", "shared_context")
    assert schema["type"] == "object"
    assert {name: field["type"] for name, field in schema["properties"].items()} == {
        "action": "string",
        "key": "string",
        "value": "string",
    }
    assert schema["properties"]["action"]["enum"] == ["list_keys", "read", "write", "delete"]
    assert schema["required"] == ["action"]
    more = json.loads(everything.parameters)
    assert list(more["properties"])[3:] == ["keys", "versions", "label", "ttl_seconds", "readable_by", "writable_by"]
    assert more["properties"]["action"]["enum"][4:] == ["read_batch", "read_history", "snapshot"]
    assert more["required"] == ["action"]


def test_requests_become_actions() -> None:
    assert parse('{"action": "list_keys"}') == ListKeys()
    assert parse('{"action": "read", "key": "scope"}') == Read("scope")
    assert parse('{"action": "write", "key": "scope", "value": "v"}') == WriteEntry("scope", "v")
    assert parse('{"action": "delete", "key": "scope"}') == Delete("scope")


def _sizes(key_value: Mapping[str, bytes]) -> list[int]:
    return [tokens(json.loads(entry)["value"]) for key, entry in key_value.items() if "@" not in key]
