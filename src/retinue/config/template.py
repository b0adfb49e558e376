"""The settings file that a newcomer gets: every section and key there is, each with a line about it, all of it comment.

It is made from the declarations of the sections, so it cannot tell anything else than they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from msgspec import NODEFAULT, Struct, inspect

from retinue.config.key_paths import dotted
from retinue.config.sections import Section
from retinue.config.validation import wanted

HEADING = """\
# Settings of retinue.
#
# A line that begins with "#" and goes on without a blank is a setting: remove the "#" to use it.
# Flags go before the environment (RETINUE_MODEL, RETINUE_PROVIDER, RETINUE_BASE_URL, RETINUE_API_KEY_ENV), and that
# goes before this file.
"""


def template(sections: Sequence[Section]) -> str:
    """A settings file with these sections, all of it commented out."""
    return "\n".join([HEADING, *("\n".join([*_section(section), ""]) for section in sections)])


def _section(section: Section) -> Iterator[str]:
    name = f"{section.name}.{section.named.example}" if section.named else section.name
    yield f"# {section.about}"
    yield from _table(name, section.type)


def _table(name: str, kind: type[Struct]) -> Iterator[str]:
    yield f"#[{name}]"
    below: list[str] = []
    for field in fields_of(kind):
        about, example = told(field.type)
        inner = wanted(field.type).type
        if isinstance(inner, inspect.StructType):
            below += ["", f"# {about}", *_table(f"{name}.{field.name}", inner.cls)]
            continue
        yield f"# {about}"
        value = field.default if example is NODEFAULT else example
        yield f"#{dotted((field.name,))} = {toml(value)}"
    yield from below


def fields_of(kind: type[Struct]) -> tuple[inspect.Field, ...]:
    """The keys that a section declares."""
    return cast("inspect.StructType", inspect.type_info(kind)).fields


def told(declared: inspect.Type) -> tuple[str, Any]:
    """The description of a key and its example; without one, its default is shown."""
    # Only wrapped types have one, and msgspec types it no further.
    schema: dict[str, Any] = getattr(declared, "extra_json_schema", None) or {}
    return schema.get("description", ""), next(iter(schema.get("examples", ())), NODEFAULT)


def toml(value: object) -> str:
    """A value as TOML writes it."""
    match value:
        case list() | tuple():
            return f"[{', '.join(map(toml, cast('Sequence[object]', value)))}]"
        case dict():
            pairs = cast("dict[str, object]", value).items()
            return f"{{ {', '.join(f'{dotted((key,))} = {toml(each)}' for key, each in pairs)} }}"
        case str() | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)
        case _:
            raise TypeError(f"no example for {value!r}")
