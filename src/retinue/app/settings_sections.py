"""The list of all settings sections; a new one is declared in `retinue.config` or by its dialect, and listed here."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.config.agent_files.translation import AGENT_FILES
from retinue.config.agents import AGENTS
from retinue.config.cron import CRON
from retinue.config.defaults import RunDefaults, TopSettings, default_sections
from retinue.config.error_texts import one_of, quoted
from retinue.config.mcp import MCP
from retinue.config.mcp_servers import MCP_SERVERS
from retinue.config.memory import MEMORY
from retinue.config.model_options import model_options_of
from retinue.config.precedence import BARE_ADDRESS
from retinue.config.profiles import RISK_PROFILES, RUNTIME_PROFILES
from retinue.config.providers import ProviderSettings, providers_section
from retinue.config.section_type import Section
from retinue.config.store import STORE
from retinue.config.telemetry import TELEMETRY
from retinue.config.tools import SERVER_TOOLS, TOOLS
from retinue.config.worker import WORKER
from retinue.core.errors import BadInput
from retinue.dialects import registry
from retinue.dialects.base import SettingsSection
from retinue.providers.catalog import WIRES, provider_config


def _section(declared: SettingsSection) -> Section:
    return Section(
        name=declared.name,
        type=declared.type,
        about=declared.about,
        cross_key_errors=declared.cross_key_errors,
        unknown_providers=declared.unknown_providers,
        has_complete_messages=declared.has_complete_messages,
    )


DIALECT_SECTIONS: dict[str, Section] = {
    entry.name: _section(entry.settings)
    # The default dialect stands last in a new settings file: it is the one that needs no settings.
    for entry in sorted(registry.entries(), key=lambda entry: entry.name == registry.DEFAULT)
    if entry.settings is not None
}
"""The settings section of each dialect that has one, by the dialect's name."""

_TOP, _DEFAULTS, _PROFILES = default_sections(lambda table: _default_errors(table))

SECTIONS: tuple[Section, ...] = (
    _TOP,
    _DEFAULTS,
    AGENTS,
    AGENT_FILES,
    providers_section(tuple(WIRES), cross_key_errors=lambda provider: _provider_errors(provider)),
    TOOLS,
    SERVER_TOOLS,
    *DIALECT_SECTIONS.values(),
    RISK_PROFILES,
    RUNTIME_PROFILES,
    MEMORY,
    CRON,
    STORE,
    MCP,
    MCP_SERVERS,
    WORKER,
    TELEMETRY,
    _PROFILES,
)


def _default_errors(table: TopSettings | RunDefaults) -> Sequence[tuple[str, str]]:
    """Errors in defaults, each with its key: an unknown dialect, or an unusable address."""
    known = [entry.name for entry in registry.entries()]
    for name in table.dialects or ():
        if name not in known:
            return (("dialects", f"found {quoted(name)}; expected {one_of(known)}, or [] for none"),)
    if table.base_url is None:
        return ()
    try:
        provider_config(BARE_ADDRESS, base_url=table.base_url)
    except BadInput as error:
        return (("base_url", str(error)),)
    return ()


def _provider_errors(provider: ProviderSettings) -> Sequence[tuple[str, str]]:
    """Errors in the settings of a provider, each with its key: an unusable address, or an option its wire lacks."""
    wire, address = provider.wire, provider.base_url
    program = provider.program()
    key = "command"
    try:
        if program is not None or (wire in WIRES and WIRES[wire].kind == "program"):
            provider_config(wire, wire=wire, program=program)
        key = "base_url"
        provider_config(wire, wire=wire, program=program, base_url=address)
        key = "responses_wire"
        provider_config(wire, wire=wire, program=program, base_url=address, responses_wire=provider.responses_wire)
        key = "bearer"
        provider_config(wire, wire=wire, program=program, base_url=address, bearer=provider.bearer)
        key = ""
        provider_config(wire, wire=wire, program=program, base_url=address, options=model_options_of(provider))
    except BadInput as error:
        option, _, message = str(error).partition(": ")
        return ((key, str(error)) if key else (option, message),)
    return ()
