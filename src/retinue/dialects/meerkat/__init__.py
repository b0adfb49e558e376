"""TODO door."""

__all__ = []
