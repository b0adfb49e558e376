"""The `codex` dialect: six tools in the names of Codex's second multi-agent surface, with agents named by paths."""

from retinue.dialects.base import Deferred, DialectEntry, SettingsSection
from retinue.dialects.codex.requests import TOOL_NAMES
from retinue.dialects.codex.settings import SECTION, CodexSettings, cross_key_errors

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "CodexSettings"]

NAME = "codex"
SETTINGS = CodexSettings

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.codex.dialect:CodexDialect"),
    settings=SettingsSection(
        name=SECTION,
        type=SETTINGS,
        about="The dialect codex (--dialect codex).",
        cross_key_errors=cross_key_errors,
    ),
)
