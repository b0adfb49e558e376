"""TODO door."""

from retinue.providers.gemini.provider import GeminiProvider

__all__ = ["GeminiProvider"]
