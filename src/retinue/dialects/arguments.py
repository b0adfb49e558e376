"""JSON arguments and answers of dialect tools: decoding, refusals, typed access to fields, compact encoding.

Whatever a model writes raises nothing but a `CallRefused`: `decode` reads a whole struct; tools that read field by
field raise `CodedRefusal`, whose refusals are JSON objects with a code.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeVar, cast

import msgspec

from retinue.core.agent import ToolSpec
from retinue.core.errors import Refused
from retinue.core.text import MAX_LISTED, NOT_JSON, name_list
from retinue.dialects.error_codes import CallRefused, CodedRefusal, ErrorCode, JsonObject

D = TypeVar("D")
S = TypeVar("S", bound=msgspec.Struct)

MAX_NUMBER = 2**53
"""The largest number that is taken literally; other readers of JSON lose precision above it."""


def compact_json(value: object) -> str:
    """JSON without spaces.

    >>> compact_json({"keys": [], "note": "naïve — fine"})
    '{"keys":[],"note":"naïve — fine"}'
    """
    return msgspec.json.encode(value).decode()


def typed(kind: str, about: str, **constraints: object) -> dict[str, object]:
    """A property in a JSON schema: its type, constraints and description."""
    return {"type": kind, **constraints, "description": about}


def list_of(kind: str, about: str, **constraints: object) -> dict[str, object]:
    """A property that is a list of `kind`."""
    return typed("array", about, items={"type": kind}, **constraints)


def name_schema(names: Sequence[str]) -> dict[str, object]:
    """The schema of one of these names: an enumeration, or any string if there are too many or none at all.

    >>> name_schema(["grep", "fetch"]), name_schema([])
    ({'type': 'string', 'enum': ['grep', 'fetch']}, {'type': 'string'})
    """
    return {"type": "string", "enum": list(names)} if 0 < len(names) <= MAX_LISTED else {"type": "string"}


def name_list_schema(names: Sequence[str] | None, about: str) -> dict[str, object]:
    """A property that is a list of these names, in an enumeration or else in the description; None lists no names.

    >>> name_list_schema(["grep"], "Tools.")
    {'type': 'array', 'items': {'type': 'string', 'enum': ['grep']}, 'description': 'Tools.'}
    >>> name_list_schema([], "Tools.")["description"]
    'Tools. Available: (none).'
    """
    if names is None:
        return list_of("string", about)
    items = name_schema(names)
    return typed("array", about if "enum" in items else f"{about} Available: {name_list(names)}.", items=items)


def tool_spec(name: str, about: str, properties: Mapping[str, object], *required: str) -> ToolSpec:
    """A tool whose arguments are an object with these properties.

    >>> tool_spec("agent_stop", "Stop an agent.", {"id": typed("string", "Its id.")}).parameters
    '{"type":"object","properties":{"id":{"type":"string","description":"Its id."}}}'
    """
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return ToolSpec(name, about, compact_json(schema))


def action_tool(name: str, about: str, actions: Mapping[str, str], properties: Mapping[str, object]) -> ToolSpec:
    """A tool with a field `action`, one of the described actions, and more properties."""
    action = {
        "type": "string",
        "enum": tuple(actions),
        "description": " ".join(f"{name}: {description}" for name, description in actions.items()),
    }
    schema = {"type": "object", "properties": {"action": action, **properties}, "required": ["action"]}
    return ToolSpec(name, about, compact_json(schema))


def decode(arguments: str, kind: type[D], *, refuse: Callable[[str], Refused]) -> D:
    """The arguments as a value of this type; raises what `refuse` makes of the decoder's message.

    >>> from retinue.dialects.error_codes import CallRefused
    >>> decode('{"depth": "two"}', dict[str, int], refuse=lambda reason: CallRefused(f"bad arguments: {reason}"))
    Traceback (most recent call last):
    retinue.dialects.error_codes.CallRefused: bad arguments: Expected `int`, got `str` - at `$[...]`
    """
    try:
        return msgspec.json.decode(arguments, type=kind)
    except NOT_JSON as unreadable:
        raise refuse(str(unreadable)) from unreadable


def encoded(answer: JsonObject) -> bytes:
    """An answer as the store keeps it under the key of its change."""
    return compact_json(answer).encode()


def arguments_of(tool: str, arguments: str, kind: type[S]) -> S:
    """The arguments of a call of `tool`; raises `CallRefused` with the names of its parameters.

    Small models fill in every property of a schema, and leave empty what they do not mean to give: an optional field
    that is null, a blank string or an empty object counts as left out, and so does a zero in the fields that
    `kind.NEVER_ZERO` names.

    >>> class OneRun(msgspec.Struct):
    ...     run: str
    >>> arguments_of("cancel_agent", '{"run": 7}', OneRun)
    Traceback (most recent call last):
    retinue.dialects.error_codes.CallRefused: cancel_agent: Expected `str`, got `int` - at `$.run`. Valid fields: run.
    """

    def refused(reason: str) -> CallRefused:
        return CallRefused(f"{tool}: {reason}. Valid fields: {name_list(kind.__struct_fields__)}.")

    given = decode(arguments.strip() or "{}", object, refuse=refused)
    if isinstance(given, dict):
        optional, never_zero = _optional_fields(kind), getattr(kind, "NEVER_ZERO", ())
        fields = cast("dict[str, object]", given)
        given = {
            name: value
            for name, value in fields.items()
            if name not in optional or not _is_empty(value, may_be_zero=name not in never_zero)
        }
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as wrong:
        raise refused(str(wrong)) from wrong


@cache
def _optional_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(kind) if not field.required)


def _is_empty(value: object, *, may_be_zero: bool) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value == {} or (not may_be_zero and type(value) in (int, float) and value == 0)


def decoded(stored: bytes) -> JsonObject:
    """The answer of a change, from the bytes in the store; raises `CodedRefusal` if the change was refused.

    >>> decoded(encoded({"deleted": "scope"}))
    {'deleted': 'scope'}
    >>> decoded(encoded(CodedRefusal("STORE_FULL", "No room.").answer))
    Traceback (most recent call last):
    retinue.dialects.error_codes.CodedRefusal: No room.
    """
    match msgspec.json.decode(stored, type=JsonObject):
        case {"error": str(code), "message": str(message), **details}:
            raise CodedRefusal(cast("ErrorCode", code), message, **details)
        case answer:
            return answer


class Fields(dict[str, object]):
    """The members of the one JSON object that a call's arguments have to be; each method raises `CodedRefusal`."""

    @classmethod
    def parse(cls, arguments: str) -> Fields:
        """The members; anything else than an object is refused."""
        prefix = "Arguments must be one JSON object"
        decoded: object = decode(
            arguments, object, refuse=lambda reason: CodedRefusal("INVALID_REQUEST", f"{prefix}: {reason}")
        )
        if not isinstance(decoded, dict):
            raise CodedRefusal("INVALID_REQUEST", f"{prefix}, got {_kind(decoded)}.")
        return cls(cast("dict[str, object]", decoded))

    def without_empty(self, *names: str) -> Fields:
        """The fields without those of `names` that are an empty string or list.

        Some models fill in every property of a schema, and leave empty what they do not mean to give.

        >>> Fields({"task": "", "model": "", "depends_on": []}).without_empty("model", "depends_on")
        {'task': ''}
        """
        return Fields({name: value for name, value in self.items() if name not in names or value not in ("", [])})

    def action(self, valid: Iterable[str]) -> str:
        """The action of the request, one of the valid ones."""
        action = self.get("action")
        known = sorted(valid)
        if not isinstance(action, str) or action not in known:
            raise CodedRefusal("INVALID_ACTION", f"Unknown action: {action!r}. Valid: {known}")
        return action

    def required(self, name: str) -> object:
        """The value of a field that must be given."""
        if name not in self:
            raise CodedRefusal("INVALID_REQUEST", f"Field '{name}' is required for action '{self['action']}'.")
        return self[name]

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required, unless there is a default."""
        if name not in self and default is not None:
            return default
        value = self.required(name)
        if not isinstance(value, str):
            raise mistyped(name, "a string", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string; None when it is not given."""
        return self.text(name) if name in self else None

    def integer(self, name: str, default: int) -> int:
        """An integer in the sense of JSON Schema: `10.0` is an integer, `true` is not."""
        value = self.get(name, default)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise mistyped(name, "an integer", value)
        return value

    def positive(self, name: str) -> int | None:
        """An integer from 1, at most `MAX_NUMBER`; None when it is not given."""
        if name not in self:
            return None
        value = self.integer(name, 0)
        if value < 1:
            raise CodedRefusal("INVALID_REQUEST", f"Field '{name}' must be at least 1, got {max(value, -MAX_NUMBER)}.")
        return min(value, MAX_NUMBER)

    def texts(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of strings without repetitions; empty when it is not given, unless it is required."""
        value = self.required(name) if required else self.get(name, [])
        items = _items(name, value, "a list of strings", lambda item: isinstance(item, str))
        return tuple(dict.fromkeys(cast("tuple[str, ...]", items)))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; None when it is not given."""
        if name not in self:
            return None
        items = _items(name, self[name], "a list of integers", lambda item: type(item) is int)
        return cast("tuple[int, ...]", items)

    def refuse_unless(self, extension: str, on: Container[str], *names: str) -> None:
        """Refuse fields of an extension that is switched off, rather than ignore them."""
        for name in names:
            if name in self and extension not in on:
                raise CodedRefusal("INVALID_REQUEST", f"Field '{name}' is not available: {extension} is switched off.")


def _items(name: str, value: object, wanted: str, is_wanted: Callable[[object], bool]) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise mistyped(name, wanted, value)
    items = cast("list[object]", value)
    for item in items:
        if not is_wanted(item):
            raise mistyped(name, wanted, item, inside=True)
    return tuple(items)


def mistyped(name: str, wanted: str, found: object, *, inside: bool = False) -> CodedRefusal:
    where = " in it" if inside else ""
    return CodedRefusal("INVALID_REQUEST", f"Field '{name}' must be {wanted}, got {_kind(found)}{where}.")


def _kind(value: object) -> str:
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
