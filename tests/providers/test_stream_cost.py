"""What a streamed event costs over each wire: at most half as much again as a bare typed decoder of the same bytes.

That holds over HTTP, and in memory for a stream whose events come one by one. It is measured in a process of its own,
in which nothing counts lines of code, by CPU time, in turns and as a median: a machine is never alone. If a
measurement is over the limit, it is repeated; what is really slower stays so.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.wires import WireCost

MOST = 1.5
TIMES = 6


def measured(wire: str) -> WireCost:
    unwatched = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    ended = subprocess.run(
        [sys.executable, "-m", "bench.wires", wire, "--rounds", "9"],
        cwd=Path(__file__).parents[2],
        env=unwatched,
        check=True,
        capture_output=True,
    )
    return msgspec.json.decode(ended.stdout, type=dict[str, WireCost])[wire]


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic", "vertexai-anthropic", "gemini"])
def test_a_streamed_event_costs_little_more_than_a_bare_decoder(wire: str) -> None:
    ratios: list[float] = []
    while not ratios or (min(ratios) > MOST and len(ratios) < TIMES):
        cost = measured(wire)
        ratios.append(max(cost.ratio, cost.in_memory))

    assert min(ratios) <= MOST
