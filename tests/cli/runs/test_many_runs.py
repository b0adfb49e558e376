"""Commands on a store with many runs: lists are cut and say so, and parts of ids are looked up."""

import json
from pathlib import Path

import pytest

from bench.many_runs import fill
from retinue.cli.runs import list_show
from retinue.core.ids import RunId
from retinue.store.sqlite import SqliteStore
from tests.cli.conftest import Cli


@pytest.fixture
def run_ids(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunId]:
    """The runs of the store, in trees of ten, oldest first; the last three are not finished."""
    store = SqliteStore(home / "retinue.db")
    run_ids = fill(store, 120, unfinished=3)
    store.close()
    monkeypatch.setattr(list_show, "LISTED", 5)
    monkeypatch.setattr(list_show, "LISTED_AS_JSON", 6)
    return run_ids


@pytest.mark.parametrize(("flags", "step"), [((), 10), (("--all",), 1)])
def test_a_list_has_the_newest_runs_and_says_how_many_more_there_are(
    flags: tuple[str, ...], step: int, cli: Cli, run_ids: list[RunId]
) -> None:
    newest = run_ids[::step][::-1]
    listed, as_json, longer = cli("runs", *flags), cli("runs", *flags, "--json"), cli("runs", *flags, "--limit", "7")

    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == newest[:5]
    assert [row["run_id"] for row in json.loads(as_json.stdout)] == newest[:6]
    there = len(newest)
    assert listed.stderr == f"the newest 5 of {there} runs; {there - 5} more with --limit {there}\n"
    assert as_json.stderr == f"the newest 6 of {there} runs; {there - 6} more with --limit {there}\n"
    assert ([line.split()[0] for line in longer.stdout.splitlines()[1:]], longer.stderr) == (newest[:7], "")


def test_a_complete_list_has_no_note(cli: Cli, run_ids: list[RunId], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_show, "LISTED", 12)

    listed = cli("runs")

    assert (len(listed.stdout.splitlines()), listed.stderr) == (1 + 12, "")


def test_a_part_of_an_id_finds_its_run_or_counts_those_that_match(cli: Cli, run_ids: list[RunId]) -> None:
    wanted = run_ids[42]
    found, several = cli("runs", "show", wanted[-12:], "--json"), cli("runs", "tree", wanted[:4])

    assert json.loads(found.stdout)["run_id"] == wanted
    newest = ", ".join(run_ids[:-9:-1])
    assert several.stderr == f"error: '{wanted[:4]}' matches 120 runs: {newest}, ...; give more of the id\n"


def test_doctor_counts_the_runs_without_reading_them(
    cli: Cli, run_ids: list[RunId], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "runs", None)  # calling it would fail

    assert "120 runs, 3 unfinished" in cli("doctor").stdout
