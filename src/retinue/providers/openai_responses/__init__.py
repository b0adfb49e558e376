"""TODO door."""

from retinue.providers.openai_responses.provider import OpenAIResponsesProvider

__all__ = ["OpenAIResponsesProvider"]
