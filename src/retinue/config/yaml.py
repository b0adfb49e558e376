"""YAML parsing with the line of each key, without YAML's surprises.

Scalars follow YAML 1.2: `true` and `false` are booleans; `on`, `off`, `yes` and `no` are strings. A key without a value
counts as missing. Aliases are allowed as long as their expansion stays small.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, TypeAlias, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from retinue.config.error_texts import MAX_VALUES, Document, dotted, quoted
from retinue.core.errors import ConfigError, Problem
from retinue.core.key_paths import KeyPath

_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "merge": r"<<",
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
"""Types of unquoted scalars by YAML 1.2; the first match counts, all others are strings."""

YamlValue: TypeAlias = "str | bool | int | float | list[YamlValue] | dict[str, YamlValue] | None"


class _TooManyNodes(Exception):
    """The text has more nodes than a settings file can have; `line` is where the first of them begins."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Loader(yaml.BaseLoader):
    """Resolves the scalars above and constructs no objects; stops at a number of nodes, because it is slow."""

    nodes = 0

    def compose_node(self, parent: Node | None, index: object) -> Node | None:
        self.nodes += 1
        if self.nodes > 3 * MAX_VALUES:  # a value may have a key, and stand in a list
            raise _TooManyNodes(cast("Any", self).peek_event().start_mark.line + 1)
        return cast("Any", super()).compose_node(parent, index)


for _kind, _words in _PLAIN.items():
    cast("Any", _Loader).add_implicit_resolver(f"{_TAG}{_kind}", re.compile(rf"(?:{_words})\Z"), None)


def read_yaml(text: str, file: str, *, lenient: bool = False) -> Document:
    """Parse `text`; raises `ConfigError` for syntax errors, with line and column.

    With `lenient`, a key that is a number, a boolean or null counts as its text.
    """
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_problem(error, file)) from None
    except yaml.YAMLError as error:
        raise ConfigError(Problem(file=file, complaint=f"not valid YAML: {_flat(str(error))}")) from None
    except RecursionError:
        raise ConfigError(_too_deep(file)) from None
    except _TooManyNodes as error:
        complaint = f"not readable: more than {MAX_VALUES} values"
        raise ConfigError(Problem(file=file, line=error.line, complaint=complaint)) from None
    converter = _NodeConverter(file, lenient=lenient)
    try:
        values = converter.top(node)
    except RecursionError:
        raise ConfigError(_too_deep(file)) from None
    return Document(values=values, line_of=converter.lines.get)


class _NodeConverter:
    """Converts the nodes of one file to values."""

    def __init__(self, file: str, *, lenient: bool) -> None:
        self._lenient = lenient
        self.lines: dict[KeyPath, int] = {}
        self._problem = partial(Problem, file=file)
        self._count = 0

    def top(self, node: Node | None) -> dict[str, YamlValue]:
        """The sections of the file; none if it is empty."""
        if node is None or _is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            found = "an array" if isinstance(node, SequenceNode) else "a single value"
            raise self._error(node, f"found {found}; expected sections, each a key with a colon", found=found)
        if node.tag != f"{_TAG}map":
            raise self._tag_error(node, ())
        return self._mapping(node, (), ())

    def _value(self, node: Node, path: KeyPath, above: tuple[Node, ...]) -> YamlValue:
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._error(node, f"more than {MAX_VALUES} values with all aliases expanded", path)
        if any(node is each for each in above):
            raise self._error(node, "this alias refers to a value that contains it", path)
        match node:
            case ScalarNode():
                return self._scalar(node, path)
            case SequenceNode() if node.tag == f"{_TAG}seq":
                return [self._item(below, (*path, index), (*above, node)) for index, below in enumerate(node.value)]
            case MappingNode() if node.tag == f"{_TAG}map":
                return self._mapping(node, path, above)
            case _:
                raise self._tag_error(node, path)

    def _item(self, node: Node, path: KeyPath, above: tuple[Node, ...]) -> YamlValue:
        self.lines.setdefault(path, _line(node))
        return self._value(node, path, above)

    def _mapping(self, node: MappingNode, path: KeyPath, above: tuple[Node, ...]) -> dict[str, YamlValue]:
        values: dict[str, YamlValue] = {}
        first: dict[str, int] = {}
        for key, below in node.value:
            name = self._key(key, path)
            here = (*path, name)
            if name in first:
                raise self._error(key, f"set twice; the first is on line {first[name]}", here)
            first[name] = _line(key)
            self.lines.setdefault(here, _line(key))
            if not _is_null(below):
                values[name] = self._value(below, here, (*above, node))
        return values

    def _key(self, node: Node, path: KeyPath) -> str:
        if not isinstance(node, ScalarNode):
            raise self._error(
                node, "found a key that is a table or array; expected a string", path, found="a table or array"
            )
        if node.tag == f"{_TAG}merge":
            raise self._error(node, "found <<; expected keys: merging of tables is not supported", path)
        if node.tag != f"{_TAG}str" and not self._lenient:
            shown = quoted(str(node.value))
            raise self._error(
                node, f"found the key {shown[1:-1]}, which is not a string; write it in quotes: {shown}", path
            )
        return str(node.value)

    def _scalar(self, node: ScalarNode, path: KeyPath) -> YamlValue:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if re.fullmatch(_PLAIN["bool"], text):
                return text.lower() == "true"
            case "int" if re.fullmatch(_PLAIN["int"], text):
                return self._integer(node, text, path)
            case "float" if re.fullmatch(_PLAIN["float"], text):
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case "merge":
                return text
            case _:
                raise self._tag_error(node, path)

    def _integer(self, node: ScalarNode, text: str, path: KeyPath) -> int:
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        try:
            return int(text, base)
        except ValueError:  # more digits than Python converts
            raise self._error(node, "not readable: a number with too many digits", path) from None

    def _tag_error(self, node: Node, path: KeyPath) -> ConfigError:
        tag = node.tag.replace(_TAG, "!!")
        return self._error(node, f"found the tag {quoted(tag)[1:-1]}; expected a value without one", path, found=tag)

    def _error(self, node: Node, complaint: str, path: KeyPath = (), *, found: str = "") -> ConfigError:
        return ConfigError(self._problem(line=_line(node), key=dotted(path), complaint=complaint, found=found))


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    details = _flat(" ".join(part for part in (error.context, error.problem) if part))
    return Problem(
        file=file,
        line=None if mark is None else mark.line + 1,
        column=None if mark is None else mark.column + 1,
        complaint=f"not valid YAML: {details}",
        found=error.problem or "",
    )


def _flat(text: str) -> str:
    flat = " ".join(text.split())
    return flat[:1].lower() + flat[1:]


def _too_deep(file: str) -> Problem:
    return Problem(file=file, complaint="not readable: nested too deeply")


def _is_null(node: Node) -> bool:
    return node.tag == f"{_TAG}null"


def _line(node: Node) -> int:
    return node.start_mark.line + 1
