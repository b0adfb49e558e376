"""What things are: frozen data and pure rules; no input or output, no awaiting."""

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
    "ledger",
    "messages",
    "policy",
    "ports",
    "profiles",
    "run",
    "state",
    "step",
    "text",
    "usage",
]
