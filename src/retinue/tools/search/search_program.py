"""The search of a folder, as a program that uses the standard library only, with ripgrep or without.

Its one argument is the query. It searches its working folder and prints the positions of matches: `./path`, a zero
byte, a row `line:offset:` for each match (`line-offset-` for a line of context), and an empty row. It is a program of
its own because a regular expression can run for ever, and only a process can be stopped then.

The folder is walked by descriptors. Where there is ripgrep, it is given the opened files and not their names, so that a
folder which another program swaps for a link meanwhile leads it nowhere.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, Literal, NamedTuple

META = frozenset("\\.+*?()|[]{}^$#&-~")
"""Characters that a backslash makes literal."""

# Bytes that are not UTF-8, decoded with `surrogateescape`, belong to no class. Neither do line breaks: a block of lines
# is searched as a whole before its lines, and that must not take longer than searching the lines.
_INVALID = "\udc80-\udcff\n"
_SPACE = "\t\x0b-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_COUNTED = re.compile(r"\{\d+(,\d*)?\}")
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\x0b-\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def literal(text: str) -> str:
    """A pattern that matches exactly this text.

    >>> literal("a.b(")
    'a\\\\.b\\\\('
    """
    return "".join(f"\\{character}" if character in "\\.+*?()|[]{}^$" else character for character in text)


def tidied(pattern: str) -> str:
    """The pattern without what ripgrep refuses but people write: needless backslashes, and unescaped braces.

    >>> tidied('say\\\\"hi\\\\" {')
    'say"hi" \\\\{'
    """
    out: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        character, after = pattern[at], pattern[at + 1 : at + 2]
        if character == "\\" and after:
            is_sign = after.isascii() and not after.isalnum() and after.isprintable()
            needless = is_sign and after not in META | {"<", ">"}
            out.append(after if needless else character + after)
            if after in "pPxuU" and pattern[at + 2 : at + 3] == "{":  # the brace of \p{...} is no literal brace
                end = pattern.find("}", at)
                out.append(pattern[at + 2 : end + 1])
                at = end if end > 0 else len(pattern)
                at -= 1
            at += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            first = 2 if after == "^" else 1  # a ] at the start of a class is literal
            head = pattern[at : at + first + (pattern[at + first : at + first + 1] == "]")]
            out.append(head)
            at += len(head)
            in_class = True
            continue
        elif character == "{" and not _COUNTED.match(pattern, at):
            character = "\\{"
        out.append(character)
        at += 1
    return "".join(out)


def compiled(pattern: str, *, ignore_case: bool) -> re.Pattern[str]:
    """The pattern for lines without line ends, decoded with `surrogateescape`; raises `ValueError`."""
    try:
        return re.compile(_Translation(pattern).whole(), re.MULTILINE | (re.IGNORECASE if ignore_case else 0))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"regex parse error: {error}") from error


class _Translation:
    """Translates a pattern in the syntax of ripgrep to the syntax of `re`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> str:
        flags = ""
        opening = re.match(r"\(\?([ims]+)\)", self._pattern)
        if opening:
            self._at = opening.end()
            flags = "(?i)" if "i" in opening[1] else ""
        out: list[str] = [flags]
        while self._at < len(self._pattern):
            out.append(self._next())
        return "".join(out)

    def _take(self, count: int = 1) -> str:
        taken = self._pattern[self._at : self._at + count]
        self._at += count
        return taken

    def _next(self) -> str:
        character = self._take()
        match character:
            case "\\":
                return self._escape()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                return f"[^{_INVALID}]"
            case "*" | "+" | "?":
                return character + self._lazy()
            case "{":
                counted = _COUNTED.match(self._pattern, self._at - 1)
                if counted is None:
                    raise self._unknown("{", "write \\{ for a brace")
                self._at = counted.end()
                return counted[0] + self._lazy()
            case "\n":
                raise self._unknown("a line break", "lines are searched one by one")
            case "^" | "$":
                return f"(?:{character})"  # may be repeated in ripgrep, and in Python only in a group
            case "|" | ")":
                return character
            case _:
                return re.escape(character)

    def _lazy(self) -> str:
        lazy = "?" if self._pattern[self._at : self._at + 1] == "?" else ""
        self._at += len(lazy)
        if self._pattern[self._at : self._at + 1] in ("*", "+", "?"):
            raise self._unknown("a repetition of a repetition", "use a group")
        return lazy

    def _group(self) -> str:
        if self._pattern[self._at : self._at + 1] != "?":
            return "("
        opening = re.compile(r"\?(:|P?<[A-Za-z_]\w*>|[ims]+:)").match(self._pattern, self._at)
        if opening is None:
            raise self._unknown(f"({self._pattern[self._at : self._at + 3]}", "look-around and flags in the middle")
        self._at = opening.end()
        if opening[1].endswith(">"):
            return "("  # names have no use here, and Python requires unique ones
        return "(?i:" if "i" in opening[1] else "(?:"

    def _escape(self) -> str:
        character = self._pattern[self._at : self._at + 1]
        if character in ("D", "W", "S"):
            self._at += 1
            unwanted = _SPACE if character == "S" else f"\\{character.lower()}"
            return f"[^{unwanted}{_INVALID}]"
        if character in ("b", "B"):
            self._at += 1
            return r"(?:\b)" if character == "b" else r"(?:\B|^$)"  # Python's \B does not match an empty line
        inside = self._escape_in_class()
        return f"[{inside}]" if character in ("s", "d", "w") else inside

    def _escape_in_class(self) -> str:
        character = self._take()
        match character:
            case "d" | "w" | "a" | "f" | "t" | "r" | "v":
                return f"\\{character}"
            case "s":
                return _SPACE
            case "x" | "u" | "U":
                digits = {"x": 2, "u": 4, "U": 8}[character]
                number = re.compile(rf"\{{([0-9A-Fa-f]{{1,8}})\}}|([0-9A-Fa-f]{{{digits}}})")
                coded = number.match(self._pattern, self._at)
                if coded is None or int(coded[1] or coded[2], 16) > 0x10FFFF:
                    raise self._unknown(f"\\{character}", "give a hexadecimal number")
                self._at = coded.end()
                return re.escape(chr(int(coded[1] or coded[2], 16)))
            case _ if character in META or (character and not character.isalnum() and character not in "<>"):
                return re.escape(character)
            case _:
                raise self._unknown(f"\\{character}", "not known here")

    def _class(self) -> str:
        negated = self._pattern[self._at : self._at + 1] == "^"
        self._at += negated
        items: list[str] = []
        guarded = False
        first = True
        while True:
            character = self._take()
            if not character:
                raise self._unknown("[", "unclosed character class")
            if character == "]" and not first:
                break
            first = False
            if character == "[":
                posix = re.compile(r":(\^?)([a-z]+):\]").match(self._pattern, self._at)
                if posix is None or posix[1] or posix[2] not in _POSIX:
                    raise self._unknown("[ in a character class", "write \\[")
                self._at = posix.end()
                items.append(_POSIX[posix[2]])
            elif character == "\\":
                if self._pattern[self._at : self._at + 1] in ("D", "W", "S"):
                    guarded = True
                    escaped = self._take()
                    items.append(f"\\{escaped}")
                else:
                    items.append(self._escape_in_class())
            elif character == "-" and items and self._pattern[self._at : self._at + 1] not in ("]", ""):
                if self._pattern[self._at : self._at + 1] == "-":
                    raise self._unknown("--", "no differences of character classes")
                items.append("-")
            elif character in "&~" and self._pattern[self._at : self._at + 1] == character:
                raise self._unknown(character * 2, "no combinations of character classes")
            else:
                items.append(re.escape(character))
        if negated:
            return f"[^{''.join(items)}{_INVALID}]"
        found = f"[{''.join(items)}]"
        return f"(?:(?![{_INVALID}]){found})" if guarded else found

    def _unknown(self, what: str, hint: str) -> ValueError:
        return ValueError(f"regex parse error: {what} is not supported at character {self._at} ({hint})")


class Globs:
    """The filter of a list of `-g` globs; the last glob that matches decides."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._rules: list[tuple[bool, bool, re.Pattern[str]]] = []
        for glob in globs:
            bare = glob.removeprefix("!")
            self._rules.append((glob != bare, bare.endswith("/"), _glob(bare)))
        self._chosen_only = any(not negated for negated, _, _ in self._rules)

    def leave_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether this path is excluded from the search.

        >>> Globs(["*.py", "!test_*"]).leave_out("src/test_a.py", is_folder=False)
        True
        """
        for negated, folders_only, rule in reversed(self._rules):
            if (is_folder or not folders_only) and rule.fullmatch(path):
                return negated
        return self._chosen_only and not is_folder


def _glob(glob: str) -> re.Pattern[str]:
    bare = glob.removesuffix("/")
    anywhere = "" if "/" in bare else "(?:.*/)?"
    try:
        return re.compile(anywhere + _glob_body(bare.removeprefix("/")), re.DOTALL)
    except re.error as error:
        raise ValueError(f"error parsing glob {glob!r}: {error}") from error


_GLOB_PARTS = re.compile(
    r"(?P<deep>(?:(?<=/)|^)\*\*/(?:\*\*/)*)|(?P<rest>(?<=/)\*\*$)|(?P<all>^\*\*$)|(?P<any>\*+)|(?P<one>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>\]?[^\]]*)\]|(?P<open>\{)|(?P<shut>\})|(?P<comma>,)|\\(?P<plain>.)|(?P<char>.)",
    re.DOTALL,
)
_GLOB_REGEX = {"deep": "(?:.*/)?", "rest": ".+", "all": ".*", "any": "[^/]*", "one": "[^/]"}


def _glob_body(glob: str) -> str:
    out: list[str] = []
    braces = 0
    for part in _GLOB_PARTS.finditer(glob):
        match part.lastgroup:
            case "deep" | "rest" | "all" | "any" | "one" as kind:
                out.append(_GLOB_REGEX[kind])
            case "open":
                braces += 1
                out.append("(?:")
            case "shut" if braces:
                braces -= 1
                out.append(")")
            case "comma" if braces:
                out.append("|")
            case "set" | "not":
                members = re.sub(r"([\\\[&~|])", r"\\\1", part["set"])
                members = "\\]" + members[1:] if members.startswith("]") else members
                out.append(f"(?!/)[{'^' if part['not'] else ''}{members}]")
            case _:
                character = part["plain"] or part["char"] or part[0]
                if character == "[":
                    raise ValueError(f"error parsing glob {glob!r}: unclosed character class")
                out.append(re.escape(character))
    if braces:
        raise ValueError(f"error parsing glob {glob!r}: unclosed {{")
    return "".join(out)


# ---- ignored files ---------------------------------------------------------------------------------------------------


GITIGNORE = ".gitignore"

MAX_GITIGNORE = 64 * 1024
"""Bytes of a .gitignore that are read; a longer one is read to its last whole line within them."""

MAX_RULES = 2000
"""Rules of one .gitignore that count."""

MAX_DEEP = 3
"""How often `**` may stand in a rule."""


class GitIgnore:
    """The rules of one .gitignore: of the folder `inside` the search, or of one above it.

    `above` is the path from the folder of the file to the folder that is searched, where the file lies above that.
    """

    def __init__(self, text: str, *, inside: tuple[str, ...] = (), above: Sequence[str] = ()) -> None:
        self._depth = len(inside)
        self._above = tuple(above)
        self._rules: list[tuple[bool, bool, re.Pattern[str]]] = []
        patterns: list[str] = []
        for line in text.splitlines()[:MAX_RULES]:
            rule = _without_last_blanks(line)
            if not rule or rule.startswith("#"):
                continue
            bare = rule.removeprefix("!")
            if (pattern := _ignore_pattern(bare.removesuffix("/"))) is not None:
                self._rules.append((rule != bare, bare.endswith("/"), re.compile(pattern, re.DOTALL)))
                patterns.append(f"(?:{pattern})")
        self._any = re.compile("|".join(patterns), re.DOTALL) if patterns else None

    def ignores(self, path: tuple[str, ...], *, is_folder: bool) -> bool | None:
        """Whether a path of the search is ignored by its last fitting rule; None if none of the rules fits.

        >>> rules = GitIgnore("*.log\\n!kept.log\\n/build/\\ndocs/**/out")
        >>> [rules.ignores(("a", name), is_folder=False) for name in ("x.log", "kept.log", "x.py")]
        [True, False, None]
        >>> rules.ignores(("build",), is_folder=True), rules.ignores(("a", "build"), is_folder=True)
        (True, None)
        """
        name = "/".join((*self._above, *path[self._depth :]))
        if self._any is None or self._any.fullmatch(name) is None:
            return None
        fitting = (
            not negated
            for negated, folders_only, rule in reversed(self._rules)
            if (is_folder or not folders_only) and rule.fullmatch(name)
        )
        return next(fitting, None)


def is_ignored(rules: Sequence[GitIgnore], path: tuple[str, ...], *, is_folder: bool) -> bool:
    """Whether git ignores a path whose folder is not ignored; `rules` has the outermost file first."""
    if is_folder and path[-1] == ".git":
        return True
    decisions = (each.ignores(path, is_folder=is_folder) for each in reversed(rules))
    return next((decision for decision in decisions if decision is not None), False)


def gitignore_text(folder: int) -> str:
    """The .gitignore of an open folder, if it is a regular file; empty without one."""
    try:
        fd = os.open(GITIGNORE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        try:
            text = _text(file.read(MAX_GITIGNORE + 1))
        except OSError:
            return ""
    return text if len(text) <= MAX_GITIGNORE else text[:MAX_GITIGNORE].rpartition("\n")[0]


def _without_last_blanks(line: str) -> str:
    bare = line.rstrip(" \t")
    return line[: len(bare) + 1] if bare.endswith("\\") else bare


def _ignore_pattern(rule: str) -> str | None:
    """A regular expression for the paths that fit a rule without its last slash; None if the rule cannot be read.

    What follows a `**` is looked for from the left and is not tried again, unless it is the end of the rule: another
    place would leave less of the path for the rest. So the time grows with the depth of a path, not with a power of it.
    """
    parts = rule.removeprefix("/").split("/")
    if parts.count("**") > MAX_DEEP or not any(parts):
        return None
    runs: list[list[str]] = [[]] if "/" in rule else [[], []]
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**" and not is_last:
            runs.append([])
        elif part == "**":
            runs[-1].append(".+")
        elif (name := _ignore_name(part)) is None:
            return None
        else:
            runs[-1].append(name if is_last else f"{name}/")
    first, *others = ("".join(run) for run in runs)
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>(?:[^/]+/)*?{run})" for run in middle) + rf"(?:[^/]+/)*{last}"


_NAME_PARTS = re.compile(
    r"(?P<any>\*+)|(?P<one>\?)|\[(?P<not>[!^]?)(?P<set>\]?[^\]]*)\]|\\(?P<plain>.)|(?P<char>.)", re.DOTALL
)


def _ignore_name(glob: str) -> str | None:
    """A regular expression for one component; each star takes as little as it can and is not tried again."""
    runs: list[list[str]] = [[]]
    for part in _NAME_PARTS.finditer(glob):
        match part.lastgroup:
            case "any":
                runs.append([])
            case "one":
                runs[-1].append("[^/]")
            case "set" | "not":
                members = re.sub(r"([\\\[&~|^])", r"\\\1", part["set"])
                members = "\\]" + members[1:] if members.startswith("]") else members
                runs[-1].append(f"(?!/)[{'^' if part['not'] else ''}{members}]")
            case _:
                character = part["plain"] or part["char"]
                if character in ("[", "\\"):
                    return None
                runs[-1].append(re.escape(character))
    first, *others = ("".join(run) for run in runs)
    if not others:
        return first
    *middle, last = others
    name = first + "".join(f"(?>[^/]*?{run})" for run in middle) + f"[^/]*{last}"
    try:
        re.compile(name)
    except re.error:
        return None
    return name


MAX_DEPTH = 256
"""Nesting of folders; each level keeps a descriptor open."""

BLOCK = 64 * 1024
MAX_LINE = 64 * 1024 * 1024

FileKind = Literal["d", "f", "l", "o"]


class FolderEntry(NamedTuple):
    """A file or folder of the tree; `folder` is the descriptor of its folder, open until the next entry."""

    path: tuple[str, ...]
    kind: FileKind
    folder: int

    def stat(self) -> os.stat_result:
        return os.stat(self.path[-1], dir_fd=self.folder, follow_symlinks=False)


def walk(
    folder: int,
    enter: Callable[[tuple[str, ...]], bool],
    path: tuple[str, ...] = (),
    *,
    ignored: Sequence[GitIgnore] | None = None,
) -> Iterator[FolderEntry]:
    """All entries below an open folder, sorted by component; follows no link, and skips folders that cannot be read.

    With `ignored`, the rules of folders above, what git ignores is left out.
    """
    try:
        with os.scandir(folder) as found:
            entries: dict[str, FileKind] = {entry.name: _kind(entry) for entry in found}
    except OSError:
        return
    if ignored is not None and entries.get(GITIGNORE) == "f":
        ignored = (*ignored, GitIgnore(gitignore_text(folder), inside=path))
    for name, kind in sorted(entries.items(), key=lambda entry: os.fsencode(entry[0])):
        here = (*path, name)
        if ignored is not None and is_ignored(ignored, here, is_folder=kind == "d"):
            continue
        yield FolderEntry(here, kind, folder)
        if kind != "d" or len(here) > MAX_DEPTH or not enter(here):
            continue
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            yield from walk(inner, enter, here, ignored=ignored)
        finally:
            os.close(inner)


def _kind(entry: os.DirEntry[str]) -> FileKind:
    if entry.is_symlink():
        return "l"
    return "d" if entry.is_dir(follow_symlinks=False) else "f" if entry.is_file(follow_symlinks=False) else "o"


def _opened_file(entry: FolderEntry) -> int | None:
    """A regular file, open for reading; None for anything else, or where it may not be read."""
    try:
        fd = os.open(entry.path[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=entry.folder)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


class _Binary(Exception):
    """The file has a zero byte and is no text."""


class Scan:
    """One search, whose output goes to `out`."""

    def __init__(self, query: dict[str, Any], out: BinaryIO) -> None:
        self._pattern = compiled(query["pattern"], ignore_case=query["ignore_case"])
        self._invert: bool = query["invert"]
        self._before: int = query["before"]
        self._after: int = query["after"]
        self._depth: int = query["max_depth"] or sys.maxsize
        self._mode: str = query["mode"]
        self._only: str = query["only"]
        self._globs = Globs([] if self._only else query["globs"])
        above: list[tuple[list[str], str]] | None = query["ignores_above"]
        is_given = above is None or self._only
        self._ignored = None if is_given else [GitIgnore(text, above=names) for names, text in above or ()]
        self._out = out

    def run(self, folder: int, closed: Collection[tuple[str, ...]], left_out: Sequence[str]) -> None:
        def enter(path: tuple[str, ...]) -> bool:
            return (
                len(path) < self._depth
                and not self._only
                and path[-1] not in left_out
                and path not in closed
                and not self._globs.leave_out("/".join(path), is_folder=True)
            )

        for entry in walk(folder, enter, ignored=self._ignored):
            if entry.kind != "f" or entry.path in closed or (self._only and entry.path != (self._only,)):
                continue
            if not self._globs.leave_out("/".join(entry.path), is_folder=False):
                self._search(entry)

    def _search(self, entry: FolderEntry) -> None:
        fd = _opened_file(entry)
        if fd is None:
            return
        with open(fd, "rb") as file:
            try:
                hits = list(self._hits(file))
            except (_Binary, OSError):
                return
            path = b"./%b\0" % os.fsencode("/".join(entry.path))
            count = sum(mark == b":" for _, _, mark in hits)
            if self._mode == "lines":
                if hits:
                    rows = (b"%d%b%d%b\n" % (number, mark, at, mark) for number, at, mark in hits)
                    self._out.writelines((path, *rows, b"\n"))
            elif count:
                self._out.write(b"%b%d\n" % (path, count))

    def _hits(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and mark of each line to print: `:` for a match, `-` for context."""
        before: deque[tuple[int, int]] = deque(maxlen=self._before)
        trailing, number, offset = 0, 0, 0
        for block in _whole_lines(file):
            if not (self._invert or trailing or self._before or self._pattern.search(_text(block))):
                number += block.count(b"\n")
                offset += len(block)
                continue
            for line in block.split(b"\n")[: None if not block.endswith(b"\n") else -1]:
                number += 1
                if bool(self._pattern.search(_text(line))) != self._invert:
                    yield from ((early, at, b"-") for early, at in before)
                    before.clear()
                    yield number, offset, b":"
                    trailing = self._after
                elif trailing:
                    trailing -= 1
                    yield number, offset, b"-"
                else:
                    before.append((number, offset))
                offset += len(line) + 1


class RipgrepScan(Scan):
    """A search whose files are read by ripgrep, many at a time, through descriptors that were opened here."""

    def __init__(self, query: dict[str, Any], out: BinaryIO, program: str, *, most_open: int = 0) -> None:
        super().__init__(query | {"pattern": ""}, out)
        self._program = program
        self._arguments = _ripgrep_arguments(query)
        self._batch: dict[int, bytes] = {}
        self._size = most_open or _most_open_files()
        self._begun = False

    def run(self, folder: int, closed: Collection[tuple[str, ...]], left_out: Sequence[str]) -> None:
        super().run(folder, closed, left_out)
        if self._batch or not self._begun:  # without any file, ripgrep says whether the pattern is valid
            self._search_batch()

    def _search(self, entry: FolderEntry) -> None:
        fd = _opened_file(entry)
        if fd is None:
            return
        self._batch[fd] = b"./%b\0" % os.fsencode("/".join(entry.path))
        if len(self._batch) >= self._size:
            self._search_batch()

    def _search_batch(self) -> None:
        self._begun = True
        files = [f"{DESCRIPTORS}/{fd}" for fd in self._batch] or [os.devnull]
        argv = [self._program, *self._arguments, "--", *files]
        with subprocess.Popen(argv, stdin=-3, stdout=-1, stderr=-1, pass_fds=tuple(self._batch)) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for fd in self._batch:
                os.set_inheritable(fd, False)
            self._relay(process.stdout)
            complaint = process.stderr.read()
            code = process.wait()
        for fd in self._batch:
            os.close(fd)
        self._batch.clear()
        if code not in (0, 1) and (code != 2 or complaint):
            raise _RipgrepFailed(code, complaint)

    def _relay(self, output: IO[bytes]) -> None:
        """Print what ripgrep prints, with the paths of the files in place of their descriptors."""
        rest = b""
        rows = _Rows(self._batch, self._out, counts=self._mode != "lines")
        while chunk := os.read(output.fileno(), 16 * BLOCK):
            rest += chunk
            cut = rest.rfind(b"\n") + 1
            rows.add(rest[:cut])
            rest = rest[cut:]
        rows.end()


class _Rows:
    """Rewrites the output of ripgrep: paths for descriptors, and with `counts` the number of rows for the rows.

    The first row of a file follows its descriptor and a zero byte. A line about a binary file ends its rows, or has a
    place of its own if there are none; then it is left out.
    """

    def __init__(self, paths: Mapping[int, bytes], out: BinaryIO, *, counts: bool) -> None:
        self._paths = paths
        self._out = out
        self._counts = counts
        self._file = -1
        self._count = 0
        self._is_binary = False

    def add(self, lines: bytes) -> None:
        start = 0
        for mark in _DESCRIPTOR.finditer(lines):
            self._print(lines[start : mark.start()])
            start, file = mark.end(), int(mark[1])
            if mark[2] == b"\0":
                self.end()
                self._file = file
                if not self._counts:
                    self._out.write(self._paths[file])
            elif file == self._file:
                self._is_binary = True
        self._print(lines[start:])

    def end(self) -> None:
        if self._file >= 0:
            if not self._counts:
                self._out.write(b"binary\n\n" if self._is_binary else b"\n")
            elif not self._is_binary:
                self._out.write(b"%b%d\n" % (self._paths[self._file], self._count))
        self._file, self._count, self._is_binary = -1, 0, False

    def _print(self, rows: bytes) -> None:
        rows = _BLANK.sub(b"", rows)
        if self._counts:
            self._count += rows.count(b"\n")
        elif rows:
            self._out.write(rows)


class _RipgrepFailed(Exception):
    """ripgrep ended with this status."""

    def __init__(self, code: int, complaint: bytes) -> None:
        super().__init__(code)
        self.code = code
        self.complaint = complaint


DESCRIPTORS = "/proc/self/fd"
_DESCRIPTOR = re.compile(rb"^(?:Binary file )?/proc/self/fd/(\d+)(\0|:? .*\n)", re.MULTILINE)
"""What begins the rows of a file, or a line that says that a file is binary, in the spellings of several versions."""

_BLANK = re.compile(rb"^\n+", re.MULTILINE)


def _ripgrep_arguments(query: dict[str, Any]) -> list[str]:
    """Arguments that say nothing about which files to search: those are given."""
    lines = query["mode"] == "lines"
    return [
        *("--no-config", "--no-messages", "--color=never", "--heading", "--with-filename", "--null"),
        *("--line-number", "--byte-offset", "--no-mmap", "--encoding=none"),
        "--max-columns=1",  # only the position of a line is needed, not its text
        "--no-context-separator",
        # Not --count: a file that is given and not found is counted although it is binary.
        *(["--ignore-case"] if query["ignore_case"] else ["--case-sensitive"]),
        *(["--invert-match"] if query["invert"] else []),
        *([f"--before-context={query['before']}"] if query["before"] and lines else []),
        *([f"--after-context={query['after']}"] if query["after"] and lines else []),
        f"--regexp={query['pattern']}",
    ]


def _most_open_files() -> int:
    """How many files may be open at once, beside the folders of the walk; raises the limit of this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if most == resource.RLIM_INFINITY else min(4096, most)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (OSError, ValueError):
        wanted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, wanted - MAX_DEPTH - 64)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks that end with a line; raises `_Binary` at a zero byte."""
    rest = b""
    size = BLOCK
    while block := file.read(max(size - len(rest), BLOCK // 4)):
        if b"\0" in block:
            raise _Binary
        rest += block
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield rest[:cut]
            rest, size = rest[cut:], BLOCK
        else:
            size = 2 * size
            if len(rest) > MAX_LINE:
                break
    if rest:
        yield rest


def main(argument: str) -> int:
    """Search, and return the exit status of ripgrep: 0 for a complete search, 2 for an invalid query."""
    request = json.loads(argument)
    query, program, out = request["query"], request["ripgrep"], sys.stdout.buffer
    try:
        scan = RipgrepScan(query, out, program) if program else Scan(query, out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    closed = {tuple(path) for path in request["closed"]}
    try:
        scan.run(os.open(".", os.O_RDONLY | os.O_DIRECTORY), closed, request["left_out"])
    except _RipgrepFailed as failed:
        sys.stdout.flush()
        sys.stderr.buffer.write(failed.complaint)
        sys.stderr.flush()
        if failed.code < 0:
            os.kill(os.getpid(), -failed.code)
        return failed.code
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
