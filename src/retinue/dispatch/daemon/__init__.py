"""The daemon: one process for a state folder that executes cron jobs, and continues detached and background runs."""

__all__ = ["lock", "retention", "runs", "service", "unit"]
