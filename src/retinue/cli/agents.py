"""`retinue agents`: list, show, check and convert agents of the settings and of agent files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from retinue.cli import completion
from retinue.cli.options import ConfigFlag, JsonFlag
from retinue.cli.output.terminal import HEADING, answer, answer_json, answer_lines, say
from retinue.core.text import plural

if TYPE_CHECKING:
    from retinue.config.agent_files.agent_file import AgentFile
    from retinue.config.agent_files.folders import FoundAgents
    from retinue.config.agents import AgentSettings
    from retinue.config.settings import Settings

app = typer.Typer(
    name="agents",
    help="List, show, check and convert agents: those of the settings, and those of agent files.",
    epilog="Examples:\n\nretinue agents\n\nretinue agents check ~/.claude/agents\n\n"
    "retinue agents convert .claude/agents > retinue.toml",
    rich_markup_mode="rich",
)

Folders = Annotated[
    list[str] | None,
    typer.Argument(metavar="[DIR]...", help="Folders with agent files, or files. [the project's own folders]"),
]


class _Row(NamedTuple):
    name: str
    agent: AgentSettings
    source: str
    path: str


@app.callback(invoke_without_command=True)
def agents(context: typer.Context, config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """List the agents of the settings: --agent starts one, and other agents can delegate to them."""
    if context.invoked_subcommand is not None:
        if config is not None or json:
            raise typer.BadParameter(f"put flags after the command: retinue agents {context.invoked_subcommand} ...")
        return 0
    return list_agents(config=config, json=json)


@app.command("list", epilog="Examples:\n\nretinue agents list\n\nretinue agents list .claude/agents --json")
def list_agents(folders: Folders = None, config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """List the agents of the settings, and those of agent files in the named folders."""
    settings, rows = _rows(folders or (), config)
    if json:
        answer_json([_as_json(row, settings) for row in rows])
    elif rows:
        _table(rows)
    else:
        say(f"no agents in {settings.source or settings.user_source or 'the settings'}: add a section [agents.NAME]")
    return 0


@app.command(epilog="Example: retinue agents show code-reviewer .claude/agents")
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of an agent.", autocompletion=completion.agents)
    ],
    folders: Folders = None,
    config: ConfigFlag = None,
    json: JsonFlag = False,
) -> int:
    """Show one agent: its description, tools, model and system prompt."""
    from retinue.core.errors import UnknownName

    settings, rows = _rows(folders or _usual_folders(), config)
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        raise UnknownName("agent", name, tuple(row.name for row in rows))
    if json:
        answer_json({**_as_json(row, settings), "system_prompt": row.agent.system_prompt})
        return 0
    answer_lines(
        f"agent        {row.name}",
        f"from         {row.path or row.source}",
        f"description  {row.agent.description}",
        f"model        {row.agent.qualified_model or '(that of the parent run)'}",
        f"tools        {_tools_text(row.agent)}",
        *([f"without      {', '.join(row.agent.excluded_tools)}"] if row.agent.excluded_tools else []),
        *(["rights       it only reads"] if row.agent.read_only else []),
        *(["works        in the background"] if row.agent.background else []),
        *([f"isolation    {row.agent.isolation}"] if row.agent.isolation else []),
        *([f"max turns    {row.agent.max_turns}"] if row.agent.max_turns is not None else []),
        *([f"timeout      {row.agent.limits.timeout:g} s"] if row.agent.limits.timeout is not None else []),
        *([f"effort       {row.agent.effort}"] if row.agent.effort else []),
        *([f"temperature  {row.agent.temperature:g}"] if row.agent.temperature is not None else []),
        *([f"top_p        {row.agent.top_p:g}"] if row.agent.top_p is not None else []),
        f"{HEADING}system prompt",
    )
    answer(row.agent.system_prompt)
    return 0


@app.command(epilog="Examples:\n\nretinue agents check ~/.claude/agents\n\nretinue agents check --json")
def check(folders: Folders = None, config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """Say which agent files can be used, and what of them is guessed or ignored.

    Exit status: 0 if every file gave an agent, else 1.
    """
    found = _found(folders, config)
    if json:
        answer_json(
            {
                "files": found.files,
                "agents": [
                    {
                        "name": agent.name,
                        "path": agent.path,
                        "source": agent.source,
                        "ok": agent.is_usable,
                        "warnings": [{"line": warning.line, "text": warning.text} for warning in agent.warnings],
                    }
                    for agent in found.agents
                ],
                "errors": [{"path": error.path, "line": error.line, "text": error.text} for error in found.errors],
            }
        )
    else:
        for agent in found.agents:
            for warning in agent.warnings:
                answer_lines(f"{_place(agent.path, warning.line)}: warning: {warning.text}")
        for error in found.errors:
            answer_lines(f"{_place(error.path, error.line)}: error: {error.text}")
        usable = plural(len(found.agents), "agent")
        say(f"{plural(found.files, 'file')}: {usable}, {plural(len(found.errors), 'file')} without one")
    return 1 if found.errors else 0


@app.command(epilog="Example: retinue agents convert .claude/agents >> retinue.toml")
def convert(folders: Folders = None, config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """Print agent files as sections [agents.NAME] of a settings file."""
    from retinue.config.agent_files.toml_output import as_toml, converted_fields

    found = _found(folders, config)
    if json:
        answer_json({agent.name: converted_fields(agent) for agent in found.agents})
    else:
        answer(as_toml(found.agents))
    for error in found.errors:
        say(f"{_place(error.path, error.line)}: error: {error.text}")
    return 1 if found.errors else 0


def _found(folders: list[str] | None, config: str | None) -> FoundAgents:
    from retinue.app.agent_folders import configured_folders, translation_for
    from retinue.app.settings_file import load_settings
    from retinue.config.agent_files.folders import find_agents
    from retinue.core.errors import BadInput

    settings = load_settings(config)
    paths = folders or [*configured_folders(settings), *_usual_folders()]
    if not paths:
        from retinue.config.agent_files.folders import USUAL_FOLDERS

        raise BadInput(f"no folder is named, and this one has none of: {', '.join(USUAL_FOLDERS)}")
    return find_agents(paths, translation_for(settings))


def _usual_folders() -> list[str]:
    from retinue.config.agent_files.folders import USUAL_FOLDERS

    return [folder for folder in USUAL_FOLDERS if os.path.isdir(folder)]


def _rows(folders: list[str] | tuple[()], config: str | None) -> tuple[Settings, list[_Row]]:
    from retinue.app.agent_folders import configured_folders, translation_for
    from retinue.app.settings_file import load_settings
    from retinue.config.agent_files.folders import find_agents

    settings = load_settings(config)
    found = find_agents([*configured_folders(settings), *folders], translation_for(settings))
    files = {agent.name: agent for agent in found.agents}
    rows = [_Row(name, agent, *_origin(files.get(name), agent)) for name, agent in settings.agents.items()]
    rows += [
        _Row(name, file.settings, file.source, file.path) for name, file in files.items() if name not in settings.agents
    ]
    return settings, rows


def _origin(file: AgentFile | None, agent: AgentSettings) -> tuple[str, str]:
    return ("settings", "") if file is None or file.settings != agent else (file.source, file.path)


def _place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}:{line}"


def _as_json(row: _Row, settings: Settings) -> dict[str, object]:
    return {
        "name": row.name,
        "description": row.agent.description,
        "model": row.agent.qualified_model or None,
        "tools": list(row.agent.tools or ()),
        "enabled": row.agent.enabled,
        "default": row.name == settings.default_agent,
        "source": row.source,
        "path": row.path or None,
    }


def _tools_text(agent: AgentSettings) -> str:
    if agent.tools is None:
        return "(the default of its dialect)"
    return ", ".join(agent.tools) or "(none)"


def _table(rows: list[_Row]) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[_Row]] = [
        Column(title="AGENT", cell=lambda row: row.name if row.agent.enabled else f"{row.name} (off)"),
        Column(title="MODEL", cell=lambda row: row.agent.qualified_model or "-", least_width=60),
        Column(title="TOOLS", cell=lambda row: ", ".join(row.agent.tools or ()) or "-", least_width=80, shrinks=True),
        Column(title="DESCRIPTION", cell=lambda row: row.agent.description.partition("\n")[0], shrinks=True),
    ]
    print_table(rows, columns)
