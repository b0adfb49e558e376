"""TODO door."""

__all__ = ["add", "commands"]
