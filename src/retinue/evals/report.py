"""The results of an eval: as rows of a table, as JSON and as JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from msgspec import Struct

from retinue.core.ids import RunId
from retinue.core.run import EndReason, Result
from retinue.core.text import clean
from retinue.core.usage import NO_USAGE, Usage
from retinue.evals.checks import CheckFailure
from retinue.evals.suite import Case, Suite


class Attempt(Struct, frozen=True, kw_only=True):
    """One run of a case. `skipped` says why it was not started; `cost` is in dollars, None if unknown."""

    case: str
    model: str
    number: int
    run_id: RunId = ""
    result: Result | None = None
    reason: EndReason | None = None
    failures: tuple[CheckFailure, ...] = ()
    skipped: str = ""
    answer: str = ""
    turns: int = 0
    usage: Usage = NO_USAGE
    cost: float | None = 0.0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures and not self.skipped


class CaseResult(Struct, frozen=True, kw_only=True):
    """The attempts of one case with one model."""

    case: Case
    model: str
    attempts: tuple[Attempt, ...]
    pass_rate: float

    @property
    def passes(self) -> int:
        return sum(attempt.passed for attempt in self.attempts)

    @property
    def passed(self) -> bool:
        return bool(self.attempts) and self.passes >= self.pass_rate * len(self.attempts)


class Report(Struct, frozen=True, kw_only=True):
    """All results, in the order of the file, and what the judge cost in dollars."""

    results: tuple[CaseResult, ...]
    judge_cost: float | None = 0.0

    @classmethod
    def of(cls, suite: Suite, models: Sequence[str], attempts: Sequence[Attempt], judge_cost: float | None) -> Report:
        """The report of these attempts."""
        results = tuple(
            CaseResult(
                case=case,
                model=model,
                attempts=tuple(each for each in attempts if each.case == case.name and each.model == model),
                pass_rate=suite.pass_rate_of(case),
            )
            for case in suite.cases
            for model in models
        )
        return cls(results=tuple(result for result in results if result.attempts), judge_cost=judge_cost)

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def cost(self) -> float | None:
        """The cost of all runs in dollars, without the judge; None if a price is not known."""
        costs = [attempt.cost for result in self.results for attempt in result.attempts]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def rows(self) -> dict[str, object]:
        """The report as `retinue eval --json` prints it."""
        return {
            "passed": self.passed,
            "cost": self.cost,
            "judge_cost": self.judge_cost,
            "cases": [
                {
                    "case": result.case.name,
                    "model": result.model,
                    "passed": result.passed,
                    "passes": result.passes,
                    "attempts": [_attempt_row(attempt) for attempt in result.attempts],
                }
                for result in self.results
            ],
        }


def _attempt_row(attempt: Attempt) -> dict[str, object]:
    return {
        "number": attempt.number,
        "run_id": attempt.run_id,
        "passed": attempt.passed,
        "status": attempt.result,
        "end_reason": attempt.reason,
        "failures": [{"check": each.check, "reason": each.reason} for each in attempt.failures],
        "skipped": attempt.skipped,
        "answer": attempt.answer,
        "turns": attempt.turns,
        "usage": {"input": attempt.usage.input, "output": attempt.usage.output},
        "cost": attempt.cost,
        "seconds": attempt.seconds,
    }


def junit(report: Report) -> str:
    """The report as JUnit XML: a suite for each model, a test case for each attempt.

    An attempt that failed within the pass rate of its case is a test that passed, with what failed in its output.
    """
    root = ElementTree.Element("testsuites")
    for model in dict.fromkeys(result.model for result in report.results):
        results = [result for result in report.results if result.model == model]
        attempts = [(result, attempt) for result in results for attempt in result.attempts]
        failed = [attempt for result, attempt in attempts if attempt.failures and not result.passed]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_text(model),
            tests=str(len(attempts)),
            failures=str(len(failed)),
            skipped=str(sum(bool(attempt.skipped) for _, attempt in attempts)),
            time=f"{sum(attempt.seconds for _, attempt in attempts):.3f}",
        )
        for result, attempt in attempts:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=_text(model),
                name=_text(f"{attempt.case} [{attempt.number}]"),
                time=f"{attempt.seconds:.3f}",
            )
            text = "\n".join(f"{each.check}: {each.reason}" for each in attempt.failures)
            if attempt.skipped:
                ElementTree.SubElement(case, "skipped", message=_text(attempt.skipped))
            elif text and not result.passed:
                failure = ElementTree.SubElement(case, "failure", message=_text(attempt.failures[0].reason))
                failure.text = _text(text)
            elif text:
                ElementTree.SubElement(case, "system-out").text = _text(text)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    """A text that XML can have: without control characters and lone surrogates."""
    return clean(text).encode("utf-8", "replace").decode()
