"""Scenarios, and state folders of version 0.1, give the recorded results."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import pytest

from tests.compatibility.catalog import Scenario, scenarios
from tests.compatibility.fork_server import ForkServer
from tests.compatibility.recorded import Recorded
from tests.compatibility.recorded_homes import CONTINUATIONS, Continuation, inspect
from tests.compatibility.stage import PARTS, Stage, environment

RECORDED = Recorded()

LONGEST = 400
"""Characters of a line in a diff."""

MOST = 60
"""Lines of a diff."""


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """The fork server of this test process."""
    with ForkServer(environment()) as server:
        yield server


@pytest.fixture
def stage(forks: ForkServer) -> Iterator[Stage]:
    """An empty stage."""
    with Stage(forks) as stage:
        yield stage


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_a_scenario_gives_the_recorded_result(scenario: Scenario, stage: Stage) -> None:
    if scenario.lacks:
        pytest.skip(f"this machine has no {scenario.lacks}")
    scenario.play(stage)
    texts = stage.recording().texts

    compare({part: (RECORDED.read(scenario.name, part), texts.get(part, "")) for part in PARTS})


@pytest.mark.parametrize(("scenario", "home"), RECORDED.homes(), ids=lambda name: name)
def test_a_recorded_state_folder_opens_and_shows_the_recorded_output(scenario: str, home: str, stage: Stage) -> None:
    RECORDED.restore_home(scenario, home, stage.home)

    compare({f"{home}.inspected": (RECORDED.read(scenario, f"{home}.inspected"), inspect(stage, home))})


@pytest.mark.parametrize("continuation", CONTINUATIONS, ids=lambda continuation: continuation.name)
def test_the_work_in_a_recorded_state_folder_is_continued(continuation: Continuation, stage: Stage) -> None:
    scenario, home = continuation.scenario, continuation.home
    RECORDED.restore_home(scenario, home, stage.home)
    continuation.play(stage)
    texts = stage.recording().texts

    compare(
        {
            f"{home}.continued": (RECORDED.read(scenario, f"{home}.continued"), texts["contract"]),
            f"{home}.continued-prose": (RECORDED.read(scenario, f"{home}.continued-prose"), texts.get("prose", "")),
        }
    )


def test_every_scenario_has_a_recording_and_every_recording_a_scenario() -> None:
    recorded = {path.name for path in RECORDED.folder.iterdir()} - {"texts"}

    assert recorded == {scenario.name for scenario in scenarios()}


def compare(texts: Mapping[str, tuple[str, str]]) -> None:
    """Fail with a diff for each text that differs from its recording."""
    diffs = [diff(name, recorded, played) for name, (recorded, played) in texts.items() if recorded != played]
    if diffs:
        pytest.fail("\n\n".join(diffs), pytrace=False)


def diff(name: str, recorded: str, played: str) -> str:
    """A unified diff with shortened lines, and the first difference in each pair of long lines."""
    lines = list(difflib.unified_diff(recorded.split("\n"), played.split("\n"), lineterm="", n=1))[2:]
    shown = [line if len(line) <= LONGEST else f"{line[:LONGEST]}... ({len(line)} characters)" for line in lines[:MOST]]
    if len(lines) > MOST:
        shown.append(f"... and {len(lines) - MOST} more lines")
    removed, added = ([line[1:] for line in lines if line.startswith(sign)] for sign in "-+")
    long = [(old, new) for old, new in zip(removed, added, strict=False) if len(old) > LONGEST][:5]
    return "\n".join(
        [f"{name} differs from the recording (-) in:", *shown, *(first_difference(old, new) for old, new in long)]
    )


def first_difference(recorded: str, played: str) -> str:
    """The surroundings of the first difference of two lines."""
    pairs = zip(recorded, played, strict=False)
    at = next((number for number, (old, new) in enumerate(pairs) if old != new), min(len(recorded), len(played)))
    around = slice(max(0, at - 80), at + 160)
    return f"first difference of a long line, at character {at}:\n-{recorded[around]!r}\n+{played[around]!r}"
