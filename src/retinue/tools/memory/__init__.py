"""Memories of agents: the backends that keep them, and the tools that store, recall and forget them."""

from retinue.tools.memory.backend import Memory, MemoryBackend, MemorySearch, Note, newest_first
from retinue.tools.memory.memory_tools import memories_in_state_folder, open_memory, tools

__all__ = [
    "Memory",
    "MemoryBackend",
    "MemorySearch",
    "Note",
    "memories_in_state_folder",
    "newest_first",
    "open_memory",
    "postgres",
    "sqlite",
    "tools",
]
