"""TODO door."""

__all__ = ["conversation", "delegation", "history", "open_chats"]
