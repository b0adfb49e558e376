"""Stores for stories about several processes: one that others can reach, and one that takes its time."""

from retinue.store.memory.store import MemoryStore


class SharedMemory(MemoryStore):
    """A store in memory that two retinues of one test share, as two processes share a file."""

    @property
    def shared(self) -> bool:
        """Others can reach it."""
        return True

    def changed(self) -> bool:
        """It may have: looking again costs nothing here."""
        return True


class SlowMemory(MemoryStore):
    """A store in memory whose commits happen in a thread, some time after they were asked for."""

    @property
    def blocking(self) -> bool:
        """Commits take real time."""
        return True
