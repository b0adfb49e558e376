"""Domain model: frozen data types and pure functions, without I/O and without `await`.

Besides, what every layer shares: the loggers, and functions about files (`bounded_file`, `private_folder`, `programs`).
"""

__all__ = [
    "agent",
    "bounded_file",
    "budget",
    "checksum",
    "commands",
    "compaction",
    "errors",
    "events",
    "history",
    "ids",
    "inbox",
    "key_paths",
    "lazy_names",
    "ledger",
    "limit_text",
    "log_context",
    "log_lines",
    "messages",
    "policy",
    "ports",
    "private_folder",
    "programs",
    "run",
    "schema",
    "settings_files",
    "state",
    "step",
    "text",
    "usage",
]
