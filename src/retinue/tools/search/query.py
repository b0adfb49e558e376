"""The query of a search, built from a pattern and those arguments of ripgrep that are allowed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from retinue.core.errors import ToolError
from retinue.tools.search.fallback import literal, tidied

LEFT_OUT = (".git", ".hg", ".svn", ".tox", ".venv", "__pycache__", "node_modules")
"""Folders that are not searched, except when one of them is the path to search."""

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
    """A search of file contents; `only` is the single file to search in a folder."""

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
class _Options:
    """The query and the options of its pattern, while arguments are applied."""

    query: Query
    case: Literal["sensitive", "ignore", "smart"] = "sensitive"
    fixed: bool = False
    words: bool = False
    lines: bool = False


Flag = Callable[[_Options], None]
Option = Callable[[_Options, str], None]


def _set(**changes: bool | str) -> Flag:
    def apply(options: _Options) -> None:
        for name, value in changes.items():
            setattr(options, name, value)

    return apply


def _mode(mode: Literal["files", "count"]) -> Flag:
    def apply(options: _Options) -> None:
        options.query = replace(options.query, mode=mode)

    return apply


def _invert(options: _Options) -> None:
    options.query = replace(options.query, invert=True)


def _number(*fields: Literal["before", "after", "max_count", "max_depth"], least: int) -> Option:
    def apply(options: _Options, value: str) -> None:
        if not (value.isascii() and value.isdigit() and len(value) < 9 and least <= int(value) <= 1000):
            raise ToolError(f"expected a number from {least} to 1000, found {value!r}")
        options.query = replace(options.query, **dict.fromkeys(fields, int(value)))

    return apply


def _glob(options: _Options, value: str) -> None:
    options.query = replace(options.query, globs=(*options.query.globs, value))


def _type(options: _Options, value: str) -> None:
    if value not in TYPES:
        raise ToolError(f"unknown type {value!r}; known: {', '.join(TYPES)}; or use -g '*.EXT'")
    options.query = replace(options.query, globs=(*options.query.globs, *TYPES[value]))


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
    # These have no effect: it is how every search works.
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
    """Arguments as a shell would split them; no shell ever runs them."""
    try:
        return shlex.split(extra_args)
    except ValueError as wrong:
        raise ToolError(f"extra_args {extra_args!r}: {wrong}") from wrong


def query_of(pattern: str, extra_args: str = "") -> Query:
    """The query for a pattern and arguments of ripgrep; raises `ToolError` for one that is not allowed.

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
    options = _Options(Query(pattern=pattern))
    rest = split(extra_args)[::-1]
    while rest:
        _apply(options, rest.pop(), rest)
    if options.query.max_count and (options.query.before or options.query.after):
        # Versions of ripgrep differ in how they count a match in the context of the last one allowed.
        raise ToolError("extra_args: -m does not go together with -A, -B or -C")
    pattern = literal(pattern) if options.fixed else tidied(pattern)
    if options.words:
        pattern = rf"\b(?:{pattern})\b"
    if options.lines:
        pattern = f"^(?:{pattern})$"
    ignore_case = options.case == "ignore" or (options.case == "smart" and not _has_capitals(pattern))
    return replace(options.query, pattern=pattern, ignore_case=ignore_case)


def _apply(options: _Options, argument: str, rest: list[str]) -> None:
    name, _, value = argument.partition("=") if argument.startswith("--") else (argument[:2], "", argument[2:])
    if name in _FLAG and not (argument.startswith("--") and value):
        _FLAG[name](options)
        if value:  # short flags may be combined
            _apply(options, f"-{value}", rest)
    elif name in _OPTION:
        if not value and not rest:
            raise ToolError(f"extra_args: {name} needs a value")
        try:
            _OPTION[name](options, value or rest.pop())
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
