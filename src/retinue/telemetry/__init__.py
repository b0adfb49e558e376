"""Who watches: readers of what happens, for people and for machines."""

__all__ = ["logs", "otel"]
