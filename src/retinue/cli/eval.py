"""`retinue eval`: cases of a file, several times against models, with checks; a table, JSON and JUnit XML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import LIMITS, OUTPUT, option
from retinue.cli.output.terminal import INTERRUPTED, answer_json, say

if TYPE_CHECKING:
    from retinue.config.precedence import Flags
    from retinue.evals import Attempt, CaseResult, Report, Suite


def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The cases, in YAML.")],
    model: Annotated[
        list[str] | None,
        option(
            "--model", metavar="M", help="A model, in place of those of the file. Repeatable.", panel=options.ANSWERS
        ),
    ] = None,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    config: options.ConfigFlag = None,
    case: Annotated[list[str] | None, option("--case", metavar="NAME", help="Only this case. Repeatable.")] = None,
    repeat: Annotated[
        int | None, option("--repeat", metavar="N", min=1, max=1000, help="Runs of each case and model. [1]")
    ] = None,
    concurrency: Annotated[
        int | None, option("--concurrency", metavar="N", min=1, max=256, help="Runs at once. [4]", panel=LIMITS)
    ] = None,
    max_cost: Annotated[float | None, options.max_cost_flag("Dollars for all runs together.")] = None,
    unpriced: options.UnpricedFlag = None,
    junit: Annotated[
        Path | None, option("--junit", metavar="FILE", help="Write the results as JUnit XML.", panel=OUTPUT)
    ] = None,
    json: options.JsonFlag = False,
    quiet: options.QuietFlag = False,
) -> int:
    """Run the cases of a file against models, check the answers, and print a table.

    Exit status: 0 if all cases passed, 1 if not, 2 bad usage or settings, 130 interrupted.
    """
    from msgspec.structs import replace

    from retinue.config.precedence import Flags
    from retinue.evals import read_suite

    suite = read_suite(file)
    if case:
        if unknown := [name for name in case if name not in {each.name for each in suite.cases}]:
            raise typer.BadParameter(f"--case {unknown[0]!r:.80}: {file} has no such case")
        suite = replace(suite, cases=tuple(each for each in suite.cases if each.name in case))
    if repeat is not None:
        suite = replace(suite, repeat=repeat, cases=tuple(replace(each, repeat=None) for each in suite.cases))
    if concurrency is not None:
        suite = replace(suite, concurrency=concurrency)
    if (limit := options.countable("--max-cost", max_cost, zero=False)) is not None:
        suite = replace(suite, max_cost=limit)
    flags = Flags(provider=provider, base_url=base_url, api_key_env=api_key_env)
    work = _evaluate(
        suite,
        flags,
        tuple(model or ()),
        config=config,
        unpriced_ok=options.accepts_unpriced(unpriced),
        junit_file=junit,
        json=json,
        quiet=quiet,
    )
    return perform(work)


async def _evaluate(
    suite: Suite,
    flags: Flags,
    models: tuple[str, ...],
    *,
    config: str | None,
    unpriced_ok: bool,
    junit_file: Path | None,
    json: bool,
    quiet: bool,
) -> int:
    import asyncio

    from retinue.app.launch.start import settings_for
    from retinue.evals import EvalRun, junit

    settings = settings_for(config, agent=None)
    with interrupts() as stop:
        running = EvalRun(
            suite,
            settings,
            flags=flags,
            models=models,
            report_attempt=_silent if quiet else _say_attempt,
            stop=stop,
            unpriced_ok=unpriced_ok,
        )
        report = await running.run()
        interrupted = stop.is_set()
    if junit_file is not None:
        await asyncio.to_thread(junit_file.write_text, junit(report), encoding="utf-8")
    if json:
        answer_json(report.rows())
    else:
        _print(report)
    if interrupted:
        return INTERRUPTED
    return 0 if report.passed else 1


def _silent(attempt: Attempt) -> None:
    pass


def _say_attempt(attempt: Attempt) -> None:
    name = f"{attempt.case} [{attempt.number}] {attempt.model}"
    if attempt.skipped:
        say(f"{name}: skipped, {attempt.skipped}")
    elif attempt.passed:
        say(f"{name}: passed, {attempt.seconds:.1f} s")
    else:
        first = attempt.failures[0]
        say(f"{name}: failed, {first.check}: {first.reason} (run {attempt.run_id})")


def _print(report: Report) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[CaseResult]] = [
        Column(title="CASE", cell=lambda row: row.case.name, shrinks=True),
        Column(title="MODEL", cell=lambda row: row.model),
        Column(title="RESULT", cell=lambda row: "passed" if row.passed else "failed"),
        Column(title="PASSES", cell=lambda row: f"{row.passes}/{len(row.attempts)}", right=True),
        Column(title="TURNS", cell=lambda row: str(sum(each.turns for each in row.attempts)), right=True),
        Column(title="COST", cell=_cost_of, right=True),
        Column(title="SECONDS", cell=lambda row: f"{sum(each.seconds for each in row.attempts):.1f}", right=True),
    ]
    print_table(report.results, columns)


def _cost_of(row: CaseResult) -> str:
    costs = [each.cost for each in row.attempts]
    known = [cost for cost in costs if cost is not None]
    return f"${sum(known):.4f}" if len(known) == len(costs) else "?"
