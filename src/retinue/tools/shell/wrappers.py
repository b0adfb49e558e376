"""Wrapper programs (`env`, `xargs`, `find -exec`): which program their arguments make them run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

_FIND_STARTS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LONG_WITH_A_WORD = re.compile(r"--[a-z-]+=.*", re.DOTALL)


class Undecidable(ValueError):
    """The arguments do not determine which program runs."""


class _Wrapper(Struct, frozen=True):
    """Options of a wrapper: letters without a value, letters with a value, and `first` arguments of its own."""

    alone: str = ""
    with_a_word: str = ""
    first: int = 0
    number: bool = False
    """Whether a number may be an option, as in `nice -5`."""
    long: bool = True
    """Whether options such as `--signal=KILL` do not affect which program runs."""


_WRAPPERS: Mapping[str, _Wrapper] = {
    "env": _Wrapper(alone="i0", with_a_word="uC", long=False),
    "xargs": _Wrapper(alone="0rtpxo", with_a_word="aEdILnPs", long=False),
    "nice": _Wrapper(with_a_word="n", number=True),
    "ionice": _Wrapper(alone="t", with_a_word="cn"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(alone="cfw"),
    "timeout": _Wrapper(alone="v", with_a_word="ks", first=1),
    "stdbuf": _Wrapper(with_a_word="ioe"),
    "command": _Wrapper(alone="pvV"),
}


class Started(Struct, frozen=True):
    """A program that a wrapper runs, its arguments, and the variables that are set for it."""

    program: str
    arguments: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The program without its folder."""
        return self.program.rsplit("/", 1)[-1]


def started_by(
    name: str, arguments: Sequence[str], *, varying: Collection[int] = (), patterns: Collection[int] = ()
) -> list[Started]:
    """The programs that a wrapper of that name runs with these arguments; raises `Undecidable`.

    `varying` are the indices of arguments that may be other words, or several; the index after the last one, if more
    may follow. `patterns` are the indices of patterns for file names.

    >>> started_by("xargs", ["-n", "1", "rm", "-r"])
    [Started(program='rm', arguments=('-r',), variables=())]
    >>> [each.program for each in started_by("nice", ["env", "LANG=C", "sort"])], started_by("ls", ["rm"])
    (['env', 'sort'], [])
    """
    if name == "find":
        if varying or any(may_be_one_of(_FIND_STARTS, arguments[index]) for index in patterns):
            raise Undecidable(name)
        return _started_by_find(arguments)
    wrapper = _WRAPPERS.get(name)
    if wrapper is None:
        return []
    where, options = _after_options(wrapper, arguments)
    variables: list[tuple[str, str]] = []
    if name == "env":
        while where < len(arguments) and (assigned := _ASSIGNMENT.fullmatch(arguments[where])):
            variables.append((assigned[1], assigned[2]))
            where += 1
    where += wrapper.first
    if any(index <= where for index in (*varying, *patterns)):
        raise Undecidable(name)
    if where >= len(arguments):
        return []
    started = Started(arguments[where], tuple(arguments[where + 1 :]), tuple(variables))
    unsure = {index - where - 1 for index in varying}
    if name == "xargs":  # its input replaces a word, or is appended
        word = options.get("I", "")
        unsure |= _indices_of(word, started) if word else {len(started.arguments)}
    return [started, *_started_next(started, unsure, {index - where - 1 for index in patterns})]


def may_be_one_of(words: Collection[str], pattern: str) -> bool:
    """Whether the pattern can expand to one of these words."""
    before, bracket, _ = pattern.partition("[")
    return any(fnmatchcase(word, before + ("*" if bracket else "")) for word in words)


def _started_by_find(arguments: Sequence[str]) -> list[Started]:
    found: list[Started] = []
    for index in (index + 1 for index, word in enumerate(arguments) if word in _FIND_STARTS):
        words = tuple(arguments[index:])
        words = words[: words.index(";")] if ";" in words else words
        started = Started(words[0] if words else "", words[1:])
        found += [started, *_started_next(started, _indices_of("{}", started), ())]
    return found


def _started_next(started: Started, varying: Collection[int], patterns: Collection[int]) -> list[Started]:
    return started_by(started.name, started.arguments, varying=varying, patterns=patterns)


def _indices_of(word: str, started: Started) -> set[int]:
    """Indices of the arguments in which this word is replaced."""
    if word in started.program:
        raise Undecidable(word)
    return {index for index, argument in enumerate(started.arguments) if word in argument}


def _after_options(wrapper: _Wrapper, arguments: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Index after the options of a wrapper, and the values of its options."""
    where = 0
    words: dict[str, str] = {}
    while where < len(arguments) and arguments[where].startswith("-") and len(arguments[where]) > 1:
        option = arguments[where]
        where += 1
        if option == "--":
            break
        if (wrapper.number and option[1:].lstrip("-").isdecimal()) or (
            wrapper.long and _LONG_WITH_A_WORD.fullmatch(option)
        ):
            continue
        letters = option[1:].lstrip(wrapper.alone)
        if not letters:
            continue
        if letters[0] not in wrapper.with_a_word:
            raise Undecidable(option)  # long ones too: whether they take the next word is unknown
        if len(letters) == 1:
            words[letters] = arguments[where] if where < len(arguments) else ""
            where += 1
        else:
            words[letters[0]] = letters[1:]
    return where, words
