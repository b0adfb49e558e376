"""Providers at Google Cloud (Vertex AI): addresses with project and region, and Google's access tokens."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from retinue.core.errors import ProviderError
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider

TOKEN_ENV = "GOOGLE_ACCESS_TOKEN"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"

CREDENTIALS_ENV, CREDENTIALS_FILE = "GOOGLE_APPLICATION_CREDENTIALS", "application_default_credentials.json"
"""The variable with the path of a file with credentials, and the name of the file that gcloud makes."""

_MODEL = re.compile(r"[A-Za-z0-9._@-]+")
_GOOGLE = re.compile(r"(?:.*[.])?googleapis[.]com")


class GoogleCloudProvider(HttpProvider):
    """Base class of providers for a location of a Google Cloud project, which `base_url` names:
    `https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION`.

    `api_key_env` names the environment variable of the access token. Without it, and at Google's own addresses only,
    the token is taken from `GOOGLE_ACCESS_TOKEN`, else from the credentials that the package `google-auth` finds, if it
    is installed. With `full_url`, `base_url` is the complete URL of requests, with the model. `HttpProvider` describes
    the other arguments.
    """

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
        self._endpoints: dict[tuple[str, str | None, bool], Endpoint] = {}
        self._cached_endpoint("model", api_key_env, streams=True)  # raises now if the address is unusable
        has_key_header = any(name.lower() == "authorization" for name in self._headers)
        self._looks_up_token = not api_key_env and not has_key_header and is_google_address(base_url)
        self._google: GoogleToken | None = None

    @abstractmethod
    def path(self, model: str, *, streams: bool) -> str:
        """What is added to the base URL for a model."""

    @property
    def query(self) -> str:
        """What is added to the URL of streams."""
        return ""

    @property
    def base_url(self) -> str:
        return self._base_url

    async def endpoint(self, model: str, *, streams: bool = True) -> Endpoint:
        if not self._full_url and not _MODEL.fullmatch(model):
            raise ProviderError(f"{model!r} is not the name of a model", fault="bad_request")
        if not self._looks_up_token:
            return self._cached_endpoint(model, self._api_key_env, streams=streams)
        if os.environ.get(TOKEN_ENV, "").strip():
            return self._cached_endpoint(model, TOKEN_ENV, streams=streams)
        if self._google is None:
            self._google = GoogleToken()
        headers = self._headers | {"Authorization": f"Bearer {await self._google.valid_token()}"}
        endpoint = self._new_endpoint(model, None, headers, streams=streams)
        endpoint.info = replace(endpoint.info, credentials="the credentials that google-auth found")
        return endpoint

    def _cached_endpoint(self, model: str, api_key_env: str | None, *, streams: bool) -> Endpoint:
        key = (model, api_key_env, streams)
        if key not in self._endpoints:
            self._endpoints[key] = self._new_endpoint(model, api_key_env, self._headers, streams=streams)
        return self._endpoints[key]

    def _new_endpoint(
        self, model: str, api_key_env: str | None, headers: Mapping[str, str], *, streams: bool
    ) -> Endpoint:
        base_url, path = self._base_url, "" if self._full_url else self.path(model, streams=streams)
        if streams and self.query:
            base_url += ("&" if "?" in base_url else "?") + self.query
        return Endpoint(base_url, path, api_key_env=api_key_env, headers=headers, http=self._http)


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
                    self._credentials, _ = _find_credentials(auth)
                if not self._credentials.valid:
                    self._credentials.refresh(transport.Request())
            except exceptions.GoogleAuthError as error:
                return f"no Google access token: {error}; set {TOKEN_ENV}, or run gcloud auth application-default login"
        return ""


def _find_credentials(auth: Any) -> tuple[Any, object]:
    """The credentials in the file that google-auth would read, else those that it finds without one.

    For such a file `auth.default` starts `gcloud`, which it looks up on PATH, to learn the name of a project. The name
    is not needed here, and the first folder on PATH may be one in which agents write.
    """
    windows = os.path.join(os.environ.get("APPDATA", ""), "gcloud")
    usual = windows if sys.platform == "win32" else os.path.expanduser("~/.config/gcloud")
    folder = os.environ.get("CLOUDSDK_CONFIG") or usual
    file = os.environ.get(CREDENTIALS_ENV) or os.path.join(folder, CREDENTIALS_FILE)
    if os.path.isfile(file):
        return auth.load_credentials_from_file(file, scopes=[SCOPE])
    return auth.default(scopes=[SCOPE])
