"""Settings files of other programs: translated into retinue's layout, and read leniently.

A translation is a pure function of the file's values. Errors and warnings name the keys of the file, not those that
they were translated to; what has no counterpart is ignored, and one warning lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from retinue.config.defaults import ROOT
from retinue.config.error_texts import Document, dotted
from retinue.config.validation import NOT_SUPPORTED, Issue
from retinue.core.errors import Problem
from retinue.core.key_paths import KeyPath, origin_of
from retinue.core.text import name_list

Ignored: TypeAlias = tuple[KeyPath, str]
"""A setting that has no counterpart, and the reason where it is worth a word."""

MAX_IGNORED_SHOWN = 200
"""Ignored settings that the warning names; a file with more says how many more."""


class Translated(Protocol):
    """The values of a file in retinue's layout."""

    @property
    def values(self) -> Mapping[str, object]: ...

    @property
    def origins(self) -> Mapping[KeyPath, KeyPath]:
        """Where a value stands in the file, by its path in `values`; a path that is not here is the same in both."""
        ...

    @property
    def ignored(self) -> Sequence[Ignored]:
        """Settings of the file that `values` does not have."""
        ...

    @property
    def errors(self) -> Sequence[tuple[KeyPath, str]]:
        """Errors, by the path in the file."""
        ...


Translate: TypeAlias = Callable[[Mapping[str, object]], Translated]


@dataclass(frozen=True, slots=True, kw_only=True)
class LenientDocument:
    """A settings file of another program: its document in retinue's layout, and what has no place there."""

    document: Document
    ignored: Sequence[Ignored] = ()
    errors: Sequence[Issue] = ()

    def warnings(self, issues: Sequence[Issue], file: str) -> list[Problem]:
        """At most one warning, which names every ignored setting in the order of the file.

        `issues` are the warnings of the validation, unknown keys and sections included.
        """
        document = self.document
        found = [(document.origin(issue.path), "" if issue.is_unknown else issue.message) for issue in issues]
        ignored = sorted((*self.ignored, *found), key=lambda each: document.nearest_line(each[0]) or 0)
        reasons = {dotted(path): "" if reason == NOT_SUPPORTED else reason for path, reason in ignored}
        named = [f"{key} ({reason})" if reason else key for key, reason in reasons.items()]
        if not named:
            return []
        return [Problem(file=file, complaint=f"ignored: {name_list(named, MAX_IGNORED_SHOWN)}")]


def translated(document: Document, translate: Translate) -> LenientDocument:
    """The document in retinue's layout."""
    values = {name: value for name, value in document.values.items() if name != ROOT.name}
    translation = translate(values)
    own: list[Ignored] = [((ROOT.name,), "")] if ROOT.name in document.values else []
    return LenientDocument(
        document=replace(document, values=translation.values, origin=partial(origin_of, origins=translation.origins)),
        ignored=(*own, *translation.ignored),
        errors=[Issue(path=path, message=message) for path, message in translation.errors],
    )
