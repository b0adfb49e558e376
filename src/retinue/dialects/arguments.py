"""Requests and errors as the `spec` tools speak them: one JSON object in, one JSON object or coded error out.

A field that is missing or of the wrong kind is told before anything else is looked at, and nothing that a model can
write raises anything but `Coded`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TypeAlias, cast

import msgspec

from retinue.core.errors import Refused
from retinue.core.text import NOT_JSON
from retinue.dialects.text import compact

Fields: TypeAlias = Mapping[str, object]
"""The members of a request, as they came."""

MOST = 2**53
"""The largest number that is taken literally; stores and other readers of JSON lose count above it."""


JsonObject: TypeAlias = dict[str, object]
"""An answer to the model, before it is encoded."""


class Coded(Refused):
    """A refused request: one of the documented codes, and a sentence that the model can act on.

    >>> Coded("KEY_NOT_FOUND", "Key not found: 'scope'").answer
    {'error': 'KEY_NOT_FOUND', 'message': "Key not found: 'scope'"}
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def answer(self) -> JsonObject:
        """The error as the model reads it."""
        return {"error": self.code, "message": self.message}


def encoded(answer: JsonObject) -> bytes:
    """An answer as a store keeps it with the key of its change."""
    return compact(answer).encode()


def decoded(stored: bytes) -> JsonObject:
    """The answer of a change, from the bytes that the store keeps; raises `Coded` if the change was refused.

    >>> decoded(encoded({"deleted": "scope"}))
    {'deleted': 'scope'}
    >>> decoded(encoded(Coded("STORE_FULL", "No room.").answer))
    Traceback (most recent call last):
    retinue.dialects.arguments.Coded: No room.
    """
    match msgspec.json.decode(stored, type=JsonObject):
        case {"error": str(code), "message": str(message)}:
            raise Coded(code, message)
        case answer:
            return answer


def fields_of(arguments: str) -> Fields:
    """The members of the one JSON object that a call's arguments have to be."""
    try:
        decoded: object = msgspec.json.decode(arguments)
    except NOT_JSON as unreadable:
        raise Coded("INVALID_REQUEST", f"Arguments must be one JSON object: {unreadable}") from unreadable
    if not isinstance(decoded, dict):
        raise Coded("INVALID_REQUEST", f"Arguments must be one JSON object, got {_kind(decoded)}.")
    return cast("Fields", decoded)


def action_of(fields: Fields, valid: Iterable[str]) -> str:
    """The action of a request, if it is a valid one."""
    action = fields.get("action")
    known = sorted(valid)
    if not isinstance(action, str) or action not in known:
        raise Coded("INVALID_ACTION", f"Unknown action: {action!r}. Valid: {known}")
    return action


def text_of(fields: Fields, name: str, default: str | None = None) -> str:
    """A string member; required, unless there is a default."""
    if name not in fields and default is not None:
        return default
    value = _required(fields, name)
    if not isinstance(value, str):
        raise mistyped(name, "a string", value)
    return value


def integer_of(fields: Fields, name: str, default: int) -> int:
    """A whole number, as JSON Schema understands it: `10.0` is one, `true` is none."""
    value = fields.get(name, default)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise mistyped(name, "an integer", value)
    return value


def positive_of(fields: Fields, name: str) -> int | None:
    """A whole number from 1, or None when it is not given; one that no machine could count to is cut."""
    if name not in fields:
        return None
    value = integer_of(fields, name, 0)
    if value < 1:
        raise Coded("INVALID_REQUEST", f"Field '{name}' must be at least 1, got {max(value, -MOST)}.")
    return min(value, MOST)


def texts_of(fields: Fields, name: str, *, required: bool = False) -> tuple[str, ...]:
    """A list of strings; empty by default, unless it is required."""
    value = _required(fields, name) if required else fields.get(name, [])
    if not isinstance(value, list):
        raise mistyped(name, "a list of strings", value)
    items = cast("list[object]", value)
    for item in items:
        if not isinstance(item, str):
            raise mistyped(name, "a list of strings", item, inside=True)
    return tuple(cast("list[str]", items))


def integers_of(fields: Fields, name: str) -> tuple[int, ...] | None:
    """A list of whole numbers, or None when it is not given."""
    if name not in fields:
        return None
    value = fields[name]
    if not isinstance(value, list):
        raise mistyped(name, "a list of integers", value)
    items = cast("list[object]", value)
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool):
            raise mistyped(name, "a list of integers", item, inside=True)
    return tuple(cast("list[int]", items))


def switched_off(fields: Fields, *names: str, extension: str, on: Container[str]) -> None:
    """Refuse fields of an extension that is switched off: what they ask for is never left out without a word."""
    for name in names:
        if name in fields and extension not in on:
            raise Coded("INVALID_REQUEST", f"Field '{name}' is not available: {extension} is switched off.")


def _required(fields: Fields, name: str) -> object:
    if name not in fields:
        raise Coded("INVALID_REQUEST", f"Field '{name}' is required for action '{fields['action']}'.")
    return fields[name]


def mistyped(name: str, wanted: str, found: object, *, inside: bool = False) -> Coded:
    """The refusal of a field that is of another kind than it has to be."""
    where = " in it" if inside else ""
    return Coded("INVALID_REQUEST", f"Field '{name}' must be {wanted}, got {_kind(found)}{where}.")


def _kind(value: object) -> str:
    """What JSON calls it."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
