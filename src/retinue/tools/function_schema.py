"""A function's parameters as a JSON Schema; a model's JSON as its arguments, or an error that names the misfit."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from retinue.core.errors import BadInput
from retinue.core.ports import CallContext
from retinue.core.schema import Schema, with_types_and_items


class Misfit(msgspec.Struct, frozen=True):
    """Arguments that do not fit a function's parameters; `text` is the error message for the model."""

    text: str


class Arguments:
    """The parameters of a function; raises `BadInput` for one that JSON cannot fill."""

    def __init__(self, function: Callable[..., object], *, name: str, about: Mapping[str, str]) -> None:
        self.name = name
        self._positional: list[str] = []
        self._context: list[str] = []
        properties: dict[str, Schema] = {}
        required: list[str] = []
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter, hint in _typed_parameters(function, name):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                self._positional.append(parameter.name)
            if _is_context(hint):
                self._context.append(parameter.name)
                continue
            where = f"tool {name}: parameter {parameter.name!r}"
            if _has_context(hint):  # a model could fill it, and forge the caller
                raise BadInput(f"{where}: a CallContext is handed in by itself, not as a part of something else")
            schema = _schema_of(hint, where)
            description = _annotated_description(hint) or about.get(parameter.name)
            if description:
                schema["description"] = description
            if parameter.default is parameter.empty:
                required.append(parameter.name)
                fields.append((parameter.name, hint))
            else:
                schema |= _default_in_schema(parameter.default)
                fields.append((parameter.name, hint, _default_for_msgspec(parameter.default)))
            properties[parameter.name] = schema
        self.schema: Schema = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        self._names = tuple(properties)
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(struct, dec_hook=_validated)

    @property
    def takes_context(self) -> bool:
        """Whether the function has a parameter for the context of a call."""
        return bool(self._context)

    def decode(self, arguments: str) -> msgspec.Struct | Misfit:
        """The model's JSON as a struct with one field per parameter; a `Misfit` if it does not fit the parameters."""
        try:
            # Some models write nothing at all where a tool needs no arguments.
            return self._decoder.decode(arguments if arguments.strip() else "{}")
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            return Misfit(_error_message(self, arguments, error))

    def bind(
        self, decoded: msgspec.Struct, context: CallContext | None = None
    ) -> tuple[list[object], dict[str, object]]:
        given: dict[str, object] = {name: getattr(decoded, name) for name in self._names}
        given.update(dict.fromkeys(self._context, context))
        return [given.pop(name) for name in self._positional], given

    def listing(self) -> str:
        """The names of the arguments, for error messages."""
        required = self.schema["required"]
        listed = [f"{name} (required)" if name in required else name for name in self._names]
        return ", ".join(listed) or "none"


# ---- parameters ------------------------------------------------------------------------------------------------------


def _typed_parameters(function: Callable[..., object], name: str) -> Iterator[tuple[inspect.Parameter, Any]]:
    try:
        signature = inspect.signature(function)
    except (NameError, ValueError, TypeError) as error:
        raise BadInput(f"tool {name}: its parameters cannot be read: {error}") from error
    module_names: Mapping[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    for parameter in signature.parameters.values():
        where = f"tool {name}: parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadInput(f"{where}: a model cannot fill {parameter}; name each argument")
        if parameter.annotation is parameter.empty:
            hint = " (for a method, use tool(instance.method))" if parameter.name == "self" else ""
            raise BadInput(f"{where} has no type annotation{hint}")
        holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            hints = get_type_hints(holder, dict(module_names), include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            raise BadInput(
                f"{where}: its annotation {parameter.annotation!r} cannot be read: {error}; "
                "the type must be known in the module when the function is defined"
            ) from error
        yield parameter, _with_meta(hints[parameter.name])


_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")


def _with_meta(hint: Any) -> Any:
    """The annotation with bounds and descriptions of pydantic's `Field`, and of annotated-types, as `msgspec.Meta`.

    msgspec would ignore them. They are recognised by their attributes, so that neither package is needed.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is not Annotated:
        return hint
    meta: dict[str, Any] = {}
    kept: list[Any] = []
    for note in arguments[1:]:
        parts = [note, *getattr(note, "metadata", ())]
        found = {key: value for part in parts for key in _BOUNDS if (value := getattr(part, key, None)) is not None}
        if isinstance(note, str | msgspec.Meta) or not (found or hasattr(note, "metadata")):
            kept.append(note)
            continue
        texts = {key: text for key in ("title", "description") if isinstance(text := getattr(note, key, None), str)}
        meta |= found | texts
    if not meta:
        return hint
    return Annotated[(arguments[0], *kept, msgspec.Meta(**meta))]


def _is_context(hint: Any) -> bool:
    """Whether a parameter receives the context of the call; it may be optional, for direct calls of the function."""
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return {*get_args(hint)} == {CallContext, NoneType}
    return hint is CallContext


def _has_context(hint: Any) -> bool:
    return hint is CallContext or any(map(_has_context, get_args(hint)))


def _annotated_description(hint: Any) -> str | None:
    """A description written as `Annotated[int, "how many"]`, or in a `msgspec.Meta`."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    texts = (note.description if isinstance(note, msgspec.Meta) else note for note in notes)
    return next((text for text in texts if isinstance(text, str)), None)


def _default_in_schema(default: object) -> Schema:
    try:
        return {"default": msgspec.to_builtins(default)}
    except (TypeError, ValueError):
        return {}


def _default_for_msgspec(default: object) -> Any:
    """A default that msgspec accepts: mutable ones need a factory."""
    if isinstance(default, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: cast("object", default))
    return default


# ---- schemas ---------------------------------------------------------------------------------------------------------

_LEFT_OUT = frozenset({"$ref", "$defs", "$comment"})


def _schema_of(hint: Any, where: str) -> Schema:
    try:
        return with_types_and_items(_inlined(msgspec.json.schema(hint, schema_hook=_schema_of_model)))
    except TypeError as error:
        raise BadInput(f"{where}: {str(error).splitlines()[-1]}") from error


def _schema_of_model(kind: type) -> Schema:
    """The schema of `object`, which is anything, or of a pydantic model; pydantic itself is not imported."""
    if kind is object:
        return {"$comment": "anything"}  # msgspec treats an empty schema as none
    schema = getattr(kind, "model_json_schema", None)
    if not (callable(schema) and hasattr(kind, "model_validate")):
        raise NotImplementedError
    return _inlined(cast("Schema", schema()))


def _validated(kind: type, value: object) -> object:
    if kind is object:
        return value
    validate = getattr(kind, "model_validate", None)
    if not callable(validate):
        raise NotImplementedError
    return validate(value)


def _inlined(schema: Schema) -> Schema:
    """The schema with each definition written where it is used; a recursive type is only named there."""
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))

    def inline(node: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [inline(item, inside) for item in cast("list[Any]", node)]
        if not isinstance(node, dict):
            return node
        items = cast("Schema", node)
        rest = {key: inline(value, inside) for key, value in items.items() if key not in _LEFT_OUT}
        reference = items.get("$ref")
        if not isinstance(reference, str):
            return rest
        name = reference.removeprefix("#/$defs/")
        if name in inside:
            kind = {"type": definitions[name]["type"]} if "type" in definitions[name] else {}
            return kind | {"description": f"another {name}"} | rest
        return inline(definitions[name], (*inside, name)) | rest

    return inline(schema, ())


# ---- error messages for the model ------------------------------------------------------------------------------------

_AT = re.compile(r"(?P<what>.*) - at `(?P<key>key` in `)?\$(?P<path>.*)`", re.DOTALL)
_FIELD = re.compile(r"Object (?P<problem>missing required|contains unknown) field `(?P<field>.*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")


def _error_message(arguments: Arguments, text: str, error: Exception) -> str:
    tool = arguments.name
    if isinstance(error, RecursionError):
        return f"{tool}: the arguments are nested too deeply; send flatter ones"
    if not isinstance(error, msgspec.ValidationError):
        return f"{tool}: the arguments are not valid JSON: {_json_error(text, error)}; send one JSON object"

    located = _AT.fullmatch(str(error))
    what, path = (located["what"], located["path"]) if located else (str(error), "")
    within = f" in {path.lstrip('.')!r}" if path else ""
    misfit = _FIELD.fullmatch(what)
    if misfit:
        problem = "is missing" if misfit["problem"] == "missing required" else "is not known"
        known = "" if path else f"; arguments: {arguments.listing()}"
        return f"{tool}: argument {misfit['field']!r}{within} {problem}{known}"
    if not path:
        return f"{tool}: the arguments must be one JSON object: {_uncapped(what)}; arguments: {arguments.listing()}"
    if located and located["key"]:
        return f"{tool}: argument {path.lstrip('.')!r}: in a key, {_uncapped(what)}{_found(text, path)}"
    more = _choices(arguments.schema, path) + _found(text, path)
    return f"{tool}: argument {path.lstrip('.')!r}: {_uncapped(what)}{more}"


def _json_error(text: str, error: Exception) -> str:
    """The error with its position in the text, which msgspec does not report."""
    try:
        json.loads(text)
    except json.JSONDecodeError as located:
        if located.pos >= len(text.rstrip()):
            return f"{located.msg} at the end, after character {len(text.rstrip())}; it may have been cut off"
        return f"{located.msg} at character {located.pos + 1}, before {text[located.pos : located.pos + 20]!r}"
    except (ValueError, RecursionError):
        pass
    return str(error)


def _choices(schema: Schema, path: str) -> str:
    """The values that an argument may have, if the schema lists them."""
    nodes = [schema]
    for step in _STEP.finditer(path):
        inner = (_below(node, step["name"]) for node in nodes)
        nodes = [branch for node in inner if node is not None for branch in (node, *node.get("anyOf", ()))]
    values = [value for node in nodes for value in node.get("enum", ())]
    return f"; expected one of: {', '.join(map(json.dumps, values))}" if values else ""


def _below(schema: Schema, name: str | None) -> Schema | None:
    """The schema of a property, or of all items or values if there is no name."""
    if name is None:
        found = schema.get("items") or schema.get("additionalProperties")
    else:
        found = schema.get("properties", {}).get(name)
    return cast("Schema", found) if isinstance(found, dict) else None


def _found(text: str, path: str) -> str:
    """The value at `path`, or as near to it as msgspec reports, cut short."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # invalid, or too deep, after the value that did not fit
        return ""
    for step in _STEP.finditer(path):
        if step["index"] == "...":  # a value of a mapping; its key is not reported
            break
        try:
            value = value[step["name"] or int(step["index"])]
        except (KeyError, IndexError, TypeError):  # a name with dots or brackets in it
            break
    found = msgspec.json.encode(value).decode()
    return f"; found {found if len(found) <= 80 else found[:79] + '…'}"


def _uncapped(text: str) -> str:
    return text[:1].lower() + text[1:]
