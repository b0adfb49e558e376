"""The OpenAI Chat Completions API, which most vendors and nearly all local model servers speak too."""

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.providers.openai_chat.quirks import LOCAL_SERVER, ChatQuirks
from retinue.providers.wire import COMMON_OPTIONS, Wire

if TYPE_CHECKING:
    from retinue.providers.openai_chat.response import OpenAIChatProvider as OpenAIChatProvider

__all__ = ["LOCAL_SERVER", "WIRE", "ChatQuirks", "OpenAIChatProvider"]

__getattr__ = lazy_names(__name__, {"OpenAIChatProvider": f"{__name__}.response:OpenAIChatProvider"})

COMPLETIONS_PATH = "/chat/completions"

WIRE = Wire(
    provider="retinue.providers.openai_chat.response:OpenAIChatProvider",
    family="openai",
    models_path="/models",
    base_url="https://api.openai.com/v1",
    api_key_env="OPENAI_API_KEY",
    default_model="gpt-5.4",
    call_name="openai-chat",
    request_path=COMPLETIONS_PATH,
    explicit_options={"explicit": True},
    supports=COMMON_OPTIONS | {"stop", "seed", "service_tier", "parallel_tool_calls", "batch_hours"},
    caches_by_key=True,
    tiers="openai",
)
