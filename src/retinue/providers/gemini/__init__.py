"""Google's Gemini API (`generateContent`)."""

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.providers.wire import COMMON_OPTIONS, Wire

if TYPE_CHECKING:
    from retinue.providers.gemini.response import GeminiProvider as GeminiProvider

__all__ = ["WIRE", "GeminiProvider"]

__getattr__ = lazy_names(__name__, {"GeminiProvider": f"{__name__}.response:GeminiProvider"})

GROUNDED_ANSWER = "grounded_answer"
"""What older models are charged for: an answer with searches, not the searches."""

WIRE = Wire(
    provider="retinue.providers.gemini.response:GeminiProvider",
    family="gemini",
    base_url="https://generativelanguage.googleapis.com",
    api_key_env="GEMINI_API_KEY",
    default_model="gemini-3.5-flash",
    aliases=("google",),
    models_path="/v1beta/models",
    models_query="pageSize=1000",
    version_path="/v1beta",
    key_header="x-goog-api-key",
    key_prefix="",
    supports=COMMON_OPTIONS | {"stop", "seed", "batch_hours"},
    server_tools={"web_search": (), "web_fetch": (), "code_execution": (), "file_search": ("stores",), "mcp": ()},
    server_tool_prices={"web_search": 14_000_000, GROUNDED_ANSWER: 35_000_000},
    server_tools_alone=r"(?:.*/)?gemini-[12]\b",
)
