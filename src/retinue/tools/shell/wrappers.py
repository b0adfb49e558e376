"""Programs whose work is to start another one, and which one that is, told from their arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

_FIND_STARTS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LONG_WITH_A_WORD = re.compile(r"--[a-z-]+=.*", re.DOTALL)


class Undecidable(ValueError):
    """The arguments do not tell with certainty what is started."""


class _Starter(Struct, frozen=True):
    """How a starter's own options look: those that stand alone, those that take the next word, and `first` words that
    are its own and no options.
    """

    alone: str = ""
    with_a_word: str = ""
    first: int = 0
    number: bool = False
    """Whether a number may stand for an option, as in `nice -5`."""
    long: bool = True
    """Whether an option such as `--signal=KILL` has nothing to do with what is started."""


_STARTERS: Mapping[str, _Starter] = {
    "env": _Starter(alone="i0", with_a_word="uC", long=False),
    "xargs": _Starter(alone="0rtpxo", with_a_word="aEdILnPs", long=False),
    "nice": _Starter(with_a_word="n", number=True),
    "ionice": _Starter(alone="t", with_a_word="cn"),
    "nohup": _Starter(),
    "setsid": _Starter(alone="cfw"),
    "timeout": _Starter(alone="v", with_a_word="ks", first=1),
    "stdbuf": _Starter(with_a_word="ioe"),
    "command": _Starter(alone="pvV"),
}


class Started(Struct, frozen=True):
    """A program that another one is told to start, what it gets, and the variables that are set for it."""

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
    """The programs that one of that name would start, given these arguments; raises `Undecidable`.

    `varying` are the places of arguments that may be other words, or several; the place after the last one, if more
    may follow. `patterns` are places of patterns for names of files.

    >>> started_by("xargs", ["-n", "1", "rm", "-r"])
    [Started(program='rm', arguments=('-r',), variables=())]
    >>> [each.program for each in started_by("nice", ["env", "LANG=C", "sort"])], started_by("ls", ["rm"])
    (['env', 'sort'], [])
    """
    if name == "find":
        if varying or any(may_be_one_of(_FIND_STARTS, arguments[place]) for place in patterns):
            raise Undecidable(name)
        return _started_by_find(arguments)
    starter = _STARTERS.get(name)
    if starter is None:
        return []
    where, options = _after_options(starter, arguments)
    variables: list[tuple[str, str]] = []
    if name == "env":
        while where < len(arguments) and (assigned := _ASSIGNMENT.fullmatch(arguments[where])):
            variables.append((assigned[1], assigned[2]))
            where += 1
    where += starter.first
    if any(place <= where for place in (*varying, *patterns)):
        raise Undecidable(name)
    if where >= len(arguments):
        return []
    started = Started(arguments[where], tuple(arguments[where + 1 :]), tuple(variables))
    unsure = {place - where - 1 for place in varying}
    if name == "xargs":  # what it reads is put in the place of a word, or at the end
        word = options.get("I", "")
        unsure |= _places_of(word, started) if word else {len(started.arguments)}
    return [started, *_started_next(started, unsure, {place - where - 1 for place in patterns})]


def may_be_one_of(words: Collection[str], pattern: str) -> bool:
    """Whether a file could be named so that it fits the pattern and is one of these words."""
    before, bracket, _ = pattern.partition("[")
    return any(fnmatchcase(word, before + ("*" if bracket else "")) for word in words)


def _started_by_find(arguments: Sequence[str]) -> list[Started]:
    found: list[Started] = []
    for place in (place + 1 for place, word in enumerate(arguments) if word in _FIND_STARTS):
        words = tuple(arguments[place:])
        words = words[: words.index(";")] if ";" in words else words
        started = Started(words[0] if words else "", words[1:])
        found += [started, *_started_next(started, _places_of("{}", started), ())]
    return found


def _started_next(started: Started, varying: Collection[int], patterns: Collection[int]) -> list[Started]:
    return started_by(started.name, started.arguments, varying=varying, patterns=patterns)


def _places_of(word: str, started: Started) -> set[int]:
    """The arguments in which something else is put in place of this word."""
    if word in started.program:
        raise Undecidable(word)
    return {place for place, argument in enumerate(started.arguments) if word in argument}


def _after_options(starter: _Starter, arguments: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Where a starter's own options end, and the words that those which take one have."""
    where = 0
    words: dict[str, str] = {}
    while where < len(arguments) and arguments[where].startswith("-") and len(arguments[where]) > 1:
        option = arguments[where]
        where += 1
        if option == "--":
            break
        if (starter.number and option[1:].lstrip("-").isdecimal()) or (
            starter.long and _LONG_WITH_A_WORD.fullmatch(option)
        ):
            continue
        letters = option[1:].lstrip(starter.alone)
        if not letters:
            continue
        if letters[0] not in starter.with_a_word:
            raise Undecidable(option)  # long ones too: whether they take the next word cannot be seen
        if len(letters) == 1:
            words[letters] = arguments[where] if where < len(arguments) else ""
            where += 1
        else:
            words[letters[0]] = letters[1:]
    return where, words
