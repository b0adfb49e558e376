"""Output of commands: text, tables, live trees, transcripts, JSON and server-sent events."""

__all__ = [
    "approval_prompt",
    "format",
    "live",
    "plain_lines",
    "progress",
    "reply",
    "sse",
    "table",
    "terminal",
    "transcript",
    "turn_screen",
]
