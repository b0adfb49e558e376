"""What the user settled: a file and the environment, read into frozen values, with precise complaints about the rest.

Config knows how settings are read and checked. Which sections there are is told by whoever loads them.
"""

__all__ = [
    "agents",
    "cron",
    "messages",
    "precedence",
    "profiles",
    "providers",
    "sections",
    "settings",
    "template",
    "tools",
]
