"""Domain model: frozen data types and pure functions, without I/O and without `await`."""

__all__ = [
    "agent",
    "budget",
    "commands",
    "compaction",
    "errors",
    "events",
    "history",
    "ids",
    "inbox",
    "lazy_names",
    "ledger",
    "messages",
    "policy",
    "ports",
    "run",
    "schema",
    "state",
    "step",
    "text",
    "usage",
]
