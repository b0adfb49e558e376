"""The `claude` dialect: four tools in the names of Claude Code, which run, message, stop and list sub-agents."""

from retinue.dialects.base import Deferred, DialectEntry, SettingsSection
from retinue.dialects.claude.requests import TOOL_NAMES
from retinue.dialects.claude.settings import SECTION, ClaudeSettings

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "ClaudeSettings"]

NAME = "claude"
SETTINGS = ClaudeSettings

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.claude.dialect:ClaudeDialect"),
    settings=SettingsSection(name=SECTION, type=SETTINGS, about="The dialect claude (--dialect claude)."),
)
