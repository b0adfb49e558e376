"""Agents as sections `[agents.NAME]` of a settings file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from retinue.config.agent_files.agent_file import AgentFile
from retinue.config.error_texts import dotted
from retinue.core.text import clean_line


def as_toml(agents: Sequence[AgentFile]) -> str:
    """The agents as TOML that a settings file can have; warnings are comments."""
    return "\n".join("\n".join(_table(agent)) + "\n" for agent in agents)


def _table(agent: AgentFile) -> Iterator[str]:
    settings = agent.settings
    yield f"# From {clean_line(agent.path)}"
    for warning in agent.warnings:
        yield f"# Warning: {clean_line(warning.text)}"
    yield f"[{dotted(('agents', agent.name))}]"
    yield f"description = {_text(settings.description)}"
    yield f"system_prompt = {_text(settings.system_prompt)}"
    if settings.tools is not None:
        yield f"tools = [{', '.join(map(_text, settings.tools))}]"
    if settings.model:
        yield f"model = {_text(settings.model)}"
    if settings.max_turns is not None:
        yield f"max_turns = {settings.max_turns}"
    if settings.effort is not None:
        yield f"effort = {_text(settings.effort)}"
    if settings.isolation is not None:
        yield f"isolation = {_text(settings.isolation)}"
    if settings.background:
        yield "background = true"
    if settings.read_only:
        yield "read_only = true"
    if settings.excluded_tools:
        yield f"excluded_tools = [{', '.join(map(_text, settings.excluded_tools))}]"
    if not settings.enabled:
        yield "enabled = false"


def _text(text: str) -> str:
    """A basic string of TOML, over several lines where the text has them."""
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    if "\n" not in text:
        return quoted
    return '"""\n' + quoted[1:-1].replace("\\n", "\n") + '"""'
