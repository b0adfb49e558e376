"""Processes that start runs without a user: the daemon with its cron jobs, and the worker behind `retinue call`."""

__all__ = ["cron", "daemon", "processes", "worker"]
