"""Memories of agents that keep theirs in different places, seen as one: each row is where its agent keeps its own."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.tools.memory.backend import Memory, MemoryBackend, Note, Recalled, Search


class NoMemory:
    """The `MemoryBackend` of an agent that is to remember nothing."""

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Refuse: who is told that something was stored would rely on it."""
        raise ToolError(f"The agent {note.agent!r} keeps no memory (memory backend = none).")

    def find(self, agent: str, key: str) -> Memory | None:
        """Nothing."""
        return None

    def recall(self, search: Search) -> list[Recalled]:
        """Nothing."""
        return []

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """There is nothing to forget."""
        return False

    def agents(self) -> list[str]:
        """Nobody."""
        return []


class RoutedMemory:
    """A `MemoryBackend` over several: `by_agent` where an agent has a place of its own, else the `usual` one."""

    def __init__(self, usual: MemoryBackend, by_agent: Mapping[str, MemoryBackend]) -> None:
        self._usual = usual
        self._by_agent = by_agent

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Remember something, where its agent keeps things."""
        return self._of(note.agent).store(note, again=again)

    def find(self, agent: str, key: str) -> Memory | None:
        """What an agent remembers under a key."""
        return self._of(agent).find(agent, key)

    def recall(self, search: Search) -> list[Recalled]:
        """The memories that were asked for, of all places together, the best or newest first."""
        agents: dict[MemoryBackend, list[str]] = {}
        for agent in search.agents:
            agents.setdefault(self._of(agent), []).append(agent)
        found = [
            each for place, theirs in agents.items() for each in place.recall(replace(search, agents=tuple(theirs)))
        ]
        if len(agents) > 1:
            found.sort(
                key=lambda each: (
                    -(each.score or 0.0),
                    -each.memory.updated_at,
                    each.memory.key,
                    each.memory.agent,
                )
            )
        return found[: search.limit]

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """Remove what an agent remembers under a key, unless it was written after that moment."""
        return self._of(agent).forget(agent, key, written_by=written_by)

    def agents(self) -> list[str]:
        """Everyone who remembers something, by name."""
        places = (self._usual, *self._by_agent.values())
        return sorted({agent for place in places for agent in place.agents() if self._of(agent) is place})

    def _of(self, agent: str) -> MemoryBackend:
        return self._by_agent.get(agent, self._usual)
