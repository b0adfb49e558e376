"""The OpenAI Responses API."""

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.providers.wire import COMMON_OPTIONS, Wire

if TYPE_CHECKING:
    from retinue.providers.openai_responses.response import OpenAIResponsesProvider as OpenAIResponsesProvider

__all__ = ["WIRE", "OpenAIResponsesProvider"]

__getattr__ = lazy_names(__name__, {"OpenAIResponsesProvider": f"{__name__}.response:OpenAIResponsesProvider"})

RESPONSES_PATH = "/responses"

WIRE = Wire(
    provider="retinue.providers.openai_responses.response:OpenAIResponsesProvider",
    family="openai",
    models_path="/models",
    base_url="https://api.openai.com/v1",
    api_key_env="OPENAI_API_KEY",
    default_model="gpt-5.4",
    aliases=("gpt", "chatgpt"),
    call_name="openai-responses",
    request_path=RESPONSES_PATH,
    explicit_options={"explicit": True, "continues": "previous"},
    supports=COMMON_OPTIONS | {"service_tier", "parallel_tool_calls", "batch_hours"},
    server_tools={
        "web_search": ("max_uses", "allowed_domains"),
        "code_execution": ("max_uses",),
        "file_search": ("max_uses", "stores"),
        "mcp": ("max_uses", "allow"),
    },
    server_tools_share_limit=True,
    server_tool_prices={"web_search": 10_000_000, "file_search": 2_500_000},
    caches_by_key=True,
    tiers="openai",
    seed_options={"spelling": "tool_call"},
)
