"""Settings: a file and the environment, parsed into frozen values, with precise errors.

This package parses and validates; the application declares which sections exist.
"""

__all__ = [
    "agent_files",
    "agents",
    "cron",
    "defaults",
    "error_texts",
    "mcp",
    "mcp_servers",
    "memory",
    "model_options",
    "other_programs",
    "precedence",
    "profiles",
    "providers",
    "section_type",
    "settings",
    "store",
    "telemetry",
    "template",
    "tools",
    "worker",
    "yaml",
]
