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
    "limit_text",
    "messages",
    "policy",
    "ports",
    "run",
    "state",
    "step",
    "text",
    "usage",
]
