"""The `xzatoma` dialect: `subagent` waits for another instance of the caller and returns its summary."""

from retinue.dialects.base import ChatDelegation, Deferred, DialectEntry, ProgramSettings, SettingsSection
from retinue.dialects.xzatoma.requests import PARALLEL, SUBAGENT
from retinue.dialects.xzatoma.settings import SECTION, XzatomaSettings, unknown_providers

__all__ = ["DIALECT", "NAME", "SETTINGS", "TOOL_NAMES", "XzatomaSettings"]

NAME = "xzatoma"
SETTINGS = XzatomaSettings
TOOL_NAMES = (SUBAGENT, PARALLEL)

CHAT = ChatDelegation(
    enabled="Subagent delegation enabled for subsequent requests",
    disabled="Subagent delegation disabled",
    words=("subagent", "delegate", "spawn agent", "parallel task", "parallel agent", "agent delegation", "use agent"),
    starts_on=lambda settings: settings.chat_enabled,
)

DIALECT = DialectEntry(
    name=NAME,
    tool_names=TOOL_NAMES,
    factory=Deferred("retinue.dialects.xzatoma.dialect:XzatomaDialect"),
    settings=SettingsSection(
        name=SECTION,
        type=SETTINGS,
        about="The dialect xzatoma (--dialect xzatoma).",
        unknown_providers=unknown_providers,
        has_complete_messages=True,
    ),
    root_tools=("fetch", "grep", "file_ops", "terminal"),
    program_settings=ProgramSettings(
        file="config.yaml", translate=Deferred("retinue.dialects.xzatoma.program_settings:translate")
    ),
    chat=CHAT,
    crate=NAME,
    loggers=("tools.subagent",),
    transcripts=Deferred("retinue.dialects.xzatoma.transcripts:KeptTranscripts"),
)
