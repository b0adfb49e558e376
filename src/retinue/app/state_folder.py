"""The state folder: where it is, and that no other user owns it or writes to it.

What is in it decides what resumed runs do.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from retinue.core.errors import StoreNotOpened
from retinue.local.private_folder import PRIVATE, create_private

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
STATE_NAMES = (
    *("retinue.db", "memory.db", "memories", "programs", "logs", "workspaces"),
    *("chat_history", "approved_calls.json", "web_token", "daemon.lock"),
)
"""How the names of files and folders of the state begin."""


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
