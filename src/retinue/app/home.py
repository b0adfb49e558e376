"""The default state folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
