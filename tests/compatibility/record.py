"""Record scenarios: `python -m tests.compatibility.record FOLDER`.

The tests compare with `tests/compatibility/recorded/0.1`. A change that rewords text for people records only the
affected part again; the diff of the recording is the list of reworded texts:

    python -m tests.compatibility.record tests/compatibility/recorded/0.1 --only prose
    python -m tests.compatibility.record tests/compatibility/recorded/0.1 --only help

Parts:

    contract    exit statuses, stdout, events, log lines, requests to models, files, stored rows
    prose       stderr without log lines of fields, and stdout of commands for people
    help        help texts, and the comments of the settings file of `retinue init`
    inspected   the output of commands on recorded state folders
    homes       the state folders; those of a released version are never recorded again

All parts are recorded without `--only`. A scenario whose conditions this machine does not meet is left out with a
message, and its recording stays as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from tests.compatibility.catalog import Scenario, scenarios
from tests.compatibility.fork_server import ForkServer
from tests.compatibility.recorded import Recorded
from tests.compatibility.recorded_homes import CONTINUATIONS, inspect
from tests.compatibility.stage import PARTS, Stage, environment

Recordable: TypeAlias = Literal["contract", "prose", "help", "inspected", "homes"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.compatibility.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--only", action="append", choices=get_args(Recordable), help="a part; repeatable")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="a scenario; repeatable")
    options = parser.parse_args(arguments)
    chosen = [each for each in scenarios() if not options.scenario or each.name in options.scenario]
    if not chosen:
        parser.error(f"unknown scenario; known: {', '.join(each.name for each in scenarios())}")
    with ForkServer(environment()) as forks:
        record(Recorded(options.folder), chosen, options.only or get_args(Recordable), forks)
    return 0


def record(recorded: Recorded, chosen: Sequence[Scenario], parts: Sequence[Recordable], forks: ForkServer) -> None:
    """Play scenarios and write parts of their recordings."""
    for scenario in chosen:
        if scenario.lacks:
            print(f"{scenario.name}: left out, this machine has no {scenario.lacks}", file=sys.stderr)
            continue
        print(scenario.name, file=sys.stderr)
        if set(parts) - {"inspected"}:
            _record_scenario(recorded, scenario, parts, forks)
        for name, home in recorded.homes():
            if name == scenario.name:
                _record_home(recorded, name, home, parts, forks)
    recorded.tidy()


def _record_scenario(recorded: Recorded, scenario: Scenario, parts: Sequence[Recordable], forks: ForkServer) -> None:
    with Stage(forks) as stage:
        scenario.play(stage)
        recording = stage.recording()
        for part in PARTS:
            if part in parts:
                recorded.write(scenario.name, part, recording.texts.get(part, ""))
        if "homes" in parts:
            for name, home in recording.homes.items():
                recorded.write_home(scenario.name, name, home)


def _record_home(recorded: Recorded, scenario: str, home: str, parts: Sequence[Recordable], forks: ForkServer) -> None:
    if "inspected" in parts:
        with Stage(forks) as stage:
            recorded.restore_home(scenario, home, stage.home)
            recorded.write(scenario, f"{home}.inspected", inspect(stage, home))
    if not {"inspected", "prose"} & set(parts):
        return
    for continuation in CONTINUATIONS:
        if (continuation.scenario, continuation.home) == (scenario, home):
            with Stage(forks) as stage:
                recorded.restore_home(scenario, home, stage.home)
                continuation.play(stage)
                texts = stage.recording().texts
            if "inspected" in parts:
                recorded.write(scenario, f"{home}.continued", texts["contract"])
            if "prose" in parts:
                recorded.write(scenario, f"{home}.continued-prose", texts.get("prose", ""))


if __name__ == "__main__":
    sys.exit(main())
