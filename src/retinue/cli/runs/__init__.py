"""TODO door."""

__all__ = ["commands", "list_show"]
