"""Cron jobs: schedules, the table of jobs and claims, the daemon, and the execution of jobs; knows no terminal."""

__all__ = ["daemon", "execute", "jobs", "new_job", "rows", "schedule", "table"]
