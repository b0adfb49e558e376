"""The catalogue of providers: names, aliases, addresses, families and prices."""

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from retinue.app.open import open as open_retinue
from retinue.app.registries import ProviderRegistry
from retinue.app.run_spec import LaunchConfig
from retinue.app.settings_file import load_settings, provider_configs
from retinue.core.errors import BadInput, UnknownName
from retinue.core.messages import AssistantMessage, Message, Reply, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.core.usage import Usage
from retinue.providers.catalog import (
    ALIASES,
    WIRES,
    ProviderConfig,
    canonical_name,
    create_provider,
    family,
    family_by_name,
    model_prices,
    provider_config,
    with_address,
)
from retinue.providers.openai_responses.request import Spelling
from retinue.providers.pricing import PricedProvider, Rates
from retinue.providers.scripted import Script, ScriptedProvider, says
from retinue.testing.contracts.provider import DeltaListener
from retinue.testing.fake_chat import FakeChat
from tests.conftest import TrackedConnection
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.responses import FakeResponses


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("anthropic", "anthropic"), ("Claude", "anthropic"), ("CLAUDE", "anthropic"),
        ("openai", "openai"), ("gpt", "openai"), ("ChatGPT", "openai"), ("OpenAI-Chat", "openai-chat"),
        ("gemini", "gemini"), ("Google", "gemini"),
        ("bedrock", "bedrock"), ("aws", "bedrock"),
    ],
)  # fmt: skip
def test_a_vendor_is_found_by_alias_in_any_case(name: str, wire: str) -> None:
    reached = provider_config(name)

    assert (reached.name, reached.wire, reached.api_key_env) == (wire, wire, WIRES[wire].api_key_env)
    assert ProviderRegistry({}, [provider_config("ollama")]).split(f"{name}:m", "ollama") == (wire, "m")
    assert ProviderRegistry({}).find(name) is not None


def test_openai_uses_the_responses_wire() -> None:
    assert repr(create_provider(provider_config("gpt"))) == "<OpenAIResponsesProvider https://api.openai.com/v1>"


def test_a_configured_name_precedes_an_alias() -> None:
    own = ProviderConfig(name="claude", wire="openai-chat", base_url="http://mine/v1")
    table = ProviderRegistry({}, [own])

    assert table.split("claude:m", "x") == ("claude", "m")
    assert table.split("Claude:m", "x") == ("anthropic", "m")
    assert repr(table.find("claude")) == "<OpenAIChatProvider http://mine/v1>"


def test_an_unknown_prefix_is_part_of_the_model_name() -> None:
    with pytest.raises(UnknownName):
        provider_config("llama")
    assert ProviderRegistry({}).split("qwen3:8b", "ollama") == ("ollama", "qwen3:8b")
    assert set(ALIASES.values()) <= set(WIRES)
    assert canonical_name("qwen3") == "qwen3"


async def test_open_accepts_vendor_aliases() -> None:
    retinue = open_retinue(model="Claude:claude-haiku-4-5", home=":memory:")
    async with retinue:
        run_spec = await retinue.spawn("hi", detached=True)
        asked = (await retinue.supervisor.replay(run_spec.run_id)).run_spec

    assert (asked.provider, asked.model) == ("anthropic", "claude-haiku-4-5")


# ---- prices ---------------------------------------------------------------------------------------------------------


def test_only_local_servers_on_this_machine_are_free() -> None:
    assert model_prices(provider_config("ollama")).price("qwen3") == (0, 0)
    assert model_prices(provider_config("vllm", base_url="http://127.0.0.1:9/v1")).price("qwen3") == (0, 0)
    assert model_prices(provider_config("vllm", base_url="http://gpu.example/v1")).price("qwen3") is None
    assert model_prices(provider_config("openai-chat", base_url="http://127.0.0.1:9/v1")).price("qwen3") is None
    assert model_prices(provider_config("openai-chat", base_url="http://127.0.0.1:9/v1")).price("gpt-5") == (
        1250,
        10_000,
    )
    assert model_prices(provider_config("ollama", prices={"qwen3": Rates(input=1.0, output=2.0)})).price("qwen3") == (
        1000,
        2000,
    )


def test_configured_prices_are_stored_with_the_launch_config() -> None:
    mine = provider_config("ollama", prices={"qwen3": Rates(input=1.0, output=2.0, cached=0.5)})
    setup = LaunchConfig(provider_configs=(mine,))

    assert msgspec.json.decode(setup.text(), type=LaunchConfig) == setup


@pytest.mark.real_time
async def test_replies_of_any_wire_carry_their_cost() -> None:
    line = says("hi", usage=Usage(input=1_000, output=100, cached=500))
    async with FakeAnthropic(line) as claude, FakeChat(line) as chat:
        anthropic = await ask(provider_config("anthropic", base_url=claude.base_url), "claude-haiku-4-5")
        openai = await ask(provider_config("openai-chat", base_url=chat.base_url), "gpt-4.1-mini")
        unknown = await ask(provider_config("openai-chat", base_url=chat.base_url), "fake-1")

    assert openai.cost == 500 * 400 + 500 * 100 + 100 * 1_600
    assert anthropic.usage is not None
    cached = anthropic.usage.cached
    assert anthropic.cost == (anthropic.usage.input - cached) * 1_000 + cached * 100 + 100 * 5_000
    assert unknown.cost is None


async def ask(where: ProviderConfig, model: str) -> Reply:
    table = ProviderRegistry({}, [where])
    provider = table.find(where.name)
    assert provider is not None
    try:
        return await provider.answer(
            Request(model=model, system="", messages=[UserMessage("hi")]), DeltaListener().publish
        )
    finally:
        await table.close()


# ---- families -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "belongs_to"),
    [
        ("anthropic", "anthropic"), ("vertexai-anthropic", "anthropic"), ("claude", "anthropic"),
        ("openai", "openai"), ("openai-chat", "openai"), ("openai-responses", "openai"), ("GPT", "openai"),
        ("ollama", "openai"), ("lmstudio", "openai"), ("llamacpp", "openai"), ("vllm", "openai"),
        ("gemini", "gemini"), ("Google", "gemini"),
        ("bedrock", "bedrock"), ("aws", "bedrock"),
        ("scripted", None), ("llama", None), ("", None),
    ],
)  # fmt: skip
def test_family_of_a_wire(wire: str, belongs_to: str | None) -> None:
    assert family(wire) == belongs_to


def test_every_wire_with_an_address_has_a_family() -> None:
    assert {wire for wire in WIRES if family(wire) is None} == {"scripted", "acp"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("anthropic", "anthropic"), ("Claude", "anthropic"), ("openai", "openai"), ("gpt", "openai"),
        ("CHATGPT", "openai"), ("gemini", "gemini"), ("google", "gemini"),
        ("openai-chat", None), ("ollama", None), ("vertexai-anthropic", None), ("", None),
    ],
)  # fmt: skip
def test_families_have_seven_names(name: str, expected: str | None) -> None:
    assert family_by_name(name) == expected


# ---- options of the Responses wire ----------------------------------------------------------------------------------


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("setting", "written"), [(None, "function_call"), ("live", "function_call"), ("seed", "tool_call")]
)
async def test_responses_wire_sets_the_spelling_of_calls(
    setting: Literal["live", "seed"] | None, written: Spelling, tmp_path: Path
) -> None:
    history = [UserMessage("hi"), AssistantMessage("", (ToolCall("ls", "{}", "a"),)), ToolMessage("ls", "x", "a")]
    async with FakeResponses(says("hi"), spelling=written) as vendor:
        settings = tmp_path / "retinue.toml"
        setting_line = "" if setting is None else f'responses_wire = "{setting}"'
        settings.write_text(
            f'[providers.mine]\nwire = "openai-responses"\nbase_url = "{vendor.base_url}"\n{setting_line}\n'
        )
        (where,) = provider_configs(load_settings(settings))
        table = ProviderRegistry({}, [where])
        provider = table.find("mine")
        assert provider is not None
        await provider.answer(Request(model="m", system="", messages=history), DeltaListener().publish)
        await table.close()

    assert vendor.requests[0].body["input"][1]["type"] == written
    assert msgspec.json.decode(LaunchConfig(provider_configs=(where,)).text(), type=LaunchConfig).provider_configs == (
        where,
    )
    assert with_address(where, "http://elsewhere/v1", None).responses_wire == setting


@pytest.mark.real_time
async def test_explicit_providers_state_their_defaults() -> None:
    async with FakeChat(says("hi")) as chat, FakeResponses(lambda _: says("hi")) as responses:
        for where in (
            provider_config("openai-chat", base_url=chat.base_url),
            provider_config("openai-responses", base_url=responses.base_url),
        ):
            provider = create_provider(where, explicit=True)
            assert isinstance(provider, PricedProvider)
            messages: list[Message] = [UserMessage("hi")]
            request = Request(model="gpt-5.1", system="", messages=messages)
            for _ in range(2):
                messages += [(await provider.answer(request, DeltaListener().publish)).message, UserMessage("more")]
            await provider.close()

    assert [heard.body["reasoning_effort"] for heard in chat.requests] == ["none", "none"]
    assert [heard.body["reasoning"] for heard in responses.requests] == [{"effort": "none"}, {"effort": "none"}]
    assert [heard.body.get("previous_response_id") for heard in responses.requests] == [None, "resp_1"]


def test_responses_wire_is_rejected_for_other_wires() -> None:
    with pytest.raises(BadInput) as raised:
        provider_config("mine", wire="openai-chat", responses_wire="seed")

    assert str(raised.value) == (
        "responses_wire applies to the wire openai-responses only; the wire of 'mine' is openai-chat"
    )


async def test_a_provider_that_cannot_close_does_not_keep_the_store_open(tmp_path: Path) -> None:
    class Broken(ScriptedProvider):
        async def close(self) -> None:
            raise ConnectionError("reset")

    with pytest.raises(ConnectionError, match="reset"):
        async with open_retinue(provider=Broken(Script()), home=tmp_path, dialects=()):
            pass

    assert str(tmp_path / "retinue.db") not in [database for _, database in TrackedConnection.open.values()]


# ---- script files ---------------------------------------------------------------------------------------------------


async def test_a_script_file_can_be_the_model(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text('{"main": [{"say": "Hello."}], "main: 6 times 7": [{"say": "42"}]}')
    async with open_retinue(model=f"scripted:{file}", home=":memory:") as retinue:
        greeted, computed = await retinue.run("Greet me."), await retinue.run("What is 6 times 7?")

    assert (greeted.text, computed.text, computed.cost) == ("Hello.", "42", 0)


def test_scripted_has_no_address_and_no_key() -> None:
    assert provider_config("scripted") == ProviderConfig(name="scripted", wire="scripted")
    with pytest.raises(BadInput) as raised:
        provider_config("scripted", base_url="http://localhost/v1")

    assert str(raised.value) == "scripted takes no base URL: it makes no requests, its model is a script file"
