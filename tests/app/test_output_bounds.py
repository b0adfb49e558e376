"""Output schemas that would take long, or for ever: they are refused, or an answer is not accepted in time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retinue.app.structured_output import BadSchema, make_output, validate_output

pytestmark = pytest.mark.real_time

REFERS = "it cannot be checked: the schema refers to itself too often"


def error_of(schema: dict[str, Any], value: object) -> str:
    return validate_output(make_output(schema), json.dumps(value)).error


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa)+$", "^(a*)*$", r"^(a+)\1+$", "(?=(a+)+$)", "^(?:a?){60}a{60}$"]
)
def test_a_pattern_that_takes_for_ever_ends_in_an_error(pattern: str) -> None:
    error = error_of({"type": "string", "pattern": pattern}, "a" * 59 + "!")

    assert error.startswith(("it cannot be checked in time against the pattern", "data must match pattern"))
    assert error_of({"patternProperties": {"^(a+)+$": False}}, {"a" * 59 + "!": 1}).startswith("it cannot be checked")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[a-z0-9]+(?:-[a-z0-9]+)*$", "one-two", "one--two"),
        ("^[A-Z]{2}[0-9]{4}$", "AB1234", "AB123"),
        ("^(?:red|green)$", "red", "blue"),
        (r"^\d+\.\d+$", "1.5", "15"),
    ],
)
def test_an_ordinary_pattern_is_matched(pattern: str, good: str, bad: str) -> None:
    schema = {"type": "string", "pattern": pattern}

    assert (error_of(schema, good), error_of(schema, bad)) == ("", f"data must match pattern {pattern}")


def test_a_schema_that_refers_to_itself_without_end_gives_an_error() -> None:
    assert error_of({"$ref": "#"}, 1) == REFERS


def test_a_schema_that_doubles_its_work_at_each_level_gives_an_error() -> None:
    twice = [{"properties": {"a": {"$ref": "#/$defs/n"}}}] * 2
    schema = {"$defs": {"n": {"allOf": twice}}, "$ref": "#/$defs/n"}

    assert (error_of(schema, nested(5)), error_of(schema, nested(60))) == ("", REFERS)


def test_a_tree_of_usual_size_is_validated() -> None:
    node = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
    tree: dict[str, Any] = {"children": [{"children": [{"children": []}] * 50}] * 50}

    assert error_of({"$defs": {"n": node}, "$ref": "#/$defs/n"}, tree) == ""


MANY = [{"const": number} for number in range(4000)]
TWICE = [{"properties": {"a": {"$ref": "#/$defs/n"}}}] * 2
TOO_LARGE = "it cannot be checked in time: the answer and its schema are too large together"


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"items": {"anyOf": MANY}}, [3999] * 20_000, TOO_LARGE),
        ({"items": {"enum": list(range(19_000))}}, [18_999] * 500_000, TOO_LARGE),
        ({"$defs": {"n": {"allOf": TWICE, "not": {"anyOf": MANY}}}, "$ref": "#/$defs/n"}, nested(16), REFERS),
    ],
    ids=["branches", "choices", "references"],
)
def test_a_large_answer_to_a_large_schema_is_checked_in_a_process_with_a_time_limit(
    schema: dict[str, Any], value: object, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.app.structured_output.SECONDS", 0.2)

    assert error_of(schema, value) == error


def test_a_large_answer_is_validated_in_the_process_as_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.app.structured_output.SECONDS", 60.0)
    schema = {"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": list(range(1000))}}}

    errors = [error_of(schema, [999] * 1000), error_of(schema, [*[999] * 1000, "é"])]

    assert errors[0] == ""
    assert errors[1].startswith("data[1000] must be one of [0, 1, 2,")
    assert len(errors[1]) == 2000


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"enum": list(range(30_000))}, "it has more than 20000 values"),
        ({"description": "x" * 1_100_000}, "it has more than 1 MiB"),
        ({"pattern": "a" * 3000}, f"the pattern {'a' * 40}... has more than 2000 characters"),
        (json.loads('{"items":' * 80 + "{}" + "}" * 80), "it is nested more than 64 levels deep"),
    ],
    ids=["values", "bytes", "pattern", "levels"],
)
def test_a_schema_that_is_too_large_is_refused_before_it_is_compiled(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSchema) as refused:
        make_output(schema)

    assert str(refused.value) == f"the schema is not a usable JSON Schema: {reason}"
