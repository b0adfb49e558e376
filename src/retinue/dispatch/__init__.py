"""Processes that drive runs without a user: workers of a store, the daemon with its cron jobs, and `retinue call`."""

__all__ = ["cron", "daemon", "one_call", "processes", "worker"]
