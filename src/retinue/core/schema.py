"""JSON Schemas as data: a walk over the schemas in a schema, and keywords that vendors require to be written out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

Schema: TypeAlias = dict[str, Any]

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values map arbitrary names to schemas."""

_VALUE_KEYWORDS = ("const", "enum", "default", "examples", "required", "dependentRequired")
"""Keywords whose values are not schemas, whatever they look like."""


def map_schema(schema: Any, change: Callable[[Any], Any]) -> Any:
    """The schema with each of its direct sub-schemas replaced by `change(sub_schema)`."""
    if isinstance(schema, list):
        return [change(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    changed: Schema = {}
    for keyword, value in cast(Schema, schema).items():
        if keyword in _VALUE_KEYWORDS:
            changed[keyword] = value
        elif keyword in _SCHEMA_MAPS and isinstance(value, dict):
            changed[keyword] = {name: change(below) for name, below in cast(Schema, value).items()}
        else:
            changed[keyword] = change(value) if isinstance(value, (dict, list)) else value
    return changed


def with_types_and_items(schema: Any) -> Any:
    """The schema, and all schemas in it, with the type of each enumeration and the items of each array written out.

    >>> with_types_and_items({"type": "array"}), with_types_and_items({"enum": ["low", "high"]})
    ({'type': 'array', 'items': {}}, {'type': 'string', 'enum': ['low', 'high']})
    """
    mapped = map_schema(schema, with_types_and_items)
    if not isinstance(mapped, dict):
        return mapped
    written = cast(Schema, mapped)
    if "enum" in written and "type" not in written and (kind := _type_of(written["enum"])) is not None:
        written = {"type": kind, **written}
    if "array" in _types(written) and not isinstance(written.get("items"), dict):
        kinds = _unique(written.get("prefixItems", ()))
        written["items"] = {} if not kinds else kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return written


def _types(schema: Schema) -> Iterable[str]:
    kinds: object = schema.get("type", ())
    return (kinds,) if isinstance(kinds, str) else cast("Iterable[str]", kinds)


def _type_of(values: Iterable[object]) -> str | None:
    """The JSON type that all values have."""
    names: dict[type, str] = {
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
    }
    kinds = {names.get(type(value)) for value in values}
    return kinds.pop() if len(kinds) == 1 else None


def _unique(schemas: Iterable[Schema]) -> list[Schema]:
    found: list[Schema] = []
    for schema in schemas:
        if schema not in found:
            found.append(schema)
    return found
