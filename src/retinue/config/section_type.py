"""Declaration of a settings section: its name, the type of its keys, and its description.

Sections are declared by their owners and passed to `settings.load` by the application. A section's type is a frozen
Struct whose annotations define the allowed values. Their `Meta` has the texts for users:

- `description`: the comment of the key in a new settings file; `examples`: its value there
- `extra["expected"]`: what the key expects, if the type alone does not describe it well ("an address ...")
- `extra["too_small"]`, `extra["too_large"]`: the complete error message, where a document prescribes it
- `extra["secret"]`: the value may be a secret and is not shown in messages
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct


def _nothing(_: str) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTables:
    """Marks a section as a table of tables with user-defined names; `pattern` and `expected` restrict the names."""

    example: str
    pattern: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section `[name]`, or `[name.<anything>]` if it is `named`; without a name, keys at the top of the file.

    `choices` are the allowed values of keys that are known only at run time, such as the wires. `implied` returns the
    values that follow from the name of a table. `unsupported` are keys of similar tools: they are ignored with a
    warning.
    """

    name: str
    type: type[Struct]
    about: str
    named: NamedTables | None = None
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    implied: Callable[[str], Mapping[str, object]] = _nothing
    cross_key_errors: Callable[[Any], Sequence[tuple[str, str]]] = lambda section: ()
    """Returns (key, message) of errors that involve several keys of a section, or of each of its named tables."""
    unknown_providers: Callable[[Any, Sequence[str]], Sequence[tuple[str, str]]] = lambda section, providers: ()
    """Returns (key, message) of keys that name an unknown provider, given the providers in the file."""
    has_complete_messages: bool = False
    """Whether a dialect's document prescribes these messages, which are then printed without the key in front."""
    unsupported: Sequence[str] = ()


SectionTree: TypeAlias = dict[str, "Section | SectionTree"]
"""Sections nested by the parts of their dotted names."""


def tree_of(sections: Sequence[Section]) -> SectionTree:
    """The sections as nested tables; raises `ValueError` for duplicate or overlapping names.

    >>> list(tree_of([Section(name="agent.subagent", type=Struct, about="")])["agent"])
    ['subagent']
    """
    tree: SectionTree = {}
    for section in sections:
        if not section.name:
            continue
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
