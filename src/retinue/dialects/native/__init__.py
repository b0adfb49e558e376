"""The `native` dialect: six tools that run, wait for, message, read, cancel and list sub-agents, by run id."""

from retinue.dialects.base import Deferred, DialectEntry, SettingsSection
from retinue.dialects.native.requests import TOOL_NAMES
from retinue.dialects.native.settings import SECTION, NativeSettings

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "NativeSettings"]

NAME = "native"
SETTINGS = NativeSettings

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.native.dialect:NativeDialect"),
    settings=SettingsSection(name=SECTION, type=SETTINGS, about="The dialect native (--dialect native)."),
)
