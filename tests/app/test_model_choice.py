"""The choice of the model: precedence of flags, environment, settings, keys and local servers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from retinue.app.launch.model_choice import choose_model, override_provider, unpriced
from retinue.config.defaults import FileDefaults, RunDefaults
from retinue.config.precedence import Flags
from retinue.config.providers import PriceSettings, ProviderSettings
from retinue.config.settings import Settings
from retinue.core.errors import BadInput
from retinue.providers.catalog import WIRES
from retinue.providers.pricing import list_prices, listed_windows
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest

VENDOR = "https://api.openai.com/v1"
NO_SERVER = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def no_local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ollama", "lmstudio", "llamacpp", "vllm"):
        monkeypatch.setitem(WIRES, name, replace(WIRES[name], base_url=NO_SERVER))


NOTHING = Settings()


async def chosen(flags: Flags, settings: Settings = NOTHING, **environ: str) -> tuple[str, str, str, str]:
    model_choice = await choose_model(flags, settings, environ=environ)
    provider_config = model_choice.provider_config
    return provider_config.name, provider_config.base_url, provider_config.api_key_env, model_choice.model


NEAR = Settings(providers={"near": ProviderSettings(wire="openai-chat", base_url="http://near/v1")})


@pytest.mark.real_time
async def test_flags_precede_environment_and_settings() -> None:
    environ = {"RETINUE_BASE_URL": "http://env/v1", "RETINUE_MODEL": "env", "OPENAI_API_KEY": "k"}

    assert await chosen(Flags(base_url="http://flag/v1"), NEAR, **environ) == (
        "openai-chat",
        "http://flag/v1",
        "",
        "env",
    )
    assert await chosen(Flags(), NEAR, **environ) == ("openai-chat", "http://env/v1", "", "env")
    assert await chosen(Flags(model="m"), NEAR, OPENAI_API_KEY="k") == ("near", "http://near/v1", "", "m")
    assert await chosen(Flags(model="m"), OPENAI_API_KEY="k") == ("openai", VENDOR, "OPENAI_API_KEY", "m")
    assert await chosen(Flags(model="near:m"), NEAR) == ("near", "http://near/v1", "", "m")


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (Flags(), {}, r"such as ANTHROPIC_API_KEY or OPENAI_API_KEY or GEMINI_API_KEY \(retinue doctor lists all\)"),
        (Flags(model="antropic:m"), {}, "'antropic' is not a provider; known: anthropic, "),
        (Flags(base_url="http://far/v1"), {"OPENAI_API_KEY": "k"}, "no model is named for http://far/v1"),
        (Flags(provider="openai-chat", model="m"), {}, "OPENAI_API_KEY is not set"),
        (Flags(provider="openai-chat", model="m"), {"OPENAI_API_KEY": " "}, "OPENAI_API_KEY is not set"),
    ],
)
async def test_missing_choices_are_errors(flags: Flags, environ: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        await choose_model(flags, Settings(), environ=environ)


@pytest.mark.real_time
@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"])
async def test_one_key_is_enough_for_a_model_with_a_price_and_a_window(variable: str) -> None:
    name, address, key, model = await chosen(Flags(), NOTHING, **{variable: "k"})

    assert (address, key) == (WIRES[name].base_url, variable)
    assert list_prices().rates(model) is not None
    assert listed_windows().window(model) is not None


def with_defaults(*defaults: RunDefaults, profile: RunDefaults | None = None) -> Settings:
    layers = tuple(FileDefaults(each, "retinue.toml") for each in defaults)
    found = replace(NEAR, defaults=layers, profiles={} if profile is None else {"p": profile})
    return found.with_profile(None if profile is None else "p")


AT_B = ("openai-chat", "http://b/v1", "", "m")
FAR = RunDefaults(model="far", provider="openai-chat", base_url="http://far/v1")


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("flags", "settings", "environ", "expected"),
    [
        (Flags(), with_defaults(FAR), {}, ("openai-chat", "http://far/v1", "", "far")),
        (Flags(), with_defaults(RunDefaults(model="m")), {}, ("near", "http://near/v1", "", "m")),
        (Flags(), with_defaults(RunDefaults(model="near:m")), {}, ("near", "http://near/v1", "", "m")),
        (
            Flags(),
            with_defaults(RunDefaults(base_url="http://b/v1", model="m")),
            {},
            ("openai-chat", "http://b/v1", "", "m"),
        ),
        (Flags(), with_defaults(RunDefaults(model="near:m", provider="near")), {}, ("near", "http://near/v1", "", "m")),
        (Flags(model="o"), with_defaults(FAR), {}, ("openai-chat", "http://far/v1", "", "o")),
        (Flags(), with_defaults(FAR), {"RETINUE_MODEL": "near:e"}, ("near", "http://near/v1", "", "e")),
        (Flags(), with_defaults(RunDefaults(model="p"), FAR), {}, ("openai-chat", "http://far/v1", "", "p")),
        (Flags(), with_defaults(RunDefaults(provider="near", model="n"), FAR), {}, ("near", "http://near/v1", "", "n")),
        (Flags(), with_defaults(FAR, profile=RunDefaults(model="near:p")), {}, ("near", "http://near/v1", "", "p")),
        (
            Flags(),
            with_defaults(FAR, profile=RunDefaults(model="p")),
            {"RETINUE_MODEL": "e"},
            ("openai-chat", "http://far/v1", "", "p"),
        ),
        (Flags(model="f"), with_defaults(profile=RunDefaults(model="near:p")), {}, ("near", "http://near/v1", "", "f")),
        (Flags(base_url="http://b/v1", model="m"), with_defaults(FAR), {}, AT_B),
    ],
)
async def test_defaults_are_below_flags_profile_and_environment(
    flags: Flags, settings: Settings, environ: dict[str, str], expected: tuple[str, str, str, str]
) -> None:
    assert await chosen(flags, settings, **environ) == expected


@pytest.mark.real_time
async def test_a_default_model_is_not_asked_of_another_provider() -> None:
    name, _, _, model = await chosen(Flags(provider="anthropic"), with_defaults(FAR), ANTHROPIC_API_KEY="k")

    assert (name, model) == ("anthropic", WIRES["anthropic"].default_model)


@pytest.mark.real_time
async def test_a_default_address_gets_no_key_of_a_vendor() -> None:
    evil = RunDefaults(provider="openai", base_url="https://evil.example/v1", model="m")

    assert await chosen(Flags(), with_defaults(evil), OPENAI_API_KEY="k") == (
        "openai",
        "https://evil.example/v1",
        "",
        "m",
    )
    with pytest.raises(BadInput, match=r"the key in OPENAI_API_KEY is not sent to evil\.example"):
        await chosen(Flags(api_key_env="OPENAI_API_KEY"), with_defaults(evil), OPENAI_API_KEY="k")


def models(*names: str) -> FakeResponse:
    listed = ",".join(f'{{"id":"{name}"}}' for name in names)
    return FakeResponse(headers={"Content-Type": "application/json"}, pieces=(f'{{"data":[{listed}]}}'.encode(),))


@pytest.mark.real_time
async def test_the_first_model_of_a_local_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        FakeServer(lambda heard: models("qwen3:8b", "other")) as one,
        FakeServer(lambda heard: models("big")) as two,
    ):
        monkeypatch.setitem(WIRES, "lmstudio", replace(WIRES["lmstudio"], base_url=f"{one.url}/v1"))
        monkeypatch.setitem(WIRES, "vllm", replace(WIRES["vllm"], base_url=f"{two.url}/v1"))

        assert await chosen(Flags()) == ("lmstudio", f"{one.url}/v1", "", "qwen3:8b")
        assert await chosen(Flags(model="big")) == ("vllm", f"{two.url}/v1", "", "big")
        assert await chosen(Flags(provider="vllm")) == ("vllm", f"{two.url}/v1", "", "big")
    assert {(heard.method, heard.path) for heard in one.requests} == {("GET", "/v1/models")}


@pytest.mark.real_time
async def test_an_embedding_model_is_not_chosen_for_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = ("nomic-embed-text:latest", "BAAI/bge-m3", "all-minilm", "whisper-large-v3")
    async with (
        FakeServer(lambda heard: models(*embedding, "qwen3:8b")) as one,
        FakeServer(lambda heard: models(*embedding)) as two,
    ):
        monkeypatch.setitem(WIRES, "lmstudio", replace(WIRES["lmstudio"], base_url=f"{one.url}/v1"))
        monkeypatch.setitem(WIRES, "vllm", replace(WIRES["vllm"], base_url=f"{two.url}/v1"))

        assert await chosen(Flags()) == ("lmstudio", f"{one.url}/v1", "", "qwen3:8b")
        assert await chosen(Flags(provider="vllm", model="all-minilm")) == ("vllm", f"{two.url}/v1", "", "all-minilm")
        with pytest.raises(BadInput, match=f"no model is named for {two.url}/v1"):
            await chosen(Flags(provider="vllm"))


@pytest.mark.real_time
async def test_a_local_server_without_usable_models_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(heard: ReceivedRequest) -> FakeResponse:
        return FakeResponse(pieces=(b"<html>",))

    async with FakeServer(play) as server:
        monkeypatch.setitem(WIRES, "ollama", replace(WIRES["ollama"], base_url=f"{server.url}/v1"))
        with pytest.raises(BadInput, match=f"no model at {server.url}/v1"):
            await chosen(Flags())


@pytest.mark.real_time
async def test_an_overridden_provider_keeps_its_name_but_not_its_key() -> None:
    stored = (await choose_model(Flags(model="m"), Settings(), environ={"OPENAI_API_KEY": "k"})).provider_config

    assert override_provider(stored, Flags(), Settings()) == stored
    moved = override_provider(stored, Flags(base_url="http://near/v1"), Settings())
    other = override_provider(stored, Flags(provider="near"), NEAR)

    assert (moved.name, moved.base_url, moved.api_key_env) == ("openai", "http://near/v1", "")
    assert (other.name, other.wire, other.base_url, other.api_key_env) == (
        "openai", "openai-chat", "http://near/v1", "",
    )  # fmt: skip


@pytest.mark.real_time
async def test_keys_are_tried_in_the_order_anthropic_openai_gemini() -> None:
    keys = {"GEMINI_API_KEY": "g", "OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}
    names: list[str] = []
    while keys:
        model_choice = await choose_model(Flags(model="m"), NOTHING, environ=keys)
        names.append(model_choice.provider_config.name)
        keys = {name: key for name, key in keys.items() if name != model_choice.provider_config.api_key_env}

    assert names == ["anthropic", "openai", "gemini"]


@pytest.mark.real_time
async def test_a_named_key_variable_selects_its_vendor() -> None:
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "HOUSE_KEY": "h"}

    assert await chosen(Flags(model="m", api_key_env="OPENAI_API_KEY"), NOTHING, **keys) == (
        "openai", VENDOR, "OPENAI_API_KEY", "m",
    )  # fmt: skip
    with pytest.raises(BadInput, match="GEMINI_API_KEY is not set"):
        await chosen(Flags(model="m", api_key_env="GEMINI_API_KEY"), NOTHING, **keys)
    with pytest.raises(BadInput, match="the key in HOUSE_KEY belongs to no known provider"):
        await chosen(Flags(model="m", api_key_env="HOUSE_KEY"), NOTHING, **keys)


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("flags", "environ", "name"),
    [
        (Flags(provider="Claude", model="m"), {}, "anthropic"),
        (Flags(provider="chatgpt", model="m"), {}, "openai"),
        (Flags(model="GPT:m"), {}, "openai"),
        (Flags(model="google:m"), {}, "gemini"),
        (Flags(model="m"), {"RETINUE_PROVIDER": "ANTHROPIC"}, "anthropic"),
    ],
)
async def test_vendor_aliases_are_accepted(flags: Flags, environ: dict[str, str], name: str) -> None:
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "GEMINI_API_KEY": "g"}
    model_choice = await choose_model(flags, NOTHING, environ=keys | environ)

    assert (model_choice.provider_config.name, model_choice.provider_config.base_url, model_choice.model) == (
        name,
        WIRES[name].base_url,
        "m",
    )


@pytest.mark.real_time
async def test_settings_apply_to_aliases_and_configured_names_come_first() -> None:
    moved = Settings(providers={"anthropic": ProviderSettings(wire="anthropic", base_url="http://proxy")})
    own = Settings(providers={"claude": ProviderSettings(wire="openai-chat", base_url="http://mine/v1")})

    assert await chosen(Flags(provider="claude", model="m"), moved) == ("anthropic", "http://proxy", "", "m")
    assert await chosen(Flags(provider="claude", model="m"), own) == ("claude", "http://mine/v1", "", "m")
    assert await chosen(Flags(model="claude:m"), own) == ("claude", "http://mine/v1", "", "m")


@pytest.mark.real_time
async def test_only_models_without_a_price_are_warned_about() -> None:
    priced = {"mine": PriceSettings(input=1.0, output=2.0)}
    settings = Settings(
        providers={"near": ProviderSettings(wire="openai-chat", base_url="http://near/v1", prices=priced)}
    )

    async def warned(flags: Flags, **environ: str) -> bool:
        return bool(unpriced(await choose_model(flags, settings, environ=environ)))

    assert await warned(Flags(model="near:other"))
    assert not await warned(Flags(model="near:mine"))
    assert not await warned(Flags(model="near:mine", base_url="http://elsewhere/v1"))
    assert not await warned(Flags(model="ollama:other"))
    assert not await warned(Flags(model="claude:claude-sonnet-4-5"), ANTHROPIC_API_KEY="k")
