"""Contract tests that run against any implementation of a port: stores as pytest classes, providers as functions."""

__all__ = ["provider", "store"]
