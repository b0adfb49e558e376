"""What OpenAI, Anthropic and Gemini document about tool declarations and output schemas, as data, and a checker.

Each rule is the strictest that the vendor documents, or that its server is known to enforce with HTTP 400.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

Schema = dict[str, Any]

STRUCTURE = frozenset(
    ("type", "description", "title", "properties", "required", "items", "anyOf", "enum", "additionalProperties")
)
ANY_KEYWORD = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one vendor for one kind of schema."""

    keywords: frozenset[str] | None = ANY_KEYWORD
    """Keywords that the vendor knows; None where it passes unknown ones over."""
    formats: frozenset[str] | None = None
    root: Literal["object", "object or nothing"] = "object"
    not_at_root: frozenset[str] = frozenset()
    parameter: str = r".+"
    """The names of properties."""
    typed: bool = False
    """Every schema has a type, a union or a reference."""
    single_types: bool = False
    string_enums: bool = False
    lone_unions: bool = False
    all_required: bool = False
    """Every property is required, and others are forbidden."""
    max_min_items: int | None = None
    max_levels: int = 10
    max_properties: int = 100
    max_enum: int = 500


@dataclass(frozen=True, kw_only=True)
class DeclarationRules:
    """The rules of one vendor for the declaration of a tool."""

    name: str
    max_description: int
    max_tools: int
    parameters: Rules


OPENAI_TOOLS = DeclarationRules(
    # API reference, `tools[].function.name`: a-z, A-Z, 0-9, underscores and dashes, at most 64 characters.
    name=r"[a-zA-Z0-9_-]{1,64}",
    # Refused with "string too long. Expected a string with maximum length 1024" for `function.description`.
    max_description=1024,
    # API reference, `tools`: at most 128 functions.
    max_tools=128,
    # Refused with "array schema missing items" and "object schema missing properties"; the guide "Function calling"
    # wants an object at the root, and the server rejects these keywords there. The rules of strict mode do not apply:
    # no tool asks for it, because it would make every optional parameter a required one.
    parameters=Rules(not_at_root=frozenset(("oneOf", "anyOf", "allOf", "enum", "not"))),
)

ANTHROPIC_TOOLS = DeclarationRules(
    # "Tool use", `name`: must match ^[a-zA-Z0-9_-]{1,64}$.
    name=r"[a-zA-Z0-9_-]{1,64}",
    max_description=10_000,
    max_tools=10_000,
    # Refused with "input_schema does not support oneOf, allOf, or anyOf at the top level", and for property names
    # that do not match this pattern.
    parameters=Rules(not_at_root=frozenset(("oneOf", "anyOf", "allOf")), parameter=r"[a-zA-Z0-9_.-]{1,64}"),
)

GEMINI_KEYWORDS = frozenset(
    # Reference of `responseJsonSchema`: "only the following properties are supported".
    (
        *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems"),
        *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties"),
        *("required", "propertyOrdering"),
    )
)

GEMINI_TOOLS = DeclarationRules(
    # Reference of `FunctionDeclaration`: begins with a letter or an underscore; letters, digits, underscores, dots and
    # dashes, at most 64 characters.
    name=r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}",
    max_description=10_000,
    # "Function calling" on Vertex AI: at most 128 declarations.
    max_tools=128,
    parameters=Rules(
        keywords=GEMINI_KEYWORDS,
        # Reference of `parameters`: can be left unset for a function without parameters; an object without properties
        # is refused with "should be non-empty for OBJECT type".
        root="object or nothing",
        # Reference of `parameters`: letters, digits and underscores, at most 64 characters.
        parameter=r"[a-zA-Z_][a-zA-Z0-9_]{0,63}",
        # Reference of `Schema`: `type` is required and one value, `enum` has strings; refused with "Invalid value at
        # enum[0] (TYPE_STRING)" and "when using any_of, it must be the only field set". Reference of
        # `responseJsonSchema`: nothing but keywords with `$` beside `$ref`.
        typed=True,
        single_types=True,
        string_enums=True,
        lone_unions=True,
    ),
)

FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))

OPENAI_OUTPUT = Rules(
    # Guide "Structured model outputs", "Supported schemas", with `strict`.
    keywords=STRUCTURE
    | {"$defs", "$ref", "const", "pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "minItems", "maxItems"},
    formats=FORMATS,
    not_at_root=frozenset(("anyOf",)),
    typed=True,
    all_required=True,
    max_levels=10,
)

ANTHROPIC_OUTPUT = Rules(
    # "Structured outputs", "JSON Schema limitations": no numerical or string constraints, `minItems` of 0 and 1 only,
    # `additionalProperties` false for all objects.
    keywords=STRUCTURE | {"$defs", "$ref", "const", "allOf", "default", "format", "minItems"},
    formats=FORMATS | {"uri"},
    typed=True,
    all_required=True,
    max_min_items=1,
)

GEMINI_OUTPUT = Rules(
    keywords=GEMINI_KEYWORDS, typed=True, single_types=True, string_enums=True, lone_unions=True, all_required=True
)


def violations(schema: Schema | None, rules: Rules) -> list[str]:
    """The rules that a schema breaks, each with its place; None stands for a declaration without parameters."""
    if schema is None:
        return [] if rules.root == "object or nothing" else ["root: there is no schema"]
    found = list(_root(schema, rules))
    found += [text for place, node, level in _schemas(schema) for text in _node(place, node, level, rules)]
    properties = sum(len(node.get("properties", {})) for _, node, _ in _schemas(schema))
    enum = sum(len(node.get("enum", ())) for _, node, _ in _schemas(schema))
    if properties > rules.max_properties:
        found.append(f"root: {properties} properties")
    if enum > rules.max_enum:
        found.append(f"root: {enum} values in enumerations")
    return found


def declaration_violations(
    name: str, description: str, parameters: Schema | None, rules: DeclarationRules
) -> list[str]:
    """The rules that the declaration of a tool breaks."""
    found = [] if re.fullmatch(rules.name, name) else [f"name: {name!r}"]
    if not description or len(description) > rules.max_description:
        found.append(f"description: {len(description)} characters")
    return found + violations(parameters, rules.parameters)


def _root(schema: Schema, rules: Rules) -> Iterator[str]:
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        yield "root: not an object with properties"
    elif not schema["properties"] and rules.root == "object or nothing":
        yield "root: an object without properties"
    yield from (f"root: {keyword}" for keyword in sorted(schema.keys() & rules.not_at_root))


def _schemas(schema: Schema, place: str = "root", level: int = 0) -> Iterator[tuple[str, Schema, int]]:
    """A schema and all schemas in it, each with its place and the number of objects and arrays around it."""
    yield place, schema, level
    deeper = level + ("object" in _types(schema) or "array" in _types(schema))
    for name, below in {**schema.get("properties", {}), **schema.get("$defs", {})}.items():
        yield from _schemas(below, f"{place}.{name}", deeper)
    for keyword in ("items", "additionalProperties"):
        if isinstance(below := schema.get(keyword), dict):
            yield from _schemas(cast("Schema", below), f"{place}.{keyword}", deeper)
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, below in enumerate(schema.get(keyword, ())):
            yield from _schemas(below, f"{place}.{keyword}[{number}]", level)


def _types(schema: Schema) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _node(place: str, node: Schema, level: int, rules: Rules) -> Iterator[str]:
    unknown = [] if rules.keywords is None else sorted(node.keys() - rules.keywords)
    yield from (f"{place}: unknown keyword {keyword}" for keyword in unknown)
    if level > rules.max_levels:
        yield f"{place}: {level} levels deep"
    yield from _types_of_node(place, node, rules)
    if "array" in _types(node) and not isinstance(node.get("items"), dict):
        yield f"{place}: an array without items"
    yield from _enum(place, node, rules)
    yield from _properties(place, node, rules)
    if rules.formats is not None and node.get("format", "date") not in rules.formats:
        yield f"{place}: format {node['format']}"
    if rules.max_min_items is not None and node.get("minItems", 0) > rules.max_min_items:
        yield f"{place}: minItems {node['minItems']}"


def _types_of_node(place: str, node: Schema, rules: Rules) -> Iterator[str]:
    if rules.typed and node.keys().isdisjoint(("type", "anyOf", "allOf", "$ref")):
        yield f"{place}: no type"
    if rules.single_types and not isinstance(node.get("type", ""), str):
        yield f"{place}: several types"
    if rules.lone_unions and "anyOf" in node and node.keys() - {"anyOf", "$defs"}:
        yield f"{place}: keywords beside anyOf"
    if rules.lone_unions and "$ref" in node and not all(keyword.startswith("$") for keyword in node):
        yield f"{place}: keywords beside $ref"
    if not node.get("anyOf", [0]):
        yield f"{place}: an empty union"


def _enum(place: str, node: Schema, rules: Rules) -> Iterator[str]:
    values = node.get("enum", [""])
    if not values or len({repr(value) for value in values}) < len(values):
        yield f"{place}: an enumeration that is empty or repeats a value"
    if rules.string_enums and not all(isinstance(value, str) for value in values):
        yield f"{place}: an enumeration of other values than strings"
    if rules.string_enums and "enum" in node and node.get("type") != "string":
        yield f"{place}: an enumeration without the type string"


def _properties(place: str, node: Schema, rules: Rules) -> Iterator[str]:
    properties: dict[str, Any] = node.get("properties", {})
    yield from (f"{place}: property {name!r}" for name in properties if not re.fullmatch(rules.parameter, name))
    yield from (
        f"{place}: required {name!r} does not exist" for name in node.get("required", ()) if name not in properties
    )
    if rules.all_required and "object" in _types(node):
        if set(node.get("required", ())) != set(properties):
            yield f"{place}: a property is not required"
        if node.get("additionalProperties") is not False:
            yield f"{place}: other properties are allowed"
