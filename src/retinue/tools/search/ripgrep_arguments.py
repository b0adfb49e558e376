"""The query of a search, built from a pattern and those arguments of ripgrep that are allowed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retinue.core.errors import ToolError
from retinue.tools.search.search_program import literal, tidied

LEFT_OUT = (".git", ".hg", ".svn", ".tox", ".venv", "__pycache__", "node_modules")
"""Folders that are not searched, except when one of them is the path to search."""

MAX_PATTERN = 10_000
MAX_ARGUMENT = 4096
"""The longest of the other arguments, which are parsed on the event loop."""

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
    no_ignore: bool = False
    """Whether ignored files are searched where they otherwise are not."""
    ignores_above: Sequence[tuple[tuple[str, ...], str]] | None = None
    """Rules of `.gitignore` above the folder, with the path from there; None searches what git ignores, too."""


Options = dict[str, Any]
"""Fields of the query, and the options of its pattern: `case`, `fixed`, `words`, `lines`."""

_FLAGS: dict[tuple[str, ...], Options] = {
    ("-i", "--ignore-case"): {"case": "ignore"},
    ("-s", "--case-sensitive"): {"case": "sensitive"},
    ("-S", "--smart-case"): {"case": "smart"},
    ("-F", "--fixed-strings"): {"fixed": True},
    ("-w", "--word-regexp"): {"words": True},
    ("-x", "--line-regexp"): {"lines": True},
    ("-v", "--invert-match"): {"invert": True},
    ("-l", "--files-with-matches"): {"mode": "files"},
    ("-c", "--count"): {"mode": "count"},
    # These have no effect: it is how every search works.
    ("-n", "--line-number"): {},
    ("-H", "--with-filename"): {},
    ("--no-heading",): {},
    ("--hidden",): {},
    ("--no-ignore",): {"no_ignore": True},  # has an effect with the preset `coding` alone
}


def _number(least: int, *fields: str) -> Callable[[Options, str], None]:
    def apply(options: Options, value: str) -> None:
        if not (value.isascii() and value.isdigit() and len(value) < 9 and least <= int(value) <= 1000):
            raise ToolError(f"expected a number from {least} to 1000, found {value!r}")
        options |= dict.fromkeys(fields, int(value))

    return apply


def _glob(options: Options, *globs: str) -> None:
    options["globs"] = (*options.get("globs", ()), *globs)


def _type(options: Options, value: str) -> None:
    if value not in TYPES:
        raise ToolError(f"unknown type {value!r}; known: {', '.join(TYPES)}; or use -g '*.EXT'")
    _glob(options, *TYPES[value])


_OPTIONS: dict[tuple[str, ...], Callable[[Options, str], None]] = {
    ("-A", "--after-context"): _number(0, "after"),
    ("-B", "--before-context"): _number(0, "before"),
    ("-C", "--context"): _number(0, "before", "after"),
    ("-m", "--max-count"): _number(1, "max_count"),
    ("-d", "--max-depth"): _number(1, "max_depth"),
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
    except ValueError as error:
        raise ToolError(f"extra_args {extra_args!r}: {error}") from error


def query_of(pattern: str, extra_args: str = "") -> Query:
    """The query for a pattern and arguments of ripgrep; raises `ToolError` for one that is not allowed.

    >>> query_of("TODO", "-iw -g '*.py' -C2")  # doctest: +NORMALIZE_WHITESPACE
    Query(pattern='\\\\b(?:TODO)\\\\b', ignore_case=True, invert=False, before=2, after=2, max_count=0, max_depth=0,
          mode='lines', globs=('*.py',), only='', no_ignore=False, ignores_above=None)
    >>> query_of("x", "--pre cat")
    Traceback (most recent call last):
    retinue.core.errors.ToolError: extra_args: --pre is not allowed; allowed: ...
    """
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN}")
    if "\0" in pattern or "\n" in pattern:
        raise ToolError("the pattern has a line break or zero byte; lines are searched one by one")
    options: Options = {}
    rest = split(extra_args)[::-1]
    while rest:
        _apply(options, rest.pop(), rest)
    if options.get("max_count") and (options.get("before") or options.get("after")):
        # Versions of ripgrep differ in how they count a match in the context of the last one allowed.
        raise ToolError("extra_args: -m does not go together with -A, -B or -C")
    pattern = literal(pattern) if options.pop("fixed", False) else tidied(pattern)
    if options.pop("words", False):
        pattern = rf"\b(?:{pattern})\b"
    if options.pop("lines", False):
        pattern = f"^(?:{pattern})$"
    case = options.pop("case", "sensitive")
    ignore_case = case == "ignore" or (case == "smart" and not _has_capitals(pattern))
    return Query(pattern=pattern, ignore_case=ignore_case, **options)


def check_lengths(**arguments: str) -> None:
    """Raise `ToolError` for an argument that is too long to be parsed at once."""
    for name, value in arguments.items():
        if len(value) > MAX_ARGUMENT:
            raise ToolError(f"{name} has {len(value)} characters; at most {MAX_ARGUMENT}")


def _apply(options: Options, argument: str, rest: list[str]) -> None:
    while argument[:2] in _FLAG and len(argument) > 2 and not argument.startswith("--"):  # short flags, combined
        options |= _FLAG[argument[:2]]
        argument = f"-{argument[2:]}"
    name, _, value = argument.partition("=") if argument.startswith("--") else (argument[:2], "", argument[2:])
    if name in _FLAG and not (argument.startswith("--") and value):
        options |= _FLAG[name]
    elif name in _OPTION:
        if not value and not rest:
            raise ToolError(f"extra_args: {name} needs a value")
        try:
            _OPTION[name](options, value or rest.pop())
        except ToolError as error:
            raise ToolError(f"extra_args: {name}: {error}") from error
    else:
        raise ToolError(f"extra_args: {name} is not allowed; allowed: {ALLOWED}")


def _has_capitals(pattern: str) -> bool:
    escaped = False
    for character in pattern:
        if character.isupper() and not escaped:
            return True
        escaped = character == "\\" and not escaped
    return False
