"""State folders that are read-only, full or misplaced: errors, and what can still be read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.core.errors import StoreNotOpened
from retinue.providers.scripted import Script, ScriptedProvider, says
from retinue.store.sqlite import errors
from retinue.store.sqlite.store import SqliteStore
from tests.cli.capabilities import as_plain_user
from tests.cli.conftest import Cli
from tests.cli.stage import finished_run

resource = pytest.importorskip("resource")


@pytest.fixture
def kept(home: Path) -> str:
    """A run in the state folder."""
    return asyncio.run(finished_run(home, ScriptedProvider(Script().play("main", says("Found it.")))))


@pytest.fixture
def closed(home: Path, kept: str) -> Iterator[Path]:
    """A read-only state folder with a run."""
    for file in home.iterdir():
        file.chmod(0o400)
    home.chmod(0o500)
    yield home
    home.chmod(0o700)


@contextmanager
def no_file_can_grow() -> Generator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


ELSEWHERE = "or choose another place with RETINUE_HOME"


def test_a_file_in_the_place_of_the_folder_is_named(cli: Cli, home: Path) -> None:
    home.write_text("not a folder")

    listed = cli("runs")

    assert (listed.code, listed.stdout, listed.stderr) == (
        1,
        "",
        f"error: the store cannot be opened: {home} is no folder: move it away, {ELSEWHERE} (Not a directory)\n",
    )


def test_a_folder_below_a_file_is_reported_with_the_file(cli: Cli, home: Path) -> None:
    home.write_text("not a folder")

    listed = cli("runs", env={"RETINUE_HOME": str(home / "deeper" / "still")})

    assert f"the store cannot be opened: {home} is no folder: move it away, " in listed.stderr
    assert "resumed" not in listed.stderr


def test_a_folder_in_the_place_of_the_file_is_named(cli: Cli, home: Path) -> None:
    (home / "retinue.db").mkdir(parents=True)

    listed = cli("runs")

    assert listed.code == 1
    assert f"{home}/retinue.db is a folder: move it away, {ELSEWHERE}" in listed.stderr


@pytest.mark.parametrize("name", ["x" * 300, "closed/inside"])
def test_an_unreadable_state_folder_is_reported_without_a_traceback(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "closed").mkdir(mode=0)

    listed = as_plain_user(lambda: cli("runs", env={"RETINUE_HOME": str(tmp_path / name)}))

    assert (listed.code, listed.stdout) == (1, "")
    assert listed.stderr.startswith("error: the store cannot be opened: ")


def test_a_full_disk_is_reported_when_the_store_is_opened(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(home.parent)._replace(free=4096)

    def nearly_full(folder: Path) -> object:
        return usage

    monkeypatch.setattr(errors.shutil, "disk_usage", nearly_full)

    with no_file_can_grow(), pytest.raises(StoreNotOpened) as refused:
        SqliteStore(home / "retinue.db")

    assert str(refused.value) == (
        f"the store cannot be opened: there is no room left on the disk of {home}: make room, {ELSEWHERE} "
        "(disk I/O error)"
    )


def test_an_unwritable_folder_is_reported_before_the_run_starts(cli: Cli, tmp_path: Path, home: Path) -> None:
    home.mkdir(mode=0o500)

    run = as_plain_user(lambda: cli("run", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--quiet", "hi"))

    assert (run.code, run.stderr) == (
        1,
        f"error: the store cannot be opened: {home} cannot be written to: change that, {ELSEWHERE} "
        "(Permission denied)\n",
    )


def test_a_read_only_folder_can_be_read(cli: Cli, closed: Path, kept: str) -> None:
    listed, shown = as_plain_user(lambda: (cli("runs", "--json"), cli("runs", "show", kept, "--json")))

    assert [row["run_id"] for row in listed.json] == [kept]
    assert (listed.stderr, shown.json["text"]) == ("", "Found it.")
    assert sorted(path.name for path in closed.iterdir()) == ["retinue.db", "retinue.db.lock"]


def test_a_read_only_folder_can_be_read_while_another_user_writes(cli: Cli, home: Path, kept: str) -> None:
    writer = SqliteStore(home / "retinue.db")
    newer = asyncio.run(finished_run(home, ScriptedProvider(Script().play("main", says("And again.")))))
    for file in home.iterdir():
        file.chmod(0o400)
    home.chmod(0o500)

    try:
        listed = as_plain_user(lambda: cli("runs", "--json"))
    finally:
        home.chmod(0o700)
        writer.close()

    assert [row["run_id"] for row in listed.json] == [newer, kept]


def test_a_read_only_folder_refuses_changes_with_a_reason(cli: Cli, closed: Path) -> None:
    pruned = as_plain_user(lambda: cli("runs", "prune", "--older-than", "1d"))

    assert pruned.code == 1
    assert f"the store cannot be opened: {closed} cannot be written to: change that" in pruned.stderr


def test_doctor_reports_a_read_only_folder(cli: Cli, closed: Path) -> None:
    result = as_plain_user(lambda: cli("doctor"))

    assert result.code == 1
    assert f"read-only: the store cannot be opened: {closed} cannot be written to" in result.stdout


def test_an_unreadable_write_ahead_log_is_an_error(cli: Cli, home: Path, kept: str) -> None:
    store = SqliteStore(home / "retinue.db")
    asyncio.run(finished_run(home, ScriptedProvider(Script().play("main", says("And again.")))))
    log = (home / "retinue.db-wal").read_bytes()
    store.close()
    (home / "retinue.db-wal").write_bytes(log or b"something")
    home.chmod(0o500)

    try:
        listed = as_plain_user(lambda: cli("runs"))
    finally:
        home.chmod(0o700)

    assert (listed.code, listed.stdout) == (1, "")
    assert f"the newest data is in {home}/retinue.db-wal, which SQLite cannot read" in listed.stderr
    assert f"copy the folder {home} and set RETINUE_HOME to the copy" in listed.stderr
