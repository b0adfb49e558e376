"""Makes the reference page of the settings file from the declarations of its sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import NODEFAULT, Struct, inspect

from retinue.app.settings_sections import SECTIONS
from retinue.config.section_type import Section
from retinue.config.template import toml

OPENING = """\
# Settings

This page is made from the code by `make docs`. [Settings](../how-to/settings.md) says where the file lies, what
overrides it, and how its sections work together. `retinue init` writes a file with all of them, commented out."""


NO_BOUND = 10**9
"""Upper bounds from here on keep a number storable; they are not shown."""

ON_ANOTHER_PAGE = {"allowed_commands": "see [Policies](policy.md#allowed_commands)"}
"""Defaults that depend on the platform, so that this page does not."""


def settings_page() -> str:
    """Every section of the settings file with its keys: type, default, meaning, example."""
    return "\n\n".join([OPENING, *(part for section in SECTIONS for part in _section(section))]) + "\n"


def _section(section: Section) -> Iterator[str]:
    name = f"{section.name}.{section.named.example}" if section.named else section.name
    yield f"## {section.name or 'Keys at the top'}"
    yield section.about
    if section.named:
        yield f"Each table has a name of its own, as `[{name}]`: {section.named.expected}."
    yield from _table(name, section.type, section.choices)


def _table(name: str, kind: type[Struct], choices: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The keys of a table, then the tables inside."""
    fields = cast("inspect.StructType", inspect.type_info(kind)).fields
    below = [field for field in fields if isinstance(_plain(field.type), inspect.StructType)]
    rows = [_row(field, choices.get(field.name, ())) for field in fields if field not in below]
    yield "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows])
    for field in below:
        yield f"### [{name}.{field.name}]"
        yield _described(field.type)[0]
        yield from _table(f"{name}.{field.name}", cast("inspect.StructType", _plain(field.type)).cls, {})


def _row(field: inspect.Field, choices: Sequence[str]) -> str:
    about, example = _described(field.type)
    kind = ", ".join(f"`{choice}`" for choice in choices) or _type(field.type)
    is_shown = example is NODEFAULT or (not field.required and example == _default_value(field))
    meaning = about if is_shown else f"{about} Example: `{toml(example)}`."
    cells = (f"`{field.encode_name}`", kind, _default(field), meaning)
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def _described(declared: inspect.Type) -> tuple[str, Any]:
    """The description of a key, and its example or NODEFAULT."""
    schema: dict[str, Any] = getattr(declared, "extra_json_schema", None) or {}
    return schema.get("description", ""), next(iter(schema.get("examples", ())), NODEFAULT)


def _plain(declared: inspect.Type) -> inspect.Type:
    """The type without its metadata, and without the None that stands for an absent key."""
    match declared:
        case inspect.Metadata(type=inner):
            return _plain(inner)
        case inspect.UnionType(types=types):
            left = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _plain(left[0]) if len(left) == 1 else inspect.UnionType(tuple(left))
        case _:
            return declared


def _type(declared: inspect.Type) -> str:
    match _plain(declared):
        case inspect.BoolType():
            return "boolean"
        case inspect.IntType(gt=above, ge=least, le=most):
            return f"integer{_range(above, least, most)}"
        case inspect.FloatType(gt=above, ge=least, le=most):
            return f"number{_range(above, least, most)}"
        case inspect.StrType():
            return "text"
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case inspect.EnumType(cls=cls):
            return ", ".join(f"`{member.value}`" for member in cls)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"list of {_type(item)}"
        case inspect.DictType(value_type=value):
            return f"table of {_type(value)}"
        case inspect.StructType(fields=fields):
            return f"table with {', '.join(f'`{field.encode_name}`' for field in fields)}"
        case inspect.UnionType(types=types):
            return " or ".join(_type(each) for each in types)
        case _:
            return "any value"


def _range(above: float | None, least: float | None, most: float | None) -> str:
    bounds = [f"above {above:,}"] if above is not None else [f"from {least:,}"] if least is not None else []
    bounds += [f"to {most:,}"] if most is not None and most < NO_BOUND else []
    return f", {' '.join(bounds)}" if bounds else ""


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.name in ON_ANOTHER_PAGE:
        return ON_ANOTHER_PAGE[field.name]
    value = _default_value(field)
    if value is None or value == "" or value == () or value == {}:
        return "none"
    return f"`{toml(value)}`"


def _default_value(field: inspect.Field) -> Any:
    return field.default_factory() if field.default_factory is not NODEFAULT else field.default
