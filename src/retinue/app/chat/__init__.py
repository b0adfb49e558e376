"""Conversations with an agent: input, answers, earlier and other open chats of a session; knows no terminal."""

__all__ = ["conversation", "delegation", "open_chats", "person_calls"]
