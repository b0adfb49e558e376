"""TODO door."""

from retinue.tools.files.file_tools import tools
from retinue.tools.files.paths import SETTINGS, Opened, OutOfReach, Reach

__all__ = ["SETTINGS", "Opened", "OutOfReach", "Reach", "tools"]
