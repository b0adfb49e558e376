"""`retinue models`, `retinue agents`, and the verdict of `retinue doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.providers.catalog import WIRES
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import open_in_a_thread

NO_SERVER = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def no_local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ollama", "lmstudio", "llamacpp", "vllm"):
        monkeypatch.setitem(WIRES, name, replace(WIRES[name], base_url=NO_SERVER))


def as_json(body: str, status: int = 200) -> FakeResponse:
    return FakeResponse(status=status, headers={"Content-Type": "application/json"}, pieces=(body.encode(),))


OPENAI = as_json(
    '{"data": [{"id": "gpt-5-mini"}, {"id": "text-embedding-3-large"}, {"id": "house-1", "context_length": 9000}]}'
)
GEMINI = as_json(
    '{"models": [{"name": "models/gemini-2.5-pro", "inputTokenLimit": 1000, '
    '"supportedGenerationMethods": ["generateContent"]}, '
    '{"name": "models/something", "supportedGenerationMethods": ["embedContent"]}]}'
)


def test_models_lists_what_every_server_offers_with_window_and_price(cli: Cli, folder: Path) -> None:
    def play(heard: ReceivedRequest) -> FakeResponse:
        return GEMINI if heard.path.startswith("/v1beta") else OPENAI

    with open_in_a_thread(FakeServer(play)) as server:
        (folder / "retinue.toml").write_text(
            f'[providers.house]\nwire = "openai-chat"\nbase_url = "{server.url}/v1"\napi_key_env = "HOUSE_KEY"\n'
            "prices = { house-1 = { input = 0.5, output = 1.5 } }\n"
            f'[providers.google]\nwire = "gemini"\nbase_url = "{server.url}"\napi_key_env = "G_KEY"\n'
            f'[providers.claude]\nwire = "anthropic"\nbase_url = "{server.url}"\napi_key_env = "A_KEY"\n'
        )
        ended = cli("models", env={"HOUSE_KEY": "h", "G_KEY": "g", "A_KEY": "a"})
        listed = cli("models", "house", "--json", "--all", env={"HOUSE_KEY": "h"})
    keys = ("x-api-key", "authorization", "x-goog-api-key")
    sent = sorted((heard.path, *(heard.headers.get(key, "") for key in keys)) for heard in server.requests)

    assert ended.code == 0
    assert ended.stdout.splitlines() == [
        "MODEL                  CONTEXT  INPUT $/M  OUTPUT $/M",
        "house:gpt-5-mini       272,000       0.25           2",
        "house:house-1            9,000        0.5         1.5",
        "google:gemini-2.5-pro    1,000       1.25          10",
        "claude:gpt-5-mini      272,000       0.25           2",
        "claude:house-1           9,000          ?           ?",
    ]
    assert {heard.method for heard in server.requests} == {"GET"}
    assert sent == [
        ("/v1/models", "", "Bearer h", ""),
        ("/v1/models", "", "Bearer h", ""),
        ("/v1/models", "a", "", ""),
        ("/v1beta/models", "", "", "g"),
    ]
    assert [each["name"] for each in listed.json[0]["models"]] == ["gpt-5-mini", "house-1", "text-embedding-3-large"]
    assert listed.json[0]["models"][1] == {
        "name": "house-1",
        "context_window": 9000,
        "input_price": 0.5,
        "output_price": 1.5,
        "cached_price": None,
    }


def test_models_says_why_a_server_lists_none(cli: Cli, folder: Path) -> None:
    with open_in_a_thread(FakeServer(lambda heard: as_json('{"error": {"message": "bad key"}}', 401))) as server:
        (folder / "retinue.toml").write_text(
            f'[providers.house]\nwire = "openai-chat"\nbase_url = "{server.url}/v1"\napi_key_env = "HOUSE_KEY"\n'
        )
        ended = cli("models", env={"HOUSE_KEY": "sk-secret-of-the-house"})

    assert (ended.code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("house: ")
    assert "401" in ended.stderr
    assert "sk-secret" not in ended.stderr


def test_models_sends_no_key_where_it_does_not_belong(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[providers.x]\nwire = "openai-chat"\nbase_url = "http://far.example/v1"\napi_key_env = "K"\n'
    )

    ended = cli("models", env={"K": "secret"})

    assert ended.code == 1
    assert "https" in ended.stderr


def test_models_without_providers_points_to_doctor(cli: Cli) -> None:
    assert cli("models").code == 1
    assert cli("models").stderr == "no provider is set up: see retinue doctor\n"
    assert "unknown provider: 'x'" in cli("models", "x").stderr


def test_agents_lists_those_of_the_settings(cli: Cli, folder: Path) -> None:
    assert cli("agents").stderr == "no agents in the settings: add a section [agents.NAME]\n"
    (folder / "retinue.toml").write_text(
        '[defaults]\nagent = "lead"\n[agents.lead]\ndescription = "Leads"\nmodel = "ollama:m"\ntools = ["grep"]\n'
        '[agents.old]\ndescription = "Was"\nenabled = false\n'
    )

    assert cli("agents").stdout.splitlines() == [
        "AGENT      MODEL     TOOLS  DESCRIPTION",
        "lead       ollama:m  grep   Leads",
        "old (off)  -         -      Was",
    ]
    assert cli("agents", "--json").json[0] == {
        "name": "lead",
        "description": "Leads",
        "model": "ollama:m",
        "tools": ["grep"],
        "enabled": True,
        "default": True,
        "source": "settings",
        "path": None,
    }


def verdict(cli: Cli, **environ: str) -> tuple[int, str]:
    ended = cli("doctor", "--json", env=environ)
    last = ended.json["findings"][-1]
    assert last["name"] == "verdict"
    assert ended.json["ok"] == last["ok"] == (ended.code == 0)
    return ended.code, last["found"]


def test_doctor_says_the_next_thing_to_do(cli: Cli) -> None:
    code, text = verdict(cli)

    assert code == 1
    assert text.startswith("not ready: no model is configured: ")
    assert "such as ANTHROPIC_API_KEY or OPENAI_API_KEY" in text


def test_doctor_is_ready_when_the_server_of_the_model_answers(cli: Cli, folder: Path) -> None:
    with open_in_a_thread(FakeServer(lambda heard: OPENAI)) as server:
        text = f'model = "house:gpt-5-mini"\n[providers.house]\nwire = "openai-chat"\nbase_url = "{server.url}/v1"\n'
        (folder / "retinue.toml").write_text(text)
        assert verdict(cli) == (0, f"ready: model gpt-5-mini at {server.url}/v1 (house, openai-chat)")
        findings = {each["name"]: each["found"] for each in cli("doctor", "--json").json["findings"]}
        assert findings["provider house"] == f"2 models at {server.url}/v1"
        assert verdict(cli, RETINUE_MODEL="house:other") == (
            0,
            f"ready: model other at {server.url}/v1 (house, openai-chat); the server does not list this model, "
            "see retinue models",
        )


def test_doctor_is_not_ready_when_the_server_refuses_the_key(cli: Cli, folder: Path) -> None:
    with open_in_a_thread(FakeServer(lambda heard: as_json('{"error": {"message": "bad key"}}', 401))) as server:
        (folder / "retinue.toml").write_text(
            'model = "house:m"\n[providers.house]\nwire = "openai-chat"\n'
            f'base_url = "{server.url}/v1"\napi_key_env = "HOUSE_KEY"\n'
        )
        code, text = verdict(cli, HOUSE_KEY="secret")

    assert code == 1
    assert text.startswith("not ready: house: ")


def test_doctor_names_the_variables_that_it_read(cli: Cli) -> None:
    findings = cli("doctor", "--json", env={"RETINUE_MODEL": "ollama:m"}).json["findings"]

    assert {each["name"]: each["found"] for each in findings}["RETINUE_MODEL"] == "ollama:m"


def test_doctor_asks_every_configured_provider_and_ends_with_its_verdict(cli: Cli, folder: Path) -> None:
    def play(heard: ReceivedRequest) -> FakeResponse:
        return OPENAI if heard.path.startswith("/good") else as_json('{"error": {"message": "bad key"}}', 401)

    with open_in_a_thread(FakeServer(play)) as server:
        (folder / "retinue.toml").write_text(
            f'model = "one:gpt-5-mini"\n[providers.one]\nwire = "openai-chat"\nbase_url = "{server.url}/good"\n'
            f'[providers.two]\nwire = "openai-chat"\nbase_url = "{server.url}/bad"\napi_key_env = "TWO_KEY"\n'
        )
        ended = cli("doctor", env={"TWO_KEY": "secret"})

    lines = ended.stdout.splitlines()
    assert {heard.path for heard in server.requests} == {"/good/models", "/bad/models"}
    assert [line for line in lines if "provider two" in line and "bad key" in line]
    assert lines[-1].split()[:2] == ["verdict", "ready:"]
