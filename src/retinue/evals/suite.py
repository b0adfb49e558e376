"""The file of an eval: YAML with models, limits, and cases with their checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from retinue.app.bounded_patterns import MAX_PATTERN
from retinue.app.structured_output import make_output
from retinue.config.yaml import read_yaml
from retinue.core.errors import BadInput
from retinue.local.bounded_file import MIB, read_bounded

MAX_BYTES = MIB
MAX_ATTEMPTS = 10_000

Text = Annotated[str, Meta(min_length=1, max_length=100_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Dollars = Annotated[float, Meta(gt=0, le=1_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000)]
UnitInterval = Annotated[float, Meta(ge=0, le=1)]


class CaseOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the runs of cases are started; a case's own options go before those of the file."""

    agent: str | None = None
    system: str | None = None
    dialects: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    max_turns: Count | None = None
    max_tokens: Count | None = None
    max_cost: Dollars | None = None
    timeout: Seconds | None = None

    def over(self, base: CaseOptions) -> CaseOptions:
        """These options, with those of `base` where one is not set."""
        own = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(base, **own)


class TreeBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a whole tree may use; `cost` is in dollars."""

    turns: Count | None = None
    calls: Annotated[int, Meta(ge=0)] | None = None
    tokens: Count | None = None
    cost: Dollars | None = None
    runs: Annotated[int, Meta(ge=0)] | None = None


class Check(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: exactly one of these.

    `contains`, `excludes`, `equals`, `matches` (a regular expression) and `schema` (the answer is JSON of that form)
    look at the answer, `judge` lets a model decide by a criterion. `tools` were called in this order, others between
    them; `exactly` are all tools that were called; `not_called` were not; `delegated` is a pair of agents, the first of
    which started a run of the second; `within` bounds what the tree used.
    """

    contains: Text | None = None
    excludes: Text | None = None
    equals: str | None = None
    matches: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)] | None = None
    schema: dict[str, Any] | None = None
    judge: Text | None = None
    tools: tuple[str, ...] | None = None
    exactly: tuple[str, ...] | None = None
    not_called: tuple[str, ...] | None = None
    delegated: tuple[str, str] | None = None
    within: TreeBounds | None = None

    @property
    def kind(self) -> str:
        """The name of the check."""
        return next((name for name in self.__struct_fields__ if getattr(self, name) is not None), "")

    def __str__(self) -> str:
        value = getattr(self, self.kind)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return f"{self.kind} {text if len(text) <= 60 else f'{text[:59]}…'!s}"


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task and the checks of its result."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    task: Text
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]
    run: CaseOptions = CaseOptions()
    repeat: Annotated[int, Meta(ge=1, le=1000)] | None = None
    pass_rate: UnitInterval | None = None


class Judge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that decides `judge` checks, by default the one that is judged, and what it may cost altogether."""

    model: str = ""
    max_cost: Dollars | None = None


class Suite(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An eval. `max_cost` bounds all its runs together, in dollars, without those of the judge."""

    cases: Annotated[tuple[Case, ...], Meta(min_length=1)]
    models: tuple[Text, ...] = ()
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 1
    concurrency: Annotated[int, Meta(ge=1, le=256)] = 4
    max_cost: Dollars | None = None
    pass_rate: UnitInterval = 1.0
    judge: Judge = Judge()
    run: CaseOptions = CaseOptions()

    def attempts_of(self, case: Case) -> int:
        return case.repeat or self.repeat

    def pass_rate_of(self, case: Case) -> float:
        return self.pass_rate if case.pass_rate is None else case.pass_rate


def read_suite(file: str | Path) -> Suite:
    """The eval in a file; raises `BadInput` or `ConfigError` with the place of an error."""
    try:
        text = read_bounded(Path(file), MAX_BYTES).decode()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file} is no text in UTF-8") from None
    values = read_yaml(text, str(file)).values
    try:
        suite = msgspec.convert(values, Suite)
    except msgspec.ValidationError as error:
        raise BadInput(f"{file}: {error}") from None
    if errors := list(_errors(suite)):
        raise BadInput(f"{file}: {errors[0]}")
    return suite


def _errors(suite: Suite) -> Iterator[str]:
    names = [case.name for case in suite.cases]
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield f"two cases are named {twice!r}"
    number = sum(map(suite.attempts_of, suite.cases)) * max(1, len(suite.models))
    if number > MAX_ATTEMPTS:
        yield f"it has {number:,} runs; at most {MAX_ATTEMPTS:,} are allowed"
    for case in suite.cases:
        for check in case.checks:
            given = [name for name in check.__struct_fields__ if getattr(check, name) is not None]
            if len(given) != 1:
                found = ", ".join(given) or "none"
                expected = ", ".join(check.__struct_fields__)
                yield f"case {case.name!r}: a check has exactly one of {expected}; found {found}"
            yield from _check_errors(case, check)


def _check_errors(case: Case, check: Check) -> Iterator[str]:
    if check.matches is not None:
        try:
            re.compile(check.matches)
        except re.error as error:
            yield f"case {case.name!r}: matches {check.matches!r:.80} is no regular expression: {error}"
    if check.schema is not None:
        try:
            make_output(check.schema)
        except BadInput as error:
            yield f"case {case.name!r}: {error}"
