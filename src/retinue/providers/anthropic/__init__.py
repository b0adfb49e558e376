"""TODO door."""

from retinue.providers.anthropic.provider import AnthropicProvider
from retinue.providers.anthropic.vertex import VertexAIAnthropicProvider

__all__ = ["AnthropicProvider", "VertexAIAnthropicProvider"]
