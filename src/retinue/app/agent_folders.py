"""Agents from folders of agent files, added to the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from retinue.app.state_folder import default_home
from retinue.config.agent_files.folders import FoundAgents, find_agents
from retinue.config.agent_files.translation import AGENT_FILES, AgentFileSettings, FormatTables
from retinue.config.settings import Settings
from retinue.core.log_context import logger
from retinue.core.text import plural
from retinue.providers.catalog import WIRES
from retinue.tools.builtin import BUILTIN
from retinue.tools.settings_trust import check_trusted

log = logger("retinue.config")

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")
MAX_INSTRUCTIONS = 64 * 1024
"""Bytes of a file with instructions that are read."""

MAX_PROTECTED = 100
"""Agent files that programs of agents see as read-only; of more, the folder itself is protected."""


def translation_for(settings: Settings, environ: Mapping[str, str] | None = None) -> FormatTables:
    """The tables of the settings, with the providers that have a key, or need none."""
    environ = os.environ if environ is None else environ
    usable = {
        name: name
        for name, wire in WIRES.items()
        if wire.kind == "local" or (wire.api_key_env and environ.get(wire.api_key_env))
    }
    for name, provider in reversed(tuple(settings.providers.items())):
        usable |= {provider.wire: name, name: name}
    section = settings.section(AGENT_FILES.name, AgentFileSettings)
    return FormatTables(section, own_tools=frozenset(BUILTIN), providers=usable)


def configured_folders(settings: Settings) -> list[str]:
    """The folders of `[agent_files] folders`, which are relative to the settings file."""
    base = settings.source.parent if settings.source is not None else Path()
    return [
        str(base / os.path.expanduser(folder))
        for folder in settings.section(AGENT_FILES.name, AgentFileSettings).folders
    ]


def with_agent_files(settings: Settings, folders: Sequence[str | Path], *, home: Path | None = None) -> Settings:
    """The settings with the agents of their own folders and of `folders`; an agent of the settings wins.

    A file in a folder in which agents may write is left out unless a person has accepted it as it is. What was left
    out is logged. Raises `BadInput` for a folder that does not exist.
    """
    paths = [*configured_folders(settings), *folders]
    if not paths:
        return settings
    found = find_agents(paths, translation_for(settings), partial(check_trusted, home=home or default_home()))
    _log(found, paths)
    files = list(dict.fromkeys(os.path.abspath(agent.path) for agent in found.agents))
    protected = files if len(files) <= MAX_PROTECTED else [os.path.abspath(path) for path in paths]
    options = settings.tool_options
    return replace(
        settings,
        agents={**{agent.name: agent.settings for agent in found.agents}, **settings.agents},
        tool_options=replace(options, protected=tuple(dict.fromkeys((*options.protected, *protected)))),
    )


def _log(found: FoundAgents, paths: Sequence[str | Path]) -> None:
    for error in found.errors:
        place = error.path if error.line is None else f"{error.path}:{error.line}"
        log.warning("%s gives no agent: %s", place, error.text)
    count = sum(len(agent.warnings) for agent in found.agents)
    if count:
        where = " ".join(map(str, paths))
        log.warning("%s about agent files; see them with: retinue agents check %s", plural(count, "warning"), where)


def workspace_instructions(workspace: Path) -> str:
    """The text of `AGENTS.md`, else `CLAUDE.md`, in a workspace; empty if it has neither.

    A link is not followed: it could lead out of the workspace.
    """
    for name in INSTRUCTION_FILES:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            with open(os.open(workspace / name, flags), "rb") as file:
                content = file.read(MAX_INSTRUCTIONS)
        except OSError:
            continue
        return f"Instructions of the workspace, from its file {name}:\n\n{content.decode('utf-8', 'replace').strip()}"
    return ""
