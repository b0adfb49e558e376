"""The `meerkat` dialect: sub-agents in the background, spawned clean or forked with the whole conversation."""

from retinue.dialects.base import Deferred, DialectEntry, SettingsSection
from retinue.dialects.meerkat.requests import TOOL_NAMES
from retinue.dialects.meerkat.settings import SECTION, ConcurrencyLimits, MeerkatSettings, mistakes

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "ConcurrencyLimits", "MeerkatSettings"]

NAME = "meerkat"
SETTINGS = MeerkatSettings

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.meerkat.dialect:MeerkatDialect"),
    settings=SettingsSection(
        name=SECTION, type=SETTINGS, about="The dialect meerkat (--dialect meerkat).", cross_key_errors=mistakes
    ),
    crate=NAME,
)
