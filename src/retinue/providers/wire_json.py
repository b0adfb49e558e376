"""JSON on its way to and from vendors: schemas within the subset that they document, and damage that is repaired.

Vendors reject a whole request because of one keyword that they do not know. What a subset cannot express is written
into the description instead, so that the model still reads it; retinue checks arguments and answers against the full
schema. A schema that is within the subset is sent byte for byte as it is.

Servers are strict where models and other servers are careless: lone surrogates, damaged events, and tool arguments that
are not a JSON object are always repaired in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.schema import Schema, with_types_and_items
from retinue.core.text import NOT_JSON, utf8_safe

SHOWN_OF_EVENT = 120
"""How many bytes of an unreadable event an error message repeats."""

MAX_REPAIRED_BYTES = 1024 * 1024
"""The longest data that is repaired: decoded without a type, it takes many times its size."""

T = TypeVar("T")
D = TypeVar("D")

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def raw_json(text: str) -> msgspec.Raw:
    """JSON text from elsewhere, such as a schema, to be sent unchanged."""
    return msgspec.Raw(utf8_safe(text).encode())


def as_json_object(arguments: str) -> str:
    """The arguments of a tool call as a JSON object, which servers insist on; other text is wrapped in an object.

    >>> as_json_object(' {"a": 1}'), as_json_object(""), as_json_object("[1]")
    (' {"a": 1}', '{}', '{"not_a_json_object":"[1]"}')
    """
    if not arguments.strip():
        return "{}"
    try:
        if _LONE_SURROGATE.search(arguments):  # valid JSON, but servers reject the whole request
            arguments = utf8_safe(json.dumps(json.loads(arguments), ensure_ascii=False))
        _decode_object(arguments)
    except (ValueError, RecursionError):
        return msgspec.json.encode({"not_a_json_object": utf8_safe(arguments)}).decode()
    return arguments


def json_text(arguments: str | dict[str, object] | None) -> str:
    """Arguments as text, also where a server sends the object itself."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def decode_lenient(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode data, repaired if need be; raises `ProviderError` if it is unreadable."""
    try:
        return decode(data)
    except NOT_JSON:
        repaired = repair_json(data)
    try:
        if repaired is not None:
            return decode(repaired)
    except NOT_JSON:
        pass
    raise unreadable_event(data, is_json=repaired is not None)


def decode_or_none(decode: Callable[[D], T], data: D) -> T | None:
    """Decode data, or return None where unreadable data does no harm."""
    try:
        return decode(data)
    except NOT_JSON:
        return None


def repair_json(payload: bytes) -> bytes | None:
    """Damaged JSON as valid JSON, so that one lone surrogate does not cost the whole answer.

    None if it is no JSON, or longer than `MAX_REPAIRED_BYTES`.

    >>> repair_json(b'["a\\\\ud83d"]'), repair_json(b"nonsense")
    (b'["a?"]', None)
    """
    if len(payload) > MAX_REPAIRED_BYTES:
        return None
    try:
        value = json.loads(payload.decode("utf-8", "replace"))
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None


def unreadable_event(payload: bytes, *, is_json: bool) -> ProviderError:
    """The error for an event that cannot be decoded; its fault is that of a broken connection."""
    problem = "is not what was expected" if is_json else "cannot be read"
    beginning = payload[:SHOWN_OF_EVENT].decode("utf-8", "replace")
    return ProviderError(f"an event of the stream {problem}: {beginning}", fault="cut")


class SchemaSubset(Struct, frozen=True, kw_only=True):
    """What a vendor's schemas may contain."""

    keywords: frozenset[str]
    formats: frozenset[str] | None = None
    """The values of `format`; None for all."""
    max_min_items: int | None = None
    """The greatest value of `minItems`; None for all."""
    has_string_enums_only: bool = False
    has_lone_unions: bool = False
    """Whether `anyOf` and `$ref` must be the only keyword of their schema, and `type` a single name."""


_STRUCTURE = frozenset(
    ("type", "description", "properties", "required", "items", "anyOf", "enum", "additionalProperties")
)
_SILENT = frozenset(
    ("$schema", "$comment", "title", "examples", "deprecated", "discriminator", "readOnly", "writeOnly")
)
"""Keywords that are left out without a word: they do not restrict a value."""

_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))

OPENAI_STRICT = SchemaSubset(
    keywords=_STRUCTURE
    | {"$defs", "$ref", "const", "title", "format", "pattern", "multipleOf", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    formats=_FORMATS,
)
"""Structured outputs with `strict`, as the guide "Structured model outputs" lists them."""

ANTHROPIC_OUTPUT = SchemaSubset(
    keywords=_STRUCTURE | {"$defs", "$ref", "const", "allOf", "default", "title", "format", "minItems"},
    formats=_FORMATS | {"uri"},
    max_min_items=1,
)
"""JSON outputs, as the page "Structured outputs" lists them under "JSON Schema limitations"."""

GEMINI = SchemaSubset(
    keywords=_STRUCTURE
    | {"$defs", "$ref", "title", "format", "prefixItems", "minItems", "maxItems", "minimum", "maximum"},
    has_string_enums_only=True,
    has_lone_unions=True,
)
"""The properties that the reference of `responseJsonSchema` lists, with the restrictions of its type `Schema`."""


_ANYTHING: tuple[Schema, ...] = (
    *({"type": kind} for kind in ("string", "number", "boolean", "object")),
    {"type": "array", "items": {"type": "string"}},
)
"""Any value, for vendors that want a type in every schema."""


@lru_cache(maxsize=256)
def restricted(schema: str, subset: SchemaSubset) -> msgspec.Raw:
    """A schema as JSON text, within a subset; text that is not a JSON object is returned unchanged.

    >>> bytes(restricted('{"type": "string", "minLength": 1, "description": "A name."}', OPENAI_STRICT))
    b'{"type":"string","description":"A name. (minLength: 1)"}'
    """
    try:
        decoded = msgspec.json.decode(schema, type=Schema)
        converted = _within(with_types_and_items(decoded), subset, is_optional=False)
    except (*NOT_JSON, TypeError, AttributeError):  # not a schema; the vendor's error says more
        return raw_json(schema)
    return raw_json(schema if converted == decoded else msgspec.json.encode(converted).decode())


@lru_cache(maxsize=256)
def complete(parameters: str) -> msgspec.Raw:
    """The parameters of a tool with what every vendor requires: an object at the root, and items of every array.

    >>> bytes(complete('{"properties": {"names": {"type": "array"}}}'))
    b'{"type":"object","properties":{"names":{"type":"array","items":{}}}}'
    """
    try:
        decoded = msgspec.json.decode(parameters, type=Schema)
        converted = {"type": "object", "properties": {}} | with_types_and_items(decoded)
    except (*NOT_JSON, TypeError, AttributeError):
        return raw_json(parameters)
    return raw_json(parameters if converted == decoded else msgspec.json.encode(converted).decode())


def _within(schema: Any, subset: SchemaSubset, *, is_optional: bool) -> Any:
    """A schema and all schemas in it, within the subset; `is_optional` marks a property that may be left out."""
    if not isinstance(schema, dict):
        return schema
    renamed = _renamed(cast("Schema", schema), subset)
    kept: Schema = {}
    notes: list[str] = []
    for keyword, value in renamed.items():
        if not _is_allowed(keyword, value, subset):
            if keyword not in _SILENT and value is not None:
                notes.append(f"{keyword}: {_in_words(value)}")
        else:
            kept[keyword] = _below(keyword, value, renamed, subset)
    if notes:
        kept["description"] = " ".join(filter(None, (kept.get("description"), f"({'; '.join(notes)})")))
    if not subset.has_lone_unions:
        return kept
    if "$ref" in kept:
        return {keyword: value for keyword, value in kept.items() if keyword.startswith("$")}
    if kept.keys().isdisjoint(("type", "anyOf", "enum")):
        kept["anyOf"] = list(_ANYTHING)
    return _with_lone_union(kept, is_optional=is_optional)


def _renamed(schema: Schema, subset: SchemaSubset) -> Schema:
    """The schema with keywords that the subset lacks replaced by others that mean the same, where there are any."""
    renamed = dict(schema)
    if "const" in renamed and "const" not in subset.keywords:
        renamed["enum"] = [renamed.pop("const")]
    if "oneOf" in renamed:
        renamed["anyOf"] = renamed.pop("oneOf")
    if "allOf" in renamed and "allOf" not in subset.keywords and len(renamed["allOf"]) == 1:
        renamed = renamed.pop("allOf")[0] | renamed
    return renamed


def _is_allowed(keyword: str, value: Any, subset: SchemaSubset) -> bool:
    if keyword == "format" and subset.formats is not None:
        return value in subset.formats
    if keyword == "minItems" and subset.max_min_items is not None:
        return "minItems" in subset.keywords and value <= subset.max_min_items
    if keyword == "enum" and subset.has_string_enums_only:
        return all(isinstance(each, str) for each in value)
    return keyword in subset.keywords


def _below(keyword: str, value: Any, schema: Schema, subset: SchemaSubset) -> Any:
    if keyword in ("properties", "$defs"):
        required = schema.get("required", ())
        return {
            name: _within(below, subset, is_optional=keyword == "properties" and name not in required)
            for name, below in value.items()
        }
    if keyword in ("items", "additionalProperties"):
        return _within(value, subset, is_optional=False)
    if keyword in ("anyOf", "allOf", "prefixItems"):
        return [_within(each, subset, is_optional=False) for each in value]
    return value


def _with_lone_union(schema: Schema, *, is_optional: bool) -> Schema:
    """The schema with `anyOf` as its only keyword, or without one; a property that may be left out need not be null."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        rest = {keyword: value for keyword, value in schema.items() if keyword != "type"}
        branches = [{"type": kind} | ({} if kind == "null" else rest) for kind in cast("list[str]", kinds)]
    elif "anyOf" in schema:
        rest = {keyword: value for keyword, value in schema.items() if keyword not in ("anyOf", "$defs")}
        branches = [
            branch if branch == {"type": "null"} or "$ref" in branch else rest | branch for branch in schema["anyOf"]
        ]
    else:
        return schema
    if is_optional:
        branches = [branch for branch in branches if branch.get("type") != "null"] or branches
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return (branches[0] if len(branches) == 1 else {"anyOf": branches}) | definitions


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
