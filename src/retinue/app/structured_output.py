"""Structured output: JSON Schemas from schemas, files and types, and the validation of answers against them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from retinue.app.bounded_patterns import MAX_PATTERN, SECONDS, BoundedPattern, PatternTooSlow, SearchDeadline, run_apart
from retinue.core.agent import Output, ValidatedOutput
from retinue.core.errors import BadInput
from retinue.core.run import Outcome
from retinue.core.schema import Schema, map_schema, with_types_and_items
from retinue.local.bounded_file import MIB, read_bounded

OutputFormat: TypeAlias = Mapping[str, Any] | Path | type | Output
"""The required form of an answer: a JSON Schema or the path of its file, a type, or `dict` for any JSON object."""

MAX_SCHEMA_BYTES = MIB
MAX_SCHEMA_NODES = 20_000
MAX_SCHEMA_DEPTH = 64
"""The size of a schema: bytes of its JSON, values in it, and levels of nesting."""
MAX_CALLS = 100_000
"""How often the parts of a schema that others refer to are applied to one answer."""

MAX_WORK = 300_000
"""Values of a schema times values of an answer that are compared in this process: a second or two at worst.

The validator compares each value of an answer with as much as the whole schema, and a model can choose both.
"""

_VALIDATE = """
import json, sys
folder, schema, value = json.load(sys.stdin.buffer)
sys.path.append(folder)
import fastjsonschema
try:
    fastjsonschema.compile(schema, use_default=False, use_formats=False)(value)
except fastjsonschema.JsonSchemaValueException as error:
    print(json.dumps(str(error)))
else:
    print(json.dumps(""))
"""

MAX_ERROR_CHARS = 2000
"""The length of a validation error; a validator may quote a whole schema."""

MAX_DEPTH = 200
"""Levels of nesting in an answer; deeper JSON could be unreadable for another reader of the store."""

_REFERS = "it cannot be checked: the schema refers to itself too often"
_TOO_LARGE = "it cannot be checked in time: the answer and its schema are too large together"

_SCHEMES = ("http", "https", "ftp", "file", "data", "")
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)


class BadSchema(BadInput):
    """A value that was given as a JSON Schema is not a usable one."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is not a usable JSON Schema: {reason}")
        self.where = where
        self.reason = reason


def make_output(required: OutputFormat) -> Output:
    """The output format that a run stores; raises `BadSchema` for a schema that the validator cannot use.

    >>> make_output(dict).mode
    'json_object'
    >>> make_output({"type": "integer"}).schema
    '{"type":"integer"}'
    """
    if isinstance(required, Output):
        output, where = required, "the schema"
    elif isinstance(required, Path):
        output, where = _output(_read_schema(required)), str(required)
    elif isinstance(required, Mapping):
        output, where = _output(dict(required)), "the schema"
    elif required is dict:
        return Output()
    else:
        output, where = _output(schema_of(required)), f"the schema of {required}"
    if output.mode == "json_schema":
        if reason := _excess(output.schema):
            raise BadSchema(where, reason)
        try:
            _validator(output.schema)
        except Exception as error:  # of the validator, or of Python while it reads an unusual schema
            raise BadSchema(where, _error_text(error)) from error
    return output


def converter(required: OutputFormat | None) -> Callable[[Outcome], Outcome]:
    """A function that adds the answer as the required type to an outcome, in `Outcome.typed`.

    An answer that the type itself refuses, such as by a validator of a pydantic model, makes the outcome a failed one
    with the reason `bad_output`. A schema, and `dict`, leave the outcome as it is.
    """
    if required is None or required is dict or isinstance(required, Mapping | Path | Output):
        return lambda outcome: outcome
    validate: Callable[[object], object] | None = getattr(required, "model_validate", None)

    def convert(outcome: Outcome) -> Outcome:
        if not outcome.ok or outcome.structured is None:
            return outcome
        try:
            value = outcome.structured
            typed: object = msgspec.convert(value, cast("Any", required)) if validate is None else validate(value)
        except ValueError as error:  # of msgspec and of pydantic
            text = f"the answer is no {getattr(required, '__name__', required)}: {_error_text(error)}"
            return replace(outcome, result="failed", reason="bad_output", error=text)
        return replace(outcome, typed=typed)

    return convert


def validate_output(output: Output, text: str) -> ValidatedOutput:
    """The value of an answer, or a validation error; a Markdown code fence around the JSON is accepted.

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
        msgspec.json.encode(value)  # it will be stored, and a number may be too large for that
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, OverflowError) as error:
        return ValidatedOutput(error=f"it is not JSON: {_error_text(error)}")
    if _is_too_deep(stripped, value):
        return ValidatedOutput(error=f"it is nested more than {MAX_DEPTH} levels deep")
    if output.mode == "json_object":
        error = "" if stripped.lstrip().startswith("{") else "it is JSON, but not an object"
    else:
        error = _validator(output.schema)(value, _most_values(stripped))
    return ValidatedOutput(error=error) if error else ValidatedOutput(value)


def _most_values(text: str) -> int:
    """At least the number of values in a JSON text."""
    return 1 + sum(map(text.count, ",[{"))


def _is_too_deep(text: str, value: object) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
    return bool(level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast(dict[str, object], value).values()
    return cast(list[object], value) if isinstance(value, list) else ()


def schema_of(kind: Any) -> Schema:
    """The JSON Schema of a type, as strict as vendors require: every field is required, and no others are allowed.

    >>> from typing import TypedDict
    >>> Place = TypedDict("Place", {"capital": str})
    >>> schema_of(Place)["required"], schema_of(Place)["additionalProperties"]
    (['capital'], False)
    """
    pydantic_schema: Callable[[], Schema] | None = getattr(kind, "model_json_schema", None)
    try:
        schema = pydantic_schema() if pydantic_schema is not None else msgspec.json.schema(kind)
    except (TypeError, RuntimeError) as error:
        raise BadSchema(f"the type {kind!r}", _error_text(error)) from error
    return cast(Schema, _strict(with_types_and_items(_inline_root(schema))))


def _output(schema: Schema) -> Output:
    try:
        return Output(mode="json_schema", schema=msgspec.json.encode(schema).decode())
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadSchema("the schema", _error_text(error)) from error


def _read_schema(file: Path) -> Schema:
    try:
        return msgspec.json.decode(read_bounded(file, MAX_SCHEMA_BYTES), type=dict[str, Any])
    except OSError as error:
        raise BadSchema(str(file), error.strerror or str(error)) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadSchema(str(file), _error_text(error)) from error


def _inline_root(schema: Schema) -> Schema:
    """The schema with the referenced definition at its root: vendors require an object there, not a reference."""
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
    """The schema, and all schemas in it, with every field required and no others allowed."""
    mapped = map_schema(schema, _strict)
    if not isinstance(mapped, dict):
        return mapped
    strict = cast(Schema, mapped)
    strict.pop("default", None)
    if "properties" in strict:
        strict |= {"required": list(strict["properties"]), "additionalProperties": False}
    return strict


@lru_cache(maxsize=64)
def _validator(schema: str) -> Callable[[object, int], str]:
    """A function that returns the validation error of a value with at most so many values, or an empty string."""
    import fastjsonschema  # imported late: most runs answer in plain text

    handlers: dict[str, Callable[[str], Any]] = dict.fromkeys(_SCHEMES, _refuse_to_fetch)
    draft_7: Any = _as_draft_7(msgspec.json.decode(schema))
    size = _count(draft_7)
    validate: Callable[[object], object] = fastjsonschema.compile(
        draft_7, handlers=handlers, use_default=False, use_formats=False
    )
    folder = str(Path(fastjsonschema.__file__).parent.parent)

    names = cast("dict[str, Any]", getattr(validate, "__globals__", {}))
    calls, deadline = _Calls(), SearchDeadline()
    patterns: dict[str, Any] = names.get("REGEX_PATTERNS", {})
    patterns.update({name: BoundedPattern(pattern, deadline) for name, pattern in patterns.items()})
    for name, function in list(names.items()):
        if name.startswith("validate"):  # the functions that stand for parts of the schema
            names[name] = calls.counted(function)
    validate = names.get(validate.__name__, validate)
    most_calls = min(MAX_CALLS, max(10, MAX_WORK // size))

    def error_of(value: object, most_values: int) -> str:
        calls.left, deadline.left = most_calls, SECONDS
        if size * most_values > MAX_WORK:
            return error_apart(value, _TOO_LARGE)
        try:
            validate(value)
        except fastjsonschema.JsonSchemaValueException as error:
            return _error_text(error)
        except PatternTooSlow as error:
            return _error_text(ValueError(f"it cannot be checked in time against the pattern {error}"))
        except (_TooManyCalls, RecursionError) as error:
            if most_calls < MAX_CALLS and isinstance(error, _TooManyCalls):
                return error_apart(value, _REFERS)
            return _REFERS
        return ""

    def error_apart(value: object, too_slow: str) -> str:
        try:
            found = run_apart(_VALIDATE, [folder, draft_7, value], deadline)
        except TimeoutError:
            return too_slow
        return _shortened(msgspec.json.decode(found, type=str))

    return error_of


def _count(value: object) -> int:
    count, level = 0, [value]
    while level:
        count += len(level)
        level = [child for parent in level for child in _children(parent)]
    return count


class _TooManyCalls(Exception):
    """A schema that refers to itself would take too long to apply."""


class _Calls:
    """Counts the calls of functions, and ends them when there are too many."""

    def __init__(self) -> None:
        self.left = MAX_CALLS

    def counted(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            self.left -= 1
            if self.left < 0:
                raise _TooManyCalls
            return function(*args, **kwargs)

        return call


def _excess(schema: str) -> str:
    """What is too much in a schema, before it is compiled; empty if nothing is."""
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        return f"it has more than {MAX_SCHEMA_BYTES // MIB} MiB"
    try:
        level: list[object] = [msgspec.json.decode(schema)]
    except (msgspec.MsgspecError, RecursionError) as error:
        return _error_text(error)
    count = 0
    for _ in range(MAX_SCHEMA_DEPTH):
        count += len(level)
        if count > MAX_SCHEMA_NODES:
            return f"it has more than {MAX_SCHEMA_NODES} values"
        if long := next((text for text in map(_pattern_of, level) if len(text) > MAX_PATTERN), None):
            return f"the pattern {long[:40]}... has more than {MAX_PATTERN} characters"
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return ""
    return f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep"


def _pattern_of(schema: object) -> str:
    """The longest pattern that stands directly in a schema."""
    if not isinstance(schema, dict):
        return ""
    values = cast("dict[str, object]", schema)
    own, named = values.get("pattern"), values.get("patternProperties")
    names = cast("dict[str, object]", named) if isinstance(named, dict) else {}
    return max((own if isinstance(own, str) else "", *names), key=len)


def _refuse_to_fetch(address: str) -> object:
    raise ValueError(f"it refers to {address}; a schema has to be self-contained")


NOT_CHECKED = (
    "unevaluatedProperties",
    "unevaluatedItems",
    "minContains",
    "maxContains",
    "$anchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
)
"""Keywords of drafts after 7 that the validator does not know; a schema with one is refused, not checked in part."""


_ANNOTATIONS = ("title", "description", "$comment", "examples", "default", "deprecated", "readOnly", "writeOnly")


def _as_draft_7(schema: Any) -> Any:
    """The schema in draft 7; raises `ValueError` for a newer keyword that has no equal there.

    A reference with other keywords beside it means both since 2019-09; draft 7 would ignore the others.
    """
    mapped = map_schema(schema, _as_draft_7)
    if not isinstance(mapped, dict):
        return mapped
    older = cast(Schema, mapped)
    older.pop("$schema", None)
    if unknown := next((keyword for keyword in NOT_CHECKED if keyword in older), None):
        raise ValueError(f"the keyword {unknown} is not checked here; write the schema without it")
    if "$ref" in older and (beside := older.keys() - {"$ref", *_ANNOTATIONS}):
        moved = {keyword: older.pop(keyword) for keyword in sorted(beside - {"$defs", "definitions"})}
        if moved:
            parts = cast("list[object]", moved.pop("allOf", []))
            older["allOf"] = [{"$ref": older.pop("$ref")}, *([moved] if moved else []), *parts]
    if "prefixItems" in older:
        others = older.pop("items", True)
        older |= {"items": older.pop("prefixItems"), "additionalItems": others}
    needs = {**older.pop("dependentRequired", {}), **older.pop("dependentSchemas", {})}
    return older | {"dependencies": needs} if needs else older


def _error_text(error: Exception) -> str:
    return _shortened(str(error) or type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"
