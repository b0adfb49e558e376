"""Anthropic's models on Google's servers: the same messages, at another address, with a Google token for a key."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from retinue.core.errors import ProviderError
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.anthropic_reply import Decoder
from retinue.providers.anthropic_request import encode
from retinue.providers.endpoint import Endpoint

VERSION = "vertex-2023-10-16"
TOKEN_ENV = "GOOGLE_ACCESS_TOKEN"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_MODEL = re.compile(r"[A-Za-z0-9._@-]+")
_GOOGLE = re.compile(r"(?:.*[.])?googleapis[.]com")


class VertexAIAnthropicProvider:
    """A provider that streams messages from a place of a Google Cloud project, which `base_url` names:
    `https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION`.

    `api_key_env` names the environment variable that holds the access token. Without it, and at Google's own addresses
    only, the token is taken from `GOOGLE_ACCESS_TOKEN`, else from the credentials that the package `google-auth` finds,
    if it is installed. `headers` and `http` are as for the other wires.

    >>> VertexAIAnthropicProvider("https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu")
    <VertexAIAnthropicProvider https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        http: Http | None = None,
    ) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        self._base_url = base_url.rstrip("/")
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._endpoints: dict[tuple[str, str | None], Endpoint] = {}
        self._at("model", api_key_env)  # so that a mistake in the address is noticed now
        own_key = any(name.lower() == "authorization" for name in self._headers)
        self._finds_token = not api_key_env and not own_key and is_googles(base_url)
        self._google: GoogleToken | None = None

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`, in one attempt."""
        if not _MODEL.fullmatch(request.model):
            raise ProviderError(f"{request.model!r} is not the name of a model", fault="bad_request")
        endpoint = await self._endpoint(request.model)
        body = encode(request, version=VERSION)
        return await endpoint.ask(body, Decoder(model=request.model), publish, model=request.model)

    async def close(self) -> None:
        """Close the connections, unless they belong to somebody else."""
        if self._owns_http:
            await self._http.close()

    async def __aenter__(self) -> VertexAIAnthropicProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<VertexAIAnthropicProvider {self._base_url}>"

    async def _endpoint(self, model: str) -> Endpoint:
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
        path = f"/publishers/anthropic/models/{model}:streamRawPredict"
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
