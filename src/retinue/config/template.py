"""The settings file of `retinue init`: every section and key with a description, all commented out.

It is generated from the declarations of the sections, so it cannot disagree with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from msgspec import NODEFAULT, Struct, inspect

from retinue.config.error_texts import dotted
from retinue.config.section_type import Section
from retinue.config.validation import expected_type

HEADING = """\
# Settings of retinue.
#
# A line that begins with "#" and goes on without a blank is a setting: remove the "#" to use it.
# Command-line flags override the environment (RETINUE_MODEL, RETINUE_PROVIDER, RETINUE_BASE_URL,
# RETINUE_API_KEY_ENV), which overrides this file.
"""


def template(sections: Sequence[Section]) -> str:
    """A settings file with these sections, all of it commented out."""
    lines = [HEADING]
    for section in sections:
        name = f"{section.name}.{section.named.example}" if section.named else section.name
        lines += [f"# {section.about}", *_table(name, section.type), ""]
    return "\n".join(lines)


def _table(name: str, kind: type[Struct]) -> Iterator[str]:
    if name:
        yield f"#[{name}]"
    below: list[str] = []
    for field in fields_of(kind):
        about, example = description_and_example(field.type)
        inner = expected_type(field.type).type
        if isinstance(inner, inspect.StructType):
            below += ["", f"# {about}", *_table(f"{name}.{field.name}", inner.cls)]
            continue
        yield f"# {about}"
        value = field.default if example is NODEFAULT else example
        yield f"#{dotted((field.name,))} = {toml(value)}"
    yield from below


def fields_of(kind: type[Struct]) -> tuple[inspect.Field, ...]:
    return cast("inspect.StructType", inspect.type_info(kind)).fields


def description_and_example(declared: inspect.Type) -> tuple[str, Any]:
    # Only types with metadata have a schema, and msgspec does not type it further.
    schema: dict[str, Any] = getattr(declared, "extra_json_schema", None) or {}
    return schema.get("description", ""), next(iter(schema.get("examples", ())), NODEFAULT)


def toml(value: object) -> str:
    match value:
        case list() | tuple():
            return f"[{', '.join(map(toml, cast('Sequence[object]', value)))}]"
        case dict():
            pairs = cast("dict[str, object]", value).items()
            return f"{{ {', '.join(f'{dotted((key,))} = {toml(below)}' for key, below in pairs)} }}"
        case str() | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)
        case _:
            raise TypeError(f"no example for {value!r}")
