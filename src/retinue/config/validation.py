"""Holds the values of a settings file against what its sections declare, and finds every mistake in it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, inspect

from retinue.config import messages
from retinue.config.key_paths import KeyPath, dotted
from retinue.config.sections import Section, Tree, tree_of

Misfit: TypeAlias = Literal["kind", "form", "too_small", "too_large"]
Checked: TypeAlias = dict[str, Struct | dict[str, Struct]]
"""What each section came to, by its name."""

NO_CHOICES: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A mistake, before anyone knows on which line it is."""

    path: KeyPath
    text: str
    found: str = ""
    allowed: str = ""
    is_warning: bool = False
    """Nothing that has to be mended."""
    is_complete: bool = False
    """Whether the text is a prescribed one, printed without the key in front."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A declared type without its wrapping: what may stand there, and what is said about it."""

    type: inspect.Type
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def check(values: Mapping[str, object], sections: Sequence[Section]) -> tuple[Checked, list[Complaint]]:
    """The sections as typed values, those that are not written as well, and all that is wrong with the rest."""
    checked: Checked = {section.name: {} if section.named else section.type() for section in sections}
    known = [section.name for section in sections]
    complaints: list[Complaint] = []
    for section, path, value in _written(values, tree_of(sections), (), known, complaints):
        if section.named is None:
            if (table := _struct(section, path, value, complaints)) is not None:
                checked[section.name] = table
        else:
            checked[section.name] = _named(section, path, value, complaints)
    return checked, complaints


def wanted(declared: inspect.Type) -> Wanted:
    """A declared type without its wrapping; None is what a key is that nobody wrote, and no value of a file."""
    match declared:
        case inspect.Metadata(type=inner):
            below = wanted(inner)
            extra: dict[str, Any] | None = cast("Any", declared).extra  # not typed any further by msgspec
            return Wanted(below.type, {**below.notes, **(extra or {})})
        case inspect.UnionType(types=types):
            (only,) = (each for each in types if not isinstance(each, inspect.NoneType))
            return wanted(only)
        case _:
            return Wanted(declared)


def _written(
    values: Mapping[str, object], tree: Tree, above: KeyPath, known: Sequence[str], complaints: list[Complaint]
) -> Iterator[tuple[Section, KeyPath, object]]:
    """The sections that a file has, complaining about everything else in it."""
    for name, value in values.items():
        path = (*above, name)
        branch = tree.get(name)
        if isinstance(branch, Section):
            yield branch, path, value
        elif branch is not None and isinstance(value, dict):
            yield from _written(cast("dict[str, object]", value), branch, path, known, complaints)
        elif branch is not None:
            complaints.append(_misfit(path, value, "kind", "a table"))
        elif isinstance(value, dict):
            text = messages.unknown("section", dotted(path), known)
            complaints.append(Complaint(path=path, text=text, found=name, allowed=", ".join(known)))
        else:
            text = f"unknown key; settings stand in sections: {', '.join(known)}"
            complaints.append(Complaint(path=path, text=text, found=name, allowed=", ".join(known)))


def _named(section: Section, path: KeyPath, value: object, complaints: list[Complaint]) -> dict[str, Struct]:
    assert section.named is not None
    if not isinstance(value, dict):
        complaints.append(_misfit(path, value, "kind", f"tables [{section.name}.<name>]"))
        return {}
    tables: dict[str, Struct] = {}
    for name, below in cast("dict[str, object]", value).items():
        if not re.fullmatch(section.named.pattern, name):
            allowed = section.named.expected
            text = f"bad name; expected {allowed}"
            complaints.append(Complaint(path=(*path, name), text=text, found=name, allowed=allowed))
            continue
        if isinstance(below, dict):
            below = {**section.implied(name), **cast("dict[str, object]", below)}
        if (table := _struct(section, (*path, name), below, complaints)) is not None:
            tables[name] = table
    return tables


def _struct(section: Section, path: KeyPath, value: object, complaints: list[Complaint]) -> Struct | None:
    for key in section.unsupported:
        value = _without(key, value, path, complaints)
    wrong = list(_wrongs(value, Wanted(inspect.type_info(section.type)), path, section.choices))
    complaints.extend(wrong)
    return None if wrong else msgspec.convert(value, section.type)


def _without(key: str, value: object, path: KeyPath, complaints: list[Complaint]) -> object:
    """The table without a key that other tools know, which is worth a warning where it stands."""
    first, _, rest = key.partition(".")
    if not isinstance(value, dict) or first not in (table := cast("dict[str, object]", value)):
        return cast("object", value)
    here = (*path, first)
    if rest:
        return {**table, first: _without(rest, table[first], here, complaints)}
    complaints.append(Complaint(path=here, text="not supported, and left out of account", is_warning=True))
    return {name: each for name, each in table.items() if name != first}


def _wrongs(
    value: object, want: Wanted, path: KeyPath, choices: Mapping[str, Sequence[str]] = NO_CHOICES
) -> Iterator[Complaint]:
    """Everything that is wrong with a value and with what it holds."""
    allowed = want.notes.get("expected") or messages.expected(want.type, value)
    if misfit := _how_it_misfits(value, want.type):
        literal = want.notes.get(misfit)
        yield _misfit(path, value, misfit, allowed, literal=literal, secret=bool(want.notes.get("secret")))
        return
    match want.type:
        case inspect.StructType(fields=fields):
            yield from _wrong_keys(cast("dict[str, object]", value), fields, path, choices)
        case inspect.VarTupleType(item_type=item):
            for place, each in enumerate(cast("list[object]", value)):
                yield from _wrongs(each, wanted(item), (*path, place))
        case inspect.DictType(value_type=item):
            for name, each in cast("dict[str, object]", value).items():
                yield from _wrongs(each, wanted(item), (*path, name))
        case _:
            pass


def _wrong_keys(
    table: Mapping[str, object], fields: Sequence[inspect.Field], path: KeyPath, choices: Mapping[str, Sequence[str]]
) -> Iterator[Complaint]:
    known = [each.name for each in fields]
    for name in (name for name in table if name not in known):
        text = messages.unknown("key", name, known)
        yield Complaint(path=(*path, name), text=text, found=name, allowed=", ".join(known))
    for each in fields:
        here, want = (*path, each.name), wanted(each.type)
        options = choices.get(each.name)
        if each.name not in table:
            if each.required:
                allowed = messages.one_of(options) if options else messages.expected(want.type)
                yield Complaint(path=here, text=f"missing; expected {allowed}", allowed=allowed)
            continue
        value = table[each.name]
        yield from _wrongs(value, want, here)
        if options and isinstance(value, str) and value not in options:
            meant = messages.nearest(value, options)
            hint = f"; did you mean {meant}?" if meant else ""
            yield _misfit(here, value, "form", messages.one_of(options), hint=hint)


def _how_it_misfits(value: object, declared: inspect.Type) -> Misfit | None:
    match declared:
        case inspect.IntType():
            return _out_of_range(value, declared) if type(value) is int else "kind"
        case inspect.FloatType():
            return _out_of_range(value, declared) if type(value) in (int, float) else "kind"
        case inspect.BoolType():
            return None if isinstance(value, bool) else "kind"
        case inspect.StrType():
            return _misshapen(value, declared) if isinstance(value, str) else "kind"
        case inspect.LiteralType(values=values):
            return None if value in values else "form" if isinstance(value, str) else "kind"
        case inspect.VarTupleType():
            return None if isinstance(value, list) else "kind"
        case inspect.DictType() | inspect.StructType():
            return None if isinstance(value, dict) else "kind"
        case _:
            raise TypeError(f"settings cannot be of the type {declared}")


def _out_of_range(value: Any, declared: inspect.IntType | inspect.FloatType) -> Misfit | None:
    most = messages.LARGEST if declared.le is None else declared.le
    if isinstance(value, float) and not math.isfinite(value):
        return "form"
    if value > most:
        return "too_large"
    if (declared.ge is not None and value < declared.ge) or (declared.gt is not None and value <= declared.gt):
        return "too_small"
    return None


def _misshapen(value: str, declared: inspect.StrType) -> Misfit | None:
    if len(value) < (declared.min_length or 0):
        return "form"
    return "form" if declared.pattern is not None and not re.search(declared.pattern, value) else None


def _misfit(
    path: KeyPath,
    value: object,
    misfit: Misfit,
    allowed: str,
    *,
    literal: str | None = None,
    secret: bool = False,
    hint: str = "",
) -> Complaint:
    found = messages.found(value, with_kind=misfit == "kind", secret=secret)
    return Complaint(
        path=path,
        text=literal or f"found {found}; expected {allowed}{hint}",
        found=found,
        allowed=allowed,
        is_complete=literal is not None,
    )
