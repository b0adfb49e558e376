"""Provider for the Anthropic Messages API, which several vendors of other models speak too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.anthropic import MESSAGES_PATH, VERSION_PATH
from retinue.providers.anthropic.request import encode, sent_options
from retinue.providers.anthropic.response import Decoder
from retinue.providers.http import Endpoint, HttpProvider

__all__ = ["AnthropicProvider", "Decoder", "encode"]

VERSION = "2023-06-01"
_VERSION_HEADER = "anthropic-version"


class AnthropicProvider(HttpProvider):
    """A provider for the Messages API at `base_url`, such as `https://api.anthropic.com`.

    `api_key_env` names the environment variable of the key, which is read for each request and sent to that address
    only; without it no key is sent. `headers` are added to every request, and may set `anthropic-version`. With
    `full_url`, `base_url` is the complete URL of requests.

    >>> AnthropicProvider("https://api.anthropic.com", "ANTHROPIC_API_KEY")
    <AnthropicProvider https://api.anthropic.com>
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
        headers = dict(headers or {})
        if all(name.lower() != _VERSION_HEADER for name in headers):
            headers[_VERSION_HEADER] = VERSION
        self._endpoint = Endpoint(
            # Other vendors' addresses end in /v1, so users write it here too.
            base_url if full_url else base_url.rstrip("/").removesuffix(VERSION_PATH),
            "" if full_url else MESSAGES_PATH,
            api_key_env=api_key_env,
            headers=headers,
            http=self._http,
            key_header="x-api-key",
            key_prefix="",
        )

    @property
    def base_url(self) -> str:
        return self._endpoint.info.base_url

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> Iterable[str]:
        return sent_options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        return self._endpoint
