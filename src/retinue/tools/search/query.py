"""What is looked for in files, and how a model's extra arguments say so: those on a list, and no others."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from retinue.core.errors import ToolError
from retinue.tools.search.fallback import literal, tidied

LEFT_OUT = (".git", ".hg", ".svn", ".tox", ".venv", "__pycache__", "node_modules")
"""Folders that are not searched unless one of them is named as the place to search."""

MAX_PATTERN = 10_000

TYPES = {
    "c": ("*.c", "*.h"),
    "cpp": ("*.cpp", "*.cc", "*.cxx", "*.hpp", "*.hh", "*.h"),
    "css": ("*.css", "*.scss"),
    "go": ("*.go",),
    "html": ("*.html", "*.htm"),
    "java": ("*.java",),
    "js": ("*.js", "*.jsx", "*.mjs", "*.cjs"),
    "json": ("*.json",),
    "md": ("*.md", "*.markdown"),
    "php": ("*.php",),
    "py": ("*.py", "*.pyi"),
    "ruby": ("*.rb",),
    "rust": ("*.rs",),
    "sh": ("*.sh", "*.bash"),
    "sql": ("*.sql",),
    "toml": ("*.toml",),
    "ts": ("*.ts", "*.tsx", "*.mts", "*.cts"),
    "txt": ("*.txt",),
    "xml": ("*.xml",),
    "yaml": ("*.yaml", "*.yml"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search; `only` is the one file to search in a folder."""

    pattern: str
    ignore_case: bool = False
    invert: bool = False
    before: int = 0
    after: int = 0
    max_count: int = 0
    max_depth: int = 0
    mode: Literal["lines", "files", "count"] = "lines"
    globs: tuple[str, ...] = ()
    only: str = ""


@dataclass(slots=True)
class _Wish:
    """What the arguments say so far."""

    query: Query
    case: Literal["sensitive", "ignore", "smart"] = "sensitive"
    fixed: bool = False
    words: bool = False
    lines: bool = False


Flag = Callable[[_Wish], None]
Option = Callable[[_Wish, str], None]


def _set(**changes: bool | str) -> Flag:
    def apply(wish: _Wish) -> None:
        for name, value in changes.items():
            setattr(wish, name, value)

    return apply


def _mode(mode: Literal["files", "count"]) -> Flag:
    def apply(wish: _Wish) -> None:
        wish.query = replace(wish.query, mode=mode)

    return apply


def _invert(wish: _Wish) -> None:
    wish.query = replace(wish.query, invert=True)


def _number(*fields: Literal["before", "after", "max_count", "max_depth"], least: int) -> Option:
    def apply(wish: _Wish, value: str) -> None:
        if not (value.isascii() and value.isdigit() and len(value) < 9 and least <= int(value) <= 1000):
            raise ToolError(f"expected a number from {least} to 1000, found {value!r}")
        wish.query = replace(wish.query, **dict.fromkeys(fields, int(value)))

    return apply


def _glob(wish: _Wish, value: str) -> None:
    wish.query = replace(wish.query, globs=(*wish.query.globs, value))


def _type(wish: _Wish, value: str) -> None:
    if value not in TYPES:
        raise ToolError(f"unknown type {value!r}; known: {', '.join(TYPES)}; or use -g '*.EXT'")
    wish.query = replace(wish.query, globs=(*wish.query.globs, *TYPES[value]))


_FLAGS: dict[tuple[str, ...], Flag] = {
    ("-i", "--ignore-case"): _set(case="ignore"),
    ("-s", "--case-sensitive"): _set(case="sensitive"),
    ("-S", "--smart-case"): _set(case="smart"),
    ("-F", "--fixed-strings"): _set(fixed=True),
    ("-w", "--word-regexp"): _set(words=True),
    ("-x", "--line-regexp"): _set(lines=True),
    ("-v", "--invert-match"): _invert,
    ("-l", "--files-with-matches"): _mode("files"),
    ("-c", "--count"): _mode("count"),
    # How it is done in any case.
    ("-n", "--line-number"): _set(),
    ("-H", "--with-filename"): _set(),
    ("--no-heading",): _set(),
    ("--hidden",): _set(),
    ("--no-ignore",): _set(),
}
_OPTIONS: dict[tuple[str, ...], Option] = {
    ("-A", "--after-context"): _number("after", least=0),
    ("-B", "--before-context"): _number("before", least=0),
    ("-C", "--context"): _number("before", "after", least=0),
    ("-m", "--max-count"): _number("max_count", least=1),
    ("-d", "--max-depth"): _number("max_depth", least=1),
    ("-g", "--glob"): _glob,
    ("-t", "--type"): _type,
}
_FLAG = {spelling: flag for spellings, flag in _FLAGS.items() for spelling in spellings}
_OPTION = {spelling: option for spellings, option in _OPTIONS.items() for spelling in spellings}

ALLOWED = ", ".join("/".join(spellings) for spellings in (*_FLAGS, *_OPTIONS))


def split(extra_args: str) -> list[str]:
    """Arguments as a shell would split them; nothing of them is ever run by one."""
    try:
        return shlex.split(extra_args)
    except ValueError as wrong:
        raise ToolError(f"extra_args {extra_args!r}: {wrong}") from wrong


def query_of(pattern: str, extra_args: str = "") -> Query:
    """The query of a pattern and ripgrep's arguments; raises `ToolError` for one that is not on the list.

    >>> query_of("TODO", "-iw -g '*.py' -C2")  # doctest: +NORMALIZE_WHITESPACE
    Query(pattern='\\\\b(?:TODO)\\\\b', ignore_case=True, invert=False, before=2, after=2, max_count=0, max_depth=0,
          mode='lines', globs=('*.py',), only='')
    >>> query_of("x", "--pre cat")
    Traceback (most recent call last):
    retinue.core.errors.ToolError: extra_args: --pre is not allowed; allowed: ...
    """
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN}")
    if "\0" in pattern or "\n" in pattern:
        raise ToolError("the pattern has a line break or zero byte; lines are searched one by one")
    wish = _Wish(Query(pattern=pattern))
    ahead = split(extra_args)[::-1]
    while ahead:
        _apply(wish, ahead.pop(), ahead)
    if wish.query.max_count and (wish.query.before or wish.query.after):
        # Versions of ripgrep differ in what they make of a match that is context of the last one allowed.
        raise ToolError("extra_args: -m does not go together with -A, -B or -C")
    pattern = literal(pattern) if wish.fixed else tidied(pattern)
    if wish.words:
        pattern = rf"\b(?:{pattern})\b"
    if wish.lines:
        pattern = f"^(?:{pattern})$"
    ignore_case = wish.case == "ignore" or (wish.case == "smart" and not _has_capitals(pattern))
    return replace(wish.query, pattern=pattern, ignore_case=ignore_case)


def _apply(wish: _Wish, argument: str, ahead: list[str]) -> None:
    name, _, value = argument.partition("=") if argument.startswith("--") else (argument[:2], "", argument[2:])
    if name in _FLAG and not (argument.startswith("--") and value):
        _FLAG[name](wish)
        if value:  # short flags may stand together
            _apply(wish, f"-{value}", ahead)
    elif name in _OPTION:
        if not value and not ahead:
            raise ToolError(f"extra_args: {name} needs a value")
        try:
            _OPTION[name](wish, value or ahead.pop())
        except ToolError as wrong:
            raise ToolError(f"extra_args: {name}: {wrong}") from wrong
    else:
        raise ToolError(f"extra_args: {name} is not allowed; allowed: {ALLOWED}")


def _has_capitals(pattern: str) -> bool:
    escaped = False
    for character in pattern:
        if character.isupper() and not escaped:
            return True
        escaped = character == "\\" and not escaped
    return False
