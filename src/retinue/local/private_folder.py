"""Folders for the owner's files alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

PRIVATE = 0o700


def create_private(folder: Path) -> None:
    """Create a folder that its owner alone can use, whatever the umask; an existing one stays as it is.

    Missing folders above it are created as usual.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(folder, PRIVATE)
    except FileExistsError as error:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
