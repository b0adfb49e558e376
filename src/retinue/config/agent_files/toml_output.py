"""Agents as sections `[agents.NAME]` of a settings file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import cast

from retinue.config.agent_files.agent_file import AgentFile
from retinue.config.error_texts import dotted
from retinue.core.text import clean_line


def as_toml(agents: Sequence[AgentFile]) -> str:
    """The agents as TOML that a settings file can have; warnings are comments."""
    return "\n".join("\n".join(_table(agent)) + "\n" for agent in agents)


def _table(agent: AgentFile) -> Iterator[str]:
    yield f"# From {clean_line(agent.path)}"
    for warning in agent.warnings:
        yield f"# Warning: {clean_line(warning.text)}"
    yield f"[{dotted(('agents', agent.name))}]"
    for key, value in converted_fields(agent).items():
        if value is not None:
            yield f"{key} = {_value(value)}"


def converted_fields(agent: AgentFile) -> dict[str, object]:
    """The settings that a file can give its agent, by key; None is one that the file does not give."""
    settings = agent.settings
    return {
        "description": settings.description,
        "system_prompt": settings.system_prompt,
        "tools": None if settings.tools is None else list(settings.tools),
        "model": settings.model or None,
        "max_turns": settings.max_turns,
        "effort": settings.effort,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "limits": None if settings.limits.timeout is None else {"timeout": settings.limits.timeout},
        "isolation": settings.isolation,
        "background": settings.background or None,
        "read_only": settings.read_only or None,
        "excluded_tools": list(settings.excluded_tools) or None,
        "enabled": None if settings.enabled else False,
    }


def _value(value: object) -> str:
    match value:
        case str():
            return _text(value)
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{', '.join(_value(item) for item in cast('list[object]', value))}]"
        case dict():
            items = cast("dict[str, object]", value).items()
            return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in items) + " }"
        case _:
            return str(value)


def _text(text: str) -> str:
    """A basic string of TOML, over several lines where the text has them."""
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    if "\n" not in text:
        return quoted
    return '"""\n' + quoted[1:-1].replace("\\n", "\n") + '"""'
