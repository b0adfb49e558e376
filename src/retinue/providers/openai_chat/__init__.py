"""TODO door."""

from retinue.providers.openai_chat.provider import OpenAIChatProvider

__all__ = ["OpenAIChatProvider"]
