"""Validate the values of a settings file against its declared sections, and collect all errors and warnings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, inspect

from retinue.config import error_texts
from retinue.config.error_texts import dotted
from retinue.config.section_type import Section, SectionTree, tree_of
from retinue.core.key_paths import KeyPath

Mismatch: TypeAlias = Literal["kind", "form", "too_small", "too_large"]
Checked: TypeAlias = dict[str, Struct | dict[str, Struct]]
"""The validated values of each section, by its name."""

NOT_SUPPORTED = "not supported and ignored"

NO_CHOICES: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """An error or warning about a key; its line is looked up later."""

    path: KeyPath
    message: str
    found: str = ""
    allowed: str = ""
    is_warning: bool = False
    is_complete: bool = False
    """Whether a dialect's document prescribes the message, which is then printed without the key in front."""
    is_unknown: bool = False
    """Whether there is no such key or section; a file that is read leniently may have some."""


class _Issues:
    """The issues of a file; unknown keys and sections are warnings if it is read leniently."""

    def __init__(self, lenient: bool) -> None:
        self.found: list[Issue] = []
        self._lenient = lenient

    def add(self, *issues: Issue) -> int:
        """Add issues; the number of errors among them."""
        added = [replace(each, is_warning=True) if each.is_unknown and self._lenient else each for each in issues]
        self.found += added
        return sum(not each.is_warning for each in added)


@dataclass(frozen=True, slots=True)
class ExpectedType:
    """A declared type without its metadata, which is in `notes`."""

    type: inspect.Type
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def checked_sections(
    values: Mapping[str, object], sections: Sequence[Section], *, lenient: bool = False
) -> tuple[Checked, list[Issue]]:
    """All sections as typed values, with defaults for missing ones, and all issues.

    With `lenient`, unknown keys and sections are warnings.
    """
    checked: Checked = {section.name: {} if section.named else section.type() for section in sections}
    known = [section.name for section in sections if section.name]
    issues = _Issues(lenient)
    keys: list[str] = []
    for top in (section for section in sections if not section.name):
        keys = _field_names(top)
        own = {key: value for key, value in values.items() if key in keys and not isinstance(value, dict)}
        values = {key: value for key, value in values.items() if key not in own}
        if (table := _checked_table(top, (), own, issues)) is not None:
            checked[top.name] = table
    for section, path, value in _written_sections(values, tree_of(sections), (), known, issues, keys):
        if section.named is None:
            if (table := _checked_table(section, path, value, issues)) is not None:
                checked[section.name] = table
        else:
            checked[section.name] = _named_tables(section, path, value, issues)
    return checked, issues.found


def expected_type(declared: inspect.Type) -> ExpectedType:
    """Unwrap a declared type; None in a union means that the key may be missing, not that it may be null."""
    match declared:
        case inspect.Metadata(type=inner):
            below = expected_type(inner)
            extra: dict[str, Any] | None = cast("Any", declared).extra  # msgspec does not type it further
            return ExpectedType(below.type, {**below.notes, **(extra or {})})
        case inspect.UnionType(types=types):
            (only,) = (each for each in types if not isinstance(each, inspect.NoneType))
            return expected_type(only)
        case _:
            return ExpectedType(declared)


def _written_sections(
    values: Mapping[str, object],
    tree: SectionTree,
    above: KeyPath,
    known: Sequence[str],
    issues: _Issues,
    keys: Sequence[str] = (),
) -> Iterator[tuple[Section, KeyPath, object]]:
    """The sections in the file; adds an issue for everything else in it. `keys` may stand outside of sections."""
    for name, value in values.items():
        path = (*above, name)
        branch = tree.get(name)
        if isinstance(branch, Section):
            yield branch, path, value
        elif branch is not None and isinstance(value, dict):
            yield from _written_sections(cast("dict[str, object]", value), branch, path, known, issues)
        elif branch is not None:
            issues.add(_mismatch_issue(path, value, "kind", "a table"))
        elif isinstance(value, dict):
            message = error_texts.unknown_name("section", dotted(path), known)
            issues.add(_unknown_issue(path, message, known))
        else:
            belong = f"settings belong in sections: {', '.join(known)}"
            others = f"{error_texts.unknown_name('key', name, keys)}; other {belong}"
            issues.add(_unknown_issue(path, others if keys else f"unknown key; {belong}", known))


def _field_names(section: Section) -> list[str]:
    return [key.name for key in cast("inspect.StructType", inspect.type_info(section.type)).fields]


def _unknown_issue(path: KeyPath, message: str, known: Sequence[str]) -> Issue:
    return Issue(path=path, message=message, found=str(path[-1]), allowed=", ".join(known), is_unknown=True)


def _named_tables(section: Section, path: KeyPath, value: object, issues: _Issues) -> dict[str, Struct]:
    assert section.named is not None
    if not isinstance(value, dict):
        issues.add(_mismatch_issue(path, value, "kind", f"tables [{section.name}.<name>]"))
        return {}
    tables: dict[str, Struct] = {}
    for name, below in cast("dict[str, object]", value).items():
        if not re.fullmatch(section.named.pattern, name):
            allowed = section.named.expected
            message = f"invalid name; expected {allowed}"
            issues.add(Issue(path=(*path, name), message=message, found=name, allowed=allowed))
            continue
        if isinstance(below, dict):
            below = {**section.implied(name), **cast("dict[str, object]", below)}
        if (table := _checked_table(section, (*path, name), below, issues)) is not None:
            tables[name] = table
    return tables


def _checked_table(section: Section, path: KeyPath, value: object, issues: _Issues) -> Struct | None:
    for key in section.unsupported:
        value = _without_key(key, value, path, issues)
    found = _value_issues(value, ExpectedType(inspect.type_info(section.type)), path, section.choices)
    return None if issues.add(*found) else msgspec.convert(value, section.type)


def _without_key(key: str, value: object, path: KeyPath, issues: _Issues) -> object:
    """The table without an unsupported key; adds a warning if it has one."""
    first, _, rest = key.partition(".")
    if not isinstance(value, dict) or first not in (table := cast("dict[str, object]", value)):
        return cast("object", value)
    here = (*path, first)
    if rest:
        return {**table, first: _without_key(rest, table[first], here, issues)}
    issues.add(Issue(path=here, message=NOT_SUPPORTED, is_warning=True))
    return {name: below for name, below in table.items() if name != first}


def _value_issues(
    value: object, expected: ExpectedType, path: KeyPath, choices: Mapping[str, Sequence[str]] = NO_CHOICES
) -> Iterator[Issue]:
    """All issues of a value and of the values inside it."""
    if mismatch := _mismatch(value, expected.type):
        allowed = expected.notes.get("expected") or error_texts.describe_type(expected.type, value)
        prescribed = expected.notes.get(mismatch)
        is_secret = bool(expected.notes.get("secret"))
        yield _mismatch_issue(path, value, mismatch, allowed, prescribed=prescribed, is_secret=is_secret)
        return
    match expected.type:
        case inspect.StructType(fields=fields):
            yield from _key_issues(cast("dict[str, object]", value), fields, path, choices)
        case inspect.VarTupleType(item_type=item):
            for index, below in enumerate(cast("list[object]", value)):
                yield from _value_issues(below, expected_type(item), (*path, index))
        case inspect.DictType(value_type=item):
            for name, below in cast("dict[str, object]", value).items():
                yield from _value_issues(below, expected_type(item), (*path, name))
        case _:
            pass


def _key_issues(
    table: Mapping[str, object], fields: Sequence[inspect.Field], path: KeyPath, choices: Mapping[str, Sequence[str]]
) -> Iterator[Issue]:
    known = [key.name for key in fields]
    for name in (name for name in table if name not in known):
        message = error_texts.unknown_name("key", name, known)
        yield _unknown_issue((*path, name), message, known)
    for key in fields:
        here, expected = (*path, key.name), expected_type(key.type)
        options = choices.get(key.name)
        if key.name not in table:
            if key.required:
                allowed = error_texts.one_of(options) if options else error_texts.describe_type(expected.type)
                yield Issue(path=here, message=f"missing; expected {allowed}", allowed=allowed)
            continue
        value = table[key.name]
        yield from _value_issues(value, expected, here)
        if options and isinstance(value, str) and value not in options:
            match = error_texts.closest_match(value, options)
            hint = f"; did you mean {match}?" if match else ""
            yield _mismatch_issue(here, value, "form", error_texts.one_of(options), hint=hint)


def _mismatch(value: object, declared: inspect.Type) -> Mismatch | None:
    match declared:
        case inspect.IntType():
            return _range_mismatch(value, declared) if type(value) is int else "kind"
        case inspect.FloatType():
            return _range_mismatch(value, declared) if type(value) in (int, float) else "kind"
        case inspect.BoolType():
            return None if isinstance(value, bool) else "kind"
        case inspect.StrType():
            return _text_mismatch(value, declared) if isinstance(value, str) else "kind"
        case inspect.LiteralType(values=values):
            return None if value in values else "form" if isinstance(value, str) else "kind"
        case inspect.VarTupleType():
            return None if isinstance(value, list) else "kind"
        case inspect.AnyType():
            return None
        case inspect.DictType() | inspect.StructType():
            return None if isinstance(value, dict) else "kind"
        case _:
            raise TypeError(f"settings cannot be of the type {declared}")


def _range_mismatch(value: Any, declared: inspect.IntType | inspect.FloatType) -> Mismatch | None:
    limit = error_texts.MAX_INTEGER if declared.le is None else declared.le
    if isinstance(value, float) and not math.isfinite(value):
        return "form"
    if value > limit:
        return "too_large"
    if (declared.ge is not None and value < declared.ge) or (declared.gt is not None and value <= declared.gt):
        return "too_small"
    return None


def _text_mismatch(value: str, declared: inspect.StrType) -> Mismatch | None:
    if len(value) < (declared.min_length or 0):
        return "form"
    return "form" if declared.pattern is not None and not re.search(declared.pattern, value) else None


def _mismatch_issue(
    path: KeyPath,
    value: object,
    mismatch: Mismatch,
    allowed: str,
    *,
    prescribed: str | None = None,
    is_secret: bool = False,
    hint: str = "",
) -> Issue:
    found = error_texts.describe_value(value, with_kind=mismatch == "kind", secret=is_secret)
    message = prescribed or error_texts.mismatch(found, allowed, hint)
    return Issue(path=path, message=message, found=found, allowed=allowed, is_complete=prescribed is not None)
