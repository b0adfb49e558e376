"""TODO door."""

from retinue.tools.memory.backend import Memory, MemoryBackend, Search, newest_first
from retinue.tools.memory.memory_tools import open_memory, tools

__all__ = ["Memory", "MemoryBackend", "Search", "newest_first", "open_memory", "tools"]
