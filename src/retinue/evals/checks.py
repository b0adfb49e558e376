"""Decide whether an answer and a trajectory pass the checks of a case; `judge` is asked for by the runner."""

from __future__ import annotations

import re

from msgspec import Struct

from retinue.app.bounded_patterns import BoundedPattern, PatternTooSlow, SearchDeadline
from retinue.app.structured_output import make_output, validate_output
from retinue.core.run import Outcome
from retinue.evals.suite import Check
from retinue.recording import Trajectory


class CheckFailure(Struct, frozen=True, kw_only=True):
    """A check that did not pass, and why."""

    check: str
    reason: str


def failure_of(check: Check, outcome: Outcome, did: Trajectory) -> CheckFailure | None:
    """Why a check other than `judge` fails; None if it passes. May take two seconds, for a regular expression."""
    try:
        reason = _answer_reason(check, outcome.text) or _done_reason(check, did)
    except PatternTooSlow:
        reason = "the regular expression takes too long on this answer"
    return CheckFailure(check=str(check), reason=reason) if reason else None


def _answer_reason(check: Check, text: str) -> str:
    if check.contains is not None and check.contains not in text:
        return f"the answer does not contain it: {_short(text)}"
    if check.excludes is not None and check.excludes in text:
        return f"the answer contains it: {_short(text)}"
    if check.equals is not None and text.strip() != check.equals.strip():
        return f"the answer is another one: {_short(text)}"
    if check.matches is not None and not BoundedPattern(re.compile(check.matches), SearchDeadline()).search(text):
        return f"the answer does not match: {_short(text)}"
    if check.schema is not None and (error := validate_output(make_output(check.schema), text).error):
        return error
    return ""


def _done_reason(check: Check, did: Trajectory) -> str:
    try:
        if check.tools is not None:
            did.assert_tools(*check.tools)
        if check.exactly is not None:
            did.assert_tools(*check.exactly, exactly=True)
        if check.not_called is not None:
            did.assert_not_called(*check.not_called)
        if check.delegated is not None:
            did.assert_delegated(*check.delegated)
        if (bounds := check.within) is not None:
            did.assert_within(
                turns=bounds.turns, calls=bounds.calls, tokens=bounds.tokens, cost=bounds.cost, runs=bounds.runs
            )
    except AssertionError as error:
        return str(error)
    return ""


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:199]}…")
