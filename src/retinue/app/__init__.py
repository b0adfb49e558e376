"""The composition root: a retinue as a program uses it, and what front ends share."""

__all__ = [
    "active_time",
    "chat",
    "engine_types",
    "handle",
    "launch",
    "launch_config",
    "open",
    "read_only",
    "registries",
    "retinue",
    "sessions",
    "settings_file",
    "structured_output",
    "sync",
    "tool_modules",
]
