"""Processes that start runs without a user: cron jobs and their daemon, and the worker behind `retinue call`."""

__all__ = ["cron", "worker"]
