"""Who drives a run when nobody sits in front of it: schedules, and the processes that keep to them."""

__all__ = ["cron", "worker"]
