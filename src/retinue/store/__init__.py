"""Stores of runs, events, inboxes, sessions and key-value namespaces: in memory, in a SQLite file or in PostgreSQL.

Every store implements `core.ports.Store` and passes the contract in `retinue.testing.contracts.store`.
"""

__all__ = ["memory", "postgres", "sqlite"]
