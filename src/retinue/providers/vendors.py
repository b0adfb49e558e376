"""Vendors by name over existing wires: address, key variable, default model, quirks and the name of their prices.

A vendor is a record and nothing else: what its server does differently is a field of `ChatQuirks`. Prices, context
windows and longest replies of those that serve models of others come from `hosts.json`, which `make model-data` writes.
"""

from __future__ import annotations

from msgspec.structs import replace

from retinue.providers import gemini, openai_chat
from retinue.providers.openai_chat import ChatQuirks
from retinue.providers.wire import Wire


def _chat(base_url: str, api_key_env: str, default_model: str, quirks: ChatQuirks, **fields: object) -> Wire:
    """The record of a vendor that speaks chat completions."""
    record: dict[str, object] = {
        "base_url": base_url,
        "api_key_env": api_key_env,
        "default_model": default_model,
        "options": {"quirks": quirks},
        "caches_by_key": False,
        "tiers": "",
        "aliases": (),
        "supports": openai_chat.WIRE.supports - {"batch_hours"},
        **fields,
    }
    return replace(openai_chat.WIRE, **record)


VENDORS: dict[str, Wire] = {
    "openrouter": _chat(
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "openai/gpt-5.4",
        ChatQuirks(effort="reasoning", server_tools={"web_search": "web"}),
        prices="openrouter",
        server_tools={"web_search": ()},  # its price is part of the cost that the vendor reports
    ),
    "groq": _chat(
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        "openai/gpt-oss-120b",
        ChatQuirks(
            effort="reasoning_effort",
            server_tools={"web_search": "browser_search", "code_execution": "code_interpreter"},
        ),
        prices="groq",
        server_tools={"web_search": (), "code_execution": ()},
    ),
    "mistral": _chat(
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        "mistral-medium-latest",
        ChatQuirks(effort="reasoning_effort", steps=("none", "high"), seed="random_seed"),
        prices="mistral",
    ),
    "xai": _chat(
        "https://api.x.ai/v1",
        "XAI_API_KEY",
        "grok-4.6",
        ChatQuirks(effort="reasoning_effort", steps=("none", "low", "medium", "high")),
        aliases=("grok",),
    ),
    "deepseek": _chat(
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        "deepseek-v4-flash",
        ChatQuirks(effort="thinking", steps=("high", "max")),
        prices="deepseek",
    ),
    "moonshot": _chat(
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        "kimi-k2.6",
        ChatQuirks(effort="thinking", steps=()),
        prices="moonshot",
        aliases=("kimi",),
    ),
    "zai": _chat(
        "https://api.z.ai/api/paas/v4",
        "ZAI_API_KEY",
        "glm-5.2",
        ChatQuirks(effort="thinking", steps=()),
        prices="zai",
        aliases=("z.ai", "glm"),
    ),
    "together": _chat(
        "https://api.together.xyz/v1",
        "TOGETHER_API_KEY",
        "openai/gpt-oss-120b",
        ChatQuirks(effort="reasoning_effort"),
        prices="together",
    ),
    "fireworks": _chat(
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
        "accounts/fireworks/models/gpt-oss-120b",
        ChatQuirks(effort="reasoning_effort", max_output=True),
        prices="fireworks",
    ),
    "cerebras": _chat(
        "https://api.cerebras.ai/v1",
        "CEREBRAS_API_KEY",
        "gpt-oss-120b",
        ChatQuirks(effort="reasoning_effort"),
        prices="cerebras",
    ),
    "azure": _chat(
        "",
        "",
        "",
        ChatQuirks(),
        host="openai.azure.com",
        base_url_example="https://RESOURCE.openai.azure.com/openai/v1",
        key_header="api-key",
        key_prefix="",
        options={"key_header": "api-key", "key_prefix": ""},
    ),
    "github": _chat(
        "https://models.github.ai/inference",
        "GITHUB_TOKEN",
        "openai/gpt-5-mini",
        ChatQuirks(),
        models_path="",
        found_by_key=False,
    ),
    "vertexai-gemini": replace(
        gemini.WIRE,
        provider="retinue.providers.gemini.vertex:VertexAIGeminiProvider",
        base_url="",
        api_key_env="",
        default_model="",
        aliases=(),
        models_path="",
        host="aiplatform.googleapis.com",
        base_url_example="https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION",
        key_header="Authorization",
        key_prefix="Bearer ",
        supports=gemini.WIRE.supports - {"batch_hours"},
        server_tools={name: gemini.WIRE.server_tools[name] for name in ("web_search", "web_fetch", "code_execution")},
    ),
}
"""Keys are looked up in this order, after those of the vendors that have a wire of their own."""
