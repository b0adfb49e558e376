"""Evals: cases that are run several times against models, with checks of answers and of what was done."""

from retinue.evals.checks import CheckFailure
from retinue.evals.report import Attempt, CaseResult, Report, junit
from retinue.evals.runner import EvalRun
from retinue.evals.suite import Case, CaseOptions, Check, Suite, read_suite

__all__ = [
    "Attempt",
    "Case",
    "CaseOptions",
    "CaseResult",
    "Check",
    "CheckFailure",
    "EvalRun",
    "Report",
    "Suite",
    "junit",
    "read_suite",
]
