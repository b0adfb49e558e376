"""Memory stores for tests: one that is shared like a file, and one whose commits take time."""

from retinue.store.memory.store import MemoryStore


class SharedMemory(MemoryStore):
    """A store in memory that several retinues of a test share, as processes share a file."""

    @property
    def shared(self) -> bool:
        """Others can reach it."""
        return True

    def changed(self) -> bool:
        """It may have: looking again costs nothing here."""
        return True


class SlowMemory(MemoryStore):
    """A store in memory whose commits happen in a thread."""

    @property
    def blocking(self) -> bool:
        """Commits take real time."""
        return True
