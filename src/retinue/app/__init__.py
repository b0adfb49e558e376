"""The composition root: a retinue as a program uses it, and what front ends share."""

__all__ = [
    "chat",
    "doctor_checks",
    "engine_types",
    "follow",
    "handle",
    "json_rows",
    "launch",
    "memories",
    "open",
    "read_only",
    "registries",
    "retention",
    "retinue",
    "run_spec",
    "sessions",
    "settings_file",
    "store_files",
    "structured_output",
    "sync",
    "tool_modules",
]
