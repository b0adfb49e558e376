"""Find settings files: the project's, in the current folder or above it in the same repository, and the user's.

A folder above the current one is searched if it lies in the same repository: up to the outermost folder that has `.git`
or in which agents may write. An agent can create or remove `.git` in its workspace, and must not gain by it: the
settings limit what it may do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

from retinue.core.errors import ConfigError, Problem
from retinue.core.log_context import logger
from retinue.core.settings_file_names import SETTINGS_FILES

log = logger("retinue.config")

USER_FOLDER = "RETINUE_CONFIG_HOME"
"""The environment variable of the folder with the user's settings."""


def user_folder() -> Path:
    """The folder of the user's settings: `$RETINUE_CONFIG_HOME`, else the platform's folder for settings."""
    if folder := os.environ.get(USER_FOLDER):
        return Path(os.path.expanduser(folder)).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "retinue"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home()) / "retinue"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "retinue"


def user_file() -> Path | None:
    """The user's settings file, or None."""
    try:
        folder = user_folder()
    except RuntimeError:  # a user without a home folder
        return None
    name = file_in(folder, prefix=f"{folder}/")
    return None if name is None else folder / name


def searched_folders(cwd: Path, agents_write: Collection[str] = ()) -> list[Path]:
    """The current folder and those above it up to the root of its repository, the nearest first.

    `agents_write` are the folders in which agents may write.
    """
    folders = [cwd, *cwd.parents]
    ends = [index for index, each in enumerate(folders) if _is_own(each / ".git") or str(each) in agents_write]
    return folders[: max(ends, default=0) + 1]


def project_file(cwd: Path, folders: list[Path]) -> Path | None:
    """The settings file in the nearest of these folders, or None; relative to `cwd` if it is there.

    A file above the current folder that belongs to another user is ignored with a warning: in a shared folder such as
    `/tmp`, another user may have put it there.
    """
    for folder in folders:
        name = file_in(folder, prefix="" if folder == cwd else f"{folder}/")
        if name is None:
            continue
        if folder == cwd:
            return Path(name)
        if _is_own(folder / name):
            return folder / name
        log.warning("%s is ignored: it belongs to another user; --config takes it nevertheless", folder / name)
    return None


def file_in(folder: Path, *, prefix: str = "") -> str | None:
    """The name of the settings file in a folder, or None; `prefix` is put before names in messages."""
    existing = [name for name in SETTINGS_FILES if os.path.lexists(folder / name)]
    if len(existing) > 1:
        complaint = f"{' and '.join(existing)} both exist; keep one of them"
        raise ConfigError(Problem(file=f"{prefix}{existing[0]}", complaint=complaint))
    return existing[0] if existing else None


def _is_own(path: Path) -> bool:
    """Whether something has this path, and belongs to this user or to root."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return sys.platform == "win32" or found.st_uid in (os.geteuid(), 0)
