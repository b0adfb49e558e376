"""Vendors by name: address, key, default model, prices and quirks of each, over HTTP."""

from typing import Any

import pytest

import retinue
from retinue.app.launch.model_choice import choose_model
from retinue.app.model_lists import known_providers
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.core.errors import BadInput
from retinue.core.model_options import Effort, ModelOptions
from retinue.providers import catalog
from retinue.providers.catalog import (
    WIRES,
    check_key_address,
    context_windows,
    create_provider,
    model_prices,
    provider_config,
    vendor_model,
)
from retinue.providers.vendors import VENDORS
from retinue.testing.fake_server import FakeServer, ReceivedRequest
from tests.providers.raw_answers import answer

KEYED = [name for name, wire in VENDORS.items() if wire.api_key_env]
AZURE = "https://mine.openai.azure.com/openai/v1"
GOOGLE = "https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu"


async def request_to(name: str, *, effort: Effort | None = None, **options: Any) -> ReceivedRequest:
    """The request of a run at a vendor whose server is a fake, with a key of this machine."""
    wire = "gemini" if name == "vertexai-gemini" else "chat"
    async with FakeServer(lambda _: answer(wire, "Yes.")) as server:
        config = provider_config(name, base_url=f"{server.url}/v1", api_key_env="HOUSE_KEY")
        async with retinue.open(
            model=f"{name}:{WIRES[name].default_model or 'gpt-5.4'}",
            provider_configs=[config],
            dialects=(),
            home=retinue.MEMORY,
        ) as r:
            outcome = await r.run("Why?", effort=effort, options=ModelOptions(**options))
    assert outcome.text == "Yes."
    (request,) = server.requests
    return request


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_KEY", "key-12345678")


@pytest.mark.parametrize("name", VENDORS)
async def test_a_vendor_gets_a_request_with_its_key(name: str) -> None:
    request = await request_to(name)

    header = ("api-key", "key-12345678") if name == "azure" else ("authorization", "Bearer key-12345678")
    assert request.headers[header[0]] == header[1]
    path = "/v1/chat/completions"
    if name == "vertexai-gemini":
        path = "/v1/publishers/google/models/gpt-5.4:streamGenerateContent"
    assert (request.path, request.query) == (path, "alt=sse" if name == "vertexai-gemini" else "")


@pytest.mark.parametrize("name", KEYED)
def test_the_key_of_a_vendor_goes_to_its_own_host_only(name: str) -> None:
    own = provider_config(name)
    elsewhere = provider_config(name, base_url="https://h.example/v1", api_key_env=own.api_key_env)

    check_key_address(own)
    assert own.api_key_env == VENDORS[name].api_key_env
    assert provider_config(name, base_url="https://h.example/v1").api_key_env == ""
    with pytest.raises(BadInput, match=r"is not sent to h\.example: the settings have to name both"):
        check_key_address(elsewhere)


def test_the_key_of_azure_goes_to_hosts_of_azure_only() -> None:
    check_key_address(provider_config("azure", base_url=AZURE, api_key_env="AZURE_OPENAI_API_KEY"))
    with pytest.raises(BadInput, match=r"is not sent to openai\.azure\.com\.h\.example"):
        check_key_address(
            provider_config("azure", base_url="https://openai.azure.com.h.example", api_key_env="AZURE_OPENAI_API_KEY")
        )
    with pytest.raises(BadInput, match="azure has no default address: give its base URL"):
        provider_config("azure")


@pytest.mark.parametrize("name", [name for name in KEYED if VENDORS[name].found_by_key])
async def test_a_vendor_is_chosen_by_its_key_with_its_default_model(name: str) -> None:
    environ = {VENDORS[name].api_key_env: "key-12345678"}
    chosen = await choose_model(Flags(), Settings(), environ=environ)

    assert (chosen.provider_config.name, chosen.model) == (name, VENDORS[name].default_model)
    assert [config.name for config in known_providers(Settings(), environ)] == [name]


def test_a_token_of_github_does_not_choose_a_provider() -> None:
    assert known_providers(Settings(), {"GITHUB_TOKEN": "key-12345678"}) == []
    assert "GITHUB_TOKEN" not in catalog.api_key_variables({})


@pytest.mark.parametrize("name", [name for name in VENDORS if VENDORS[name].default_model and name != "github"])
def test_price_and_window_of_the_default_model_are_known(name: str) -> None:
    config = provider_config(name)
    model = vendor_model(config)

    assert model is not None
    assert model_prices(config).price(model) is not None
    assert context_windows(config).window(model) is not None


def test_prices_of_a_vendor_are_its_own() -> None:
    prices = {name: model_prices(provider_config(name)).rates("openai/gpt-oss-120b") for name in ("groq", "together")}

    assert prices["groq"] != prices["together"]
    assert model_prices(provider_config("groq")).price("gpt-5.4") is None
    assert model_prices(provider_config("azure", base_url=AZURE)).price("gpt-5.4") == (2500, 15_000)
    assert model_prices(provider_config("vertexai-gemini", base_url=GOOGLE)).price("gemini-2.5-flash") is not None


SENT: dict[str, dict[str, Any]] = {
    "openrouter": {"reasoning": {"effort": "low"}},
    "groq": {"reasoning_effort": "low"},
    "mistral": {"reasoning_effort": "none"},
    "xai": {"reasoning_effort": "low"},
    "deepseek": {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
    "moonshot": {"thinking": {"type": "enabled"}},
    "zai": {"thinking": {"type": "enabled"}},
    "together": {"reasoning_effort": "low"},
    "fireworks": {"reasoning_effort": "low"},
    "cerebras": {"reasoning_effort": "low"},
    "azure": {"reasoning_effort": "low"},
    "github": {"reasoning_effort": "low"},
}
FIELDS = ("reasoning", "reasoning_effort", "thinking", "chat_template_kwargs")


@pytest.mark.parametrize("name", SENT)
async def test_effort_goes_into_the_fields_of_the_vendor(name: str) -> None:
    request = await request_to(name, effort="low")

    assert {field: request.body[field] for field in FIELDS if field in request.body} == SENT[name]


async def test_mistral_gets_a_random_seed() -> None:
    request = await request_to("mistral", seed=7)

    assert (request.body["random_seed"], request.body.get("seed")) == (7, None)


async def test_fireworks_is_sent_the_longest_reply() -> None:
    longest = context_windows(provider_config("fireworks")).longest_reply(VENDORS["fireworks"].default_model)
    request = await request_to("fireworks")

    assert longest is not None
    assert request.body["max_tokens"] == longest
    assert "max_tokens" not in (await request_to("together")).body


async def test_an_address_of_azure_with_a_version_stays_as_it_is() -> None:
    async with FakeServer(lambda _: answer("chat", "Yes.")) as server:
        base_url = f"{server.url}/openai/deployments/mine?api-version=2024-10-21"
        config = provider_config("azure", base_url=base_url, api_key_env="HOUSE_KEY")
        async with retinue.open(model="azure:m", provider_configs=[config], dialects=(), home=retinue.MEMORY) as r:
            assert (await r.run("Why?")).text == "Yes."

    (request,) = server.requests
    assert (request.path, request.query) == ("/openai/deployments/mine/chat/completions", "api-version=2024-10-21")


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendor_can_be_created(name: str) -> None:
    address = {"azure": AZURE, "vertexai-gemini": GOOGLE}.get(name)

    assert VENDORS[name].base_url in repr(create_provider(provider_config(name, base_url=address)))
