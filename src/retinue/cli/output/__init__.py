"""TODO door."""

__all__ = [
    "approval_prompt",
    "format",
    "json_rows",
    "live",
    "progress",
    "sse",
    "stdout_writer",
    "table",
    "terminal",
    "transcript",
    "tree_poll",
]
