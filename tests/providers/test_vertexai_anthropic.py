"""The Vertex AI wire: the provider contract, its URLs, and the Google access token."""

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from yarl import URL

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import Delta
from retinue.core.ports import Provider
from retinue.net.http import Http
from retinue.net.http1 import Disconnected
from retinue.providers.anthropic.vertex import VertexAIAnthropicProvider
from retinue.providers.catalog import WIRES, create_provider, provider_config
from retinue.providers.google_cloud import GoogleToken, is_google_address
from retinue.providers.scripted import Line, says
from retinue.testing.contracts.provider import PROMISES, Promise, sample_request
from retinue.testing.fake_server import FakeResponse
from tests.providers.fakes.anthropic import FakeAnthropic


def ignore(_: Delta) -> None:
    """Ignore all deltas."""


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    async with FakeAnthropic(line) as vendor, VertexAIAnthropicProvider(vendor.google_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


async def test_the_model_is_in_the_url_and_the_version_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "ya29.secret")
    request = replace(sample_request(), model="claude-sonnet-4-5@20250929")
    async with (
        FakeAnthropic(says("yes")) as vendor,
        VertexAIAnthropicProvider(vendor.google_url, "MY_TOKEN") as provider,
    ):
        await provider.answer(request, ignore)

    (heard,) = vendor.requests
    path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict"
    assert heard.path == path
    assert heard.headers["authorization"] == "Bearer ya29.secret"
    assert heard.body["anthropic_version"] == "vertex-2023-10-16"
    assert heard.body.keys() == {"anthropic_version", "max_tokens", "stream", "tools", "system", "messages"}


async def test_a_google_token_is_sent_to_google_only_unless_its_variable_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "ya29.secret")
    async with FakeAnthropic(says("yes")) as vendor, VertexAIAnthropicProvider(vendor.google_url) as provider:
        await provider.answer(sample_request(), ignore)

    assert "authorization" not in vendor.requests[0].headers


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5", True),
        ("https://aiplatform.googleapis.com/v1/projects/p/locations/global", True),
        ("http://aiplatform.googleapis.com/v1", False),
        ("https://aiplatform.googleapis.com.example.org/v1", False),
        ("https://notgoogleapis.com/v1", False),
        ("http://127.0.0.1:8080/v1", False),
    ],
)
def test_google_addresses_are_recognized_by_host(address: str, expected: bool) -> None:
    assert is_google_address(address) is expected


async def test_an_invalid_model_name_is_not_put_into_a_url() -> None:
    async with FakeAnthropic(says("yes")) as vendor, VertexAIAnthropicProvider(vendor.google_url) as provider:
        with pytest.raises(ProviderError, match="not the name of a model"):
            await provider.answer(replace(sample_request(), model="../../x:predict?"), ignore)

    assert vendor.requests == []


async def test_google_error_objects_are_mapped_to_faults() -> None:
    error_body = b'[{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED"}}]'
    async with (
        FakeAnthropic(FakeResponse(status=429, pieces=(error_body,))) as vendor,
        VertexAIAnthropicProvider(vendor.google_url) as provider,
    ):
        with pytest.raises(ProviderError, match="Quota exceeded") as caught:
            await provider.answer(sample_request(), ignore)

    assert (caught.value.fault, caught.value.status) == ("rate_limited", 429)


# ---- tokens ---------------------------------------------------------------------------------------------------------


class GoogleAuthError(Exception):
    """The error of google-auth."""


class Google:
    """A stand-in for the package google-auth; each token is valid until it is `spent`."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.valid = False
        self.token = ""
        self.refreshed = 0
        self.file = ""

    def load(self, name: str) -> Any:
        return {
            "google.auth": SimpleNamespace(
                default=self.default, load_credentials_from_file=self.load_credentials_from_file
            ),
            "google.auth.exceptions": SimpleNamespace(GoogleAuthError=GoogleAuthError),
            "google.auth.transport.requests": SimpleNamespace(Request=object),
        }[name]

    def default(self, *, scopes: list[str]) -> tuple[Any, str]:
        assert scopes == ["https://www.googleapis.com/auth/cloud-platform"]
        if not self.works:
            raise GoogleAuthError("no credentials were by_default")
        return self, "project"

    def load_credentials_from_file(self, file: str, *, scopes: list[str]) -> tuple[Any, None]:
        self.file = file
        return self, None

    def refresh(self, _: object) -> None:
        self.refreshed += 1
        self.valid, self.token = True, f"token {self.refreshed}"


async def test_a_token_is_refreshed_only_when_it_has_expired() -> None:
    google = Google()
    token = GoogleToken(google.load)

    assert [await token.valid_token(), await token.valid_token()] == ["token 1", "token 1"]
    google.valid = False
    assert [await token.valid_token(), await token.valid_token()] == ["token 2", "token 2"]


@pytest.mark.parametrize("variable", ["GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "HOME"])
async def test_credentials_in_a_file_are_read_without_a_search_that_starts_gcloud(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".config" / "gcloud" if variable == "HOME" else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "application_default_credentials.json"
    file.write_text("{}")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(file) if variable.startswith("GOOGLE") else str(tmp_path))
    google = Google(works=False)

    assert await GoogleToken(google.load).valid_token() == "token 1"
    assert google.file == str(file)


async def test_missing_google_credentials_are_an_auth_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(ProviderError, match="no credentials were by_default; set GOOGLE_ACCESS_TOKEN") as caught:
        await GoogleToken(Google(works=False).load).valid_token()

    assert caught.value.fault == "auth"


async def test_missing_google_auth_is_an_auth_error_with_advice() -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    with pytest.raises(ProviderError, match=r"set GOOGLE_ACCESS_TOKEN .* or install google-auth") as caught:
        await GoogleToken(missing).valid_token()

    assert caught.value.fault == "auth"


GOOGLE_URL = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"


class RecordingHttp(Http):
    """A session that records requests and sends none."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str | None]] = []

    def post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> Any:
        self.sent.append((str(url), headers.get("Authorization")))
        raise Disconnected("the wire is tapped")


async def sent_to_google(provider: VertexAIAnthropicProvider, http: RecordingHttp) -> tuple[str, str | None]:
    with pytest.raises(ProviderError, match="closed the connection"):
        await provider.answer(replace(sample_request(), model="claude-sonnet-4-5"), ignore)
    return http.sent[-1]


REQUEST_URL = f"{GOOGLE_URL}/publishers/anthropic/models/claude-sonnet-4-5:streamRawPredict"


async def test_at_google_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "ya29.first")
    monkeypatch.setenv("MINE", "ya29.mine")
    http = RecordingHttp()
    by_default, named = (VertexAIAnthropicProvider(GOOGLE_URL, name, http=http) for name in (None, "MINE"))

    assert await sent_to_google(by_default, http) == (REQUEST_URL, "Bearer ya29.first")
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "ya29.second")
    assert await sent_to_google(by_default, http) == (REQUEST_URL, "Bearer ya29.second")
    assert await sent_to_google(named, http) == (REQUEST_URL, "Bearer ya29.mine")


async def test_at_google_the_token_falls_back_to_google_auth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOGLE_ACCESS_TOKEN", raising=False)
    google, http = Google(), RecordingHttp()
    for name in ("google.auth", "google.auth.exceptions", "google.auth.transport.requests"):
        monkeypatch.setitem(sys.modules, name, google.load(name))
    provider = VertexAIAnthropicProvider(GOOGLE_URL, http=http)

    assert await sent_to_google(provider, http) == (REQUEST_URL, "Bearer token 1")
    google.valid = False
    assert await sent_to_google(provider, http) == (REQUEST_URL, "Bearer token 2")


async def test_at_google_without_a_token_no_request_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOGLE_ACCESS_TOKEN", raising=False)
    monkeypatch.setitem(sys.modules, "google.auth", None)
    http = RecordingHttp()
    with pytest.raises(ProviderError) as caught:
        await VertexAIAnthropicProvider(GOOGLE_URL, http=http).answer(sample_request(), ignore)

    assert (str(caught.value), caught.value.fault, http.sent) == (
        "no Google access token: set GOOGLE_ACCESS_TOKEN (gcloud auth print-access-token prints one), name another "
        "variable (api_key_env), or install google-auth and requests",
        "auth",
        [],
    )


# ---- registration ---------------------------------------------------------------------------------------------------


def test_anthropic_is_the_first_wire_and_both_are_registered() -> None:
    assert next(iter(WIRES)) == "anthropic"
    assert repr(create_provider(provider_config("anthropic"))) == "<AnthropicProvider https://api.anthropic.com>"
    assert (
        provider_config("anthropic").api_key_env,
        provider_config("anthropic", base_url="http://x").api_key_env,
    ) == (
        "ANTHROPIC_API_KEY",
        "",
    )
    assert (
        repr(create_provider(provider_config("vertexai-anthropic", base_url="https://x/v1")))
        == "<VertexAIAnthropicProvider https://x/v1>"
    )


def test_vertexai_anthropic_needs_a_base_url() -> None:
    with pytest.raises(
        BadInput, match=r"vertexai-anthropic has no default address: give its base URL, such as https://"
    ):
        provider_config("vertexai-anthropic")
