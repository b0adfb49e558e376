"""Anthropic's models on Google's servers: the same promises, another address, and a token only where it belongs."""

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientConnectionError
from yarl import URL

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import Delta
from retinue.core.ports import Provider
from retinue.net.http import Http
from retinue.providers.anthropic.vertex import GoogleToken, VertexAIAnthropicProvider, is_google_address
from retinue.providers.catalog import WIRES, create_provider, provider_config
from retinue.providers.scripted import Line, says
from retinue.testing.contracts.provider import PROMISES, Promise, question
from retinue.testing.fake_server import Answer
from tests.providers.fakes.anthropic import FakeAnthropic


def unheard(_: Delta) -> None:
    """Hear nothing."""


@asynccontextmanager
async def stage(line: Line) -> AsyncGenerator[Provider]:
    async with FakeAnthropic(line) as vendor, VertexAIAnthropicProvider(vendor.google_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_promises_of_a_provider(promise: Promise) -> None:
    await promise(stage)


async def test_the_model_is_in_the_address_and_the_version_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "ya29.secret")
    request = replace(question(), model="claude-sonnet-4-5@20250929")
    async with (
        FakeAnthropic(says("yes")) as vendor,
        VertexAIAnthropicProvider(vendor.google_url, "MY_TOKEN") as provider,
    ):
        await provider.answer(request, unheard)

    (heard,) = vendor.heard
    path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict"
    assert heard.path == path
    assert heard.headers["authorization"] == "Bearer ya29.secret"
    assert heard.body["anthropic_version"] == "vertex-2023-10-16"
    assert heard.body.keys() == {"anthropic_version", "max_tokens", "stream", "tools", "system", "messages"}


async def test_a_token_goes_to_google_alone_unless_its_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "ya29.secret")
    async with FakeAnthropic(says("yes")) as vendor, VertexAIAnthropicProvider(vendor.google_url) as provider:
        await provider.answer(question(), unheard)

    assert "authorization" not in vendor.heard[0].headers


@pytest.mark.parametrize(
    ("address", "googles"),
    [
        ("https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5", True),
        ("https://aiplatform.googleapis.com/v1/projects/p/locations/global", True),
        ("http://aiplatform.googleapis.com/v1", False),
        ("https://aiplatform.googleapis.com.example.org/v1", False),
        ("https://notgoogleapis.com/v1", False),
        ("http://127.0.0.1:8080/v1", False),
    ],
)
def test_googles_addresses_are_known_by_their_host(address: str, googles: bool) -> None:
    assert is_google_address(address) is googles


async def test_a_name_that_is_no_models_is_not_made_part_of_an_address() -> None:
    async with FakeAnthropic(says("yes")) as vendor, VertexAIAnthropicProvider(vendor.google_url) as provider:
        with pytest.raises(ProviderError, match="not the name of a model"):
            await provider.answer(replace(question(), model="../../x:predict?"), unheard)

    assert vendor.heard == []


async def test_googles_own_errors_are_understood() -> None:
    told = b'[{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED"}}]'
    async with (
        FakeAnthropic(Answer(status=429, pieces=(told,))) as vendor,
        VertexAIAnthropicProvider(vendor.google_url) as provider,
    ):
        with pytest.raises(ProviderError, match="Quota exceeded") as caught:
            await provider.answer(question(), unheard)

    assert (caught.value.fault, caught.value.status) == ("rate_limited", 429)


# ---- tokens ---------------------------------------------------------------------------------------------------------


class GoogleAuthError(Exception):
    """What google-auth raises."""


class Google:
    """The package google-auth, as far as it is used; each token is good until it is `spent`."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.valid = False
        self.token = ""
        self.refreshed = 0

    def load(self, name: str) -> Any:
        return {
            "google.auth": SimpleNamespace(default=self.default),
            "google.auth.exceptions": SimpleNamespace(GoogleAuthError=GoogleAuthError),
            "google.auth.transport.requests": SimpleNamespace(Request=object),
        }[name]

    def default(self, *, scopes: list[str]) -> tuple[Any, str]:
        assert scopes == ["https://www.googleapis.com/auth/cloud-platform"]
        if not self.works:
            raise GoogleAuthError("no credentials were found")
        return self, "project"

    def refresh(self, _: object) -> None:
        self.refreshed += 1
        self.valid, self.token = True, f"token {self.refreshed}"


async def test_a_token_is_asked_for_again_only_when_it_has_ended() -> None:
    google = Google()
    token = GoogleToken(google.load)

    assert [await token.valid_token(), await token.valid_token()] == ["token 1", "token 1"]
    google.valid = False
    assert [await token.valid_token(), await token.valid_token()] == ["token 2", "token 2"]


async def test_without_credentials_the_reason_says_what_to_do() -> None:
    with pytest.raises(ProviderError, match="no credentials were found; set GOOGLE_ACCESS_TOKEN") as caught:
        await GoogleToken(Google(works=False).load).valid_token()

    assert caught.value.fault == "auth"


async def test_without_the_package_the_reason_says_what_to_do() -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    with pytest.raises(ProviderError, match=r"set GOOGLE_ACCESS_TOKEN .* or install google-auth") as caught:
        await GoogleToken(missing).valid_token()

    assert caught.value.fault == "auth"


GOOGLES = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"


class Wiretap(Http):
    """A session that sends nothing, and remembers what it was to send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str | None]] = []

    def post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> Any:
        self.sent.append((str(url), headers.get("Authorization")))
        raise ClientConnectionError("the wire is tapped")


async def sent_to_google(provider: VertexAIAnthropicProvider, http: Wiretap) -> tuple[str, str | None]:
    with pytest.raises(ProviderError, match="closed the connection"):
        await provider.answer(replace(question(), model="claude-sonnet-4-5"), unheard)
    return http.sent[-1]


ASKED = f"{GOOGLES}/publishers/anthropic/models/claude-sonnet-4-5:streamRawPredict"


async def test_at_google_the_token_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "ya29.first")
    monkeypatch.setenv("MINE", "ya29.mine")
    http = Wiretap()
    found, named = (VertexAIAnthropicProvider(GOOGLES, name, http=http) for name in (None, "MINE"))

    assert await sent_to_google(found, http) == (ASKED, "Bearer ya29.first")
    monkeypatch.setenv("GOOGLE_ACCESS_TOKEN", "ya29.second")
    assert await sent_to_google(found, http) == (ASKED, "Bearer ya29.second")
    assert await sent_to_google(named, http) == (ASKED, "Bearer ya29.mine")


async def test_at_google_the_token_is_that_of_the_package_where_there_is_no_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOGLE_ACCESS_TOKEN", raising=False)
    google, http = Google(), Wiretap()
    for name in ("google.auth", "google.auth.exceptions", "google.auth.transport.requests"):
        monkeypatch.setitem(sys.modules, name, google.load(name))
    provider = VertexAIAnthropicProvider(GOOGLES, http=http)

    assert await sent_to_google(provider, http) == (ASKED, "Bearer token 1")
    google.valid = False
    assert await sent_to_google(provider, http) == (ASKED, "Bearer token 2")


async def test_at_google_without_any_token_nothing_is_sent_and_the_reason_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOGLE_ACCESS_TOKEN", raising=False)
    monkeypatch.setitem(sys.modules, "google.auth", None)
    http = Wiretap()
    with pytest.raises(ProviderError) as caught:
        await VertexAIAnthropicProvider(GOOGLES, http=http).answer(question(), unheard)

    assert (str(caught.value), caught.value.fault, http.sent) == (
        "no Google access token: set GOOGLE_ACCESS_TOKEN (gcloud auth print-access-token prints one), name another "
        "variable (api_key_env), or install google-auth and requests",
        "auth",
        [],
    )


# ---- by name --------------------------------------------------------------------------------------------------------


def test_the_wires_are_known_by_name_and_anthropics_key_is_looked_for_first() -> None:
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


def test_without_an_address_google_cannot_be_asked() -> None:
    with pytest.raises(
        BadInput, match=r"vertexai-anthropic has no default address: give its base URL, such as https://"
    ):
        provider_config("vertexai-anthropic")
