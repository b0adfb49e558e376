"""Amazon Bedrock from the command line, with credentials of AWS instead of a key."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.providers.scripted import says
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.cli.stage import retinue
from tests.providers.fakes.bedrock import FakeBedrock

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_BEARER_TOKEN_BEDROCK": ""}
KEY = ("--api-key-env", "AWS_BEARER_TOKEN_BEDROCK")


async def test_a_run_with_credentials_needs_no_key() -> None:
    async with FakeBedrock(says("42")) as vendor:
        where = ("--provider", "bedrock", "--base-url", vendor.base_url, "--model", "m", *KEY)
        ended = await retinue("run", "--quiet", *where, "What is 6 times 7?", env=CREDENTIALS)

    assert (ended.code, ended.stdout) == (0, "42\n"), ended.stderr
    assert vendor.requests[0].headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")


async def test_models_and_profiles_are_listed(folder: Path) -> None:
    lists: dict[str, Any] = {
        "/foundation-models": {
            "modelSummaries": [
                {"modelId": "openai.gpt-oss-120b-1:0", "outputModalities": ["TEXT"]},
                {"modelId": "stability.sd3-large-v1:0", "outputModalities": ["IMAGE"]},
                {"modelId": "amazon.titan-embed-text-v2:0", "outputModalities": ["EMBEDDING"]},
            ]
        },
        "/inference-profiles": {
            "inferenceProfileSummaries": [{"inferenceProfileId": "global.anthropic.claude-sonnet-5"}]
        },
    }

    def respond(heard: ReceivedRequest) -> FakeResponse:
        return FakeResponse(pieces=(msgspec.json.encode(lists[heard.path]),))

    async with FakeServer(respond) as server:
        settings = f'[providers.bedrock]\nbase_url = "{server.url}"\napi_key_env = "AWS_BEARER_TOKEN_BEDROCK"\n'
        (folder / "retinue.toml").write_text(settings)
        ended = await retinue("models", "bedrock", "--json", env=CREDENTIALS)

    (provider,) = ended.json
    assert [each["name"] for each in provider["models"]] == [
        "global.anthropic.claude-sonnet-5",
        "openai.gpt-oss-120b-1:0",
    ]
    assert [(heard.path, heard.query) for heard in server.requests] == [
        ("/foundation-models", "byInferenceType=ON_DEMAND"),
        ("/inference-profiles", "maxResults=1000"),
    ]
    assert all(heard.headers["authorization"].startswith("AWS4-HMAC-SHA256 ") for heard in server.requests)
