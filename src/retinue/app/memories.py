"""Memories of agents outside of tool calls: the backends of the settings, and messages of the user that are stored."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from retinue.app.open import default_home, open_workspaces
from retinue.app.state_folder import memory_tables
from retinue.config.settings import Settings
from retinue.core.agent import DEFAULT_AGENT, Agent
from retinue.core.errors import ToolError
from retinue.core.ids import RunId, SessionId, SystemClock
from retinue.core.log_context import logger
from retinue.core.policy import Rules
from retinue.dialects import registry

if TYPE_CHECKING:
    from retinue.tools.memory import MemoryBackend

log = logger("retinue.app")


def memory_of(settings: Settings, agent: Agent | None) -> MemoryBackend | None:
    """The memory backend of an agent as the settings say; None if it keeps no memory."""
    kind = (agent.memory if agent is not None else None) or settings.tool_options.memory
    return None if kind == "none" else _open(kind, settings)


def existing_memories(settings: Settings) -> list[MemoryBackend]:
    """The memory backends that have stored something: in the state folder, and in workspaces that the settings name."""
    from retinue.tools.memory import memories_in_state_folder, open_memory

    tables = memory_tables()
    found = memories_in_state_folder(default_home()) if tables is None else [open_memory("sqlite", None, tables=tables)]
    if "workspace" in (settings.tool_options.memory, *(agent.memory for agent in settings.core_agents())):
        found.append(_open("workspace", settings, with_state_folder=False))
    return found


def _open(kind: str, settings: Settings, *, with_state_folder: bool = True) -> MemoryBackend:
    from retinue.tools.memory import open_memory

    agents = settings.core_agents()
    own = {agent.name: agent.policy for agent in agents if agent.policy is not None}
    return open_memory(
        kind,
        default_home(),
        {agent.name: agent.workspace for agent in agents},
        with_state_folder=with_state_folder,
        opened_workspaces=open_workspaces(agents, Rules(session=settings.policy, agents=own)),
        tables=memory_tables(),
    )


async def save_message(
    settings: Settings, agent: str | None, dialects: Sequence[str], text: str, *, run_id: RunId, session_id: SessionId
) -> None:
    """Store a message of the user, if `auto_save` is on and a dialect of the run stores messages of its length.

    A memory that cannot be reached is logged: the run goes on without it.
    """
    known = [registry.entry(name) for name in dialects if name in registry.PACKAGES]
    auto_save = next((entry.auto_save for entry in known if entry.auto_save is not None), None)
    if not settings.memory.auto_save or auto_save is None:
        return
    if len(text) < auto_save.least_characters or not text.strip():
        return
    name = agent or DEFAULT_AGENT
    memory = memory_of(settings, next((each for each in settings.core_agents() if each.name == name), None))
    if memory is None:
        return
    from retinue.tools.memory import Note

    note = Note(
        agent=name,
        key=f"{auto_save.key}{uuid.uuid4()}",
        content=text,
        category=auto_save.category,
        at=SystemClock().now(),
        run_id=run_id,
        session_id=session_id,
    )
    try:
        await asyncio.to_thread(memory.store, note)
    except ToolError as error:
        log.warning("the message is not stored as a memory: %s", error)
