"""Every keyword of JSON Schema 2020-12 that constrains an answer is enforced, or the schema is refused."""

from typing import Any, cast

import msgspec
import pytest
from jsonschema import Draft202012Validator

import retinue
from retinue.app.structured_output import NOT_CHECKED, make_output, validate_output

CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "type": ({"type": "integer"}, 1, "1"),
    "type of several": ({"type": ["integer", "null"]}, None, "1"),
    "enum": ({"enum": ["a", 1]}, 1, 2),
    "const": ({"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    "multipleOf": ({"multipleOf": 5}, 10, 11),
    "maximum": ({"maximum": 3}, 3, 4),
    "exclusiveMaximum": ({"exclusiveMaximum": 3}, 2, 3),
    "minimum": ({"minimum": 3}, 3, 2),
    "exclusiveMinimum": ({"exclusiveMinimum": 3}, 4, 3),
    "maxLength": ({"maxLength": 2}, "ab", "abc"),
    "minLength": ({"minLength": 2}, "ab", "a"),
    "pattern": ({"pattern": "^a+$"}, "aa", "b"),
    "maxItems": ({"maxItems": 1}, [1], [1, 2]),
    "minItems": ({"minItems": 1}, [1], []),
    "uniqueItems": ({"uniqueItems": True}, [1, 2], [1, 1]),
    "items": ({"items": {"type": "integer"}}, [1], ["1"]),
    "prefixItems": ({"prefixItems": [{"type": "integer"}]}, [1, "x"], ["x"]),
    "items after prefixItems": ({"prefixItems": [{"type": "integer"}], "items": False}, [1], [1, 2]),
    "contains": ({"contains": {"const": 7}}, [1, 7], [1]),
    "maxProperties": ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
    "minProperties": ({"minProperties": 1}, {"a": 1}, {}),
    "required": ({"required": ["a"]}, {"a": 1}, {}),
    "properties": ({"properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": "1"}),
    "patternProperties": ({"patternProperties": {"^a": {"type": "integer"}}}, {"ab": 1}, {"ab": "1"}),
    "additionalProperties": ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, {"b": 1}),
    "propertyNames": ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"b": 1}, {"a": 1}),
    "allOf": ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 2, 3),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, "a"),
    "oneOf": ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, 2, 6),
    "not": ({"not": {"type": "integer"}}, "a", 1),
    "if, then, else": ({"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "string"}}, 5, 4),
    "$defs": ({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}, 1, "1"),
    "keywords beside $ref": (
        {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n", "minimum": 3}}},
        {"a": 3},
        {"a": 2},
    ),
    "allOf beside $ref": (
        {"$defs": {"n": {"minimum": 1}}, "properties": {"a": {"$ref": "#/$defs/n", "allOf": [{"maximum": 2}]}}},
        {"a": 2},
        {"a": 3},
    ),
    "false": ({"properties": {"a": False}}, {}, {"a": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_keyword_is_enforced_as_in_the_standard(case: str) -> None:
    schema, right, wrong = CASES[case]
    standard = cast("Any", Draft202012Validator(schema))  # its types are incomplete
    output = make_output(schema)

    for value in (right, wrong):
        error = validate_output(output, msgspec.json.encode(value).decode()).error
        assert (error == "") is standard.is_valid(value), (value, error)
    assert standard.is_valid(right)
    assert not standard.is_valid(wrong)


@pytest.mark.parametrize("keyword", NOT_CHECKED)
def test_a_schema_with_a_keyword_that_is_not_checked_is_refused(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", keyword: 1}}}

    with pytest.raises(
        retinue.RetinueError, match=f"the keyword \\{keyword} is not checked here" if keyword[0] == "$" else keyword
    ):
        make_output(schema)


def test_a_property_may_have_the_name_of_such_a_keyword() -> None:
    schema = {"type": "object", "properties": {"minContains": {"type": "integer"}, "$ref": {"type": "string"}}}
    output = make_output(schema)

    assert validate_output(output, '{"minContains": 1, "$ref": "x"}').error == ""
    assert validate_output(output, '{"minContains": "1"}').error != ""
