"""What agents can use: each file here makes tools that satisfy `retinue.core.ports.Tool`."""

__all__ = [
    "builtin",
    "coding",
    "dependencies",
    "file_changes",
    "files",
    "function",
    "memory",
    "path_walk",
    "program_access",
    "server_tools",
    "settings_guard",
    "settings_trust",
    "shell",
    "threads",
    "todo",
]
