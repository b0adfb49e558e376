"""The Anthropic Messages API, at Anthropic and other vendors, and on Google Cloud (Vertex AI)."""

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.providers.wire import COMMON_OPTIONS, Wire

if TYPE_CHECKING:
    from retinue.providers.anthropic.request import Encoder as Encoder
    from retinue.providers.anthropic.request import OrderStep as OrderStep
    from retinue.providers.anthropic.request import has_adaptive_thinking as has_adaptive_thinking
    from retinue.providers.anthropic.request import order_note as order_note
    from retinue.providers.anthropic.response import AnthropicProvider as AnthropicProvider
    from retinue.providers.anthropic.vertex import VertexAIAnthropicProvider as VertexAIAnthropicProvider

__all__ = [
    "VERTEX_WIRE",
    "WIRE",
    "AnthropicProvider",
    "Encoder",
    "OrderStep",
    "VertexAIAnthropicProvider",
    "has_adaptive_thinking",
    "order_note",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AnthropicProvider": f"{__name__}.response:AnthropicProvider",
        "Encoder": f"{__name__}.request:Encoder",
        "OrderStep": f"{__name__}.request:OrderStep",
        "VertexAIAnthropicProvider": f"{__name__}.vertex:VertexAIAnthropicProvider",
        "has_adaptive_thinking": f"{__name__}.request:has_adaptive_thinking",
        "order_note": f"{__name__}.request:order_note",
    },
)

API_VERSION = "2023-06-01"
VERSION_PATH = "/v1"
MESSAGES_PATH = "/v1/messages"
VERTEX_PATH = "/publishers/anthropic/models/{model}:streamRawPredict"

_OPTIONS = (COMMON_OPTIONS - {"stream"}) | {"stop", "parallel_tool_calls", "cache_ttl"}

_WEB_OPTIONS = ("max_uses", "allowed_domains", "blocked_domains")
_TOOL_PRICES = {"web_search": 10_000_000}

WIRE = Wire(
    provider="retinue.providers.anthropic.response:AnthropicProvider",
    family="anthropic",
    base_url="https://api.anthropic.com",
    api_key_env="ANTHROPIC_API_KEY",
    default_model="claude-sonnet-5",
    aliases=("claude",),
    models_path="/v1/models",
    models_query="limit=1000",
    key_header="x-api-key",
    key_prefix="",
    fixed_headers={"anthropic-version": API_VERSION},
    call_name="anthropic",
    request_path=MESSAGES_PATH,
    version_path=VERSION_PATH,
    max_temperature=1,
    supports=_OPTIONS | {"service_tier", "betas", "stream", "batch_hours"},
    server_tools={
        "web_search": _WEB_OPTIONS,
        "web_fetch": _WEB_OPTIONS,
        "code_execution": (),
        "mcp": ("allow",),
    },
    server_tool_prices=_TOOL_PRICES,
    takes_bearer=True,
)

VERTEX_WIRE = Wire(
    provider="retinue.providers.anthropic.vertex:VertexAIAnthropicProvider",
    family="anthropic",
    host="aiplatform.googleapis.com",
    base_url_example="https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION",
    call_name="vertexai-anthropic",
    request_path=VERTEX_PATH,
    max_temperature=1,
    supports=_OPTIONS,
    server_tools={"web_search": _WEB_OPTIONS},
    server_tool_prices=_TOOL_PRICES,
)
