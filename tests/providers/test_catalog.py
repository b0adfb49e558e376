"""Providers by name: what people call them, where they are, and what they cost."""

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from retinue.app.launch_config import LaunchConfig
from retinue.app.open import open as open_retinue
from retinue.app.registries import ProviderRegistry
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
from retinue.providers.openai_responses.provider import Spelling
from retinue.providers.pricing import PricedProvider, Rates
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import Listener
from retinue.testing.fake_chat import FakeChat
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.responses import FakeResponses


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("anthropic", "anthropic"), ("Claude", "anthropic"), ("CLAUDE", "anthropic"),
        ("openai", "openai"), ("gpt", "openai"), ("ChatGPT", "openai"), ("OpenAI-Chat", "openai-chat"),
        ("gemini", "gemini"), ("Google", "gemini"),
    ],
)  # fmt: skip
def test_a_vendor_is_known_by_what_people_call_it(name: str, wire: str) -> None:
    reached = provider_config(name)

    assert (reached.name, reached.wire, reached.api_key_env) == (wire, wire, WIRES[wire].api_key_env)
    assert ProviderRegistry({}, [provider_config("ollama")]).split(f"{name}:m", "ollama") == (wire, "m")
    assert ProviderRegistry({}).find(name) is not None


def test_openai_means_responses() -> None:
    assert repr(create_provider(provider_config("gpt"))) == "<OpenAIResponsesProvider https://api.openai.com/v1>"


def test_a_name_of_ones_own_goes_before_what_others_mean_by_it() -> None:
    own = ProviderConfig(name="claude", wire="openai-chat", base_url="http://mine/v1")
    table = ProviderRegistry({}, [own])

    assert table.split("claude:m", "x") == ("claude", "m")
    assert table.split("Claude:m", "x") == ("anthropic", "m")
    assert repr(table.find("claude")) == "<OpenAIChatProvider http://mine/v1>"


def test_what_nobody_is_called_is_still_unknown_and_a_model_with_a_colon_is_a_model() -> None:
    with pytest.raises(UnknownName):
        provider_config("llama")
    assert ProviderRegistry({}).split("qwen3:8b", "ollama") == ("ollama", "qwen3:8b")
    assert set(ALIASES.values()) <= set(WIRES)
    assert canonical_name("qwen3") == "qwen3"


async def test_a_program_may_call_vendors_as_people_do() -> None:
    retinue = open_retinue(model="Claude:claude-haiku-4-5", home=":memory:")
    async with retinue:
        run_spec = await retinue.spawn("hi", detached=True)
        asked = (await retinue.supervisor.replay(run_spec.run_id)).run_spec

    assert (asked.provider, asked.model) == ("anthropic", "claude-haiku-4-5")


# ---- what they cost -------------------------------------------------------------------------------------------------


def test_only_a_local_server_at_its_own_machine_is_free() -> None:
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


def test_prices_are_kept_with_a_run_so_that_another_process_counts_alike() -> None:
    mine = provider_config("ollama", prices={"qwen3": Rates(input=1.0, output=2.0, cached=0.5)})
    setup = LaunchConfig(provider_configs=(mine,))

    assert msgspec.json.decode(setup.text(), type=LaunchConfig) == setup


@pytest.mark.real_time
async def test_a_reply_over_any_wire_says_what_it_cost() -> None:
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
        return await provider.answer(Request(model=model, system="", messages=[UserMessage("hi")]), Listener().publish)
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
        ("scripted", None), ("llama", None), ("", None),
    ],
)  # fmt: skip
def test_a_wire_belongs_to_the_family_whose_way_of_talking_it_is(wire: str, belongs_to: str | None) -> None:
    assert family(wire) == belongs_to


def test_every_wire_that_asks_somebody_has_a_family() -> None:
    assert {wire for wire in WIRES if family(wire) is None} == {"scripted"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("anthropic", "anthropic"), ("Claude", "anthropic"), ("openai", "openai"), ("gpt", "openai"),
        ("CHATGPT", "openai"), ("gemini", "gemini"), ("google", "gemini"),
        ("openai-chat", None), ("ollama", None), ("vertexai-anthropic", None), ("", None),
    ],
)  # fmt: skip
def test_a_family_is_meant_by_seven_names_and_no_others(name: str, meant: str | None) -> None:
    assert family_by_name(name) == meant


# ---- how responses are written --------------------------------------------------------------------------------------


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("setting", "written"), [(None, "function_call"), ("live", "function_call"), ("seed", "tool_call")]
)
async def test_a_setting_says_how_calls_are_written(
    setting: Literal["live", "seed"] | None, written: Spelling, tmp_path: Path
) -> None:
    history = [UserMessage("hi"), AssistantMessage("", (ToolCall("ls", "{}", "a"),)), ToolMessage("ls", "x", "a")]
    async with FakeResponses(says("hi"), spelling=written) as vendor:
        settings = tmp_path / "retinue.toml"
        said = "" if setting is None else f'responses_wire = "{setting}"'
        settings.write_text(f'[providers.mine]\nwire = "openai-responses"\nbase_url = "{vendor.base_url}"\n{said}\n')
        (where,) = provider_configs(load_settings(settings))
        table = ProviderRegistry({}, [where])
        provider = table.find("mine")
        assert provider is not None
        await provider.answer(Request(model="m", system="", messages=history), Listener().publish)
        await table.close()

    assert vendor.heard[0].body["input"][1]["type"] == written
    assert msgspec.json.decode(LaunchConfig(provider_configs=(where,)).text(), type=LaunchConfig).provider_configs == (
        where,
    )
    assert with_address(where, "http://elsewhere/v1", None).responses_wire == setting


@pytest.mark.real_time
async def test_a_provider_can_be_reached_that_spells_everything_out() -> None:
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
                messages += [(await provider.answer(request, Listener().publish)).message, UserMessage("more")]
            await provider.close()

    assert [heard.body["reasoning_effort"] for heard in chat.heard] == ["none", "none"]
    assert [heard.body["reasoning"] for heard in responses.heard] == [{"effort": "none"}, {"effort": "none"}]
    assert [heard.body.get("previous_response_id") for heard in responses.heard] == [None, "resp_1"]


def test_the_setting_is_for_responses_alone() -> None:
    with pytest.raises(BadInput) as wrong:
        provider_config("mine", wire="openai-chat", responses_wire="seed")

    assert str(wrong.value) == (
        "responses_wire applies to the wire openai-responses only; the wire of 'mine' is openai-chat"
    )


# ---- a script for a model -------------------------------------------------------------------------------------------


async def test_a_file_can_be_the_model(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text('{"main": [{"say": "Hello."}], "main: 6 times 7": [{"say": "42"}]}')
    async with open_retinue(model=f"scripted:{file}", home=":memory:") as retinue:
        greeted, computed = await retinue.run("Greet me."), await retinue.run("What is 6 times 7?")

    assert (greeted.text, computed.text, computed.cost) == ("Hello.", "42", 0)


def test_a_script_has_no_address_and_no_key() -> None:
    assert provider_config("scripted") == ProviderConfig(name="scripted", wire="scripted")
    with pytest.raises(BadInput) as wrong:
        provider_config("scripted", base_url="http://localhost/v1")

    assert str(wrong.value) == "scripted takes no base URL: it makes no requests, its model is a script file"
