"""Measure retinue against the floor and print a table of medians: all sides in turn, each time in a fresh process.

Most promised limits are ratios to the floor in the same run; absolute figures depend on the machine. The exit code is 1
if a promise was not kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec

from bench.cases import (
    CASES,
    IMPORTS,
    TEN_THOUSAND,
    WAITING,
    Case,
    Costs,
    Row,
    handshake_rows,
    import_row,
    rows_of,
    sandbox_rows,
    waiting_row,
    wire_rows,
)
from bench.postgres import postgres_rows
from bench.processes import (
    SIDES,
    FakeModel,
    cost_of,
    cost_of_wires,
    cpu_of_importing,
    fake_model,
    kb_per_waiting_worker,
    open_files_allowed,
    seconds_of_mcp_handshake,
    seconds_of_sandbox_start,
)
from bench.spread import worker_rows
from bench.work import Cost


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; under a minute, and noisier")
    parser.add_argument("--full", action="store_true", help="ten thousand workers, a million runs, a large tree")
    parser.add_argument("--uvloop", action="store_true", help="every side on uvloop, which has to be installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    cases = (*CASES, TEN_THOUSAND) if options.full else CASES
    _check_open_files(max(case.work.leads * case.work.workers for case in cases))
    with fake_model() as model:
        rows = [
            *rows_of({case.name: _measure_case(case, model, options.quick, options.uvloop) for case in cases}),
            *wire_rows(cost_of_wires(rounds=5 if options.quick else 21)),
            waiting_row(_measure_waiting(model, 1 if options.quick else 2, options.uvloop)),
            import_row({side: [cpu_of_importing(modules) for _ in range(3)] for side, modules in IMPORTS.items()}),
            *postgres_rows(model, quick=options.quick, full=options.full),
            *(() if options.quick else worker_rows(model, full=options.full)),
            *handshake_rows(seconds_of_mcp_handshake(rounds=3 if options.quick else 7)),
            *sandbox_rows(seconds_of_sandbox_start(rounds=5 if options.quick else 20)),
        ]
    sys.stdout.write(f"{as_table(rows)}\n\n{_machine(options.uvloop)}\n")
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    sys.exit(broken_promises(rows))


def _check_open_files(workers: int) -> None:
    wanted = workers + 256
    allowed = open_files_allowed(wanted)
    if allowed < wanted:
        sys.stderr.write(
            f"the limit on open files is {allowed}, fewer than {workers} connections need: "
            "the floor will fail, and retinue will queue its connections\n"
        )


def _measure_case(case: Case, model: FakeModel, quick: bool, uvloop: bool) -> Costs:
    """The costs of all sides, measured in turn; raises if their answers differ."""
    costs: dict[str, list[Cost]] = {side.name: [] for side in case.sides}
    times, rounds = (case.quick_times, max(1, case.rounds // 2)) if quick else (case.times, case.rounds)
    for number in range(times):
        for side in case.sides:
            sys.stderr.write(f"\r\033[K{case.name}: {side.name}, {number + 1} of {times}")
            cost = cost_of(side, model, case.work, rounds=rounds, warm_ups=case.warm_ups, uvloop=uvloop)
            costs[side.name].append(cost)
    sys.stderr.write("\r\033[K")
    if len({cost.answers for measured in costs.values() for cost in measured}) != 1:
        raise RuntimeError(f"{case.name}: the sides got different answers")
    return costs


def _measure_waiting(model: FakeModel, times: int, uvloop: bool) -> dict[str, list[float]]:
    kilobytes: dict[str, list[float]] = {side.name: [] for side in SIDES}
    for number in range(times):
        for side in SIDES:
            sys.stderr.write(f"\r\033[Kwaiting workers: {side.name}, {number + 1} of {times}")
            kilobytes[side.name].append(kb_per_waiting_worker(side, model, WAITING, uvloop=uvloop))
    sys.stderr.write("\r\033[K")
    return kilobytes


def as_table(rows: list[Row]) -> str:
    """The rows in Markdown; a limit that is exceeded is bold."""
    sides = list(dict.fromkeys(side for row in rows for side in row.values))
    lines = ["| | " + " | ".join(sides) + " | promised | kept |", "|---|" + "---:|" * len(sides) + "---|---|"]
    for row in rows:
        cells = [_cell(row, side) for side in sides]
        promised = ", ".join(f"{side} ≤ {limit:g}{_unit_of_promise(row)}" for side, limit in row.most.items())
        exceeded = _missed(row)
        kept = "" if not row.most else f"**no: {', '.join(exceeded)}**" if exceeded else "yes"
        unit = f", {row.unit}" if row.unit != "x" else ""
        lines.append(f"| {row.what}{unit} | {' | '.join(cells)} | {promised} | {kept} |")
    return "\n".join(lines)


def broken_promises(rows: list[Row]) -> str | None:
    """What the command ends with: the promises that were not kept, or None if all were."""
    lines = [f"{row.what}: {', '.join(missed)}" for row in rows if (missed := _missed(row))]
    return "\n  ".join(["promises that were not kept:", *lines]) if lines else None


def _missed(row: Row) -> list[str]:
    return [side for side in row.most if row.keeps(side) is False]


def _cell(row: Row, side: str) -> str:
    if side not in row.values:
        return ""
    value = f"{row.values[side]:.3g}"
    return f"{value} ({row.ratios[side]:.2f}x)" if side in row.ratios and side != "floor" else value


def _unit_of_promise(row: Row) -> str:
    return "x" if not row.absolute or row.unit == "x" else f" {row.unit}"


def _machine(uvloop: bool) -> str:
    loop = f"uvloop {version('uvloop')}" if uvloop else "asyncio"
    return (
        f"Python {platform.python_version()} with {loop}, aiohttp {version('aiohttp')}, msgspec {version('msgspec')}; "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main()
