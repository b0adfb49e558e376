"""The command line: arguments in, verbs on runs, and words for people; stdout carries answers and nothing else."""

__all__ = ["call", "cron", "event_loop", "follow", "main", "output"]
