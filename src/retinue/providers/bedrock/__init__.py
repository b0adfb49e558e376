"""Amazon Bedrock: models of many vendors behind one format, Converse."""

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.providers.wire import COMMON_OPTIONS, Wire

if TYPE_CHECKING:
    from retinue.providers.bedrock.response import BedrockProvider as BedrockProvider
    from retinue.providers.bedrock.response import Decoder as Decoder

__all__ = ["WIRE", "BedrockProvider", "Decoder"]

__getattr__ = lazy_names(
    __name__,
    {
        "BedrockProvider": f"{__name__}.response:BedrockProvider",
        "Decoder": f"{__name__}.response:Decoder",
    },
)

KEY_ENV = "AWS_BEARER_TOKEN_BEDROCK"
DEFAULT_REGION = "us-east-1"

WIRE = Wire(
    provider="retinue.providers.bedrock.response:BedrockProvider",
    family="bedrock",
    base_url=f"https://bedrock-runtime.{DEFAULT_REGION}.amazonaws.com",
    regional_url="https://bedrock-runtime.{region}.amazonaws.com",
    region_envs=("AWS_REGION", "AWS_DEFAULT_REGION"),
    host_pattern=r"(?:[a-z0-9-]+\.)?bedrock-runtime(?:-fips)?\.[a-z0-9-]+\.(?:vpce\.)?amazonaws\.com(?:\.cn)?",
    api_key_env=KEY_ENV,
    default_model="global.anthropic.claude-sonnet-5",
    aliases=("amazon-bedrock", "aws"),
    models_path="/foundation-models",
    max_temperature=1,
    supports=COMMON_OPTIONS | {"stop", "service_tier", "cache_ttl"},
    prices="bedrock",
    tiers="bedrock",
    finds_credentials=True,
    secret_envs=("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
