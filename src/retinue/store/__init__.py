"""Stores of runs, events, inboxes, sessions and key-value namespaces: in memory, or in a SQLite file.

Every store implements `core.ports.Store` and passes the contract in `retinue.testing.contracts.store`.
"""

__all__ = ["memory", "sqlite"]
