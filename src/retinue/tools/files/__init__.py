"""Files: the tools that read and change them, and the access control that all tools use."""

from retinue.tools.files.file_tools import tools
from retinue.tools.files.paths import SETTINGS, AccessDenied, FileAccess, OpenPath
from retinue.tools.files.undo import Undone, undo

__all__ = ["SETTINGS", "AccessDenied", "FileAccess", "OpenPath", "Undone", "tools", "undo"]
