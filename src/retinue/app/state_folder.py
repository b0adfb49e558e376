"""Where state is: the folder, which no other user may own or write to, and the address of the store.

What is in them decides what resumed runs do. An address is `sqlite:PATH`, `memory:` or `postgresql://...`, by flag,
environment or settings.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from retinue.core.errors import BadInput, StoreNotOpened
from retinue.core.ports import Store
from retinue.local.private_folder import PRIVATE, create_private

if TYPE_CHECKING:
    from retinue.store.postgres import PostgresAddress
    from retinue.tools.dependencies import MemoryTables

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
STATE_NAMES = (
    *("retinue.db", "memory.db", "memories", "programs", "logs", "workspaces"),
    *("chat_history", "approved_calls.json", "web_token", "daemon.lock"),
)
"""How the names of files and folders of the state begin."""

VARIABLE = "RETINUE_STORE"
"""The variable with the address of the store, for this process and those that it starts."""

IN_MEMORY = "memory:"
_SQLITE = "sqlite:"
_POSTGRES = ("postgresql:", "postgres:")
_EXPECTED = "expected sqlite:PATH, postgresql://... or memory:"


def default_home() -> Path:
    """The default home folder: `$RETINUE_HOME`, else the platform's data folder."""
    if home := os.environ.get("RETINUE_HOME"):
        # A ~ that no shell has expanded, as in an env file, must not become a folder of that name.
        return Path(os.path.expanduser(home))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "retinue"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "retinue"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "retinue"


def secure_state_folder(folder: Path, *, is_default: bool = True) -> None:
    """Create the folder for its owner alone; take the rights of others away from an existing one.

    A folder that the caller named (not `is_default`) may have other files in it and stays readable. Raises
    `StoreNotOpened` if it belongs to another user, or if all users may write to it by design, as to `/tmp`; and if a
    file of the state belongs to another user, or can be written by all.
    """
    try:
        create_private(folder)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # opening the store says what is wrong
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid not in (os.geteuid(), 0):
            raise StoreNotOpened(
                f"the state folder {folder} belongs to another user (uid {found.st_uid}), who decides what is in it: "
                "take it over (chown), or choose another with RETINUE_HOME"
            )
        if mode & stat.S_ISVTX and mode & OTHERS_WRITE:
            raise StoreNotOpened(
                f"all users may write to the state folder {folder}: choose a folder of your own with RETINUE_HOME"
            )
        narrow = mode & PRIVATE if is_default else mode & ~OTHERS_WRITE
        if found.st_uid == os.geteuid() and narrow != mode:
            os.fchmod(fd, narrow)
        # Others cannot add files any more; what they added before is still there.
        _check_files(folder, fd, is_default=is_default)
    finally:
        os.close(fd)


def _check_files(folder: Path, fd: int, *, is_default: bool) -> None:
    """Raise `StoreNotOpened` for a file that another user may have put there while the folder was open to others.

    In a folder that the caller named, only files with names of the state count.
    """
    if os.scandir not in os.supports_fd:
        return
    with os.scandir(fd) as entries:
        for entry in entries:
            if not is_default and not entry.name.startswith(STATE_NAMES):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if found.st_uid not in (os.geteuid(), 0):
                why = f"belongs to another user (uid {found.st_uid}), who decides what is in it"
            elif not stat.S_ISLNK(found.st_mode) and found.st_mode & stat.S_IWOTH:
                why = "can be written by all users"
            else:
                continue
            raise StoreNotOpened(
                f"{folder / entry.name} {why}: look at it, then remove it or take it over (chown, chmod), or choose "
                "another state folder with RETINUE_HOME"
            )


def chosen_url() -> str | None:
    """The address in the environment; None for the file in the state folder."""
    return os.environ.get(VARIABLE) or None


def choose_url(url: str) -> None:
    """Use this store in this process and in those that it starts; raises `BadInput` for an invalid address."""
    os.environ[VARIABLE] = checked_url(url)


def checked_url(url: str) -> str:
    """The address, with an absolute path; raises `BadInput`, which never shows a password.

    >>> checked_url("sqlite:/srv/retinue.db"), checked_url("memory:")
    ('sqlite:/srv/retinue.db', 'memory:')
    >>> checked_url("mysql://me:hidden@db/x")
    Traceback (most recent call last):
    retinue.core.errors.BadInput: unknown kind of store 'mysql': expected sqlite:PATH, postgresql://... or memory:
    """
    kind, colon, _ = url.partition(":")
    if url == IN_MEMORY:
        return url
    if url.startswith(_SQLITE):
        return f"{_SQLITE}{sqlite_path(url)}"
    if url.startswith(_POSTGRES):
        postgres_address(url)
        return url
    if not colon:
        raise BadInput(f"the address of a store names its kind: {_EXPECTED}")
    raise BadInput(f"unknown kind of store {kind!r}: {_EXPECTED}")


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:` address."""
    path = url.removeprefix(_SQLITE)
    if path.startswith("//"):  # as other programs write it: sqlite:///relative, sqlite:////absolute
        path = path.removeprefix("///") if path.startswith("///") else path.removeprefix("//")
    if not path:
        raise BadInput("the address sqlite: of a store has no path: write sqlite:PATH")
    return Path(path).expanduser().absolute()


def is_postgres(url: str | None) -> bool:
    return url is not None and url.startswith(_POSTGRES)


def is_sqlite(url: str | None) -> bool:
    return url is not None and url.startswith(_SQLITE)


def postgres_address(url: str) -> PostgresAddress:
    """The address of a PostgreSQL store; raises `BadInput` if the extra `postgres` is not installed."""
    try:
        from retinue.store.postgres import parse_address
    except ImportError as error:
        raise BadInput(f"a PostgreSQL store needs the package psycopg ({error}): install retinue[postgres]") from error
    return parse_address(url)


def open_url(url: str, *, durability: Literal["process", "power"] = "process") -> Store:
    """The store at an address."""
    url = checked_url(url)
    if url == IN_MEMORY:
        from retinue.store.memory import MemoryStore

        return MemoryStore()
    if is_sqlite(url):
        from retinue.store.sqlite import SqliteStore

        return SqliteStore(sqlite_path(url), durability=durability)
    address = postgres_address(url)
    from retinue.store.postgres import PostgresStore

    return PostgresStore(address)


def shown_url(url: str) -> str:
    """The address without secrets."""
    return str(postgres_address(url)) if is_postgres(url) else url


def memory_tables() -> MemoryTables | None:
    """The tables of memories, if the store of this process is a PostgreSQL database."""
    url = chosen_url()
    if url is None or not is_postgres(url):
        return None
    address = postgres_address(url)
    from retinue.store.postgres import PostgresMemoryTables

    return PostgresMemoryTables(address)
