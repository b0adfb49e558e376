"""The tables of the SQLite store, step by step from the first release to this one.

A file says in `user_version` how many steps it has taken. Released steps are never edited; a change is a new step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from retinue.core.errors import StoreCorrupt, UnknownFormat
from retinue.store.sqlite.migrations import m0001_beginning

Step: TypeAlias = Callable[[sqlite3.Connection], None]

STEPS: Final[tuple[Step, ...]] = (m0001_beginning.migrate,)

APPLICATION_ID: Final = 0x52544E55
"""How a retinue file differs from the databases of others: `RTNU` in its header."""


def migrate(connection: sqlite3.Connection, path: Path, steps: Sequence[Step] = STEPS) -> None:
    """Take the steps that the file lacks, all or none; the caller holds the lock, so nobody else is half way."""
    found = _number(connection, "PRAGMA user_version")
    if found > len(steps):
        raise UnknownFormat(f"the store {path}", found=found, known=len(steps))
    if not _is_ours(connection, found):
        raise StoreCorrupt(f"{path} is the database of another program: choose another place for retinue's")
    if found == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[found:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_ours(connection: sqlite3.Connection, version: int) -> bool:
    if version > 0:
        return _number(connection, "PRAGMA application_id") == APPLICATION_ID
    return _number(connection, "SELECT count(*) FROM sqlite_master") == 0


def _number(connection: sqlite3.Connection, question: str) -> int:
    (answer,) = connection.execute(question).fetchone()
    return int(answer)
