"""`retinue memory`: list, show and remove the memories of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.cli import completion
from retinue.cli.options import ConfigFlag, JsonFlag
from retinue.cli.output.terminal import answer, answer_json, say, say_text
from retinue.core.errors import ConfigError, UnknownName
from retinue.core.text import rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.tools.memory import Memory, MemoryBackend

app = typer.Typer(
    name="memory",
    help="Memories of agents: list, show, forget.",
    epilog="Examples:\n\nretinue memory list\n\nretinue memory show researcher style",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="An agent.", autocompletion=completion.agents)]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key of the memory.")]
MaybeAgentArgument = Annotated[
    str | None, typer.Argument(metavar="AGENT", help="An agent. [all agents]", autocompletion=completion.agents)
]


@app.command("list", epilog="Example: retinue memory list researcher --json")
def list_memories(agent: MaybeAgentArgument = None, config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """List memories of agents, newest first."""
    from retinue.tools.memory import MemorySearch, newest_first

    rows: list[Memory] = []
    for backend in _backends(config):
        agents = (agent,) if agent is not None else tuple(backend.agents())
        rows += [each.memory for each in backend.recall(MemorySearch(agents=agents, limit=1_000_000))]
    rows = newest_first(rows)
    if json:
        answer_json([_as_json(row) for row in rows])
    elif not rows:
        say("no memories" if agent is None else f"no memories of {agent}")
    else:
        _table(rows)
    return 0


@app.command(epilog="Example: retinue memory show researcher style")
def show(agent: AgentArgument, key: KeyArgument, config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """Show the whole text of a memory."""
    memory = next((found for backend in _backends(config) if (found := backend.find(agent, key)) is not None), None)
    if memory is None:
        raise UnknownName(f"memory of {agent}", key)
    if json:
        answer_json(_as_json(memory))
    else:
        answer(memory.content)
    return 0


@app.command(epilog="Example: retinue memory forget researcher style")
def forget(agent: AgentArgument, key: KeyArgument, config: ConfigFlag = None) -> int:
    """Remove a memory."""
    forgotten = [backend.forget(agent, key) for backend in _backends(config)]
    if not any(forgotten):
        raise UnknownName(f"memory of {agent}", key)
    say(f"forgot {key} of {agent}")
    return 0


def _backends(config: str | None) -> Sequence[MemoryBackend]:
    """The memory backends that exist in the state folder and the workspaces of the settings; none is created."""
    from retinue.app.memories import existing_memories
    from retinue.app.settings_file import load_settings
    from retinue.config.settings import Settings

    try:
        settings = load_settings(config)
    except ConfigError as error:
        if config is not None:
            raise
        say_text(f"warning: the memories in workspaces are not shown: {error}")
        settings = Settings()
    return existing_memories(settings)


def _as_json(memory: Memory) -> dict[str, Any]:
    return {
        "agent": memory.agent,
        "key": memory.key,
        "category": memory.category,
        "content": memory.content,
        "created_at": rfc3339(memory.created_at),
        "updated_at": rfc3339(memory.updated_at),
        "run_id": memory.run_id,
        "session_id": memory.session_id,
    }


def _table(rows: Sequence[Memory]) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[Memory]] = [
        Column(title="AGENT", cell=lambda row: row.agent),
        Column(title="KEY", cell=lambda row: row.key),
        Column(title="CATEGORY", cell=lambda row: row.category, least_width=60),
        Column(title="STORED", cell=lambda row: rfc3339(row.updated_at) if row.updated_at else "-", least_width=80),
        Column(title="CONTENT", cell=lambda row: row.content, shrinks=True),
    ]
    print_table(rows, columns)
