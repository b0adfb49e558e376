"""Programs whose work is to start another one, and which one that is, told from their arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

_FIND_STARTS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class Untold(ValueError):
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


_STARTERS: Mapping[str, _Starter] = {
    "env": _Starter(alone="i0", with_a_word="uC"),
    "xargs": _Starter(alone="0rtpxo", with_a_word="aEdILnPs"),
    "nice": _Starter(with_a_word="n", number=True),
    "ionice": _Starter(alone="t", with_a_word="cn"),
    "nohup": _Starter(),
    "setsid": _Starter(alone="cfw"),
    "timeout": _Starter(alone="v", with_a_word="ks", first=1),
    "stdbuf": _Starter(with_a_word="ioe"),
    "command": _Starter(alone="pvV"),
}


class Started(Struct, frozen=True):
    """A program that another one is told to start, and what it gets."""

    program: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The program without its folder."""
        return self.program.rsplit("/", 1)[-1]


def started_by(name: str, arguments: Sequence[str], *, is_certain: bool = True) -> list[Started]:
    """The programs that one of that name would start, given these arguments; raises `Untold`.

    `is_certain` where the arguments are just what the program gets, and nothing that a shell puts in their place.

    >>> started_by("xargs", ["-n", "1", "rm", "-r"])
    [Started(program='rm', arguments=('-r',))]
    >>> [each.program for each in started_by("nice", ["env", "LANG=C", "sort"])], started_by("ls", ["rm"])
    (['env', 'sort'], [])
    """
    if not is_certain and (name == "find" or name in _STARTERS):
        raise Untold(name)
    if name == "find":
        words = (*arguments, "")
        places = [place + 1 for place, word in enumerate(arguments) if word in _FIND_STARTS]
        return [Started(words[place], words[place + 1 : -1]) for place in places]
    starter = _STARTERS.get(name)
    if starter is None:
        return []
    rest = _after_options(starter, arguments)
    if name == "env":
        while rest and _ASSIGNMENT.fullmatch(rest[0]):
            rest = rest[1:]
    rest = rest[starter.first :]
    if not rest:
        return []
    started = Started(rest[0], tuple(rest[1:]))
    return [started, *started_by(started.name, started.arguments)]


def _after_options(starter: _Starter, arguments: Sequence[str]) -> Sequence[str]:
    where = 0
    while where < len(arguments) and arguments[where].startswith("-") and len(arguments[where]) > 1:
        option = arguments[where]
        where += 1
        if option == "--":
            break
        if starter.number and option[1:].lstrip("-").isdecimal():
            continue
        letters = option[1:].lstrip(starter.alone)
        if not letters:
            continue
        if letters[0] not in starter.with_a_word:
            raise Untold(option)  # long ones too: whether they take the next word cannot be seen
        where += len(letters) == 1
    return arguments[where:]
