"""Checks of JSON values against the TypedDicts with which the SDKs of vendors describe their requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typing_extensions

_REQUIRED = (Required, typing_extensions.Required)
_WRAPPERS = (*_REQUIRED, NotRequired, typing_extensions.NotRequired, Annotated)


def misfits(value: object, kind: Any, path: str = "$") -> list[str]:
    """What of a JSON value does not fit a type, as paths with the reason; empty if all of it fits.

    >>> class Point(typing_extensions.TypedDict, total=False):
    ...     x: Required[int]
    ...     y: int
    >>> misfits({"x": 1}, Point), misfits({"y": "up", "z": 1}, Point)
    ([], ['$.x: missing', '$.y: is a str, not int', '$.z: unknown'])
    """
    origin = get_origin(kind)
    while origin in _WRAPPERS:
        kind = get_args(kind)[0]
        origin = get_origin(kind)
    if kind is Any or kind is object:
        return []
    if origin in (Union, UnionType):
        return _of_union(value, get_args(kind), path)
    if origin in (Literal, typing_extensions.Literal):
        return [] if value in get_args(kind) else [f"{path}: is {value!r}, not one of {get_args(kind)}"]
    if is_typeddict(kind) or typing_extensions.is_typeddict(kind):
        return list(_of_typed_dict(value, kind, path))
    if origin in (list, Sequence, Iterable):
        if not isinstance(value, list):
            return [f"{path}: is a {type(value).__name__}, not a list"]
        inner, items = get_args(kind)[0], cast("list[object]", value)
        return [each for index, item in enumerate(items) for each in misfits(item, inner, f"{path}[{index}]")]
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return [f"{path}: is a {type(value).__name__}, not an object"]
        inner, members = get_args(kind)[1], cast("dict[str, object]", value)
        return [each for key, item in members.items() for each in misfits(item, inner, f"{path}.{key}")]
    return _of_class(value, kind, path)


def _of_class(value: object, kind: Any, path: str) -> list[str]:
    kind = get_origin(kind) or kind  # such as IO[bytes]
    if kind in (None, NoneType):
        return [] if value is None else [f"{path}: is not null"]
    expected = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) and kind is not bool:
        return [f"{path}: is a bool, not {kind.__name__}"]
    return [] if isinstance(value, expected) else [f"{path}: is a {type(value).__name__}, not {kind.__name__}"]


def _of_union(value: object, kinds: Sequence[Any], path: str) -> list[str]:
    """The misfits with the kind that fits best: of the same `type`, else with the fewest."""
    found = [misfits(value, kind, path) for kind in kinds]
    if not all(found):
        return []
    tagged = [
        each for each in found if not any(f"{path}.{tag}: is '" in text for tag in ("type", "role") for text in each)
    ]
    return min(tagged or found, key=len)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _of_typed_dict(value: object, kind: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: is a {type(value).__name__}, not an object"
        return
    hints, members = _hints(kind), cast("dict[str, object]", value)
    for name, hint in hints.items():
        if name in members:
            yield from misfits(members[name], hint, f"{path}.{name}")
        elif name in kind.__required_keys__ or get_origin(hint) in _REQUIRED:
            yield f"{path}.{name}: missing"
    yield from (f"{path}.{name}: unknown" for name in members if name not in hints)
