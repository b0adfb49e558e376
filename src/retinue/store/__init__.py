"""What is remembered: stores keep runs, their events, their mail and their sessions, in memory or in a file.

Every store speaks `core.ports.Store` and passes the contract in `retinue.testing.contracts.store`.
"""

__all__ = ["memory", "sqlite"]
