"""Provider for Google's Gemini API."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.gemini.request import encode, options
from retinue.providers.gemini.response import Decoder
from retinue.providers.http import Endpoint, HttpProvider

__all__ = ["Decoder", "GeminiProvider", "encode"]

VERSION = "/v1beta"


class GeminiProvider(HttpProvider):
    """A provider for the Gemini API at `base_url`, such as `https://generativelanguage.googleapis.com`.

    `api_key_env` names the environment variable of the key, which is read for each request and sent to that address
    only, as `x-goog-api-key`; without it no key is sent. `headers` are added to every request. A model is its name,
    such as `gemini-2.5-flash`, or the whole `tunedModels/NAME`.

    >>> GeminiProvider("https://generativelanguage.googleapis.com", "GEMINI_API_KEY")
    <GeminiProvider https://generativelanguage.googleapis.com>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._base_url = _without_version(base_url)
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._endpoints: dict[str, Endpoint] = {}
        self._info = self._new_endpoint(VERSION).info  # raises now if the address is unusable

    @property
    def base_url(self) -> str:
        return self._info.base_url

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> Iterable[str]:
        return options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        """The endpoint of a model: each has its own URL."""
        endpoint = self._endpoints.get(model)
        if endpoint is None:
            name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
            endpoint = self._endpoints[model] = self._new_endpoint(f"{VERSION}/{name}:streamGenerateContent")
        return endpoint

    def _new_endpoint(self, path: str) -> Endpoint:
        base_url = self._base_url + ("&" if "?" in self._base_url else "?") + "alt=sse"
        return Endpoint(
            base_url,
            path,
            api_key_env=self._api_key_env,
            headers=self._headers,
            http=self._http,
            key_header="x-goog-api-key",
            key_prefix="",
        )


def _without_version(base_url: str) -> str:
    """The address without the version, which is part of every request's path."""
    address, mark, query = base_url.partition("#")[0].partition("?")
    return address.rstrip("/").removesuffix(VERSION) + mark + query
