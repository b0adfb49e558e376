"""The `meerkat` dialect: sub-agents in the background, spawned clean or forked with the whole conversation."""

from retinue.dialects.base import Deferred, DialectEntry, ProgramSettings, SettingsSection
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
    program_settings=ProgramSettings(
        file="config.toml",
        own_keys=(
            *(SECTION, "models", "budget", "limits", "shell", "rest", "store", "comms", "compaction", "retry"),
            *("provider", "providers.base_urls", "providers.api_keys", "max_tokens", "tools.mcp_servers"),
            *("agent.model", "agent.max_tokens_per_turn", "agent.system_prompt", "agent.max_turns"),
        ),
        translate=Deferred("retinue.dialects.meerkat.program_settings:translate"),
    ),
)
