"""What a section of the settings is: a name, the type of its keys, and what people are told about it.

Sections are declared by their owners, and handed to whoever loads settings as one table. A section's type is a frozen
Struct. Its annotations say what may stand in the file, and their `Meta` what people read:

- `description`: the comment of the key in a new settings file; `examples`: the value that stands there
- `extra["expected"]`: what the key wants, where the type alone does not say it well ("an address ...")
- `extra["too_small"]`, `extra["too_large"]`: the whole complaint, where a document prescribes it
- `extra["secret"]`: the value may be a secret, so no message shows it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct


def _nothing(_: str) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """That a section is a table of tables, each with a name that the user gives."""

    example: str
    pattern: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section `[name]`, or `[name.<anything>]` if it is `named`.

    `choices` are the values of keys that only the owner of the table knows, such as the wires there are. `implied`
    gives the values that follow from the name of a table and need not be written. `unsupported` are keys that other
    tools know under this section: they are left out of account, with a warning.
    """

    name: str
    type: type[Struct]
    about: str
    named: Named | None = None
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    implied: Callable[[str], Mapping[str, object]] = _nothing
    mistakes: Callable[[Any], Sequence[tuple[str, str]]] = lambda section: ()
    """What is wrong between several keys of a section, or of each of its named tables: each key with its complaint."""
    strangers: Callable[[Any, Sequence[str]], Sequence[tuple[str, str]]] = lambda section, providers: ()
    """The same for keys that name a provider, given those that the file describes."""
    has_complete_complaints: bool = False
    """Whether the complaints of `mistakes` and `strangers` are prescribed texts, printed without the key in front."""
    unsupported: Sequence[str] = ()


Tree: TypeAlias = dict[str, "Section | Tree"]
"""Sections by the parts of their names, as the tables of a file are nested."""


def tree_of(sections: Sequence[Section]) -> Tree:
    """The sections as a file nests them.

    >>> list(tree_of([Section(name="agent.subagent", type=Struct, about="")])["agent"])
    ['subagent']
    """
    tree: Tree = {}
    for section in sections:
        *above, last = section.name.split(".")
        branch = tree
        for part in above:
            below = branch.setdefault(part, {})
            if isinstance(below, Section):
                raise ValueError(f"section {section.name!r} would stand inside section {below.name!r}")
            branch = below
        if last in branch:
            raise ValueError(f"section {section.name!r} is declared twice, or has another one inside")
        branch[last] = section
    return tree
