"""TODO door."""

__all__ = ["daemon", "fire", "history", "jobs", "schedule", "table"]
