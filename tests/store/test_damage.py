"""Damaged stores: flipped bytes are found, by the check and by every reader, or change no answer."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.core.errors import StoreError
from retinue.store.sqlite import store as module
from retinue.store.sqlite.check import check_file
from retinue.store.sqlite.work import LongWork
from tests.store.damage import answers, fill, flip, flips, pages

TABLES = (
    *("answers", "blobs", "charges", "drivers", "events", "handles", "mail", "runs", "sessions", "shelves"),
    "sqlite_schema",
)
INDEXES = (
    "events_by_run",
    "mail_by_key",
    "handles_by_name",
    "roots_by_time",
    "runs_by_root",
    "sqlite_autoindex_runs_1",
)


class Whole(NamedTuple):
    """An undamaged store: its bytes, its answers, and where its tables are."""

    bytes: bytes
    answers: list[object]
    pages: dict[str, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / "retinue.db"
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        if ("ENABLE_DBSTAT_VTAB",) not in connection.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this SQLite cannot say where its tables are (no dbstat)")
    return Whole(path.read_bytes(), answers(path), pages(path))


def verdict(path: Path, damaged: bytes, expected: list[object]) -> tuple[str, bool]:
    """What readers make of a damaged store (found, equal or wrong), and whether the check finds the damage."""
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").unlink()
    path.write_bytes(damaged)
    try:
        is_ok = check_file(path, LongWork()).ok
    except StoreError:  # such as a version that is not known
        is_ok = False
    path.write_bytes(damaged)
    try:
        read = answers(path)
    except StoreError:
        return "found", not is_ok
    return "equal" if read == expected else "wrong", not is_ok


def assert_found_or_harmless(path: Path, whole: Whole, name: str, count: int) -> None:
    results: dict[tuple[str, bool], int] = {}
    for position, by in flips(whole.bytes, whole.pages[name], count, seed=14):
        result = verdict(path, flip(whole.bytes, position, by), whole.answers)
        results[result] = results.get(result, 0) + 1
        assert result[0] != "wrong", f"{name}: byte {position} changed by {by}: a wrong answer"
        assert result != ("found", False), f"{name}: byte {position} changed by {by}: the check finds nothing"
    assert any(result == ("found", True) for result in results)


@pytest.mark.parametrize("name", TABLES)
def test_a_flipped_byte_of_a_table_is_found_or_harmless(
    name: str, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stress: bool
) -> None:
    monkeypatch.setattr(module, "OPEN_CHECK_SIZE", 0)  # as in a large store, where only rows are checked

    assert_found_or_harmless(tmp_path / "retinue.db", whole, name, 1000 if stress else 25)


@pytest.mark.parametrize("name", INDEXES)
def test_a_flipped_byte_of_an_index_of_a_small_store_is_found_or_harmless(
    name: str, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stress: bool
) -> None:
    monkeypatch.setattr(module, "OPEN_CHECK_SIZE", len(whole.bytes))

    assert_found_or_harmless(tmp_path / "retinue.db", whole, name, 1000 if stress else 25)
