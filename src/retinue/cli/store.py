"""`retinue store`: check, back up, restore, repair, compact and copy the databases of the state folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import JsonFlag, option
from retinue.cli.output.terminal import INTERRUPTED, answer_json, answer_lines, say
from retinue.core.text import plural

if TYPE_CHECKING:
    from retinue.app.store_files import CheckReport, Damage, LongWork, RepairReport

T = TypeVar("T")

DAMAGED = 3
"""The exit status if a database is damaged."""

REPORT_SECONDS = 2.0
"""Seconds between two lines about the progress of long work."""

MAX_LISTED = 50
"""Damages that are printed; `--json` prints all that the report has."""

app = typer.Typer(
    name="store",
    help="The databases of the state folder: check, backup, restore, repair, compact, copy.",
    epilog="Examples:\n\nretinue store check\n\nretinue store backup ~/retinue-backup.db\n\n"
    "retinue store restore ~/retinue-backup.db\n\nretinue store repair",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.")]


@app.command(epilog="Examples:\n\nretinue store check\n\nretinue store check --quick --json")
def check(
    quick: Annotated[bool, option("--quick", help="Only the structure of the files, not every row and run.")] = False,
    json: JsonFlag = False,
) -> int:
    """Look for damage: the structure of the files, every row, references between tables, and every run.

    Nothing is changed, and other processes can go on. Exit status: 0 no damage, 1 it could not be checked, 3 damage.
    """
    from retinue.app.store_files import check_store

    def finish(result: Any) -> int:
        if json:
            files = [_check_row(report) for report in result.reports]
            answer_json({"ok": result.ok, "quick": quick, "files": files})
        elif not result.reports:
            say("there is no store yet: nothing to check")
        else:
            for report in result.reports:
                _print_check(report, quick=quick)
        if not result.ok:
            say("save what can be saved with: retinue store repair; or go back with: retinue store restore FILE")
        return 0 if result.ok else DAMAGED

    return _perform(lambda work: check_store(work, quick=quick), finish)


@app.command(epilog="Examples:\n\nretinue store backup ~/retinue-backup.db\n\nretinue store backup backup.db --force")
def backup(
    file: FileArgument,
    force: Annotated[bool, option("--force", help="Replace the file if it exists.")] = False,
    json: JsonFlag = False,
) -> int:
    """Write a backup into one file; other processes can go on, and what they write meanwhile is not in it.

    The file is complete and checked before it gets its name. Exit status: 0 written, 1 or 2 not written, 3 damage.
    """
    from retinue.app.store_files import backup_store

    target = file.expanduser().absolute()

    def finish(report: CheckReport) -> int:
        if json:
            answer_json({"file": str(target), "bytes": target.stat().st_size, "rows": report.rows})
        else:
            runs = plural(report.rows.get("runs", 0), "run")
            say(f"wrote {file}: {runs}, {target.stat().st_size / 1_000_000:.1f} MB, checked")
        return 0

    return _perform(lambda work: backup_store(target, work, replace=force), finish)


@app.command(epilog="Example: retinue store restore ~/retinue-backup.db")
def restore(file: FileArgument, json: JsonFlag = False) -> int:
    """Replace the store by a backup, which is checked first; the old files are kept beside it.

    No process may use the store meanwhile. Exit status: 0 restored, 1 or 2 nothing changed, 3 the backup is damaged.
    """
    from retinue.app.store_files import restore_store

    source = file.expanduser().absolute()

    def finish(kept: dict[Path, Path | None]) -> int:
        if json:
            answer_json({"files": [{"file": str(name), "kept": old and str(old)} for name, old in kept.items()]})
            return 0
        for name, old in kept.items():
            say(f"restored {name}" + ("" if old is None else f"; the old one is kept as {old}"))
        return 0

    return _perform(lambda work: restore_store(source, work), finish)


@app.command(epilog="Examples:\n\nretinue store repair\n\nretinue store repair --json > lost.json")
def repair(json: JsonFlag = False) -> int:
    """Save what can be saved of damaged databases into new ones, and list what was lost; the old ones are kept.

    No process may use the store meanwhile. Exit status: 0 there is no damage any more, 1 nothing was changed.
    """
    from retinue.app.store_files import repair_store

    def finish(reports: list[RepairReport]) -> int:
        if json:
            answer_json({"files": [_repair_row(report) for report in reports]})
            return 0
        for report in reports:
            rows = plural(sum(report.saved.values()), "row")
            say(f"repaired {report.file}: saved {rows}; the damaged one is kept as {report.kept}")
            if report.lost:
                answer_lines("lost:", *(f"  {_in_words(each)}" for each in report.lost))
            else:
                say("nothing was lost")
        if not reports:
            say("there is no damage: nothing to repair")
        return 0

    return _perform(repair_store, finish)


@app.command(
    epilog="Examples:\n\nretinue store copy sqlite:retinue.db postgresql://me@db.example/work\n\n"
    "retinue store copy postgresql://me@db.example/work sqlite:copy/retinue.db"
)
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="sqlite:PATH or postgresql://USER@HOST/DATABASE.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="A store without content, of either kind.")],
    json: JsonFlag = False,
) -> int:
    """Copy a whole store, runs and memories of agents, to another database; the copy is complete or not made.

    No process may use the source meanwhile. Exit status: 0 copied, 1 or 2 nothing copied.
    """
    from retinue.app.store_copy import CopyReport, copy_store

    def finish(report: CopyReport) -> int:
        if json:
            answer_json({"source": report.source, "target": report.target, "rows": report.rows})
        else:
            runs = plural(report.rows["runs"], "run")
            say(f"copied {report.source} to {report.target}: {runs}, {sum(report.rows.values())} rows")
        return 0

    return _perform(lambda work: copy_store(source, target, work), finish)


@app.command(epilog="Example: retinue store compact")
def compact() -> int:
    """Give the free space inside the store back to the disk; needed once for a store of version 0.1.

    No process may use the store meanwhile. For newer stores `retinue runs prune` gives space back by itself.
    """
    from retinue.app.store_files import compact_store

    def finish(space: Any) -> int:
        say(f"the store had {space.before / 1_000_000:.1f} MB and has {space.after / 1_000_000:.1f} MB")
        return 0

    return _perform(compact_store, finish)


def _perform(work: Callable[[LongWork], T], finish: Callable[[T], int]) -> int:
    """Run long work in a thread, with lines about its progress; Ctrl-C stops it. The exit code."""
    from retinue.app import store_files

    async def main() -> int:
        import asyncio

        with interrupts() as stop:
            long_work = store_files.LongWork(_reporter())
            task = asyncio.ensure_future(asyncio.to_thread(work, long_work))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                long_work.stop()
            stopping.cancel()
            try:
                result = await task
            except store_files.WorkStopped:
                say("interrupted; nothing was changed")
                return INTERRUPTED
            except store_files.DamagedStore as damaged:
                say(f"error: {damaged}")
                _print_check(damaged.report, quick=False)
                return DAMAGED
        return finish(result)

    return perform(main())


def _reporter() -> Callable[[str, int, int], None]:
    """Prints a line about the progress at most every two seconds."""
    last = time.monotonic()

    def report(step: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            say(f"{step}: {done} of {total}" if total else f"{step}: {done}" if done else f"{step} ...")

    return report


def _print_check(report: CheckReport, *, quick: bool) -> None:
    if report.ok:
        facts = "" if quick else f": {plural(report.rows.get('runs', 0), 'run')}, {sum(report.rows.values())} rows"
        answer_lines(f"{report.file}: no damage found{facts}{' (quick check)' if quick else ''}")
        if report.without_checksum:
            say(f"{report.without_checksum} rows were written by version 0.1 and have no checksum")
        return
    listed = report.damages[:MAX_LISTED]
    more = len(report.damages) - len(listed) + report.more
    answer_lines(f"{report.file}: damaged", *(f"  {_in_words(each)}" for each in listed))
    if more:
        answer_lines(f"  and {more} more")


def _in_words(damage: Damage) -> str:
    place = ", ".join(filter(None, (damage.table, damage.run_id and f"run {damage.run_id}")))
    return f"{place}: {damage.what}" if place else damage.what


def _damage_row(damage: Damage) -> dict[str, Any]:
    return {"table": damage.table or None, "run_id": damage.run_id, "what": damage.what}


def _check_row(report: CheckReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "ok": report.ok,
        "rows": report.rows,
        "runs_folded": report.folded,
        "without_checksum": report.without_checksum,
        "damage": [_damage_row(each) for each in report.damages],
        "more_damage": report.more,
    }


def _repair_row(report: RepairReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "kept": report.kept,
        "saved": report.saved,
        "lost": [_damage_row(each) for each in report.lost],
    }
