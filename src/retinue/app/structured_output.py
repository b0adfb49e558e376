"""Answers that are data: what a program demands becomes a JSON Schema, and a model's words are held against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from retinue.core.agent import Output, ValidatedOutput
from retinue.core.errors import BadInput

Demand: TypeAlias = Mapping[str, Any] | Path | type | Output
"""What an answer has to be: a JSON Schema or the path of its file, a type, or `dict` for any JSON object."""

Schema: TypeAlias = dict[str, Any]

LONGEST = 2000
"""Characters of a complaint; a validator may quote a whole schema."""

DEEPEST = 200
"""Levels of an answer; what is deeper could be read here, and then perhaps not by whoever reads the store."""

_SCHEMES = ("http", "https", "ftp", "file", "data", "")
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_BELOW = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values hold schemas by names that anybody may choose."""

_PLAIN = ("const", "enum", "default", "examples", "required", "dependentRequired")
"""Keywords whose values are no schemas, whatever they look like."""


class BadSchema(BadInput):
    """What was given as a JSON Schema is none."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is not a usable JSON Schema: {reason}")
        self.where = where
        self.reason = reason


def demanded(demand: Demand) -> Output:
    """The demand as a run keeps it; raises `BadSchema` for one that no answer could be held against.

    >>> demanded(dict).mode
    'json_object'
    >>> demanded({"type": "integer"}).schema
    '{"type":"integer"}'
    """
    if isinstance(demand, Output):
        output, where = demand, "the schema"
    elif isinstance(demand, Path):
        output, where = _of(_read(demand)), str(demand)
    elif isinstance(demand, Mapping):
        output, where = _of(dict(demand)), "the schema"
    elif demand is dict:
        return Output()
    else:
        output, where = _of(schema_of(demand)), f"the schema of {demand}"
    if output.mode == "json_schema":
        try:
            _validator(output.schema)
        except Exception as error:  # the validator's own, or whatever a strange schema made it stumble over
            raise BadSchema(where, _brief(error)) from error
    return output


def validate_output(output: Output, text: str) -> ValidatedOutput:
    """The value of an answer, or what is wrong with it; a fence of Markdown around it is forgiven.

    >>> validate_output(Output(), '{"capital": "Paris"}').value
    {'capital': 'Paris'}
    >>> validate_output(Output(), "Paris").error
    'it is not JSON: JSON is malformed: invalid character (byte 0)'
    """
    stripped = text.strip()
    if not stripped:
        return ValidatedOutput(error="it is empty")
    if fenced := _FENCED.fullmatch(stripped):
        stripped = fenced[1]
    try:
        value: object = msgspec.json.decode(stripped, type=object)
        msgspec.json.encode(value)  # it will be stored: a number may be too large for that
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, OverflowError) as error:
        return ValidatedOutput(error=f"it is not JSON: {_brief(error)}")
    if _is_too_deep(stripped, value):
        return ValidatedOutput(error=f"it is nested more than {DEEPEST} levels deep")
    if output.mode == "json_object":
        complaint = "" if stripped.lstrip().startswith("{") else "it is JSON, but not an object"
    else:
        complaint = _validator(output.schema)(value)
    return ValidatedOutput(error=complaint) if complaint else ValidatedOutput(value)


def _is_too_deep(text: str, value: object) -> bool:
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [part for whole in level for part in _parts(whole)]
    return bool(level)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast(dict[str, object], value).values()
    return cast(list[object], value) if isinstance(value, list) else ()


def schema_of(kind: Any) -> Schema:
    """The JSON Schema of a type, as strict as vendors want it: objects have all of their fields and no others.

    >>> from typing import TypedDict
    >>> Place = TypedDict("Place", {"capital": str})
    >>> schema_of(Place)["required"], schema_of(Place)["additionalProperties"]
    (['capital'], False)
    """
    of_pydantic: Callable[[], Schema] | None = getattr(kind, "model_json_schema", None)
    try:
        schema = of_pydantic() if of_pydantic is not None else msgspec.json.schema(kind)
    except (TypeError, RuntimeError) as error:
        raise BadSchema(f"the type {kind!r}", _brief(error)) from error
    return cast(Schema, _strict(_with_root_in_place(schema)))


def _of(schema: Schema) -> Output:
    try:
        return Output(mode="json_schema", schema=msgspec.json.encode(schema).decode())
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadSchema("the schema", _brief(error)) from error


def _read(file: Path) -> Schema:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BadSchema(str(file), error.strerror or str(error)) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadSchema(str(file), _brief(error)) from error


def _with_root_in_place(schema: Schema) -> Schema:
    """Vendors want an object at the top, not a reference to one."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definitions: dict[str, Schema] = schema.get("$defs", {})
    if name not in definitions:
        return schema
    root = definitions[name]
    others = {key: value for key, value in definitions.items() if key != name}
    if f'"#/$defs/{name}"' in msgspec.json.encode(definitions).decode():
        others = definitions  # it refers to itself
    return root | ({"$defs": others} if others else {})


def _strict(schema: Any) -> Any:
    """The schema, and all below it, without optional fields and without room for others."""
    mapped = _mapped(schema, _strict)
    if not isinstance(mapped, dict):
        return mapped
    strict = cast(Schema, mapped)
    strict.pop("default", None)
    if "properties" in strict:
        strict |= {"required": list(strict["properties"]), "additionalProperties": False}
    return strict


def _mapped(schema: Any, change: Callable[[Any], Any]) -> Any:
    """The schema with the schemas right below it changed; what only looks like one is left alone."""
    if isinstance(schema, list):
        return [change(each) for each in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    changed: Schema = {}
    for keyword, value in cast(Schema, schema).items():
        if keyword in _PLAIN:
            changed[keyword] = value
        elif keyword in _BELOW and isinstance(value, dict):
            changed[keyword] = {name: change(each) for name, each in cast(Schema, value).items()}
        else:
            changed[keyword] = change(value) if isinstance(value, (dict, list)) else value
    return changed


@lru_cache(maxsize=64)
def _validator(schema: str) -> Callable[[object], str]:
    """What says what is wrong with a value, in words; nothing for a good one."""
    import fastjsonschema  # late: most runs answer in words

    handlers: dict[str, Callable[[str], Any]] = dict.fromkeys(_SCHEMES, _refuse_to_fetch)
    validate: Callable[[object], object] = fastjsonschema.compile(
        _as_draft_7(msgspec.json.decode(schema)), handlers=handlers, use_default=False, use_formats=False
    )

    def complain(value: object) -> str:
        try:
            validate(value)
        except fastjsonschema.JsonSchemaValueException as error:
            return _brief(error)
        return ""

    return complain


def _refuse_to_fetch(address: str) -> object:
    raise ValueError(f"it refers to {address}; a schema has to be whole")


def _as_draft_7(schema: Any) -> Any:
    """The schema without the newer words that the validator would overlook."""
    mapped = _mapped(schema, _as_draft_7)
    if not isinstance(mapped, dict):
        return mapped
    older = cast(Schema, mapped)
    older.pop("$schema", None)
    if "prefixItems" in older:
        others = older.pop("items", True)
        older |= {"items": older.pop("prefixItems"), "additionalItems": others}
    needs = {**older.pop("dependentRequired", {}), **older.pop("dependentSchemas", {})}
    return older | {"dependencies": needs} if needs else older


def _brief(error: Exception) -> str:
    words = str(error) or type(error).__name__
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"
