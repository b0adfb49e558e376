"""Provider for Anthropic's models on Google Cloud (Vertex AI): the same messages, with a Google access token."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar
from urllib.parse import urlsplit

from retinue.core.errors import ProviderError
from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.anthropic import VERTEX_PATH
from retinue.providers.anthropic.request import EFFORT, encode, sent_options
from retinue.providers.anthropic.response import Decoder
from retinue.providers.http import Endpoint, HttpProvider

VERSION = "vertex-2023-10-16"
TOKEN_ENV = "GOOGLE_ACCESS_TOKEN"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_MODEL = re.compile(r"[A-Za-z0-9._@-]+")
_GOOGLE = re.compile(r"(?:.*[.])?googleapis[.]com")


class VertexAIAnthropicProvider(HttpProvider):
    """A provider for a location of a Google Cloud project, which `base_url` names:
    `https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION`.

    `api_key_env` names the environment variable of the access token. Without it, and at Google's own addresses only,
    the token is taken from `GOOGLE_ACCESS_TOKEN`, else from the credentials that the package `google-auth` finds, if it
    is installed. With `full_url`, `base_url` is the complete URL of requests, with the model. `HttpProvider` describes
    the other arguments.

    >>> VertexAIAnthropicProvider("https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu")
    <VertexAIAnthropicProvider https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu>
    """

    effort_option: ClassVar[str] = EFFORT

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._base_url = base_url if full_url else base_url.rstrip("/")
        self._full_url = full_url
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._endpoints: dict[tuple[str, str | None], Endpoint] = {}
        self._cached_endpoint("model", api_key_env)  # raises now if the address is unusable
        has_key_header = any(name.lower() == "authorization" for name in self._headers)
        self._looks_up_token = not api_key_env and not has_key_header and is_google_address(base_url)
        self._google: GoogleToken | None = None

    @property
    def base_url(self) -> str:
        return self._base_url

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, version=VERSION, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return sent_options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str, *, streams: bool = True) -> Endpoint:
        if not self._full_url and not _MODEL.fullmatch(model):
            raise ProviderError(f"{model!r} is not the name of a model", fault="bad_request")
        if not self._looks_up_token:
            return self._cached_endpoint(model, self._api_key_env)
        if os.environ.get(TOKEN_ENV, "").strip():
            return self._cached_endpoint(model, TOKEN_ENV)
        if self._google is None:
            self._google = GoogleToken()
        headers = self._headers | {"Authorization": f"Bearer {await self._google.valid_token()}"}
        endpoint = self._new_endpoint(model, None, headers)
        endpoint.info = replace(endpoint.info, credentials="the credentials that google-auth found")
        return endpoint

    def _cached_endpoint(self, model: str, api_key_env: str | None) -> Endpoint:
        key = (model, api_key_env)
        if key not in self._endpoints:
            self._endpoints[key] = self._new_endpoint(model, api_key_env, self._headers)
        return self._endpoints[key]

    def _new_endpoint(self, model: str, api_key_env: str | None, headers: Mapping[str, str]) -> Endpoint:
        path = "" if self._full_url else VERTEX_PATH.format(model=model)
        return Endpoint(self._base_url, path, api_key_env=api_key_env, headers=headers, http=self._http)


def is_google_address(base_url: str) -> bool:
    """Whether a Google token may be sent to an address without the user naming a key for it.

    >>> is_google_address("https://us-east5-aiplatform.googleapis.com/v1")
    True
    >>> is_google_address("https://googleapis.com.example.org")
    False
    """
    parts = urlsplit(base_url)
    return parts.scheme == "https" and _GOOGLE.fullmatch(parts.hostname or "") is not None


class GoogleToken:
    """The access token of the credentials that `google-auth` finds, refreshed on expiry; `load` imports a module."""

    def __init__(self, load: Callable[[str], Any] = import_module) -> None:
        self._load = load
        self._credentials: Any = None
        self._refreshing = threading.Lock()

    async def valid_token(self) -> str:
        """A token that is valid now; raises `ProviderError` if there is none."""
        if self._credentials is None or not self._credentials.valid:
            # google-auth reads files, starts programs and calls servers, all of it blocking.
            failure = await asyncio.to_thread(self._refresh)
            if failure:
                raise ProviderError(failure, fault="auth")
        return str(getattr(self._credentials, "token", ""))

    def _refresh(self) -> str:
        """Get a token, unless another thread just did; returns an error message, or an empty string."""
        try:
            auth, transport = self._load("google.auth"), self._load("google.auth.transport.requests")
            exceptions = self._load("google.auth.exceptions")
        except ImportError:
            return (
                f"no Google access token: set {TOKEN_ENV} (gcloud auth print-access-token prints one), name another "
                "variable (api_key_env), or install google-auth and requests"
            )
        with self._refreshing:
            try:
                if self._credentials is None:
                    self._credentials, _ = auth.default(scopes=[SCOPE])
                if not self._credentials.valid:
                    self._credentials.refresh(transport.Request())
            except exceptions.GoogleAuthError as error:
                return f"no Google access token: {error}; set {TOKEN_ENV}, or run gcloud auth application-default login"
        return ""
