"""The `zeroclaw` dialect: an agent runs itself again for a subtask, or delegates to another agent."""

from retinue.dialects.base import AutoSave, Deferred, DialectEntry, PolicyTexts, ProgramSettings
from retinue.dialects.zeroclaw.answers import ZeroclawCronTexts
from retinue.dialects.zeroclaw.requests import DELEGATE, SPAWN

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES"]

NAME = "zeroclaw"
SETTINGS = None
TOOL_NAMES = (SPAWN, DELEGATE)

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.zeroclaw.dialect:ZeroclawDialect"),
    program_settings=ProgramSettings(
        file="config.toml",
        own_keys=(
            *("schema_version", "default_provider", "default_model", "default_temperature", "api_url", "api_key"),
            *("model_providers", "providers.models", "providers.fallback", "agents", "delegate", "autonomy"),
            *("risk_profiles", "runtime_profiles", "memory", "cron", "scheduler", "gateway", "channels", "secrets"),
            "agent.max_tool_iterations",
        ),
        translate=Deferred("retinue.dialects.zeroclaw.program_settings:translate"),
    ),
    crate=NAME,
    loggers=(NAME,),
    cron=ZeroclawCronTexts(),
    auto_save=AutoSave(least_characters=20, key="user_msg_", category="conversation"),
    policy_texts=PolicyTexts(
        escalation="subagent policy override escalates beyond parent: {refusal}",
        memory="subagent allowlist override contains alias {alias} not present on parent's memory allowlist; "
        "SubAgent overrides may only narrow",
    ),
)
