"""Anthropic's models on Google's servers: the same messages, at another address, with a Google token for a key."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from retinue.core.errors import ProviderError
from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.anthropic.request import encode, named_options
from retinue.providers.anthropic.response import Decoder
from retinue.providers.http import Endpoint, HttpProvider

VERSION = "vertex-2023-10-16"
TOKEN_ENV = "GOOGLE_ACCESS_TOKEN"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_MODEL = re.compile(r"[A-Za-z0-9._@-]+")
_GOOGLE = re.compile(r"(?:.*[.])?googleapis[.]com")


class VertexAIAnthropicProvider(HttpProvider):
    """A provider that streams messages from a place of a Google Cloud project, which `base_url` names:
    `https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION`.

    `api_key_env` names the environment variable that holds the access token. Without it, and at Google's own addresses
    only, the token is taken from `GOOGLE_ACCESS_TOKEN`, else from the credentials that the package `google-auth` finds,
    if it is installed. `headers` and `http` are as for the other wires. With `whole_url`, `base_url` is the whole
    address of requests, the model included.

    >>> VertexAIAnthropicProvider("https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu")
    <VertexAIAnthropicProvider https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        whole_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._base_url = base_url if whole_url else base_url.rstrip("/")
        self._whole_url = whole_url
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._endpoints: dict[tuple[str, str | None], Endpoint] = {}
        self._at("model", api_key_env)  # so that a mistake in the address is noticed now
        own_key = any(name.lower() == "authorization" for name in self._headers)
        self._finds_token = not api_key_env and not own_key and is_googles(base_url)
        self._google: GoogleToken | None = None

    @property
    def base_url(self) -> str:
        return self._base_url

    def encode(self, request: Request, unwanted: Collection[str]) -> bytes:
        return encode(request, version=VERSION, unwanted=unwanted)

    def options(self, request: Request, unwanted: Collection[str]) -> Iterable[str]:
        return named_options(request, unwanted)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        """Where a model is asked: it has an address of its own."""
        if not self._whole_url and not _MODEL.fullmatch(model):
            raise ProviderError(f"{model!r} is not the name of a model", fault="bad_request")
        if not self._finds_token:
            return self._at(model, self._api_key_env)
        if os.environ.get(TOKEN_ENV, "").strip():
            return self._at(model, TOKEN_ENV)
        if self._google is None:
            self._google = GoogleToken()
        endpoint = self._made(model, None, self._headers | {"Authorization": f"Bearer {await self._google.fresh()}"})
        endpoint.place = replace(endpoint.place, credentials="the credentials that google-auth found")
        return endpoint

    def _at(self, model: str, api_key_env: str | None) -> Endpoint:
        place = (model, api_key_env)
        if place not in self._endpoints:
            self._endpoints[place] = self._made(model, api_key_env, self._headers)
        return self._endpoints[place]

    def _made(self, model: str, api_key_env: str | None, headers: Mapping[str, str]) -> Endpoint:
        path = "" if self._whole_url else f"/publishers/anthropic/models/{model}:streamRawPredict"
        return Endpoint(self._base_url, path, api_key_env=api_key_env, headers=headers, http=self._http)


def is_googles(base_url: str) -> bool:
    """Whether an address is one to which a Google token may be sent without being told so.

    >>> is_googles("https://us-east5-aiplatform.googleapis.com/v1"), is_googles("https://googleapis.com.example.org")
    (True, False)
    """
    parts = urlsplit(base_url)
    return parts.scheme == "https" and _GOOGLE.fullmatch(parts.hostname or "") is not None


class GoogleToken:
    """The access token of the credentials that the package `google-auth` finds; it is asked for again when it ends.

    `load` imports a module by its name.
    """

    def __init__(self, load: Callable[[str], Any] = import_module) -> None:
        self._load = load
        self._credentials: Any = None
        self._asking = threading.Lock()

    async def fresh(self) -> str:
        """A token that is good now; raises `ProviderError` when there is none to be had."""
        if self._credentials is None or not self._credentials.valid:
            # It reads files, starts programs and asks servers, all of it blocking.
            failure = await asyncio.to_thread(self._refresh)
            if failure:
                raise ProviderError(failure, fault="auth")
        return str(getattr(self._credentials, "token", ""))

    def _refresh(self) -> str:
        """Get a token, unless somebody just did; the answer is what went wrong, or nothing."""
        try:
            auth, transport = self._load("google.auth"), self._load("google.auth.transport.requests")
            failures = self._load("google.auth.exceptions")
        except ImportError:
            return (
                f"no Google access token: set {TOKEN_ENV} (gcloud auth print-access-token prints one), name another "
                "variable (api_key_env), or install google-auth and requests"
            )
        with self._asking:
            try:
                if self._credentials is None:
                    self._credentials, _ = auth.default(scopes=[SCOPE])
                if not self._credentials.valid:
                    self._credentials.refresh(transport.Request())
            except failures.GoogleAuthError as error:
                return f"no Google access token: {error}; set {TOKEN_ENV}, or run gcloud auth application-default login"
        return ""
