"""What a terminal costs: `retinue run` with many children, silent, with lines in a pipe, and drawn on a terminal.

    .venv/bin/python -m bench.terminal [--workers 1000] [--rounds 3]

Each round runs the three in turn; the CPU time of each process is compared with that of the silent one of its round.
How often a terminal is drawn follows the clock, so that a busy machine shows more than an idle one.
"""

from __future__ import annotations

import argparse
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.processes import FakeModel, fake_model
from bench.work import LEAD, TASK, WORKER, Work

TOOLS = '''
import retinue

worker = retinue.Agent(name="worker", description="Works on one part", system_prompt={prompt!r}, tools=("echo",))
delegate = retinue.agent_tool(worker, name="delegate")


@retinue.tool(kind="pure")
def echo(text: str) -> str:
    """Say a text back."""
    return text
'''

SETTINGS = """
[tools]
modules = ["./parts.py"]

[agents.lead]
description = "Leads"
system_prompt = {prompt!r}
tools = ["delegate"]
"""

PROMISE = 1.05
"""CPU on a terminal, next to a silent run."""


class Side(Struct, frozen=True):
    """A way to run the command: its flags, and whether its output is a terminal."""

    name: str
    flags: tuple[str, ...] = ()
    on_terminal: bool = False


SILENT = Side("silent, in a pipe", ("--quiet",))
SIDES = (SILENT, Side("lines, in a pipe"), Side("drawn, on a terminal", on_terminal=True))


def cpu_of(side: Side, model: FakeModel, work: Work, folder: Path) -> float:
    """The CPU seconds of one run of the command, user and system."""
    flags = ("--config", "retinue.toml", "--agent", "lead", "--provider", "openai-chat", "--base-url", model.url)
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"RETINUE_HOME": home, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        outside, inside = pty.openpty()
        output = inside if side.on_terminal else subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-m", "retinue", "run", *flags, *side.flags, "--model", work.model, TASK],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        os.close(inside)
        reader = threading.Thread(target=read_to_end, args=(outside,))
        reader.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        reader.join()
        os.close(outside)
    assert process.returncode == 0, f"{side.name}: exit {process.returncode}"
    return usage.ru_utime + usage.ru_stime


def read_to_end(terminal: int) -> None:
    """Read what a terminal shows, so that the writer never waits."""
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        pass  # the other side is closed: a terminal reports its end with an error


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    work = Work(workers=options.workers, turns=1)
    seconds: dict[str, list[float]] = {side.name: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as place, fake_model() as model:
        folder = Path(place)
        (folder / "parts.py").write_text(TOOLS.format(prompt=WORKER))
        (folder / "retinue.toml").write_text(SETTINGS.format(prompt=LEAD))
        for _ in range(options.rounds):
            for side in SIDES:
                seconds[side.name].append(cpu_of(side, model, work, folder))
    for side in SIDES:
        ratios = [mine / silent for mine, silent in zip(seconds[side.name], seconds[SILENT.name], strict=True)]
        median = statistics.median(ratios)
        verdict = (
            "" if side is SILENT else f", promised at most {PROMISE:g}: {'kept' if median <= PROMISE else 'missed'}"
        )
        print(f"{side.name:22} {statistics.median(seconds[side.name]):6.2f} s  {median:.3f}{verdict}", flush=True)


if __name__ == "__main__":
    main()
