"""Google's Gemini API (`generateContent`)."""

from typing import TYPE_CHECKING

from retinue.providers.wire import Wire, lazy_exports

if TYPE_CHECKING:
    from retinue.providers.gemini.response import GeminiProvider as GeminiProvider

__all__ = ["WIRE", "GeminiProvider"]

__getattr__ = lazy_exports(__name__, GeminiProvider="response")

WIRE = Wire(
    provider="retinue.providers.gemini.response:GeminiProvider",
    family="gemini",
    base_url="https://generativelanguage.googleapis.com",
    api_key_env="GEMINI_API_KEY",
    aliases=("google",),
)
