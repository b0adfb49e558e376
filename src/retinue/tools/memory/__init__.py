"""Memories of agents: the backends that keep them, and the tools that store, recall and forget them."""

from retinue.tools.memory.backend import Memory, MemoryBackend, Note, Search, newest_first
from retinue.tools.memory.memory_tools import existing_memories, open_memory, tools

__all__ = ["Memory", "MemoryBackend", "Note", "Search", "existing_memories", "newest_first", "open_memory", "tools"]
