"""Front matter of a Markdown file: the block between two lines `---` at its beginning, read as YAML.

Files in the wild are often not valid YAML: a description with a colon, with examples over many lines, or with tabs.
Those are read line by line: a known key at the beginning of a line starts a value, and every other line continues it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import yaml
from yaml.error import MarkedYAMLError, YAMLError

FrontMatterValue: TypeAlias = "str | list[FrontMatterValue] | dict[str, FrontMatterValue] | None"
"""Scalars are texts, also numbers and booleans: the reader of a field knows what it expects."""

MAX_FRONT_MATTER = 256 * 1024
"""Characters of the front matter that are read."""
MAX_BRACKETS = 2000
MAX_LINE_DASHES = 64
"""Opening brackets, and dashes in one line, above which a text is not given to the YAML parser, which recurses."""

_FENCE = re.compile(r"---[ \t]*")
_END = re.compile(r"(?:---|\.\.\.)[ \t]*")
_LOOSE_END = re.compile(r"[ \t]*---(.*)")
"""The end as Claude Code takes it: indented, or with a text after it."""
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+|$)(.*)", re.DOTALL)
_ITEM = re.compile(r"\s*-[ \t]+(.*)")
_BLOCK = re.compile(r"[|>][+-]?\d*")

# The C parser is twenty times faster, and a folder may have thousands of files; PyYAML may be built without it.
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class FrontMatter(NamedTuple):
    """The values of a front matter, the text below it, and what was wrong with its form, each with a line."""

    values: Mapping[str, FrontMatterValue]
    body: str
    lines: Mapping[str, int]
    """The line of each key at the top, counted from 1 in the file."""
    notes: tuple[tuple[int, str], ...] = ()


class NoFrontMatter(Exception):
    """The file does not begin with a front matter."""


class UnreadableFrontMatter(Exception):
    """The front matter has no end, or no values; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def read_front_matter(text: str, known: Collection[str]) -> FrontMatter:
    """Split and parse a Markdown file; raises `NoFrontMatter` or `UnreadableFrontMatter`.

    `known` are the keys that start a value in a text that is not valid YAML.
    """
    lines = text.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None or not _FENCE.fullmatch(lines[first]):
        raise NoFrontMatter
    notes: list[tuple[int, str]] = []
    end = next((index for index in range(first + 1, len(lines)) if _END.fullmatch(lines[index])), None)
    if end is None:
        end = next((index for index in range(first + 1, len(lines)) if _LOOSE_END.fullmatch(lines[index])), None)
        if end is None:
            raise UnreadableFrontMatter(first + 1, "the front matter has no closing line ---")
        notes.append((end + 1, "the line that closes the front matter has more than ---"))
        lines.insert(end + 1, lines[end].strip()[3:])
    block = lines[first + 1 : end]
    if sum(map(len, block)) > MAX_FRONT_MATTER:
        raise UnreadableFrontMatter(first + 1, f"the front matter is larger than {MAX_FRONT_MATTER >> 10} KiB")
    if first:
        notes.append((1, "blank lines before the front matter are ignored"))
    start = first + 2
    values, problem = _parse(block)
    if values is None:
        values = _line_by_line(block, known)
        line, reason = problem
        notes.append((start + line, f"the front matter is not valid YAML ({reason}); it was read line by line"))
    if not values:
        raise UnreadableFrontMatter(start, "the front matter has no keys")
    key_lines = {name: start + index for name, index in _key_lines(block, values).items()}
    return FrontMatter(values, "\n".join(lines[end + 1 :]).strip(), key_lines, tuple(notes))


def _parse(block: list[str]) -> tuple[dict[str, FrontMatterValue] | None, tuple[int, str]]:
    """The values by YAML, or None with the line (from 0) and the reason."""
    text = "\n".join(block)
    if text.count("[") + text.count("{") > MAX_BRACKETS or any(line.count("- ") > MAX_LINE_DASHES for line in block):
        return None, (0, "nested too deeply")
    try:
        values = yaml.load(text, Loader=_Loader)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return None, (0 if mark is None else mark.line, " ".join((error.problem or "syntax error").split()))
    except (YAMLError, RecursionError, ValueError) as error:
        return None, (0, " ".join(str(error).split())[:100] or "syntax error")
    if not isinstance(values, dict):
        return None, (0, "expected keys with values")
    table = cast("dict[object, FrontMatterValue]", values)
    return {str(key): value for key, value in table.items()}, (0, "")


def _key_lines(block: list[str], values: Mapping[str, FrontMatterValue]) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, line in enumerate(block):
        match = _KEY.fullmatch(line)
        if match and match[1] in values:
            found.setdefault(match[1], index)
    return found


def _line_by_line(block: list[str], known: Collection[str]) -> dict[str, FrontMatterValue]:
    """The values of known keys; lines that start none belong to the value before them."""
    raw: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in block:
        match = _KEY.fullmatch(line)
        if match and match[1] in known and match[1] not in raw:
            current = raw[match[1]] = [match[2]]
        elif current is not None:
            current.append(line)
    return {name: _loose_value(parts) for name, parts in raw.items()}


def _loose_value(parts: list[str]) -> FrontMatterValue:
    first, *others = parts
    first = first.strip()
    items = [_ITEM.fullmatch(line) for line in others if line.strip()]
    if not first and items and all(items):
        return [_unquoted(item[1]) for item in items if item]
    if _BLOCK.fullmatch(first):
        first = ""
    if first.startswith("[") and first.endswith("]") and not others:
        return [_unquoted(item) for item in first[1:-1].split(",") if item.strip()]
    return _unquoted("\n".join([first, *others]).strip())


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return text
