"""The `spec` dialect: an orchestrator delegates with `subagent`; all agents share state with `shared_context`."""

from retinue.dialects.base import Deferred, DialectEntry, SettingsSection
from retinue.dialects.shared_context import NAME as SHARED_CONTEXT
from retinue.dialects.spec.requests import SUBAGENT
from retinue.dialects.spec.settings import SECTION, SpecSettings, mistakes

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "SpecSettings"]

NAME = "spec"
SETTINGS = SpecSettings
TOOL_NAMES = (SUBAGENT, SHARED_CONTEXT)

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.spec.dialect:SpecDialect"),
    settings=SettingsSection(
        name=SECTION, type=SETTINGS, about="The dialect spec (--dialect spec, the default).", cross_key_errors=mistakes
    ),
    loggers=("spec", "context"),
    cancelled_notice=Deferred("retinue.dialects.spec.answers:cancelled_notice"),
)
