"""TODO door."""

__all__ = ["command"]
